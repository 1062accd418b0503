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
  ['Leader', ({ row }) => row.leader === null ? (row.waits ? `none: ${waitsFor(row.waits)}` : 'none') : link(`#/brokers/${row.leader}`, row.leader)],
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

// Words, and a line for each command: a click copies it.
const commandLine = (command) => h('div', { class: 'command' }, h('code', {}, command),
  h('button', { type: 'button', 'data-key': command, 'aria-label': `Copy: ${command}`, onclick: (event) => copy(command, event.currentTarget) }, 'copy'));
const mendOf = (name, mend) => h('div', { class: 'more' }, `${name}: ${mend.words}${mend.words && mend.commands.length ? ':' : ''}`, mend.commands.map(commandLine));
const mendsOf = (mends) => mends.map((mend, place) => mendOf(place ? 'or' : 'mend', mend));

// A place is a page and a section of it: operate#a-clock-is-wrong.
function guideLink(place) {
  if (!place) return null;
  const [page, section] = place.split('#');
  return h('div', { class: 'more' }, 'more: ', h('a', { href: `/docs/${page}.md${section ? `#${section}` : ''}`, 'data-key': `${place} of the guide`, title: `spark-replication guide ${place}` }, `the guide on this`));
}

async function copy(text, button) {
  try { await navigator.clipboard.writeText(text); button.textContent = 'copied'; } catch { getSelection().selectAllChildren(button.previousSibling); }
}

function consequenceOf({ count: number, what, subjects }) {
  const links = subjects.flatMap((each, place) => [place > 0 && ', ', subjectLink(each)]);
  return [`${count(number, 'partition')} ${what} (`, ...links, number > subjects.length && ', …', ')'];
}

function incidentList(incidents) {
  return h('ul', { class: 'reasons' }, incidents.map((incident) => h('li', {},
    h('div', {}, tag(incident.severity), h('span', { class: 'what' }, incident.what)),
    incident.consequences.length > 0 && h('ul', { class: 'consequences' }, incident.consequences.map((each) => h('li', {}, ...consequenceOf(each)))),
    incident.because && h('div', { class: 'more' }, `because: ${incident.because}, `, incident.since_ms && when(incident.since_ms), ' ',
      incident.cause && link(`#/events?cause=${encodeURIComponent(incident.cause)}`, 'all that it set off')),
    mendsOf(incident.mends), guideLink(incident.guide))));
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
  h('div', { class: 'story' }, eventSubject(event), ' ', changesOf(event).join(', '), event.why && ` – ${event.kind === 'elected' ? inWords(CHOSEN, event.why) : waitsFor(event.why)}`,
    event.because && h('div', { class: 'cause' }, 'because ', event.cause ? link(`#/events?cause=${encodeURIComponent(event.cause)}`, event.because) : event.because)));

function eventSubject(event) {
  if ((event.broker ?? null) !== null) return brokerLink(event.broker);
  if (!event.topic) return null;
  return (event.partition ?? null) === null ? link(topicPath(event.topic), event.topic) : link(partitionPath(event.topic, event.partition), `${event.topic}-${event.partition}`);
}

const NOT_FOR_PEOPLE = new Set(['incarnation', 'topic_id']); // long ids that tell nobody anything: `mirror events` has them

function changesOf(event) {
  const written = (value) => Array.isArray(value) ? `[${value.join(', ')}]` : value === null || value === undefined ? 'none' : typeof value === 'object' ? JSON.stringify(value) : String(value);
  const named = (name) => name.replaceAll('_', ' ');
  const became = Object.entries(event.became ?? {}).filter(([name]) => !NOT_FOR_PEOPLE.has(name));
  if (!event.was) return became.filter(([, value]) => value !== null && value !== false && value !== '' && !(Array.isArray(value) && !value.length)).map(([name, value]) => `${named(name)} ${written(value)}`);
  return became.filter(([name, value]) => JSON.stringify(event.was[name]) !== JSON.stringify(value)).map(([name, value]) => `${named(name)} ${written(event.was[name])} → ${written(value)}`);
}
