// Tables, a hundred rows at a time, and the parts that several views have.

const ROWS_MAX = 100;

// columns: [title, cell of a row, class]. page: where this table keeps which hundred it shows.
function table(caption, columns, rows, page = { at: 0 }, again = () => {}) {
  const pages = Math.max(1, Math.ceil(rows.length / ROWS_MAX));
  page.at = Math.min(page.at, pages - 1);
  const shown = rows.slice(page.at * ROWS_MAX, (page.at + 1) * ROWS_MAX);
  const turn = (by) => () => { page.at += by; again(); };
  return [
    h('div', { class: 'scroll' }, h('table', {},
      h('caption', {}, caption),
      h('thead', {}, h('tr', {}, columns.map(([title, , kind]) => h('th', { scope: 'col', class: kind }, title)))),
      h('tbody', {}, shown.map((row) => h('tr', {}, columns.map(([, cell, kind]) => h('td', { class: kind }, cell(row)))))))),
    pages > 1 && h('div', { class: 'pages' },
      h('button', { type: 'button', 'data-key': `${caption}<`, disabled: page.at === 0, onclick: turn(-1) }, 'Previous'),
      h('span', {}, `${page.at * ROWS_MAX + 1}–${page.at * ROWS_MAX + shown.length} of ${rows.length.toLocaleString('en')}`),
      h('button', { type: 'button', 'data-key': `${caption}>`, disabled: page.at >= pages - 1, onclick: turn(1) }, 'Next')),
  ];
}

const tag = (kind, text = kind.replaceAll('_', ' ')) => h('span', { class: `tag ${kind}` }, text);
const facts = (...pairs) => h('dl', { class: 'facts' }, pairs.filter(Boolean).map(([name, ...value]) => [h('dt', {}, name), h('dd', {}, value)]));
const card = (title, ...children) => h('section', { class: 'card' }, title && h('h2', {}, title), children);
const notice = (...children) => h('p', { class: 'card notice', role: 'status' }, children);
const unknownSizes = (age) => age && age.error && notice(`Sizes are not known, or as of ${age.as_of_ms ? duration(nowMs() - age.as_of_ms) : '–'} ago: ${age.error}`);

const partitionColumns = (isNamed) => [
  ['Partition', ({ topic, row }) => link(partitionPath(topic, row.partition), isNamed ? `${topic}-${row.partition}` : row.partition), 'name'],
  ['State', ({ row }) => tag(row.condition, CONDITIONS[row.condition]), 'nowrap'],
  ['Leader', ({ row }) => row.leader === null ? (row.waits ? `none: ${row.waits.replaceAll('_', ' ')}` : 'none') : link(`#/brokers/${row.leader}`, row.leader)],
  ['Leader epoch', ({ row }) => row.leaderEpoch, 'number'],
  ['In sync', ({ row }) => among(row.isr)],
  ['Replicas', ({ row }) => among(row.replicas)],
  ['Eligible', ({ row }) => among(row.elr)],
];

function brokerTable(brokers) {
  return table(count(brokers.length, 'broker'), [
    ['Broker', (broker) => link(`#/brokers/${broker.id}`, broker.id)],
    ['State', (broker) => [tag(broker.condition), broker.error && h('span', { class: 'warning' }, 'does not answer')], 'nowrap'],
    ['Leads', (broker) => broker.leads.toLocaleString('en'), 'number'],
    ['Replicas', (broker) => broker.hosts.toLocaleString('en'), 'number'],
    ['Not in sync', (broker) => broker.lacking ? h('span', { class: 'warning' }, broker.lacking.toLocaleString('en')) : 0, 'number'],
    ['Size', (broker) => bytes(broker.bytes), 'number'],
    ['Address', (broker) => broker.address ?? UNKNOWN, 'nowrap wide'],
    ['Rack', (broker) => broker.rack ?? UNKNOWN, 'wide'],
  ], brokers);
}

function moveTable(moves) {
  return table(count(moves.length, 'reassignment'), [
    ['Partition', (move) => { const cut = move.partition.lastIndexOf('-'); return link(partitionPath(move.partition.slice(0, cut), move.partition.slice(cut + 1)), move.partition); }, 'name'],
    ['Progress', (move) => progressOf(move)],
    ['Adding', (move) => among(move.adding)],
    ['Removing', (move) => among(move.removing)],
    ['In sync', (move) => among(move.isr)],
    ['Left', (move) => bytes(move.bytes_left), 'number'],
    ['Time left', (move) => move.time_left_ms === null ? UNKNOWN : duration(move.time_left_ms), 'number'],
  ], moves);
}

// The most that was left is what this page has seen: a bar that begins where somebody began to look.
const mostLeft = new Map();

