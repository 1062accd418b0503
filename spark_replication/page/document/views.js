// The views. Each is made once for its address, and brought up to date whenever there is something new.

const DETAIL_MS = 2000;
const SUBJECT_EVENTS = 50;

// A part that is made anew when what it shows has changed. made() may be called at any time.
function part(shown, made) {
  const element = h('div');
  return { element, update: () => refresh(element, shown(), made) };
}

// What is asked for at an address of its own, again and again while it is shown, and only sent if it has changed.
class Detail {
  constructor(path, taken) {
    Object.assign(this, { path, taken, found: null, error: '', mark: null, stopped: false });
    this.ask();
  }

  async ask() {
    while (!this.stopped) {
      try {
        const headers = this.mark ? { 'If-None-Match': this.mark } : {};
        const answer = document.hidden ? null : await fetch(this.path, { headers, cache: 'no-store', signal: AbortSignal.timeout(15000) });
        if (answer && answer.status !== 304) {
          const told = await answer.json();
          this.error = answer.ok ? '' : told.message;
          if (answer.ok) { this.found = told; this.mark = answer.headers.get('ETag'); }
        }
      } catch (error) { this.error = `the page's server does not answer: ${error.message}`; }
      if (!this.stopped) this.taken();
      await new Promise((done) => setTimeout(done, DETAIL_MS));
    }
  }

  stop() { this.stopped = true; }
}

// shown: what it is made of, besides what was found.
function detailParts(path, made, shown = (found) => [found, state.version]) {
  let parts = [];
  const detail = new Detail(path, () => parts.forEach((each) => each.update()));
  parts = [
    part(() => detail.error, () => detail.error && notice(detail.error)),
    part(() => (detail.found ? shown(detail.found) : ''), () => detail.found && made(detail.found)),
  ];
  return { parts, stop: () => detail.stop() };
}

function eventParts(query, title, filter = () => true) {
  return detailParts(`/api/events?${query}`, (found) => card(title,
    found.age.error && notice(`Events cannot be told${found.age.as_of_ms ? ` (these are as of ${duration(nowMs() - found.age.as_of_ms)} ago)` : ''}: ${found.age.error}`),
    eventList(found.events.filter(filter))), (found) => [found.events, found.age.error]);
}

const view = (title, ...pieces) => ({
  title,
  parts: pieces.flatMap((piece) => piece.parts ?? [piece]),
  stop: () => pieces.forEach((piece) => piece.stop?.()),
});
const heading = (...made) => part(() => '', () => h('h1', {}, made));
const linkLine = (to, ...made) => part(() => '', () => h('p', {}, link(to, made)));

// Filters that the views of all partitions share.
const filters = { text: '', conditions: new Set() };
const openPartition = (topic, number) => { location.hash = partitionPath(topic, number); };

function filtered() {
  const found = [];
  for (const each of allPartitions()) {
    if (filters.conditions.size && !each.row.conditions.some((condition) => filters.conditions.has(condition))) continue;
    if (filters.text && !`${each.topic}-${each.row.partition}`.includes(filters.text)) continue;
    found.push(each);
  }
  return found;
}

