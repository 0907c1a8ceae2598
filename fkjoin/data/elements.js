// Elements of the page: how they are made, and filled again and again.
import { number } from "./words.js";

export const byId = id => document.getElementById(id);

export const sumOf = values => values.reduce((sum, value) => sum + value, 0);

// The table that an operator makes; the operator itself where nobody knows the topology.
export const tableOf = (status, operator) =>
  status.steps.find(step => step.operators.includes(operator))?.id.replace(/^\S+ /, "") ?? operator;

export function make(tag, className = "", text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function titled(text, title) {
  const made = make("span", "", text);
  made.title = title;
  return made;
}

// Puts words in the place of what else would be there.
export function sayEmpty(id, text) {
  const place = byId(id);
  if (place.textContent !== text) place.replaceChildren(make("p", "empty", text));
}

const isFigure = value => /^[\d–]/.test(value);

// A table in a box that scrolls sideways; figures stand on the right, but not in the first column.
export function grid(heads, rows) {
  const table = make("table");
  if (heads.some(head => head)) {
    const line = table.createTHead().insertRow();
    heads.forEach((head, at) => line.append(make("th", at && isFigure(rows[0][at]) ? "number" : "", head)));
  }
  const body = table.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const value of row) fill(line.insertCell(), value);
  }
  const box = make("div", "scroll");
  box.append(table);
  return box;
}

function fill(cell, value) {
  if (cell.cellIndex && isFigure(value)) cell.className = "number";
  if (value instanceof Node) cell.append(value);
  else cell.textContent = typeof value === "number" ? number(value) : String(value);
}

// Gives a place other children if they differ; boxes that were scrolled stay so.
export function renew(place, children) {
  const fresh = make("div");
  fresh.append(...children);
  if (fresh.innerHTML === place.innerHTML) return;
  const scrolled = [...place.querySelectorAll(".scroll")].map(box => box.scrollLeft);
  place.replaceChildren(...fresh.childNodes);
  [...place.querySelectorAll(".scroll")].forEach((box, at) => { box.scrollLeft = scrolled[at] ?? 0; });
}

// Makes the children of a place those of the items: new ones are made, known ones filled anew, others taken away.
export function update(place, items, key, create, fillWith) {
  const known = new Map([...place.children].map(child => [child.dataset.key, child]));
  const wanted = items.map(item => {
    const child = known.get(key(item)) ?? create();
    child.dataset.key = key(item);
    fillWith(child, item);
    return child;
  });
  const same = wanted.length === place.childNodes.length && wanted.every((child, at) => child === place.childNodes[at]);
  if (!same) place.replaceChildren(...wanted);
}
