'use strict';
// Elements are made here alone. What comes from the cluster becomes text, never markup.

const SVG = 'http://www.w3.org/2000/svg';

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined || child === false || child === '') continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

const h = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const svg = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

// A part of the page is made anew only if what it shows has changed, and keeps the focus where it was.
function refresh(container, shown, make) {
  const mark = typeof shown === 'string' ? shown : JSON.stringify(shown);
  if (container.shownMark === mark) return false;
  container.shownMark = mark;
  const focused = document.activeElement;
  const key = container.contains(focused) ? focused.dataset.key : undefined;
  container.replaceChildren(...[make()].flat(3).filter((child) => child));
  if (key !== undefined) {
    for (const each of container.querySelectorAll('[data-key]')) if (each.dataset.key === key) each.focus({ preventScroll: true });
  }
  return true;
}

const link = (to, ...children) => h('a', { href: to, 'data-key': to }, ...children);
const announce = (text) => { byId('announcer').textContent = text; };
