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

// Announces a text to screen readers, once.
export function announce(text) {
  setText(find("announcer"), text);
}

// Fills a table. Existing rows are moved and not replaced, so that the focus stays.
// A column: { title, value(row) -> text or element, kind: "number" | "name" | "", version(row) -> text that changes with the element,
// isShown(rows) -> false hides the column }.
export function table(element, columns, rows, { keyOf, empty }) {
  const place = focusedPlace(element);
  const shown = columns.filter((column) => !column.isShown || column.isShown(rows));
  const titles = JSON.stringify(shown.map((column) => column.title));
  if (element.dataset.titles !== titles) {
    element.replaceChildren();
    element.createTHead().insertRow().append(...shown.map((column) => make("th", { scope: "col", className: column.kind || "" }, column.title)));
    element.dataset.titles = titles;
  }
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

// Adds radio buttons that look like one control.
export function radioGroup(fieldset, options, { chosen, onChange }) {
  for (const [value, text] of options) {
    const input = make("input", { type: "radio", name: fieldset.id, value, checked: value === chosen });
    input.addEventListener("change", () => onChange(value));
    fieldset.append(make("label", {}, input, make("span", {}, text)));
  }
}
