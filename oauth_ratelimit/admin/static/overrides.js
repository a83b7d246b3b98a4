// Active overrides, a new one with a preview, removal, history.

import { announce, find, make, radioGroup, setText, showMessage, table } from "./dom.js";
import { Tiers, showFieldProblem } from "./tiers.js";
import { canChange, clientUrl, fetchData, originText, poll, pollVerdict, send } from "./server.js";
import { counted, dateTime, duration, number, visible } from "./format.js";

const query = new URLSearchParams(location.search);
const KINDS = [["limit", "Limits"], ["mode", "Mode"], ["trusted", "Trust"]];
const TYPING_MS = 400;
const chosen = { kind: KINDS.some(([kind]) => kind === query.get("kind")) ? query.get("kind") : "limit", scope: "client" };
let tiers = null;
let previewed = null; // the override in the preview, which is the one that is applied
let removing = null; // the override to remove

const what = (row) => (row.limit_kind ? `${row.limit_kind} limit` : row.kind);
const value = (row) => row.mode || row.limits.join(", ") || (row.kind === "limit" ? "no limit" : "trusted");
const clientText = (clientId) => (clientId === null ? "everybody" : visible(clientId));
const clientCell = (row) => (row.client_id === null ? make("strong", {}, "everybody") : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id)));
const endText = (until) => (until ? `until ${dateTime(until)}` : "without an end");

const COLUMNS = [
  { title: "client", kind: "name", value: clientCell, version: (row) => String(row.client_id) },
  { title: "what", value: what },
  { title: "value", kind: "wide", value },
  { title: "until", value: (row) => (row.until ? dateTime(row.until) : "no end") },
  { title: "by", kind: "name", value: (row) => `${visible(row.by)}, ${dateTime(row.at)}` },
  { title: "reason", kind: "wide", value: (row) => visible(row.reason) },
  ...canChange ? [{ title: "", kind: "act", value: removeButton, version: (row) => row.at }] : [],
];
const HISTORY_COLUMNS = [
  { title: "when", value: (row) => dateTime(row.at) },
  { title: "by", kind: "name", value: (row) => visible(row.by) },
  { title: "action", value: (row) => row.action },
  { title: "client", kind: "name", value: clientCell, version: (row) => String(row.client_id) },
  { title: "what", value: (row) => (row.username === null ? what(row) : `counters of ${visible(row.username)}`) },
  { title: "value", kind: "wide", value: (row) => (row.action === "set" ? value(row) : "") },
  { title: "until", value: (row) => (row.until ? dateTime(row.until) : "") },
  { title: "reason", kind: "wide", value: (row) => visible(row.reason) },
];
const CHANGE_COLUMNS = [
  { title: "change", kind: "name", value: (row) => row.what },
  { title: "now", kind: "wide", value: (row) => make("del", {}, row.before) },
  { title: "after", kind: "wide", value: (row) => make("ins", {}, row.after) },
];
const RECORDED_COLUMNS = [
  { title: "client", kind: "name", value: (row) => make("a", { href: clientUrl(row.client_id) }, visible(row.client_id)) },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : visible(row.username)), isShown: (rows) => rows.some((row) => row.username !== null) },
  { title: "denied in the last hour", kind: "number", value: (row) => number(row.hour) },
  { title: "in the last day", kind: "number", value: (row) => number(row.day) },
];

function removeButton(row) {
  const button = make("button", { type: "button", className: "small danger", "aria-haspopup": "dialog", "aria-label": `Remove the ${what(row)} of ${clientText(row.client_id)}` }, "Remove");
  button.addEventListener("click", () => {
    removing = row;
    setText(find("remove-target"), `${what(row)} of ${clientText(row.client_id)}: ${value(row)}, ${endText(row.until)}. What applied before applies again.`);
    find("remove-reason").value = "";
    showMessage("remove-problem", "");
    find("remove").showModal();
  });
  return button;
}

async function refresh() {
  const answer = await fetchData("overrides");
  if (!answer) return;
  table(find("active"), COLUMNS, answer.overrides, {
    keyOf: (row) => JSON.stringify([row.kind, row.client_id, row.limit_kind]), empty: "No overrides: the configuration applies.",
  });
  table(find("history"), HISTORY_COLUMNS, answer.history, {
    keyOf: (row) => JSON.stringify([row.at, row.kind, row.client_id, row.limit_kind, row.username, row.action]),
    empty: "No overrides and no resets so far.",
  });
  setText(find("history-details").querySelector("summary"), `History (${number(answer.history_count)})`);
}

const clientId = () => (chosen.scope === "everybody" ? null : find("client-id").value.trim());

