// Page elements, built from text and never from markup, because clients choose their own names.

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

// Shows a message, or hides the box if the text is empty.
export function showMessage(id, text) {
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

// Fills a table. Existing rows are moved and not replaced, so that the focus stays.
// A column: { title, value(row) -> text or element, kind: "number" | "name" | "", version(row) -> text that changes with the element }
export function table(element, columns, rows, { keyOf, empty }) {
  if (!element.tHead) {
    const head = element.createTHead().insertRow();
    head.append(...columns.map((column) => make("th", { scope: "col", className: column.kind || "" }, column.title)));
  }
  const body = element.tBodies[0] || element.createTBody();
  const existing = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const focused = document.activeElement;
  const tableRows = rows.map((row) => {
    const key = keyOf(row);
    const tableRow = existing.get(key) || newRow(key, columns);
    columns.forEach((column, index) => fillCell(tableRow.cells[index], column, row));
    return tableRow;
  });
  if (!tableRows.length) {
    body.replaceChildren(make("tr", {}, make("td", { className: "empty", colSpan: columns.length }, empty)));
    return;
  }
  tableRows.forEach((tableRow, index) => {
    if (body.rows[index] !== tableRow) body.insertBefore(tableRow, body.rows[index] || null);
  });
  while (body.rows.length > tableRows.length) body.deleteRow(-1);
  if (focused && focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}

function newRow(key, columns) {
  const tableRow = make("tr", {}, columns.map((column) => {
    const cell = make("td", { className: column.kind || "" });
    cell.dataset.title = column.title;
    return cell;
  }));
  tableRow.dataset.key = key;
  return tableRow;
}

function fillCell(cell, column, row) {
  const value = column.value(row);
  const version = column.version ? column.version(row) : value instanceof Node ? null : String(value);
  if (version !== null && cell.dataset.version === version) return;
  if (version !== null) cell.dataset.version = version;
  cell.replaceChildren(value);
}

// Adds radio buttons that look like one control.
export function radioGroup(fieldset, options, { chosen, onChange }) {
  for (const [value, text] of options) {
    const input = make("input", { type: "radio", name: fieldset.id, value, checked: value === chosen });
    input.addEventListener("change", () => onChange(value));
    fieldset.append(make("label", {}, input, make("span", {}, text)));
  }
}

export function usageBar(ratio) {
  const kind = ratio >= 1 ? "over" : ratio >= 0.8 ? "near" : "";
  const bar = make("progress", { max: 1, value: Math.min(1, ratio), className: kind, "aria-hidden": "true" });
  return make("div", { className: "used" }, bar, make("span", {}, `${Math.round(ratio * 100)} %`));
}
