// The panel to act on a client, or on everybody: raise, trust, dry run, undo; what a change would do, and what it did.

import { announce, find, make, radioGroup, setText, table } from "./dom.js";
import { dateTime, duration, number, visible } from "./format.js";
import { canChange, fetchData, poll, refreshAll, send } from "./server.js";

const panel = find("panel");
const query = new URLSearchParams(location.search);
const clientId = "everybody" in panel.dataset ? null : query.get("id");
const ACTIONS = [["limit", "Raise"], ...clientId === null ? [] : [["trusted", "Trust"]], ["mode", "Dry run"]];
const LENGTHS = [["30m", "30 minutes"], ["2h", "2 hours"], ["12h", "12 hours"], ["1d", "1 day"], ["7d", "7 days"], ["", "no end"]];
const FIELDS = { limits: "Limits", for: "Ends after", reason: "Reason" };
const TYPING_MS = 500;
const WATCHED_MS = 120_000;
const MINUTE_COLUMNS = [
  { title: "minute", kind: "name", value: (row) => dateTime(row.at_s) },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "denied", kind: "number", value: (row) => number(row.denied) },
  { title: "would be denied (dry run)", kind: "number", value: (row) => number(row.would_deny), isShown: (rows) => rows.some((row) => row.would_deny) },
];
let kind = ACTIONS.some(([name]) => name === query.get("panel")) ? query.get("panel") : "limit";
let present = null; // what applies now
let typing = null;
let asked = 0; // number of the last preview: an answer to an earlier one is dropped
let watched = null; // the change whose outcome is shown: { sinceS, untilMs, effectS }

export const whatText = (row) => (row.limit_kind ? `${row.limit_kind} limit` : row.kind);
export const valueText = (row) => (row.canary_percent ? `${row.mode}, ${row.canary_percent} % of the clients` : row.mode) || row.limits.join(", ") || (row.kind === "limit" ? "no limit" : "trusted");
export const endText = (until) => (until ? `until ${dateTime(until)}` : "without an end");

const field = (id, name, ...inputs) => make("div", { className: "field" }, make("label", { htmlFor: id }, name), inputs);
const amounts = () => [...panel.querySelectorAll("input[type=number]")];

function build() {
  const choices = make("fieldset", { className: "choices", id: "act" }, make("legend", { className: "visually-hidden" }, "Action"));
  radioGroup(choices, ACTIONS, { chosen: kind, onChange: choose });
  const length = make("select", { id: "panel-length" }, LENGTHS.map(([value, text]) => make("option", { value, selected: value === "2h" }, text)));
  const reason = make("input", { id: "panel-reason", maxLength: 1000, autocomplete: "off", required: true, placeholder: "migration, ticket 4711" });
  const apply = make("button", { className: "primary", id: "panel-apply" }, "Apply");
  const form = make("form", { id: "panel-form", className: "stack", noValidate: true }, choices,
    make("div", { id: "panel-limits", className: "grid" }),
    make("div", { id: "panel-preview", className: "notice info", role: "status", hidden: true }, make("div", { className: "stack tight" })),
    make("div", { className: "grid" }, field("panel-length", "Ends after", length), field("panel-reason", "Reason", reason)),
    make("div", { id: "panel-problem", className: "notice bad", role: "alert", hidden: true }, make("p")), make("div", { className: "actions" }, apply));
  form.addEventListener("submit", (event) => { event.preventDefault(); submit(apply); });
  panel.querySelector("header").after(make("ul", { id: "panel-undo", className: "plain" }), make("div", { id: "panel-outcome", className: "stack tight", tabIndex: -1, hidden: true }, make("p", { role: "status" }), make("table", { className: "folds" })), form);
}

function choose(name) {
  kind = name;
  const address = new URL(location.href);
  address.searchParams.set("panel", name);
  history.replaceState(null, "", address);
  showKind();
}

function showKind() {
  find("panel-limits").hidden = kind !== "limit";
  preview();
}

// Shows what applies. Typed amounts stay until a limit changes.
async function refresh() {
  const answer = await fetchData("current", clientId === null ? {} : { id: clientId });
  if (!answer) return;
  panel.hidden = false;
  const isNew = JSON.stringify(answer.limits) !== JSON.stringify(present?.limits);
  present = answer;
  const undo = make("ul", {}, answer.overrides.map((row) => make("li", {}, `${whatText(row)}: `, make("strong", {}, visible(valueText(row))), ` ${endText(row.until)}, by ${visible(row.by)}: ${visible(row.reason)} `, ...canChange ? [undoButton(row)] : [])));
  // A button that is replaced loses the focus, and a click that has begun.
  if (undo.innerHTML !== find("panel-undo").innerHTML) find("panel-undo").replaceChildren(...undo.children);
  if (!canChange || !isNew) return;
  const limits = Object.entries(answer.limits).flatMap(([limitKind, { amounts: found, rates }]) => Object.entries(found).map(([name, amount], index) => amountField(limitKind, name, amount, rates[index])));
  find("panel-limits").replaceChildren(...limits.length ? limits : [make("p", { className: "note" }, "No limit applies.")]);
  showKind();
}

