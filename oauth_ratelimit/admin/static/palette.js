// Colours of clients in charts and tables: from the client id, so that a client keeps its colour while ranks change.

const COLOUR_COUNT = 7;
export const REST = "rest"; // colour of all clients without a line of their own

const known = new Map();

// FNV-1a
function hash(text) {
  let value = 0x811c9dc5;
  for (const character of text) value = Math.imul(value ^ character.codePointAt(0), 0x01000193) >>> 0;
  return value;
}

// Returns a colour for each client that is drawn. Two of them share none while there are enough.
export function coloursOf(ids) {
  const colours = new Map();
  const free = new Set(Array.from({ length: COLOUR_COUNT }, (_, index) => index + 1));
  const take = (id, colour) => {
    colours.set(id, colour);
    known.set(id, colour);
    free.delete(colour);
  };
  for (const id of ids) if (free.has(known.get(id))) take(id, known.get(id));
  for (const id of ids.filter((each) => !colours.has(each)).sort()) {
    let colour = (hash(id) % COLOUR_COUNT) + 1;
    while (free.size && !free.has(colour)) colour = (colour % COLOUR_COUNT) + 1;
    take(id, colour);
  }
  return colours;
}
