// How things are named, and how numbers are written.

const CONDITIONS = {
  leaderless: 'no leader',
  under_min_isr: 'below min ISR',
  under_replicated: 'not all in sync',
  moving: 'moving',
  in_sync: 'in sync',
};
const UNKNOWN = '–';

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
  const leader = row.leader === null ? `no leader${row.waits ? ` (waits for ${row.waits.replaceAll('_', ' ')})` : ''}` : `led by broker ${row.leader}`;
  return `${topic}-${row.partition}: ${CONDITIONS[row.condition]}, ${leader}, ${row.isr.length} of ${row.replicas.length} replicas in sync, leader epoch ${row.leaderEpoch}`;
}