// Fills the fields with what applies now.
async function fillPresent() {
  const id = clientId();
  const asked = JSON.stringify(id);
  if (id === "") {
    tiers.fill({});
    setText(find("client-note"), "Its client_id, taken literally.");
    return;
  }
  const params = id === null ? {} : { id };
  const [present, client] = await Promise.all([fetchData("current", params), id === null ? null : fetchData("client", params)]);
  if (!present || asked !== JSON.stringify(clientId())) return;
  tiers.fill(present.limits);
  find("mode").value = present.mode;
  setText(find("mode-note"), `now ${present.mode}, from ${originText(present.mode_origin)}`);
  if (client) showKnown(client.verdict);
}

function showKnown(verdict) {
  const note = find("client-note");
  if (!verdict || verdict.kind !== "unknown") {
    note.replaceChildren(verdict ? visible(verdict.text) : "");
    return;
  }
  const suggestions = verdict.suggestions.map((id) => {
    const button = make("button", { type: "button", className: "link" }, visible(id));
    button.addEventListener("click", () => {
      find("client-id").value = id;
      closePreview();
      fillPresent();
    });
    return button;
  });
  note.replaceChildren("No client with this id is known.", ...suggestions.flatMap((button, index) => [index ? ", " : " Did you mean ", button]), suggestions.length ? "?" : "");
}

function showKind() {
  for (const element of document.querySelectorAll("[data-kind]")) element.hidden = element.dataset.kind !== chosen.kind;
  const everybody = document.querySelector("input[name=scope][value=everybody]");
  everybody.disabled = chosen.kind === "trusted"; // mode off does that
  if (everybody.disabled && chosen.scope === "everybody") {
    chosen.scope = "client";
    document.querySelector("input[name=scope][value=client]").checked = true;
  }
  find("client-field").hidden = chosen.scope === "everybody";
  closePreview();
}

function formBody() {
  const body = { kind: chosen.kind, client_id: clientId(), for: find("length").value, reason: find("reason").value };
  if (chosen.kind === "mode") body.mode = find("mode").value;
  if (chosen.kind === "limit") body.limits = tiers.limits();
  return body;
}

// Shows the server's errors at their fields, all at once, and moves the focus to the first.
function showServerProblem(error) {
  const elsewhere = [];
  const marked = (error.fields || []).map(({ field, text: given }) => {
    const text = field === "limits" ? "No limit is changed: change a tier, add one, or remove one." : field === "client_id" && !clientId() ? "Name a client, or choose Everybody." : given;
    const input = inputOf(field);
    if (!input) elsewhere.push(text);
    return input && showFieldProblem(input, text);
  }).filter(Boolean);
  document.querySelector("#form [aria-invalid=true]")?.focus();
  showMessage("form-problem", elsewhere.join(" ") || (marked.length ? "" : error.message));
}

// field: such as "reason" or "limits.user[1]"
function inputOf(field) {
  const [, kind, index] = /^limits\.(\w+)(?:\[(\d+)\])?/.exec(field) || [];
  if (kind) return tiers.inputAt(kind, Number(index || 0));
  return { client_id: find("client-id"), reason: find("reason") }[field];
}

function clearProblems() {
  showMessage("form-problem", "");
  tiers.clearProblems();
  for (const id of ["client-id", "reason"]) showFieldProblem(find(id), "");
}

async function preview(event) {
  event.preventDefault();
  showMessage("done", "");
  clearProblems();
  const body = formBody();
  let answer;
  try {
    answer = await send("preview", body);
  } catch (error) {
    showServerProblem(error);
    return;
  }
  previewed = body;
  showPreview(answer);
  find("preview").hidden = false;
  find("preview").focus();
}

function showPreview(answer) {
  const dropped = answer.dropped_tiers.map((tier) => `Drops a tier of the ${tier.kind} limit: ${tier.text}`);
  const replaced = answer.replaces.map((row) => `Replaces the ${what(row)} set by ${visible(row.by)}: ${value(row)}`);
  find("preview-notes").replaceChildren(...[...dropped, ...replaced, ...answer.notes].map((text) => make("div", { className: "notice warn" }, make("p", {}, text))));
  table(find("preview-changes"), CHANGE_COLUMNS, answer.changes, { keyOf: (row) => row.what, empty: "Nothing changes: this applies already." });
  setText(find("preview-keys"), keysText(answer.keys));
  showRecorded(answer.recorded);
  const override = answer.overrides[0];
  find("confirm").replaceChildren(
    "Apply to ", make("strong", {}, clientText(override.client_id)), ": ",
    answer.overrides.map((each) => `${what(each)} ${value(each)}`).join("; "), ", ", make("strong", {}, endText(override.until)), "?",
  );
}