function partitionParts({ withTable }) {
  const grid = new Grid(openPartition), page = { at: 0 };
  let found = [];
  const counted = () => {
    const counts = Object.fromEntries(Object.keys(CONDITIONS).map((each) => [each, 0]));
    for (const { row } of allPartitions()) for (const condition of row.conditions) counts[condition] += 1;
    return counts;
  };
  const again = () => parts.forEach((each) => each.update());
  const chosen = () => [state.version, filters.text, [...filters.conditions]];
  const toggle = (condition) => () => {
    if (!filters.conditions.delete(condition)) filters.conditions.add(condition);
    page.at = 0;
    again();
  };
  const search = h('input', {
    type: 'search', placeholder: 'topic or partition', 'aria-label': 'Show partitions whose name has', value: filters.text,
    oninput: (event) => { filters.text = event.target.value.trim(); page.at = 0; again(); },
  });
  const legend = part(() => [counted(), [...filters.conditions]], () => {
    const counts = counted();
    return h('div', { class: 'bar', role: 'group', 'aria-label': 'Show only' }, Object.entries(CONDITIONS).map(([condition, name]) =>
      h('button', { type: 'button', 'data-key': condition, 'aria-pressed': String(filters.conditions.has(condition)), onclick: toggle(condition) },
        h('span', { class: `swatch ${condition}`, 'aria-hidden': 'true' }), `${name} ${counts[condition].toLocaleString('en')}`)));
  });
  const cells = { element: grid.element, update: () => {
    const mark = JSON.stringify(chosen());
    if (mark === grid.mark) return;
    grid.mark = mark;
    found = filtered();
    grid.show(found);
    none.update();
  } };
  const none = part(() => [found.length, state.version === null], () => !found.length && h('p', { class: 'faint' }, state.partitions.size ? 'no partition is like that' : 'there are no partitions'));
  const list = withTable && part(() => [chosen(), page.at], () => [h('h2', {}, 'The same as a list'), table(count(found.length, 'partition'), partitionColumns(true), found, page, again)]);
  const parts = [legend, cells, none, ...(list ? [list] : [])];
  const box = h('section', { class: 'card' }, h('div', { class: 'bar' }, h('h2', {}, 'Partitions'), search,
    h('span', { class: 'faint' }, 'arrow keys and ', h('kbd', {}, 'Enter'), ' in the grid')), legend.element, grid.element, none.element);
  return { parts: [{ element: box, update: again }, ...(list ? [{ element: h('section', { class: 'card' }, list.element), update: () => {} }] : [])] };
}

const tile = (name, value, kind, to) => h(to ? 'a' : 'div', { class: `tile ${value ? kind ?? '' : ''}`, href: to, 'data-key': name }, h('b', {}, value.toLocaleString('en')), h('span', {}, name));

function tiles() {
  const health = state.health;
  const sum = (name) => {
    const known = [...state.topics.values()].map((topic) => topic[name]).filter((value) => value !== null);
    return known.length ? known.reduce((total, value) => total + value, 0) : null;
  };
  if (!health) return null;
  return h('div', { class: 'tiles' },
    tile('brokers live', health.brokers, '', '#/brokers'), tile('topics', health.topics, '', '#/topics'), tile('partitions', health.partitions, '', '#/partitions'),
    tile(CONDITIONS.leaderless, health.leaderless, 'critical', '#/partitions'), tile(CONDITIONS.under_min_isr, health.under_min_isr, 'critical', '#/partitions'),
    tile(CONDITIONS.under_replicated, health.under_replicated, 'warning', '#/partitions'), tile(CONDITIONS.moving, health.moving, '', '#/moves'),
    h('div', { class: 'tile' }, h('b', {}, bytes(sum('bytes'))), h('span', {}, sum('bytes_per_s') === null ? 'in leaders\' logs' : `${byteRate(sum('bytes_per_s'))} written`)));
}

function overview() {
  return view('Overview',
    part(() => [state.health?.incidents, [...state.topics.keys()].length], () => state.health?.incidents.length ? card('Why', incidentList(state.health.incidents)) : null),
    part(() => [state.health, state.moves.length, [...state.topics.values()].map((each) => [each.bytes, each.bytes_per_s])], tiles),
    partitionParts({ withTable: false }),
    part(() => state.brokers, () => card('Brokers', brokerTable(state.brokers))),
    part(() => state.moves, () => state.moves.length ? card('Reassignments under way', moveTable(state.moves)) : null),
    eventParts('last=60', 'What happened last'));
}

