// What the page knows: the newest view, put together from what has changed since the last one.

const state = {
  version: null, health: null, brokers: [], moves: [], ages: {},
  topics: new Map(), partitions: new Map(),
  aheadMs: 0, heardAt: null, silent: '',
};

const nowMs = () => Date.now() + state.aheadMs;

const rowOf = (list) => ({
  partition: list[0], conditions: list[1], condition: list[1][0], leader: list[2], leaderEpoch: list[3], partitionEpoch: list[4], minIsr: list[5],
  replicas: list[6], isr: list[7], elr: list[8], elected: list[9], waits: list[10],
});

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(path, timeoutMs = 15000) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(timeoutMs), headers: { Accept: 'application/json' } });
  if (answer.ok) return answer.json();
  if (answer.status === 401) location.assign('/');
  const told = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, told.message ?? `the server answered ${answer.status}`);
}

// Whether there is anything new.
function take(view) {
  state.aheadMs = view.now_ms - Date.now();
  state.heardAt = performance.now();
  state.silent = '';
  state.ages = view.ages;
  if (view.version === state.version) return false;
  if (view.whole) { state.topics.clear(); state.partitions.clear(); }
  for (const topic of view.topics) state.topics.set(topic.name, topic);
  for (const [topic, lists] of Object.entries(view.partitions)) {
    let rows = state.partitions.get(topic);
    if (!rows) state.partitions.set(topic, rows = new Map());
    for (const list of lists) rows.set(list[0], rowOf(list));
  }
  Object.assign(state, { version: view.version, health: view.health, brokers: view.brokers, moves: view.moves });
  return true;
}

function* allPartitions() {
  for (const topic of [...state.partitions.keys()].sort()) {
    for (const row of state.partitions.get(topic).values()) yield { topic, row };
  }
}
