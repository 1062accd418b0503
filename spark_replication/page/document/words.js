// How things are named, and how numbers are written.

// The words of view.conditions: of one partition several may hold, the worst first.
const CONDITIONS = {
  leaderless: 'leaderless',
  under_min_isr: 'under min ISR',
  under_replicated: 'under replicated',
  moving: 'moving',
  in_sync: 'in sync',
};
// What the states of a consumer group mean: the words of view.groups.
const GROUP_STATES = {
  moving: 'partitions are handed over, or wait for a member',
  stable: 'each partition has its member',
  empty: 'it has no members',
  spark_query: 'a Spark query, which reports how far it is, and has no members',
};
// How far a topic's table is behind: the words of view.table_lags.
const TABLE_WORDS = {
  table_end: 'table end',
  rows_behind: 'rows behind',
  seconds_behind: 'seconds behind',
  held_back_bytes: 'held back',
};
// What a partition without a leader waits for.
const WAITS = {
  fenced_elr: 'a dead broker that has every acknowledged record',
  last_known_elr: 'dead brokers, one of which may have every acknowledged record',
  last_known_leader: 'its last leader, which is dead',
  log_info: 'replicas to say whose log is the longest',
  manual: 'a person: no broker is known to have every acknowledged record',
  table: 'its table, which must be sealed first, so that no offset is given twice',
};
// Why a leader was chosen.
const CHOSEN = {
  isr: 'it was in sync',
  elr: 'it was not in sync, and has every acknowledged record',
  last_known_leader: 'it led last; acknowledged records may be lost',
  unclean: 'it lived; acknowledged records may be lost',
  unclean_recovery: 'its log was the longest; acknowledged records may be lost',
  designated: 'a person chose it; acknowledged records may be lost',
};
const UNKNOWN = '–';

// A newer controller may have other reasons.
const inWords = (words, name) => words[name] ?? name.replaceAll('_', ' ');
const waitsFor = (reason) => `waits for ${inWords(WAITS, reason)}`;

const count = (number, one, many = `${one}s`) => `${number.toLocaleString('en')} ${number === 1 ? one : many}`;

function scaled(number, step, units) {
  let at = 0;
  while (Math.abs(number) >= step && at < units.length - 1) { number /= step; at += 1; }
  const digits = at === 0 || Math.abs(number) >= 100 ? 0 : Math.abs(number) >= 10 ? 1 : 2;
  return `${number.toFixed(digits)}${units[at]}`;
}

const bytes = (number) => number === null || number === undefined ? UNKNOWN : scaled(number, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB']);
const byteRate = (number) => number === null || number === undefined ? UNKNOWN : `${bytes(number)}/s`;
const amount = (number) => number === null || number === undefined ? UNKNOWN : scaled(number, 1000, ['', ' k', ' M', ' G']);
// An offset, or a number of records, in full.
const exactly = (number) => number === null || number === undefined ? UNKNOWN : number.toLocaleString('en');
const recordsIn = (start, end) => start === null || start === undefined || end === null || end === undefined ? null : end - start;
const exactSeconds = (milliseconds) => milliseconds === null || milliseconds === undefined ? UNKNOWN : exactly(Math.round(milliseconds / 1000));
const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
const recordRate = (number) => number === null || number === undefined ? UNKNOWN : `${amount(number)}/s`;

function duration(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

function when(milliseconds) {
  const text = new Date(milliseconds).toISOString();
  return h('time', { datetime: text }, `${text.slice(0, 10)} ${text.slice(11, 19)} UTC`);
}

const brokerLink = (id) => link(`#/brokers/${id}`, `broker ${id}`);
const topicPath = (name) => `#/topics/${encodeURIComponent(name)}`;
const partitionPath = (topic, number) => `${topicPath(topic)}/${number}`;
const among = (ids) => ids.length ? ids.join(', ') : UNKNOWN;

function sentence(topic, row) {
  const leader = row.leader === null ? `no leader${row.waits ? ` (${waitsFor(row.waits)})` : ''}` : `led by broker ${row.leader}`;
  return `${topic}-${row.partition}: ${CONDITIONS[row.condition]}, ${leader}, ${row.isr.length} of ${row.replicas.length} replicas in sync, leader epoch ${row.leaderEpoch}`;
}
