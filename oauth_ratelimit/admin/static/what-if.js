// Effect of another limit on recorded requests, with a slider.

import { find, make, radioGroup, showMessage, table, tiles, usageBar } from "./dom.js";
import { canChange, clientUrl, fetchData, fetchStatus, overrideUrl, poll } from "./server.js";
import { OTHERS, counted, number, percent, visible } from "./format.js";

const BY = [["client", "Per client, without a user"], ["user", "Per user"], ["total", "Per client in total"]];
const SPANS = [["hour", "Last hour"], ["day", "Last day"], ["week", "Last week"]];
const WINDOWS = [[1, "1 minute"], [5, "5 minutes"], [10, "10 minutes"], [15, "15 minutes"], [30, "30 minutes"], [60, "1 hour"], [360, "6 hours"], [1440, "1 day"]];
const LIMIT_KINDS = { client: "client", user: "user", total: "client_total" };
const STEPS = 1000;

const query = new URLSearchParams(location.search);
const chosen = { by: "client", span: "day", limit: null, window: 1, highest: 100 };
let lastRequest = 0;
let timer = null;

const COLUMNS = [
  { title: "client", kind: "name", value: (row) => (row.client_id === OTHERS ? "all others" : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id))), version: (row) => row.client_id },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : make("a", { href: clientUrl(row.client_id, row.username) }, visible(row.username))), version: (row) => String(row.username) },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "denied, about", kind: "number", value: (row) => number(row.denied) },
  { title: "bounds", kind: "number", value: (row) => (row.at_most ? `${number(row.at_least)} – ${number(row.at_most)}` : "–") },
  { title: "busiest minute", kind: "number", value: (row) => number(row.peak) },
  { title: "share denied", kind: "bar", value: (row) => usageBar(row.denied / row.offered), version: (row) => `${row.denied}/${row.offered}` },
];

// The slider is logarithmic: 10 to 20 is as wide as 1,000 to 2,000.
const limitOfPosition = (position) => Math.max(1, Math.round(chosen.highest ** (position / STEPS)));
const positionOfLimit = (limit) => Math.round((STEPS * Math.log(Math.max(1, limit))) / Math.log(Math.max(2, chosen.highest)));

function showLimit() {
  find("slider").value = Math.min(STEPS, positionOfLimit(chosen.limit));
  find("slider").setAttribute("aria-valuetext", counted(chosen.limit, "request"));
  if (document.activeElement !== find("limit")) find("limit").value = chosen.limit;
}

async function refresh() {
  const request = lastRequest += 1;
  const id = find("client-id").value.trim();
  const first = chosen.limit === null;
  const answer = await fetchData("what-if", { by: chosen.by, span: chosen.span, window: chosen.window, limit: chosen.limit || 1, ...id ? { id } : {} }, { inForm: true });
  if (!answer || request !== lastRequest) return; // a newer request is under way
  chosen.highest = Math.max(2, answer.highest);
  if (first) { // start with a limit that denies nobody
    chosen.limit = chosen.highest;
    showLimit();
    refresh();
    return;
  }
  showLimit();
  show(answer);
}

function show(answer) {
  tiles(find("tiles"), [
    ["Requests", number(answer.offered), `of ${counted(answer.bearer_count, chosen.by === "user" ? "user" : "client")}`],
    ["Denied, about", number(answer.denied), answer.denied ? `${number(answer.at_least)} to ${number(answer.at_most)}` : "nobody"],
    ["Share denied", percent(answer.offered ? answer.denied / answer.offered : 0), "of these requests"],
    [chosen.by === "user" ? "Users affected" : "Clients affected", number(answer.concerned_count), `of ${number(answer.bearer_count)}`],
  ]);
  table(find("bearers"), COLUMNS, answer.bearers, {
    keyOf: (row) => JSON.stringify([row.client_id, row.username]), empty: "No statistics for this time.",
  });
  find("note").textContent = answer.bearer_count > answer.bearers.length ? `the first ${answer.bearers.length} of ${number(answer.bearer_count)}` : "";
  find("users-note").hidden = chosen.by !== "user";
  if (canChange) {
    const id = find("client-id").value.trim();
    const url = `${overrideUrl(id, "limit")}&${new URLSearchParams({ [LIMIT_KINDS[chosen.by]]: `{limit: ${chosen.limit}, window: ${chosen.window}m}` })}`;
    find("actions").replaceChildren(make("a", { className: "button", href: url }, "Create an override"));
  }
}

function refreshSoon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, 150);
}

radioGroup(find("by"), BY, { chosen: chosen.by, onChange: (by) => { chosen.by = by; chosen.limit = null; refresh(); } });
radioGroup(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; refresh(); } });
find("window").append(...WINDOWS.map(([minutes, text]) => make("option", { value: String(minutes) }, text)));
find("window").addEventListener("change", () => { chosen.window = Number(find("window").value); chosen.limit = null; refresh(); });
find("slider").addEventListener("input", () => { chosen.limit = limitOfPosition(Number(find("slider").value)); find("limit").value = chosen.limit; refreshSoon(); });
find("limit").addEventListener("input", () => {
  const limit = Number(find("limit").value);
  const isLimit = Number.isSafeInteger(limit) && limit >= 1;
  showMessage("form-problem", isLimit ? "" : "The limit must be a whole number of at least 1.");
  if (isLimit) {
    chosen.limit = limit;
    refreshSoon();
  }
});
find("client-id").value = query.get("id") || "";
find("client-id").addEventListener("change", () => { chosen.limit = null; refresh(); });
find("form").addEventListener("submit", (event) => { event.preventDefault(); refresh(); });
poll(fetchStatus);
poll(refresh, { everyMs: 30_000 });