function undoButton(row) {
  const button = make("button", { type: "button", className: "small danger", "aria-label": `Undo: ${whatText(row)} ${valueText(row)}` }, "Undo");
  button.addEventListener("click", async () => {
    button.disabled = true;
    try {
      await send("remove", { kind: row.kind, client_id: row.client_id, limit_kind: row.limit_kind, reason: `undo: ${row.reason}`.slice(0, 1000) });
      announce("Undone: the configuration applies again.");
      watched = null;
      find("panel-outcome").hidden = true;
    } catch (error) {
      showProblem(error.message);
    }
    refreshAll();
  });
  return button;
}

// A number, and a slider from a tenth to a hundred times the present amount.
function amountField(limitKind, name, amount, rate) {
  const id = `panel-${limitKind}-${name}`;
  const input = make("input", { id, type: "number", min: 1, step: 1, value: amount });
  Object.assign(input.dataset, { kind: limitKind, name, amount });
  const slider = make("input", { type: "range", min: -10, max: 20, value: 0, "aria-label": `${name}, from a tenth to a hundred times` });
  slider.addEventListener("input", () => { input.value = Math.max(1, Math.round(amount * 10 ** (slider.value / 10))); });
  input.addEventListener("input", () => { slider.value = 10 * Math.log10(Math.max(1, input.value) / amount); });
  for (const each of [input, slider]) each.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(preview, TYPING_MS); });
  return field(id, `${name} per ${rate}, now ${number(amount)}`, input, slider);
}

function body() {
  const limits = {};
  for (const { value, dataset } of amounts()) if (value !== dataset.amount) (limits[dataset.kind] ||= {})[dataset.name] = Number(value);
  const chosen = { limit: { limits }, mode: { mode: "dry-run" }, trusted: {} }[kind];
  return { kind, client_id: clientId, for: find("panel-length").value, ...chosen };
}

async function preview() {
  const lines = find("panel-preview").firstElementChild;
  const isChanged = kind !== "limit" || amounts().some(({ value, dataset }) => value !== dataset.amount);
  const asking = asked += 1;
  showProblem("");
  find("panel-preview").hidden = !isChanged;
  if (!isChanged) return;
  lines.replaceChildren(make("p", {}, "Computing what this does …"));
  try {
    const answer = await send("preview", body());
    if (asking !== asked) return;
    const proposed = Object.entries(answer.proposal);
    lines.replaceChildren(...answer.lines.map((text) => make("p", {}, visible(text))), ...proposed.length && kind === "limit" ? [proposalButton(proposed)] : []);
  } catch (error) {
    if (asking !== asked) return;
    find("panel-preview").hidden = true;
    showProblem(problemText(error));
  }
}

function proposalButton(proposed) {
  const button = make("button", { type: "button", className: "small" }, "Enter these, too");
  button.addEventListener("click", () => {
    for (const [limitKind, found] of proposed) {
      for (const [name, amount] of Object.entries(found)) {
        const input = find(`panel-${limitKind}-${name}`);
        input.value = amount;
        input.dispatchEvent(new Event("input"));
      }
    }
  });
  return make("div", { className: "actions" }, button);
}

// Errors of fields have the field's name on the page instead of its name for the server.
const problemText = ({ fields = [], message }) => fields.map(({ field: name, text }) => `${FIELDS[name.split(/[.[]/)[0]] || name}: ${text}.`).join(" ") || message;

function showProblem(text) {
  setText(find("panel-problem").firstElementChild, text);
  find("panel-problem").hidden = !text;
}

// The button is disabled meanwhile, so that a second click sends nothing.
async function submit(button) {
  if (button.disabled) return;
  button.disabled = true;
  try {
    const answer = await send("apply", { ...body(), reason: find("panel-reason").value });
    watched = { sinceS: answer.since_s, untilMs: Date.now() + WATCHED_MS, effectS: answer.takes_effect_within_s };
    find("panel-reason").value = "";
    setText(find("panel-outcome").firstElementChild, `Applied. Takes effect on every instance within ${duration(answer.takes_effect_within_s)}.`);
    find("panel-outcome").hidden = false;
    find("panel-outcome").focus();
    await refresh();
    refreshAll();
  } catch (error) {
    showProblem(problemText(error));
  }
  button.disabled = false;
}

// Two minutes of measured numbers after a change.
async function watch() {
  if (!watched || clientId === null || Date.now() > watched.untilMs) return;
  const answer = await fetchData("outcome", { id: clientId, since: watched.sinceS });
  if (!answer || !watched) return;
  const text = answer.is_denied ? `Still denied: last at ${dateTime(answer.last_s)} by ${visible(answer.policy)}.`
    : !answer.is_written ? "Applied. Did it work? Instances write their numbers every ten seconds."
      : answer.minutes.length ? "It works: no request was denied since the change took effect." : "No requests since the change.";
  setText(find("panel-outcome").firstElementChild, text);
  table(find("panel-outcome").querySelector("table"), MINUTE_COLUMNS, answer.minutes, { keyOf: (row) => String(row.at_s), empty: "No requests yet." });
}

if (canChange) build();
else panel.querySelector("header").after(make("ul", { id: "panel-undo", className: "plain" }));
poll(refresh);
poll(watch);
