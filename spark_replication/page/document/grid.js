// Every partition as a cell of a canvas: with its number and leader where there is room, as a dot where there are 10,000.

const SIZES = [
  { upTo: 60, width: 62, height: 36, gap: 3, leader: true },
  { upTo: 300, width: 44, height: 30, gap: 2, leader: true },
  { upTo: 1200, width: 28, height: 18, gap: 2, number: true },
  { upTo: 4000, width: 12, height: 12, gap: 1 },
  { upTo: Infinity, width: 9, height: 9, gap: 1 },
];
const NAMED_TOPICS_MAX = 40;
const NAME_HEIGHT = 22;
const FONT = 'system-ui, sans-serif';

class Grid {
  constructor(open) {
    this.open = open;
    this.cells = [];
    this.at = 0;
    this.mark = '';
    this.canvas = h('canvas', { 'aria-hidden': 'true' });
    this.outline = h('div', { class: 'cursor', hidden: true });
    this.element = h('div', {
      class: 'grid', tabindex: '0', role: 'application', 'aria-roledescription': 'grid of partitions', 'data-key': 'grid',
      'aria-label': 'Partitions. Arrow keys move, Enter opens one. The list below has the same as a table.',
      onkeydown: (event) => this.key(event), onmousemove: (event) => this.hover(event), onmouseleave: () => this.leave(),
      onclick: (event) => this.click(event), onfocus: () => this.move(this.at, true), onblur: () => { this.outline.hidden = true; },
    }, this.canvas, this.outline);
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  show(found) {
    const known = this.cells[this.at];
    this.found = found;
    this.draw();
    if (known) {
      const again = this.cells.findIndex((each) => each.topic === known.topic && each.row.partition === known.row.partition);
      this.at = Math.max(0, again);
      if (!this.outline.hidden) this.move(this.at, false);
    }
  }

  layout(width) {
    const size = this.size = SIZES.find((each) => this.found.length <= each.upTo);
    this.across = Math.max(1, Math.floor((width + size.gap) / (size.width + size.gap)));
    const topics = new Set(this.found.map((each) => each.topic)).size;
    const isNamed = topics <= NAMED_TOPICS_MAX;
    this.names = [];
    this.cells = [];
    let top = 0, column = 0, topic = null;
    for (const each of this.found) {
      if (isNamed && each.topic !== topic) {
        if (topic !== null) top += size.height + 10;
        this.names.push({ topic: each.topic, y: top });
        top += NAME_HEIGHT;
        column = 0;
      } else if (column === this.across) {
        column = 0;
        top += size.height + size.gap;
      }
      topic = each.topic;
      this.cells.push({ topic: each.topic, row: each.row, x: column * (size.width + size.gap), y: top });
      column += 1;
    }
    return this.found.length ? top + size.height : 0;
  }

  draw() {
    const width = this.element.clientWidth;
    if (!this.found || !width) return;
    const height = this.layout(width), ratio = Math.min(window.devicePixelRatio || 1, 2), size = this.size;
    const styles = getComputedStyle(document.documentElement), color = (name) => styles.getPropertyValue(`--${name}`).trim();
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.max(1, Math.round(height * ratio));
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext('2d');
    pen.scale(ratio, ratio);
    pen.textBaseline = 'middle';
    pen.font = `600 13px ${FONT}`;
    pen.fillStyle = color('ink');
    for (const name of this.names) pen.fillText(name.topic, 0, name.y + NAME_HEIGHT / 2, width);
    const ground = color('card');
    for (const condition of Object.keys(CONDITIONS)) {
      pen.fillStyle = color(condition);
      const cells = this.cells.filter((each) => each.row.condition === condition);
      for (const cell of cells) pen.fillRect(cell.x, cell.y, size.width, size.height);
      pen.strokeStyle = pen.fillStyle = ground;
      for (const cell of cells) this.shape(pen, cell, condition);
    }
    if (size.leader || size.number) this.write(pen, color);
    if (this.cells.length && !performance.getEntriesByName('first cells').length) performance.mark('first cells');
  }

  // Told apart without colours, too.
  shape(pen, cell, condition) {
    const { width, height } = this.size, small = Math.min(width, height) / 3;
    pen.lineWidth = width > 20 ? 2 : 1.2;
    pen.beginPath();
    if (condition === 'leaderless') {
      pen.moveTo(cell.x, cell.y); pen.lineTo(cell.x + width, cell.y + height);
      pen.moveTo(cell.x + width, cell.y); pen.lineTo(cell.x, cell.y + height);
      pen.stroke();
    } else if (condition === 'under_min_isr') {
      pen.moveTo(cell.x, cell.y + height); pen.lineTo(cell.x + width, cell.y);
      pen.stroke();
    } else if (condition === 'under_replicated') {
      pen.moveTo(cell.x + width, cell.y); pen.lineTo(cell.x + width - small, cell.y); pen.lineTo(cell.x + width, cell.y + small);
      pen.fill();
    } else if (condition === 'moving') {
      pen.rect(cell.x + width - small, cell.y + height - small, small, small);
      pen.fill();
    }
  }

  write(pen, color) {
    const size = this.size, isDark = matchMedia('(prefers-color-scheme: dark)').matches;
    pen.textAlign = 'center';
    for (const { row, x, y } of this.cells) {
      const middle = x + size.width / 2;
      pen.fillStyle = isDark || row.condition === 'under_replicated' ? '#0b1016' : '#ffffff';
      if (row.condition === 'leaderless' || row.condition === 'under_min_isr') {
        const dark = pen.fillStyle;
        pen.fillStyle = color(row.condition);
        pen.fillRect(middle - 15, y + 2, 30, size.height - 4);
        pen.fillStyle = dark;
      }
      pen.font = `600 ${size.leader ? 12 : 11}px ${FONT}`;
      pen.fillText(String(row.partition), middle, size.leader ? y + size.height * 0.32 : y + size.height / 2 + 1, size.width - 2);
      if (!size.leader) continue;
      pen.font = `11px ${FONT}`;
      pen.fillText(row.leader === null ? 'none' : `on ${row.leader}`, middle, y + size.height * 0.72, size.width - 2);
    }
    pen.textAlign = 'left';
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    return this.cells.findIndex((cell) => x >= cell.x && x < cell.x + this.size.width + 1 && y >= cell.y && y < cell.y + this.size.height + 1);
  }

  hover(event) {
    const found = this.cells[this.cellAt(event)], tip = byId('tip');
    tip.hidden = !found;
    this.canvas.style.cursor = found ? 'pointer' : '';
    if (!found) return;
    tip.textContent = sentence(found.topic, found.row);
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${event.clientY + 18 + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
  }

  leave() { byId('tip').hidden = true; }

  click(event) {
    const found = this.cells[this.cellAt(event)];
    if (found) { this.leave(); this.open(found.topic, found.row.partition); }
  }

  key(event) {
    const last = this.cells.length - 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 0, ArrowUp: 0, PageDown: 0, PageUp: 0 };
    if (last < 0) return;
    if (event.key === 'Enter') this.open(this.cells[this.at].topic, this.cells[this.at].row.partition);
    else if (event.key === 'Home') this.move(0, true);
    else if (event.key === 'End') this.move(last, true);
    else if (event.key === 'ArrowDown') this.move(this.below(1, 1), true);
    else if (event.key === 'ArrowUp') this.move(this.below(-1, 1), true);
    else if (event.key === 'PageDown') this.move(this.below(1, 10), true);
    else if (event.key === 'PageUp') this.move(this.below(-1, 10), true);
    else if (event.key in steps) this.move(this.at + steps[event.key], true);
    else return;
    event.preventDefault();
  }

  // The cell so many rows further down (or up) that is nearest in x.
  below(direction, rows) {
    let at = this.at;
    for (let passed = 0; passed < rows; passed += 1) {
      const from = this.cells[at];
      let next = at;
      while (this.cells[next] && this.cells[next].y === from.y) next += direction;
      if (!this.cells[next]) break;
      const y = this.cells[next].y;
      let best = next;
      for (; this.cells[next] && this.cells[next].y === y; next += direction) {
        if (Math.abs(this.cells[next].x - from.x) < Math.abs(this.cells[best].x - from.x)) best = next;
      }
      at = best;
    }
    return at;
  }

  move(to, isTold) {
    if (!this.cells.length) return;
    this.at = Math.max(0, Math.min(to, this.cells.length - 1));
    const cell = this.cells[this.at];
    this.outline.hidden = false;
    this.outline.style.width = `${this.size.width + 4}px`;
    this.outline.style.height = `${this.size.height + 4}px`;
    this.outline.style.transform = `translate(${cell.x - 2}px, ${cell.y - 2}px)`;
    if (!isTold) return;
    this.outline.scrollIntoView({ block: 'nearest' });
    announce(sentence(cell.topic, cell.row));
  }
}
