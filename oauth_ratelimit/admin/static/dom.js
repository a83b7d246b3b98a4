// Page elements, built from text and never from markup, because clients choose their own names.

export const find = (id) => document.getElementById(id);

export function make(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in element) element[key] = value;
    else element.setAttribute(key, value);
  }
  element.append(...children.flat());
  return element;
}

// Sets a text only if it changes: screen readers announce every change of a live region.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Shows a message, or hides the box if the text is empty.
export function showMessage(id, text) {
  const box = find(id);
  setText(box.querySelector("p"), text);
  box.hidden = !text;
}

// Announces a text to screen readers, once.
export function announce(text) {
  setText(find("announcer"), text);
}
