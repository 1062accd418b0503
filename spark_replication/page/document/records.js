// The records of a topic: a look at a place of its log, older and newer ones from there, and a tail that follows it.

const RECORDS_MAX = 200;
const TAIL_MS = 1000;
const NUMBERS = /^(u?int|half|float|double|decimal)/;
const STARTS = [['newest', 'newest'], ['earliest', 'earliest'], ['offset', 'at offset'], ['time', 'at time (UTC)']];
const PLACES = { offset: '1200', time: '2026-11-03 10:00' };

const toTheMillisecond = (milliseconds) => new Date(milliseconds).toISOString().replace('T', ' ').replace('Z', '');
const recordsPath = (topic, partition = null) => `${topicPath(topic)}/records${partition === null ? '' : `?partition=${partition}`}`;

// What an answer has shown of each partition, and what came after it. rows: the newest first.
class SeenRecords {
  constructor(found) {
    Object.assign(this, { topicId: found.topic_id, skipped: 0 });
    this.spans = new Map();
    this.rows = [];
    this.add(found);
  }

  add(found) {
    for (const [partition, start, end, logStart, highWatermark] of found.seen) {
      const known = this.spans.get(partition);
      this.skipped += known ? Math.max(0, start - known.end) : 0;
      this.spans.set(partition, { start: known?.start ?? start, end, logStart, highWatermark });
    }
    Object.assign(this, { isCut: found.is_cut, leaderless: found.leaderless, columns: found.columns, inAll: found.columns_in_all });
    this.rows = [...found.rows.toReversed(), ...this.rows];
    // What is shown no longer is older from then on.
    for (const [partition, offset] of this.rows.splice(RECORDS_MAX)) {
      const span = this.spans.get(partition);
      span.start = Math.max(span.start, offset + 1);
    }
  }

  get hasOlder() { return [...this.spans.values()].some(({ start, logStart }) => start > logStart); }

  edge(side) { return [...this.spans].map(([partition, span]) => `${partition}:${span[side]}`).join(','); }
}

class RecordsLook {
  constructor(topic, query, changed) {
    const given = new URLSearchParams(query), start = given.get('start') || 'newest';
    const kind = ['newest', 'earliest'].includes(start) ? start : /^\d+$/.test(start) ? 'offset' : 'time';
    this.asked = { partition: given.get('partition') ?? '', kind, at: kind === start ? '' : start, where: given.get('where') ?? '', columns: given.getAll('column') };
    Object.assign(this, { topic, changed, seen: null, error: '', note: '', isAsking: false, isTailing: false, turn: 0, tails: 0 });
  }

  get start() { return this.asked.kind in PLACES ? this.asked.at.trim() : this.asked.kind; }

  query(place) {
    const { partition, where, columns } = this.asked;
    return new URLSearchParams([...Object.entries({ partition, where, ...place }).filter(([, value]) => value !== ''), ...columns.map((name) => ['column', name])]);
  }

  // Only the newest question's answer counts.
  async ask(place) {
    const turn = this.turn += 1;
    this.isAsking = true;
    this.changed();
    try {
      const found = await ask(`/api/topics/${encodeURIComponent(this.topic)}/records?${this.query(place)}`, 30000);
      if (turn !== this.turn) return null;
      this.error = '';
      return found;
    } catch (error) {
      if (turn === this.turn) this.error = error instanceof Refused ? error.message : `the page's server does not answer: ${error.message}`;
      return null;
    } finally {
      if (turn === this.turn) { this.isAsking = false; this.changed(); }
    }
  }

  async look() {
    history.replaceState(null, '', `${topicPath(this.topic)}/records?${this.query({ start: this.start === 'newest' ? '' : this.start })}`);
    this.isTailing = false;
    const found = await this.ask({ start: this.start });
    if (found) this.show(new SeenRecords(found), '');
  }

  async page(way, edge) {
    this.isTailing = false;
    const found = await this.ask({ [way]: this.seen.edge(edge) });
    if (!found) return;
    const moved = found.seen.some(([, start, end]) => end > start);
    if (moved) this.show(new SeenRecords(found), '');
    else this.show(this.seen, `there is nothing ${way} yet that fulfils this`);
  }