function topicsView() {
  const page = { at: 0 }, chosen = { text: '' };
  const listed = () => [...state.topics.values()].filter((topic) => topic.name.includes(chosen.text)).sort((a, b) => a.name < b.name ? -1 : 1);
  const flagged = (number, kind) => number ? h('span', { class: kind }, number) : 0;
  const list = part(() => [listed(), page.at], () => table(count(listed().length, 'topic'), [
    ['Topic', (topic) => link(topicPath(topic.name), topic.name), 'name'],
    ['Partitions', (topic) => topic.partitions.toLocaleString('en'), 'number'],
    ['Replicas', (topic) => topic.replicas, 'number'],
    ['Leaderless', (topic) => flagged(topic.leaderless, 'critical'), 'number'],
    ['Under min ISR', (topic) => flagged(topic.under_min_isr, 'critical'), 'number'],
    ['Under replicated', (topic) => flagged(topic.under_replicated, 'warning'), 'number'],
    ['Moving', (topic) => topic.moving, 'number'],
    ['Size', (topic) => bytes(topic.bytes), 'number'],
    ['Written', (topic) => byteRate(topic.bytes_per_s), 'number'],
    ['Lag', (topic) => amount(topic.lag), 'number'],
  ], listed(), page, () => list.update()));
  const search = h('input', { type: 'search', placeholder: 'name', 'aria-label': 'Show topics whose name has', oninput: (event) => { chosen.text = event.target.value.trim(); page.at = 0; list.update(); } });
  const box = h('section', { class: 'card' }, h('div', { class: 'bar' }, search), list.element);
  return view('Topics', heading('Topics'), { element: box, update: () => list.update() });
}

// Of a topic that is a table. place: where it lies; what nobody knows is said to be so.
function tableCard(table, place) {
  const { whole } = table;
  const known = (value, written) => value === null ? h('span', { class: 'warning' }, 'not known') : written(value);
  return card('Table', facts(
    ['Where', place],
    [capital(TABLE_WORDS.rows_behind), known(whole.rows_behind, exactly)],
    [capital(TABLE_WORDS.seconds_behind), known(whole.ms_behind, exactSeconds)],
    [capital(TABLE_WORDS.held_back_bytes), known(whole.held_back_bytes, bytes), whole.held_back_bytes > 0 && ', which logs keep until the table has it'],
    whole.not_known > 0 && ['Not known', `where the table ends, of ${count(whole.not_known, 'partition')}: no writer has told the leader yet, or there is none that answers`]));
}

function topicView(name) {
  const page = { at: 0 };
  const told = new Detail(`/api/settings?topic=${encodeURIComponent(name)}`, () => detail.parts.forEach((each) => each.update()));
  const place = () => told.found?.table_uri ? h('code', {}, told.found.table_uri) : UNKNOWN;
  const detail = detailParts(`/api/topics/${encodeURIComponent(name)}`, (found) => {
    const rows = [...(state.partitions.get(name)?.values() ?? [])].map((row) => ({ topic: name, row })), sizes = new Map(found.sizes.map((each) => [each[0], each]));
    const offsets = (row) => sizes.get(row.partition)?.slice(4) ?? [];
    const ends = new Map((found.table?.partitions ?? []).map((each) => [each[0], each]));
    const ofTable = found.table ? [
      [capital(TABLE_WORDS.table_end), ({ row }) => exactly(ends.get(row.partition)?.[1]), 'number wide'],
      [capital(TABLE_WORDS.rows_behind), ({ row }) => exactly(ends.get(row.partition)?.[2]), 'number'],
    ] : [];
    const extra = [
      ['Records', ({ row }) => exactly(recordsIn(offsets(row)[0], offsets(row)[2])), 'number'],
      ['Log start', ({ row }) => exactly(offsets(row)[0]), 'number wide'],
      ['High watermark', ({ row }) => exactly(offsets(row)[1]), 'number wide'],
      ['Log end', ({ row }) => exactly(offsets(row)[2]), 'number wide'],
      ...ofTable,
      ['Size', ({ row }) => bytes(sizes.get(row.partition)?.[1]), 'number'],
      ['Written', ({ row }) => byteRate(sizes.get(row.partition)?.[2]), 'number'],
      ['Lag', ({ row }) => amount(sizes.get(row.partition)?.[3]), 'number'],
    ];
    const list = part(() => page.at, () => table(count(rows.length, 'partition'), [...partitionColumns(false), ...extra], rows, page, () => list.update()));
    list.update();
    return [
      unknownSizes(found.age), card(null, charts(found.series)), found.table && tableCard(found.table, place()), card('Partitions', list.element),
      h('div', { class: 'columns' },
        card('Settings of its own', Object.keys(found.settings).length ? facts(...Object.entries(found.settings).map(([setting, value]) => [setting, h('code', {}, String(value))])) : h('p', { class: 'faint' }, 'none'), facts(['id', h('code', {}, found.topic_id)])),
        card(`Schema, version ${found.schema_version}`, found.schema_error && h('p', { class: 'warning' }, found.schema_error), facts(...found.columns.map(([column, type]) => [column, h('code', {}, type)])))),
    ];
  }, (found) => [found, state.version, told.found?.table_uri]);
  return view(name, heading('Topic ', name), linkLine(recordsPath(name), 'Records'), detail, { parts: [], stop: () => told.stop() }, groupsOfTopic(name), settingParts(`topic=${encodeURIComponent(name)}`, 'Settings that hold for it'), eventParts(`topic=${encodeURIComponent(name)}&last=${SUBJECT_EVENTS}`, 'What happened to it'));
}

