// Effect of another limit on recorded requests, with a line to drag.

import { announce, find, isVaried, make, radioGroup, setText, shareBar, showFieldProblem, table, tiles } from "./dom.js";
import { LimitChart } from "./limit-chart.js";
import { canChange, clientUrl, fetchData, originText, overrideUrl, poll, pollVerdict } from "./server.js";
import { OTHERS, boundsText, counted, number, percent, visible } from "./format.js";

const BY = [["client", "Per client, without a user"], ["user", "Per user"], ["total", "Per client in total"]];
const SPANS = [["hour", "Last hour"], ["day", "Last day"], ["week", "Last week"]];
const WINDOWS = [[1, "1 minute"], [5, "5 minutes"], [10, "10 minutes"], [15, "15 minutes"], [30, "30 minutes"], [60, "1 hour"], [360, "6 hours"], [1440, "1 day"]];
const BY_OF_KIND = { client: "client", user: "user", client_total: "total" };
const KIND_TEXTS = { client: "without a user", user: "per user", client_total: "for all requests of a client" };
const SOON_MS = 150;
const MAX_ROWS = 20;

const query = new URLSearchParams(location.search);
const chosen = { by: null, span: null, limit: null, window: null }; // null: the server chooses, by the limits that apply now
let lastRequest = 0;
let timer = null;
let shown = null; // the last answer
let isStart = false; // true while the limit is the present one

const COLUMNS = [
  { title: "client", kind: "name", value: (row) => (row.client_id === OTHERS ? "all others" : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id))), version: (row) => row.client_id },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : make("a", { href: clientUrl(row.client_id, row.username) }, visible(row.username))), version: (row) => String(row.username), isShown: isVaried((row) => row.username) },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "denied, about", kind: "number", value: (row) => number(row.denied) },
  { title: "bounds", kind: "number", value: boundsText, isShown: (rows) => rows.some(boundsText) },
  { title: "really denied", kind: "number", value: (row) => number(row.recorded.denied + row.recorded.would_deny) },
  { title: "busiest minute", kind: "number", value: (row) => number(row.peak) },
  { title: "share denied", kind: "bar", value: (row) => shareBar(row.denied / row.offered, percent(row.denied / row.offered)), version: (row) => `${row.denied}/${row.offered}` },
];

const chart = new LimitChart(find("chart"), { onMove: (limit) => { setLimit(limit); refreshSoon(); } });
const noun = () => (chosen.by === "user" ? "user" : "client");
const windowText = (minutes) => (WINDOWS.find(([each]) => each === minutes) || [0, `${minutes} minutes`])[1];
const unitOf = (minutes) => `per ${windowText(minutes).replace(/^1 /, "")}`;

// The result of another input is grey until the new one is there.
function markPending() {
  find("result").classList.add("is-pending");
}

// limit: null for the present one
function setLimit(limit) {
  chosen.limit = limit;
  isStart = limit === null;
  if (limit !== null) find("limit").value = limit;
  showFieldProblem(find("limit"), "");
  markPending();
}

async function refresh() {
  if (find("limit").hasAttribute("aria-invalid")) return;
  const request = lastRequest += 1;
  const id = find("client-id").value.trim();
  const { by, span, window, limit } = chosen;
  const given = Object.fromEntries(Object.entries({ id, by, span, window, limit }).filter(([, value]) => value));
  const answer = await fetchData("what-if", given, { inForm: true });
  if (request !== lastRequest) return; // a newer request is under way
  find("result").hidden = !answer && (!shown || !find("form-problem").hidden); // an old result stays during an outage
  if (!answer) return;
  isStart = isStart || limit === null;
  chosen.by = answer.by;
  chosen.span = answer.span;
  for (const name of ["by", "span"]) document.querySelector(`input[name=${name}][value=${answer[name]}]`).checked = true;
  chosen.window = answer.window_s / 60;
  if (!WINDOWS.some(([minutes]) => minutes === chosen.window)) addWindow(chosen.window, windowText(chosen.window));
  chosen.limit = answer.limit;
  find("window").value = String(chosen.window);
  if (document.activeElement !== find("limit")) find("limit").value = chosen.limit;
  shown = answer;
  show(answer, id);
}