function progressOf(move) {
  if (move.bytes_left === null) return 'not known';
  const most = Math.max(mostLeft.get(move.partition) ?? 0, move.bytes_left);
  mostLeft.set(move.partition, most);
  const done = most === 0 ? 1 : 1 - move.bytes_left / most;
  return h('progress', { max: 1, value: done.toFixed(3), 'aria-label': `${move.partition}: ${Math.round(done * 100)} % copied since this page looked` });
}

const mendOf = (mend) => mend.startsWith('spark-replication ') ? h('code', {}, mend) : mend;

function reasonList(reasons) {
  return h('ul', { class: 'reasons' }, reasons.map((reason) => {
    const [first, ...others] = reason.subjects;
    const more = reason.count > 1 && ` (and ${count(reason.count - 1, 'other')}${others.length ? `: ${others.join(', ')}${reason.count > reason.subjects.length ? ', …' : ''}` : ''})`;
    return h('li', {},
      h('div', {}, tag(reason.severity), h('span', { class: 'what' }, subjectLink(first), ` ${reason.what}`), more),
      reason.because && h('div', { class: 'more' }, `because: ${reason.because}, `, reason.since_ms && when(reason.since_ms), ' ',
        reason.cause && link(`#/events?cause=${encodeURIComponent(reason.cause)}`, 'all that it set off')),
      reason.mend && h('div', { class: 'more' }, 'mend: ', mendOf(reason.mend)));
  }));
}

function subjectLink(subject) {
  const cut = subject.lastIndexOf('-'), topic = subject.slice(0, cut), number = Number(subject.slice(cut + 1));
  if (state.partitions.get(topic)?.has(number)) return link(partitionPath(topic, number), subject);
  const broker = /^broker (\d+)$/.exec(subject);
  return broker ? brokerLink(broker[1]) : subject;
}

const KINDS = { elected: 'in_sync', leaderless: 'critical', isr: 'warning', gone: 'critical' };

const FIRST_MAX = 3; // of what one thing set off; more are folded

// The newest first. What follows from one cause stands together: an example of each kind, and the rest folded.
function eventList(events) {
  if (!events.length) return h('p', { class: 'faint' }, 'none are told');
  const groups = [];
  for (const event of [...events].reverse()) {
    const last = groups[groups.length - 1];
    if (last && event.cause && last[0].cause === event.cause) last.push(event);
    else groups.push([event]);
  }
  return h('ol', { class: 'events' }, groups.map((group) => {
    if (group.length <= FIRST_MAX + 1) return group.map(eventItem);
    const kinds = Object.groupBy(group, (event) => event.kind), first = new Set(Object.values(kinds).map((each) => each[0]).slice(0, FIRST_MAX));
    const rest = group.filter((event) => !first.has(event)), counts = Object.entries(Object.groupBy(rest, (event) => event.kind));
    return [[...first].map(eventItem), h('li', { class: 'folded' }, h('details', {},
      h('summary', {}, `because of the same: ${counts.map(([kind, each]) => `${each.length.toLocaleString('en')} more ${kind.replaceAll('_', ' ')}`).join(', ')}`),
      h('ol', { class: 'events' }, rest.map(eventItem))))];
  }));
}

const eventItem = (event) => h('li', {},
  when(event.at_ms),
  h('span', {}, tag(`kind ${KINDS[event.kind] ?? ''}`, event.kind.replaceAll('_', ' '))),
  h('div', { class: 'story' }, eventSubject(event), ' ', changesOf(event).join(', '), event.why && ` – ${event.why.replaceAll('_', ' ')}`,
    event.because && h('div', { class: 'cause' }, 'because ', event.cause ? link(`#/events?cause=${encodeURIComponent(event.cause)}`, event.because) : event.because)));

function eventSubject(event) {
  if ((event.broker ?? null) !== null) return brokerLink(event.broker);
  if (!event.topic) return null;
  return (event.partition ?? null) === null ? link(topicPath(event.topic), event.topic) : link(partitionPath(event.topic, event.partition), `${event.topic}-${event.partition}`);
}

function changesOf(event) {
  const written = (value) => Array.isArray(value) ? `[${value.join(', ')}]` : value === null || value === undefined ? 'none' : typeof value === 'object' ? JSON.stringify(value) : String(value);
  const named = (name) => name.replaceAll('_', ' ');
  const became = Object.entries(event.became ?? {});
  if (!event.was) return became.filter(([, value]) => value !== null && value !== false && value !== '' && !(Array.isArray(value) && !value.length)).map(([name, value]) => `${named(name)} ${written(value)}`);
  return became.filter(([name, value]) => JSON.stringify(event.was[name]) !== JSON.stringify(value)).map(([name, value]) => `${named(name)} ${written(event.was[name])} → ${written(value)}`);
}
