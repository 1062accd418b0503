// Small charts: a line over the last ten minutes, its newest value, and in words for who cannot see it.

const CHART_MS = 600000;
const WIDTH = 240, HEIGHT = 50;

function chart(title, series, values, written) {
  const known = values.map((value, at) => ({ value, at: series.at_ms[at] })).filter((each) => each.value !== null);
  const newest = known.length ? known[known.length - 1].value : null;
  const caption = h('figcaption', {}, h('span', {}, title), h('b', {}, newest === null ? UNKNOWN : written(newest)));
  if (known.length < 2) return h('figure', { class: 'chart' }, caption, h('p', { class: 'none' }, known.length ? 'a line follows as time goes by' : 'not known'));
  const most = Math.max(...known.map((each) => each.value));
  const least = Math.min(0, ...known.map((each) => each.value));
  const end = Math.max(nowMs(), known[known.length - 1].at);
  const begin = Math.max(end - CHART_MS, known[0].at - 1000);
  const x = (at) => ((at - begin) / (end - begin)) * WIDTH;
  const y = (value) => HEIGHT - 2 - ((value - least) / (most - least || 1)) * (HEIGHT - 6);
  const lines = [];
  let before = null;
  values.forEach((value, at) => {
    if (value === null || (before !== null && series.at_ms[at] - before > 20000)) lines.push([]);
    if (value === null) return;
    if (!lines.length) lines.push([]);
    lines[lines.length - 1].push(`${x(series.at_ms[at]).toFixed(1)},${y(value).toFixed(1)}`);
    before = series.at_ms[at];
  });
  const drawn = lines.filter((points) => points.length > 1);
  const label = `${title}: ${written(newest)} now, at most ${written(most)} in the last ${duration(end - begin)}`;
  return h('figure', { class: 'chart' }, caption,
    svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
      drawn.map((points) => svg('polygon', { class: 'area', points: `${points[0].split(',')[0]},${HEIGHT} ${points.join(' ')} ${points[points.length - 1].split(',')[0]},${HEIGHT}` })),
      drawn.map((points) => svg('polyline', { class: 'line', points: points.join(' ') }))),
    h('div', { class: 'times', 'aria-hidden': 'true' }, h('span', {}, `${duration(end - begin)} ago`), h('span', {}, `max ${written(most)}`), h('span', {}, 'now')));
}

function charts(series) {
  const some = (values) => values.some((value) => value !== null);
  return h('div', { class: 'charts' },
    chart('Size', series, series.bytes, bytes),
    chart('Written', series, series.bytes_per_s, byteRate),
    some(series.records_per_s) && chart('Records', series, series.records_per_s, recordRate),
    some(series.lag) && chart('Largest lag, records', series, series.lag, amount));
}