  show(seen, note) {
    Object.assign(this, { seen, note });
    announce(`${count(seen.rows.length, 'record')} ${note}`);
    this.changed();
  }

  toggle() {
    this.isTailing = !this.isTailing;
    this.note = '';
    this.changed();
    if (this.isTailing) this.follow(this.tails += 1);
  }

  // From the newest record on, wherever the view was.
  async follow(tail) {
    const goesOn = () => this.isTailing && tail === this.tails;
    const isAtEnd = this.seen && [...this.seen.spans.values()].every(({ end, highWatermark }) => end === highWatermark);
    if (!isAtEnd) {
      const found = await this.ask({ start: 'newest' });
      if (found) this.show(new SeenRecords(found), '');
    }
    while (goesOn()) {
      await pause(TAIL_MS);
      await visible();
      if (!goesOn()) return;
      const found = await this.ask(this.seen ? { tail: this.seen.edge('end') } : { start: 'newest' });
      if (found && this.seen?.topicId === found.topic_id) this.seen.add(found);
      else if (found) this.show(new SeenRecords(found), this.seen ? 'The topic was made again: these are records of the new one' : '');
      this.changed();
    }
  }

  stop() { this.isTailing = false; this.turn += 1; }
}

const recordCell = (text, type) => text === null ? h('span', { class: 'faint' }, 'null') : text === '' ? h('span', { class: 'faint' }, 'empty') : NUMBERS.test(type) ? text : h('span', { class: 'value' }, text);

function recordTable(seen, isOfOne) {
  const caption = seen.rows.length ? `${count(seen.rows.length, 'record')}, the newest first` : 'no records here';
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Records', 'data-key': 'records' }, h('table', { class: 'records' },
    h('caption', {}, caption),
    h('thead', {}, h('tr', {},
      !isOfOne && h('th', { scope: 'col', class: 'number' }, 'Partition'), h('th', { scope: 'col', class: 'number' }, 'Offset'), h('th', { scope: 'col' }, 'Time, UTC'),
      seen.columns.map(([name, type]) => h('th', { scope: 'col', class: NUMBERS.test(type) ? 'number' : '', title: type }, name, h('div', { class: 'type' }, type))))),
    h('tbody', {}, seen.rows.map(([partition, offset, at, cells]) => h('tr', {},
      !isOfOne && h('td', { class: 'number' }, partition), h('td', { class: 'number' }, exactly(offset)), h('td', { class: 'nowrap' }, toTheMillisecond(at)),
      cells.map((text, place) => h('td', { class: NUMBERS.test(seen.columns[place][1]) ? 'number' : '' }, recordCell(text, seen.columns[place][1]))))))));
}

function recordNotes(look) {
  const { seen } = look;
  return [
    look.error && notice(look.error),
    look.note && h('p', { class: 'faint' }, look.note),
    seen?.leaderless.length > 0 && notice(`Not shown, since nobody leads them: ${seen.leaderless.map((each) => `${look.topic}-${each}`).join(', ')}`),
    seen?.skipped > 0 && h('p', { class: 'faint' }, `${count(seen.skipped, 'record')} came faster than they are shown, and were left out`),
    seen?.isCut && h('p', { class: 'faint' }, 'The look has ended early, since so much was read: go on from here'),
    seen && seen.inAll > seen.columns.length && h('p', { class: 'faint' }, `${seen.columns.length} of ${count(seen.inAll, 'column')} are shown`),
  ];
}