// The effect on the requests of the last hour and day, and the clients most concerned.
function showRecorded({ hour, day }) {
  find("recorded-text").replaceChildren(...recordedTexts(hour, "last hour"), ...recordedTexts(day, "last day"));
  const rows = new Map();
  for (const [span, effect] of [["hour", hour], ["day", day]]) {
    for (const row of effect.top || effect.limits.flatMap((limit) => limit.top)) {
      const key = JSON.stringify([row.client_id, row.username]);
      rows.set(key, { ...row, ...rows.get(key), [span]: row.denied_after ?? row.denied });
    }
  }
  find("recorded-top").hidden = !rows.size;
  table(find("recorded-clients"), RECORDED_COLUMNS, [...rows.values()].slice(0, 5), { keyOf: (row) => JSON.stringify([row.client_id, row.username]), empty: "" });
}

function recordedTexts(effect, name) {
  if (!effect.limits) {
    const text = `In the ${name}: ${number(effect.denied_before)} of ${counted(effect.offered, "request")} were denied; with this change it would have been ${number(effect.denied_after)}.`;
    return [make("p", {}, text)];
  }
  return effect.limits.map((limit) => make("p", {}, `In the ${name}, ${limit.policy} would have denied about ${number(limit.denied)} of ${counted(limit.offered, "request")} ` +
    `(${number(limit.at_least)} to ${number(limit.at_most)}), of ${number(limit.concerned_count)} of ${counted(limit.bearer_count, limit.kind === "user" ? "user" : "client")}; ` +
    `really denied: ${number(limit.recorded.denied)}, would be denied in a dry run: ${number(limit.recorded.would_deny)}.`));
}

function keysText(keys) {
  if (!keys || !keys.read_count) return "No keys in use are affected.";
  const total = `${keys.is_complete ? "" : "the first "}${counted(keys.read_count, "key")} in use`;
  const parts = [["denied", keys.denied_before_count, keys.denied_after_count], ["would be denied (dry run)", keys.would_deny_before_count, keys.would_deny_after_count]]
    .filter(([, before, after]) => before || after).map(([name, before, after]) => `${name} ${number(before)} now, ${number(after)} after`);
  return parts.length ? `Of ${total}: ${parts.join("; ")}. A limit with another frame length starts at zero.` : "";
}

function closePreview() {
  previewed = null;
  find("preview").hidden = true;
}

async function apply() {
  if (!previewed) return;
  try {
    const answer = await send("apply", previewed);
    const made = answer.overrides[0];
    closePreview();
    showMessage("done", `Applied to ${clientText(made.client_id)} ${endText(made.until)}. Takes effect on every instance within ${duration(answer.takes_effect_within_s)}.`);
    find("reason").value = "";
    fillPresent();
  } catch (error) {
    showServerProblem(error);
    return;
  }
  await refresh();
  find("done").scrollIntoView({ block: "center" });
}

async function remove(event) {
  event.preventDefault();
  try {
    const { kind, client_id, limit_kind } = removing;
    const answer = await send("remove", { kind, client_id, limit_kind, reason: find("remove-reason").value });
    find("remove").close();
    showMessage("done", answer.is_removed ? `Removed. Takes effect on every instance within ${duration(answer.takes_effect_within_s)}.` : "This override was already removed.");
  } catch (error) {
    showMessage("remove-problem", error.message);
    return;
  }
  await refresh();
  fillPresent();
}

async function start() {
  tiers = new Tiers(find("tiers"), { onChange: closePreview });
  radioGroup(find("kind"), KINDS, { chosen: chosen.kind, onChange: (kind) => { chosen.kind = kind; showKind(); } });
  radioGroup(find("scope"), [["client", "One client"], ["everybody", "Everybody"]], {
    chosen: chosen.scope, onChange: (scope) => { chosen.scope = scope; showKind(); fillPresent(); },
  });
  find("client-id").value = query.get("id") || "";
  let typing = null;
  find("client-id").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(fillPresent, TYPING_MS);
  });
  find("form").addEventListener("submit", preview);
  find("form").addEventListener("input", closePreview);
  find("apply").addEventListener("click", apply);
  find("cancel").addEventListener("click", () => { closePreview(); find("show-preview").focus(); announce("Preview closed. Nothing was changed."); });
  find("remove-form").addEventListener("submit", remove);
  find("remove-cancel").addEventListener("click", () => find("remove").close());
  showKind();
  await fillPresent();
  for (const kind of ["client", "user", "client_total"]) if (query.has(kind)) tiers.propose(kind, query.getAll(kind));
}

if (canChange) start();
pollVerdict();
poll(refresh);
