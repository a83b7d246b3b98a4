// Elements, made of text and never of markup: what clients call themselves stays text.

export const find = (id) => document.getElementById(id);

export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element && !key.startsWith("aria-") && key !== "list") element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function tag(text, kind = text) {
  return make("span", { className: `tag ${kind}` }, text);
}

// Shows a message, or hides it when there is none.
export function say(id, text) {
  const box = find(id);
  box.hidden = !text;
  box.querySelector("p").textContent = text || "";
}

export function facts(list, pairs) {
  list.replaceChildren(...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

export function tiles(list, entries) {
  list.replaceChildren(...entries.map(([name, value, more]) => make(
    "div", { className: "tile" }, make("dt", {}, name), make("dd", {}, value, more ? make("small", {}, more) : null),
  )));
}

// Fills a table. Rows that are there already are kept and only moved, so that what has the focus keeps it.
// A column: { title, value(row) -> text or element, kind: "number" | "name" | "", sign(row) -> text that tells versions apart }
export function table(element, columns, rows, { keyOf, empty }) {
  if (!element.tHead) {
    const head = element.createTHead().insertRow();
    head.append(...columns.map((column) => make("th", { scope: "col", className: column.kind || "" }, column.title)));
  }
  const body = element.tBodies[0] || element.createTBody();
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const focused = document.activeElement;
  const wanted = rows.map((row) => {
    const key = keyOf(row);
    const line = known.get(key) || lineOf(key, columns);
    columns.forEach((column, index) => fillCell(line.cells[index], column, row));
    return line;
  });
  if (!wanted.length) {
    body.replaceChildren(make("tr", {}, make("td", { className: "empty", colSpan: columns.length }, empty)));
    return;
  }
  wanted.forEach((line, index) => {
    if (body.rows[index] !== line) body.insertBefore(line, body.rows[index] || null);
  });
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  if (focused && focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}

function lineOf(key, columns) {
  const line = make("tr", {}, columns.map((column) => {
    const cell = make("td", { className: column.kind || "" });
    cell.dataset.title = column.title;
    return cell;
  }));
  line.dataset.key = key;
  return line;
}

function fillCell(cell, column, row) {
  const value = column.value(row);
  const sign = column.sign ? column.sign(row) : value instanceof Node ? null : String(value);
  if (sign !== null && cell.dataset.sign === sign) return;
  if (sign !== null) cell.dataset.sign = sign;
  cell.replaceChildren(value);
}

// Radio buttons that look like one control with several positions.
export function choices(fieldset, options, { chosen, onChange }) {
  for (const [value, text] of options) {
    const input = make("input", { type: "radio", name: fieldset.id, value, checked: value === chosen });
    input.addEventListener("change", () => onChange(value));
    fieldset.append(make("label", {}, input, make("span", {}, text)));
  }
}

export function usedBar(ratio) {
  const kind = ratio >= 1 ? "over" : ratio >= 0.8 ? "near" : "";
  const bar = make("progress", { max: 1, value: Math.min(1, ratio), className: kind, "aria-hidden": "true" });
  return make("div", { className: "used" }, bar, make("span", {}, `${Math.round(ratio * 100)} %`));
}