function partitionView(topic, number) {
  const detail = detailParts(`/api/topics/${encodeURIComponent(topic)}/${number}`, (found) => {
    const row = rowOf(found.row), leader = found.replicas.find((replica) => replica.role === 'leader');
    return [
      found.trouble && card('Why', h('ul', { class: 'reasons' }, h('li', {}, h('div', { class: 'what' }, found.trouble), found.mends.map((each) => mendOf('mend', each)), guideLink(found.guide)))),
      unknownSizes(found.age),
      card(null, facts(
        ['State', tag(row.condition, CONDITIONS[row.condition])],
        ['Leader', row.leader === null ? `none${row.waits ? `: ${waitsFor(row.waits)}` : ''}` : brokerLink(row.leader)],
        ['Chosen', row.elected === null ? 'as the partition was made' : `since ${inWords(CHOSEN, row.elected)}`],
        ['Records', exactly(recordsIn(leader?.log_start, leader?.log_end))],
        ['Offsets', leader ? `log start ${exactly(leader.log_start)}, high watermark ${exactly(leader.high_watermark)}, log end ${exactly(leader.log_end)}` : 'not known without a leader: each replica has its own below'],
        ['Epochs', `leader ${row.leaderEpoch}, partition ${row.partitionEpoch}`],
        ['In sync', `${among(row.isr)} (needs ${row.minIsr} for acks=all)`],
        ['Eligible (ELR)', among(row.elr)],
        found.last_known_elr.length && ['Last known ELR', among(found.last_known_elr)],
        found.last_known_leader !== null && ['Last known leader', brokerLink(found.last_known_leader)],
        found.recovering && ['Recovering', 'yes: its log was chosen without proof that it has everything'],
        found.start_at !== null && ['Log starts', `at offset ${exactly(found.start_at)} or above: all below is in the topic's table`])),
      found.move && card('Reassignment', moveTable([found.move])),
      card('Replicas', table('in order of preference', [
        ['Broker', (replica) => brokerLink(replica.broker)],
        ['Role', (replica) => [replica.role, replica.is_adding && ', being added', replica.is_removing && ', being removed']],
        ['Broker is', (replica) => tag(replica.is_live ? 'live' : 'gone')],
        ['Size', (replica) => [bytes(replica.bytes), replica.error && h('div', { class: 'warning' }, 'does not answer')], 'number'],
        ['Lag, records', (replica) => amount(replica.lag), 'number'],
        ['Log start', (replica) => exactly(replica.log_start), 'number wide'],
        ['High watermark', (replica) => exactly(replica.high_watermark), 'number wide'],
        ['Log end', (replica) => exactly(replica.log_end), 'number'],
      ], found.replicas)),
      card(null, charts(found.series)),
    ];
  });
  const name = `${topic}-${number}`;
  return view(name, heading(link(topicPath(topic), topic), ` partition ${number}`), linkLine(recordsPath(topic, number), 'Records'), detail, eventParts(`partition=${encodeURIComponent(name)}&last=${SUBJECT_EVENTS}`, 'What happened to it'));
}

