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

// Sets a text only if it changes: screen readers announce every change of a live region.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Shows a message, or hides the box if the text is empty.
export function showMessage(id, text) {
  const box = find(id);
  setText(box.querySelector("p"), text || "");
  box.hidden = !text;
}

// Shows a problem at a field and returns the field; an empty text removes it.
export function showFieldProblem(input, text) {
  setText(find(`${input.id}-problem`), text);
  if (text) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  return input;
}

// Announces a text to screen readers, once.
export function announce(text) {
  setText(find("announcer"), text);
}

export function facts(list, pairs) {
  list.replaceChildren(...pairs.filter(Boolean).flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

// kind: "bad" or "warn" colours the tile
export function tiles(list, entries) {
  list.replaceChildren(...entries.map(([name, value, more, kind = ""]) => make(
    "div", { className: `tile ${kind}` }, make("dt", {}, name), make("dd", {}, value, more ? make("small", {}, more) : null),
  )));
}

// Fills a table. Existing rows are moved and not replaced, so that the focus stays.
// A column: { title, value(row) -> text or element, kind: "number" | "name" | "", version(row) -> text that changes with the element,
// isShown(rows) -> false hides the column, sort: name for the server }. sorted: { by, descending, onSort(name) } makes columns sortable.
export function table(element, columns, rows, { keyOf, empty, sorted = null }) {
  const place = focusedPlace(element);
  const shown = columns.filter((column) => !column.isShown || column.isShown(rows));
  const titles = JSON.stringify(shown.map((column) => column.title));
  if (element.dataset.titles !== titles) {
    element.replaceChildren();
    element.createTHead().insertRow().append(...shown.map((column) => headCell(column, sorted)));
    element.dataset.titles = titles;
  }
  if (sorted) showSorting(element, shown, sorted);
  const body = element.tBodies[0] || element.createTBody();
  const existing = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  const tableRows = rows.map((row) => {
    const key = keyOf(row);
    const tableRow = existing.get(key) || newRow(key, shown);
    shown.forEach((column, index) => fillCell(tableRow.cells[index], column, row));
    return tableRow;
  });
  if (!tableRows.length) {
    body.replaceChildren(make("tr", {}, make("td", { className: "empty", colSpan: shown.length }, empty)));
    return;
  }
  tableRows.forEach((tableRow, index) => {
    if (body.rows[index] !== tableRow) body.insertBefore(tableRow, body.rows[index] || null);
  });
  while (body.rows.length > tableRows.length) body.deleteRow(-1);
  restoreFocus(body, place);
}

// Returns the row and column of the focused element in the body of a table, or null.
function focusedPlace(element) {
  const focused = document.activeElement;
  const cell = element.tBodies[0]?.contains(focused) ? focused.closest("td") : null;
  const row = cell && cell.parentElement;
  return row && { focused, key: row.dataset.key, index: row.sectionRowIndex, title: cell.dataset.title };
}

// Gives the focus back: to the element, else to its row and column, else to the row in the place of a row that has gone.
function restoreFocus(body, place) {
  if (!place || place.focused === document.activeElement) return;
  const rows = [...body.rows];
  const row = rows.find((each) => each.dataset.key === place.key) || rows[Math.min(place.index, rows.length - 1)];
  const cell = [...row.cells].find((each) => each.dataset.title === place.title) || row;
  const target = body.contains(place.focused) ? place.focused : cell.querySelector("a, button") || row.querySelector("a, button");
  target?.focus({ preventScroll: true });
}

function headCell(column, sorted) {
  const cell = make("th", { scope: "col", className: column.kind || "" });
  if (sorted && column.sort) {
    const button = make("button", { type: "button", className: "sort" }, column.title);
    button.addEventListener("click", () => sorted.onSort(column.sort));
    cell.append(button);
  } else {
    cell.append(column.title || make("span", { className: "visually-hidden" }, "action"));
  }
  return cell;
}

function showSorting(element, columns, sorted) {
  columns.forEach((column, index) => {
    if (!column.sort) return;
    const cell = element.tHead.rows[0].cells[index];
    const order = column.sort !== sorted.by ? "none" : sorted.descending ? "descending" : "ascending";
    cell.setAttribute("aria-sort", order);
  });
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
  if (version === null) delete cell.dataset.version; // else a later text would be taken for the one before this element
  else cell.dataset.version = version;
  cell.replaceChildren(value);
}

// Tells if the rows differ in a value; a column with one value only says nothing.
export const isVaried = (value) => (rows) => rows.some((row) => value(row) !== value(rows[0]));

// Adds radio buttons that look like one control.
export function radioGroup(fieldset, options, { chosen, onChange }) {
  for (const [value, text] of options) {
    const input = make("input", { type: "radio", name: fieldset.id, value, checked: value === chosen });
    input.addEventListener("change", () => onChange(value));
    fieldset.append(make("label", {}, input, make("span", {}, text)));
  }
}

export function shareBar(ratio, text) {
  const bar = make("progress", { max: 1, value: Math.min(1, ratio), className: ratio > 0 ? "over" : "", "aria-hidden": "true" });
  return make("div", { className: "used" }, bar, make("span", {}, text));
}
