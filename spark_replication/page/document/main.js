// Which view is shown, and the loop that follows the cluster.

const VIEWS = [['#/', 'Overview'], ['#/partitions', 'Partitions'], ['#/topics', 'Topics'], ['#/groups', 'Groups'], ['#/brokers', 'Brokers'], ['#/moves', 'Moves'], ['#/events', 'Events'], ['#/settings', 'Settings'], ['#/acls', 'ACLs']];
const STALE_MS = 5000;
const RETRY_MS = 1000;
const LEAST_MS = 150; // between two questions, however much changes

let shown = null;

function viewOf(hash) {
  const [path, query = ''] = hash.replace(/^#?\/?/, '').split('?');
  const [kind = '', ...names] = path.split('/').map(decodeURIComponent);
  if (kind === 'topics' && names.length === 2 && /^\d+$/.test(names[1])) return partitionView(names[0], Number(names[1]));
  if (kind === 'topics' && names.length === 2 && names[1] === 'records') return recordsView(names[0], query);
  if (kind === 'topics') return names.length === 1 ? topicView(names[0]) : topicsView();
  if (kind === 'groups') return names.length === 1 ? groupView(names[0]) : groupsView();
  if (kind === 'brokers') return /^\d+$/.test(names[0] ?? '') ? brokerView(Number(names[0])) : brokersView();
  return ({ partitions: partitionsView, moves: movesView, settings: settingsView, acls: aclsView, events: () => eventsView(new URLSearchParams(query)) }[kind] ?? overview)();
}

function show() {
  shown?.stop();
  byId('tip').hidden = true;
  shown = viewOf(location.hash);
  document.title = `${shown.title} – spark_replication`;
  byId('view').replaceChildren(...shown.parts.map((each) => each.element));
  const at = `#/${location.hash.replace(/^#?\/?/, '').split(/[/?]/)[0]}`;
  refresh(byId('views'), at, () => VIEWS.map(([to, name]) => h('a', { href: to, 'aria-current': to === at ? 'page' : null, 'data-key': to }, name)));
  update();
}

function banner() {
  const health = state.health;
  if (!health) return h('div', { class: 'verdict unknown', role: 'status' }, h('strong', {}, state.version === null && !state.silent ? 'asking…' : 'unknown'), h('span', {}, why()));
  return [
    h('div', { class: `verdict ${health.verdict}`, role: 'status' }, h('strong', {}, health.verdict),
      h('span', {}, `${count(health.brokers, 'broker')}, ${count(health.topics, 'topic')}, ${count(health.partitions, 'partition')}; controller ${health.controller ?? 'none'}`),
      health.incidents.length > 0 && h('span', { class: 'faint' }, count(health.incidents.length, 'cause'))),
    why() && notice(`What is shown is not of now: ${why()}`),
  ];
}

const why = () => state.silent || state.ages.cluster?.error || '';

function update() {
  refresh(byId('banner'), [state.health, why(), state.version === null], banner);
  byId('brand').title = state.health ? `cluster ${state.health.cluster_id}` : '';
  for (const each of shown?.parts ?? []) each.update();
  showAge();
  document.documentElement.dataset.version = state.version ?? '';
}

function showAge() {
  const asOf = state.ages.cluster?.as_of_ms, age = byId('age');
  const old = asOf ? nowMs() - asOf : null;
  age.textContent = old === null ? 'no answer yet' : `as of ${duration(old)} ago`;
  age.classList.toggle('stale', Boolean(why()) || (old !== null && old > STALE_MS));
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const visible = () => new Promise((done) => {
  if (!document.hidden) done();
  else document.addEventListener('visibilitychange', done, { once: true });
});

async function follow() {
  for (;;) {
    const began = performance.now();
    try {
      if (take(await ask(state.version === null ? '/api/view' : `/api/view?since=${state.version}`)) || why() !== banner.why) update();
      banner.why = why();
      await pause(LEAST_MS - (performance.now() - began));
    } catch (error) {
      state.silent = error instanceof Refused ? error.message : `the page's server does not answer (${error.message})`;
      update();
      await pause(RETRY_MS);
    }
    await visible();
  }
}

addEventListener('hashchange', () => { show(); byId('content').focus({ preventScroll: true }); scrollTo(0, 0); });
setInterval(showAge, 1000);
show();
follow();