// A row for each value: what everybody has alike is said once. The page shows settings, and changes none.
function settingParts(query, title, before = () => null) {
  const page = { at: 0 };
  return detailParts(`/api/settings?${query}`, (found) => {
    const everybody = new Set(found.rows.flatMap(([, , , processes]) => processes)).size;
    const list = part(() => page.at, () => table(count(found.rows.length, 'value'), [
      ['Setting', ([setting]) => h('code', {}, setting), 'name'],
      ['Value', ([, value]) => value === '' ? h('span', { class: 'faint' }, 'empty') : h('code', {}, String(value))],
      ['From', ([, , origin]) => origin === 'default' ? h('span', { class: 'faint' }, origin) : origin],
      everybody > 1 && ['In force at', ([, , , processes]) => processes.length === everybody ? 'every process' : processes.join(', ')],
    ].filter(Boolean), found.rows, page, () => list.update()));
    list.update();
    return [before(found), card(title,
      found.age.error && notice(`Settings cannot be told: ${found.age.error}`),
      Object.entries(found.errors).map(([process, why]) => notice(`${process} does not tell its settings: ${why}`)),
      found.rows.length > 0 && list.element)];
  }, (found) => [found.rows, found.of_cluster, found.directories, found.errors, found.age.error]);
}

function settingsView() {
  const own = ({ of_cluster: settings }) => card('The cluster\'s own',
    settings === null ? h('p', { class: 'faint' }, 'nobody tells them')
      : Object.keys(settings).length ? facts(...Object.entries(settings).map(([setting, value]) => [setting, h('code', {}, String(value))]))
        : h('p', { class: 'faint' }, 'none'),
    h('p', { class: 'faint' }, h('code', {}, 'spark-replication settings set'), ' changes them'));
  const about = part(() => state.health?.cluster_id, () => state.health && card('About this cluster', facts(['Id', h('code', {}, state.health.cluster_id)])));
  return view('Settings', heading('Settings'), settingParts('', 'In force', own), about);
}

const ACL_KINDS = { topic: 'topic ', prefix: 'topics named ', group: 'group ', group_prefix: 'groups named ' };

// Who may do what, as `acls list` has it. What may not be seen is said to be so, and why.
function aclsView() {
  const page = { at: 0 };
  const detail = detailParts('/api/acls', (found) => {
    if (found.age.error) return notice(`ACLs cannot be told: ${found.age.error}`);
    const list = part(() => page.at, () => table(count(found.acls.length, 'ACL'), [
      ['Principal', ([principal]) => principal === '*' ? 'everybody' : h('code', {}, principal), 'name'],
      ['May', ([, effect, right]) => effect === 'deny' ? h('span', { class: 'critical' }, `not ${right}`) : right],
      ['On', ([, , , kind, name]) => kind === 'cluster' ? 'the cluster' : [inWords(ACL_KINDS, kind), h('code', {}, kind.endsWith('prefix') ? `${name}…` : name)]],
      ['From', ([, , , , , host]) => host || h('span', { class: 'faint' }, 'anywhere')],
    ], found.acls, page, () => list.update()));
    list.update();
    return [
      !found.super_users.length && notice('security.super.users is empty: ACLs do not count, and whoever is let in may do everything.'),
      card(null, found.super_users.length > 0 && facts(['May do everything', found.super_users.map((name, place) => [place > 0 && ', ', h('code', {}, name)])]),
        found.acls.length ? list.element : h('p', { class: 'faint' }, 'no ACLs'),
        h('p', { class: 'faint' }, h('code', {}, 'spark-replication acls add'), ' and ', h('code', {}, 'remove'), ' change them')),
    ];
  }, (found) => [found.acls, found.super_users, found.age.error]);
  return view('ACLs', heading('ACLs'), detail);
}