function recordForm(look) {
  const { asked } = look, field = (name, control) => h('label', { class: 'field' }, h('span', {}, name), control);
  const option = ([value, name], chosen) => h('option', { value, selected: String(value) === chosen }, name);
  const partitions = h('select', { onchange: (event) => { asked.partition = event.target.value; look.look(); } });
  const fillPartitions = () => refresh(partitions, [...(state.partitions.get(look.topic)?.keys() ?? [])], () => {
    const known = [...(state.partitions.get(look.topic)?.keys() ?? [])], named = asked.partition !== '' && !known.includes(Number(asked.partition)) ? [Number(asked.partition)] : [];
    return [['', 'all'], ...[...known, ...named].map((number) => [number, number])].map((each) => option(each, asked.partition));
  });
  const at = h('input', { value: asked.at, size: '18', 'aria-label': 'The offset or time to start at', oninput: (event) => { asked.at = event.target.value; } });
  const showAt = () => { at.hidden = !(asked.kind in PLACES); at.placeholder = PLACES[asked.kind] ?? ''; };
  const starts = h('select', { onchange: (event) => { asked.kind = event.target.value; showAt(); if (at.hidden) look.look(); else at.focus(); } }, STARTS.map((each) => option(each, asked.kind)));
  const where = h('input', { type: 'search', value: asked.where, placeholder: 'amount > 5 and region = "north"', oninput: (event) => { asked.where = event.target.value; } });
  showAt();
  const form = h('form', { class: 'bar', onsubmit: (event) => { event.preventDefault(); look.look(); } },
    field('Partition', partitions), field('Start', starts), at, h('label', { class: 'field filter' }, h('span', {}, 'Filter'), where), h('button', { type: 'submit' }, 'Look'));
  return { element: form, update: fillPartitions };
}

// Which columns are shown: those that the topic has, as its own view knows them.
function columnChoice(look, known) {
  const { asked } = look;
  const chosen = (name) => !asked.columns.length || asked.columns.includes(name);
  const toggle = (name) => (event) => {
    const others = known().filter((each) => each !== name && chosen(each));
    asked.columns = event.target.checked ? known().filter((each) => each === name || chosen(each)) : others;
    if (asked.columns.length === known().length) asked.columns = [];
    look.look();
  };
  return part(() => [known(), asked.columns], () => known().length > 1 && h('details', { class: 'choice', open: asked.isChoosing, ontoggle: (event) => { asked.isChoosing = event.target.open; } },
    h('summary', { 'data-key': 'columns' }, asked.columns.length ? `${asked.columns.length} of ${count(known().length, 'column')}` : 'All columns'),
    h('div', { class: 'bar', role: 'group', 'aria-label': 'Columns' }, known().map((name) => h('label', {},
      h('input', { type: 'checkbox', 'data-key': `column ${name}`, checked: chosen(name), disabled: asked.columns.length === 1 && chosen(name), onchange: toggle(name) }), name)))));
}

function recordsView(topic, query) {
  let columns = [];
  const look = new RecordsLook(topic, query, () => update());
  const form = recordForm(look), choice = columnChoice(look, () => columns);
  const bar = part(() => [look.isTailing, look.isAsking && !look.isTailing, Boolean(look.seen), look.seen?.hasOlder], () => h('div', { class: 'bar' },
    h('button', { type: 'button', 'data-key': 'older', disabled: !look.seen?.hasOlder, onclick: () => look.page('older', 'start') }, 'Older'),
    h('button', { type: 'button', 'data-key': 'newer', disabled: !look.seen, onclick: () => look.page('newer', 'end') }, 'Newer'),
    h('button', { type: 'button', 'data-key': 'follow', 'aria-pressed': String(look.isTailing), onclick: () => look.toggle() }, look.isTailing ? 'Pause' : 'Follow'),
    look.isTailing ? h('span', { class: 'good', role: 'status' }, 'following') : look.isAsking && h('span', { class: 'faint', role: 'status' }, 'looking…')));
  const notes = part(() => [look.error, look.note, look.seen?.skipped, look.seen?.isCut, look.seen?.leaderless, look.seen?.columns, look.seen?.inAll], () => recordNotes(look));
  const rows = part(() => [look.seen?.topicId, look.seen?.rows.map(([partition, offset]) => [partition, offset]), look.seen?.columns, look.asked.partition === ''], () => look.seen && recordTable(look.seen, look.asked.partition !== ''));
  const update = () => [form, choice, bar, notes, rows].forEach((each) => each.update());
  ask(`/api/topics/${encodeURIComponent(topic)}`).then((found) => { columns = found.columns.map(([name]) => name); update(); }, () => {});
  look.look();
  const box = h('section', { class: 'card' }, form.element, choice.element, bar.element, notes.element, rows.element);
  return view(`Records of ${topic}`, heading('Records of ', link(topicPath(topic), topic)), { element: box, update, parts: [{ element: box, update }], stop: () => look.stop() });
}