function show(answer, id) {
  const unit = unitOf(answer.window_s / 60);
  find("result").classList.remove("is-pending");
  setText(find("result-title"), `With ${number(answer.limit)} ${unit}${id ? ` for ${visible(id)}` : ""}`);
  announce(`With ${number(answer.limit)} ${unit} about ${number(answer.denied)} of ${counted(answer.offered, "request")} would be denied, of ${counted(answer.concerned_count, noun())}.`);
  const { current } = answer;
  setText(find("current"), current.tiers.length ? `Present limit: ${current.texts.join(" and ")}, from ${originText(current.origin)}.` : "No limit of this kind applies now.");
  find("reset").hidden = isStart;
  chart.show({ peaks: answer.peaks, count: answer.bearer_count, limit: answer.limit, unit, noun: noun(), empty: "No statistics for this time." });
  tiles(find("tiles"), [
    ["Would be denied, about", number(answer.denied), `${boundsText(answer)} of ${counted(answer.offered, "request")}`.trim(), answer.denied ? "warn" : ""],
    ["Share denied", answer.offered ? percent(answer.denied / answer.offered) : "–", "of these requests"],
    [chosen.by === "user" ? "Users affected" : "Clients affected", number(answer.concerned_count), `of ${number(answer.bearer_count)}`],
    ["Really denied", number(answer.recorded.denied), `and ${number(answer.recorded.would_deny)} would be denied (dry run), in the same time`],
  ]);
  table(find("bearers"), COLUMNS, answer.bearers.slice(0, MAX_ROWS), {
    keyOf: (row) => JSON.stringify([row.client_id, row.username]), empty: "No statistics for this time.",
  });
  setText(find("note"), answer.bearer_count > MAX_ROWS ? `the first ${MAX_ROWS} of ${number(answer.bearer_count)}` : "");
  find("users-note").hidden = chosen.by !== "user";
  showActions(answer, id);
}

// An override needs a client: a limit for everybody is a change of the configuration.
function showActions({ override }, id) {
  if (!canChange) return;
  const url = new URLSearchParams();
  for (const [kind, texts] of Object.entries(override ? override.limits : {})) for (const text of texts) url.append(kind, text);
  find("actions").replaceChildren(override
    ? make("a", { className: "button", href: `${overrideUrl(id, "limit")}&${url}` }, "Create an override for this client")
    : make("span", { className: "note" }, "Name a client above to create an override for it."));
}

async function showSuggestions() {
  const id = find("client-id").value.trim();
  const answer = await fetchData("suggest", { ...chosen.span ? { span: chosen.span } : {}, ...id ? { id } : {} }, { inForm: true });
  if (!answer) return;
  find("suggestions").hidden = false;
  find("suggestion-list").replaceChildren(...answer.suggestions.map((one) => make("li", {}, suggestionText(one), " ", tryButton(one))));
  setText(find("suggestion-note"), answer.suggestions.length
    ? `From ${answer.basis}${answer.is_enough ? "" : ", which is too little to enforce them"}. The command line has more: flask oauth-ratelimit suggest.`
    : "There is too little traffic in this time to propose a limit.");
}

function suggestionText(one) {
  const who = one.client_id === null ? "" : `${visible(one.client_id)}: `;
  return `${who}${one.text} ${KIND_TEXTS[one.kind]}. It would have denied ${number(one.denied)} of ${counted(one.offered, "request")}, ${number(one.well_behaved_denied)} of them of well-behaved clients or users.`;
}

function tryButton(one) {
  const button = make("button", { type: "button", className: "small" }, "Try");
  button.addEventListener("click", () => {
    Object.assign(chosen, { by: BY_OF_KIND[one.kind], window: one.window_s / 60 });
    if (one.client_id !== null) find("client-id").value = one.client_id;
    setLimit(one.limit);
    refresh();
  });
  return button;
}

function refreshSoon() {
  clearTimeout(timer);
  timer = setTimeout(refresh, SOON_MS);
}

function addWindow(minutes, text) {
  if (![...find("window").options].some((option) => option.value === String(minutes))) find("window").append(make("option", { value: String(minutes) }, text));
}

function restart() {
  setLimit(null);
  refresh();
}

radioGroup(find("by"), BY, { chosen: BY[0][0], onChange: (by) => { chosen.by = by; chosen.window = null; restart(); } });
radioGroup(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; markPending(); refresh(); } });
for (const [minutes, text] of WINDOWS) addWindow(minutes, text);
find("window").addEventListener("change", () => { chosen.window = Number(find("window").value); restart(); });
find("limit").addEventListener("input", () => {
  const limit = Number(find("limit").value);
  if (Number.isSafeInteger(limit) && limit >= 1) {
    chosen.limit = limit;
    isStart = false;
    showFieldProblem(find("limit"), "");
    chart.setLimit(limit);
    refreshSoon();
  } else {
    clearTimeout(timer);
    lastRequest += 1; // an answer under way belongs to another input
    if (shown) chart.setLimit(shown.limit);
    showFieldProblem(find("limit"), `A whole number of at least 1. The result below is that of ${number(shown && shown.limit)}.`);
  }
  markPending();
});
find("reset").addEventListener("click", () => { find("limit").focus(); restart(); });
find("client-id").value = query.get("id") || "";
find("client-id").addEventListener("change", () => { Object.assign(chosen, { by: null, window: null }); restart(); });
find("suggest").addEventListener("click", showSuggestions);
find("form").addEventListener("submit", (event) => { event.preventDefault(); refresh(); });
pollVerdict();
poll(refresh, { everyMs: 30_000 });
