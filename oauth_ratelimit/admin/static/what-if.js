// What another limit would have done: a slider over what was recorded.

import { choices, find, make, say, table, tiles, usedBar } from "./dom.js";
import { ask, askStatus, clientUrl, keepUp, mayChange, overrideUrl } from "./server.js";
import { OTHERS, count, counted, percent, visible } from "./words.js";

const BY = [["client", "Per client, without a user"], ["user", "Per user"], ["total", "Per client in total"]];
const SPANS = [["hour", "Last hour"], ["day", "Last day"], ["week", "Last week"]];
const WINDOWS = [[1, "1 minute"], [5, "5 minutes"], [10, "10 minutes"], [15, "15 minutes"], [30, "30 minutes"], [60, "1 hour"], [360, "6 hours"], [1440, "1 day"]];
const LIMIT_KINDS = { client: "client", user: "user", total: "client_total" };
const STEPS = 1000;

const query = new URLSearchParams(location.search);
const chosen = { by: "client", span: "day", limit: null, window: 1, highest: 100 };
let asked = 0;
let timer = null;

const COLUMNS = [
  { title: "client", kind: "name", value: (row) => (row.client_id === OTHERS ? "all others" : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id))), sign: (row) => row.client_id },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : make("a", { href: clientUrl(row.client_id, row.username) }, visible(row.username))), sign: (row) => String(row.username) },
  { title: "requests", kind: "number", value: (row) => count(row.offered) },
  { title: "denied, about", kind: "number", value: (row) => count(row.denied) },
  { title: "bounds", kind: "number", value: (row) => (row.at_most ? `${count(row.at_least)} – ${count(row.at_most)}` : "–") },
  { title: "busiest minute", kind: "number", value: (row) => count(row.peak) },
  { title: "share denied", kind: "bar", value: (row) => usedBar(row.denied / row.offered), sign: (row) => `${row.denied}/${row.offered}` },
];

// The slider is logarithmic: 10 to 20 matters as much as 1,000 to 2,000.
const ofPlace = (place) => Math.max(1, Math.round(chosen.highest ** (place / STEPS)));
const ofLimit = (limit) => Math.round((STEPS * Math.log(Math.max(1, limit))) / Math.log(Math.max(2, chosen.highest)));

function place() {
  find("slider").value = Math.min(STEPS, ofLimit(chosen.limit));
  find("slider").setAttribute("aria-valuetext", counted(chosen.limit, "request"));
  if (document.activeElement !== find("limit")) find("limit").value = chosen.limit;
}

async function look() {
  const mine = asked += 1;
  const id = find("client-id").value.trim();
  const first = chosen.limit === null;
  const told = await ask("what-if", { by: chosen.by, span: chosen.span, window: chosen.window, limit: chosen.limit || 1, ...id ? { id } : {} }, { inForm: true });
  if (!told || mine !== asked) return; // a later question is under way
  chosen.highest = Math.max(2, told.highest);
  if (first) { // begin where nobody would have been denied
    chosen.limit = chosen.highest;
    place();
    look();
    return;
  }
  place();
  show(told);
}

function show(told) {
  tiles(find("tiles"), [
    ["Requests", count(told.offered), `by ${counted(told.bearer_count, chosen.by)}`],
    ["Denied, about", count(told.denied), told.denied ? `${count(told.at_least)} to ${count(told.at_most)}` : "nobody"],
    ["Share denied", percent(told.offered ? told.denied / told.offered : 0), "of these requests"],
    [chosen.by === "user" ? "Users hit" : "Clients hit", count(told.concerned_count), `of ${count(told.bearer_count)}`],
  ]);
  table(find("bearers"), COLUMNS, told.bearers, {
    keyOf: (row) => JSON.stringify([row.client_id, row.username]), empty: "No statistics for this time.",
  });
  find("note").textContent = told.bearer_count > told.bearers.length ? `the first ${told.bearers.length} of ${count(told.bearer_count)}` : "";
  find("users-note").hidden = chosen.by !== "user";
  if (mayChange) {
    const id = find("client-id").value.trim();
    const url = `${overrideUrl(id, "limit")}&${new URLSearchParams({ [LIMIT_KINDS[chosen.by]]: `{limit: ${chosen.limit}, window: ${chosen.window}m}` })}`;
    find("actions").replaceChildren(make("a", { className: "button", href: url }, "Make an override of it"));
  }
}

function soon() {
  clearTimeout(timer);
  timer = setTimeout(look, 150);
}

choices(find("by"), BY, { chosen: chosen.by, onChange: (by) => { chosen.by = by; chosen.limit = null; look(); } });
choices(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; look(); } });
find("window").append(...WINDOWS.map(([minutes, text]) => make("option", { value: String(minutes) }, text)));
find("window").addEventListener("change", () => { chosen.window = Number(find("window").value); chosen.limit = null; look(); });
find("slider").addEventListener("input", () => { chosen.limit = ofPlace(Number(find("slider").value)); find("limit").value = chosen.limit; soon(); });
find("limit").addEventListener("input", () => {
  const limit = Number(find("limit").value);
  const isLimit = Number.isSafeInteger(limit) && limit >= 1;
  say("form-problem", isLimit ? "" : "A limit is a whole number from 1.");
  if (isLimit) {
    chosen.limit = limit;
    soon();
  }
});
find("client-id").value = query.get("id") || "";
find("client-id").addEventListener("change", () => { chosen.limit = null; look(); });
find("form").addEventListener("submit", (event) => { event.preventDefault(); look(); });
keepUp(askStatus);
keepUp(look, { everyMs: 30_000 });