function brokersView() {
  return view('Brokers', heading('Brokers'), part(() => state.brokers, () => card(null, brokerTable(state.brokers))));
}

function brokerView(id) {
  const page = { at: 0 }, name = `broker ${id}`;
  const told = new Detail(`/api/settings?broker=${id}`, () => detail.parts.forEach((each) => each.update()));
  const place = () => {
    const { directories, errors, age } = told.found ?? {};
    if (directories?.[name]) return h('code', {}, directories[name]);
    const why = told.error || errors?.[name] || age?.error;
    return why ? h('span', { class: 'faint' }, `not told: ${why}`) : UNKNOWN;
  };
  const detail = detailParts(`/api/brokers/${id}`, (found) => {
    const row = found.row;
    const list = part(() => page.at, () => table(found.hosted.length < row.hosts ? `the first ${found.hosted.length.toLocaleString('en')} of ${count(row.hosts, 'replica')}` : count(row.hosts, 'replica'), [
      ['Partition', ([topic, number]) => link(partitionPath(topic, number), `${topic}-${number}`), 'name'],
      ['Role', ([, , role]) => role === 'not in sync' ? h('span', { class: 'warning' }, role) : role],
      ['Size', ([, , , size]) => bytes(size), 'number'],
    ], found.hosted, page, () => list.update()));
    list.update();
    return [
      row.error && notice(`It does not say how large its logs are: ${row.error}`),
      card(null, facts(['State', tag(row.condition)], ['Address', row.address ?? UNKNOWN], ['Rack', row.rack ?? UNKNOWN], ['Epoch', row.epoch ?? UNKNOWN],
        ['Log directory', row.condition === 'gone' ? UNKNOWN : place()],
        ['Leads', count(row.leads, 'partition')], ['Has', count(row.hosts, 'replica')], ['Not in sync', row.lacking], ['Size', bytes(row.bytes)],
        ['Metrics', h('a', { href: `/brokers/${row.id}/metrics` }, `/brokers/${row.id}/metrics`)])),
      card(null, charts(found.series)),
      card('Replicas', list.element),
    ];
  }, (found) => [found, state.version, told.found?.directories, told.error]);
  return view(`Broker ${id}`, heading('Broker ', id), detail, { parts: [], stop: () => told.stop() }, eventParts(`broker=${id}&last=${SUBJECT_EVENTS}`, 'What happened to it'));
}

function movesView() {
  return view('Moves', heading('Reassignments under way'), part(() => state.moves, () => card(null, state.moves.length ? moveTable(state.moves) : h('p', { class: 'faint' }, 'none. ', h('code', {}, 'spark-replication reassign plan'), ' makes one'))));
}

const ELECTIONS = ['elected', 'leaderless'];

function eventsView(query) {
  const cause = query.get('cause'), onlyElections = query.get('kind') === 'elections';
  const filter = (event) => !onlyElections || ELECTIONS.includes(event.kind);
  const asked = cause ? `cause=${encodeURIComponent(cause)}&last=500` : `last=${onlyElections ? 1000 : 200}`;
  const choices = h('div', { class: 'bar', role: 'group', 'aria-label': 'Which events' },
    [['#/events', 'Everything', !cause && !onlyElections], ['#/events?kind=elections', 'Elections', onlyElections]].map(([to, name, isChosen]) => h('a', { href: to, 'aria-current': isChosen ? 'true' : null, 'data-key': to }, name)),
    cause && h('span', {}, `all that ${cause} set off`));
  return view('Events', heading('Events'), { element: choices, update: () => {} }, eventParts(asked, onlyElections ? 'Elections, the newest first' : 'The newest first', filter));
}

function partitionsView() {
  return view('Partitions', heading('Partitions'), partitionParts({ withTable: true }));
}
