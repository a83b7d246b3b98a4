// Active overrides, a new one with a preview, removal, history.

import { announce, find, make, radioGroup, setText, showFieldProblem, showMessage, table } from "./dom.js";
import { appliedText, clientText, endText, lengthSelect, removeButton, valueText, whatText } from "./override.js";
import { Tiers } from "./tiers.js";
import { canChange, clientUrl, fetchData, originText, poll, pollVerdict, send } from "./server.js";
import { boundsText, counted, dateTime, number, visible } from "./format.js";

const query = new URLSearchParams(location.search);
const KINDS = [["limit", "Limits"], ["mode", "Mode"], ["trusted", "Trust"]];
const TYPING_MS = 400;
const chosen = { kind: KINDS.some(([kind]) => kind === query.get("kind")) ? query.get("kind") : "limit", scope: "client" };
let tiers = null;
let previewed = null; // the override in the preview, which is the one that is applied

const clientCell = (row) => (row.client_id === null ? make("strong", {}, "everybody") : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id)));

const COLUMNS = [
  { title: "client", kind: "name", value: clientCell, version: (row) => String(row.client_id) },
  { title: "what", value: whatText },
  { title: "value", kind: "wide", value: valueText },
  { title: "until", kind: "word", value: (row) => (row.until ? dateTime(row.until) : "no end") },
  { title: "by", kind: "wide", value: (row) => `${visible(row.by)}, ${dateTime(row.at)}` },
  { title: "reason", kind: "wide", value: (row) => visible(row.reason) },
  ...canChange ? [{ title: "", kind: "act", value: (row) => removeButton(row, showDone), version: (row) => row.at }] : [],
];
const HISTORY_COLUMNS = [
  { title: "when", kind: "word", value: (row) => dateTime(row.at) },
  { title: "client", kind: "name", value: clientCell, version: (row) => String(row.client_id) },
  { title: "change", kind: "wide", value: changeText },
  { title: "by", kind: "wide", value: (row) => visible(row.by) },
  { title: "reason", kind: "wide", value: (row) => visible(row.reason) },
];
const CHANGE_COLUMNS = [
  { title: "change", kind: "name", value: (row) => row.what },
  { title: "now", kind: "wide", value: (row) => make("del", {}, row.before) },
  { title: "after", kind: "wide", value: (row) => make("ins", {}, row.after) },
];
const EFFECT_COLUMNS = [
  { title: "recorded requests", kind: "name", value: (row) => row.span },
  { title: "policy", kind: "word", value: (row) => row.policy || "", isShown: (rows) => rows.some((row) => row.policy) },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "denied", kind: "number", value: (row) => number(row.recorded ? row.recorded.denied : row.denied_before) },
  { title: "would be denied (dry run)", kind: "number", value: (row) => number(row.recorded.would_deny), isShown: (rows) => rows.some((row) => row.recorded) },
  { title: "over the new limit, about", kind: "number", value: (row) => make("strong", {}, number(row.denied)), isShown: (rows) => rows.some((row) => row.recorded) },
  { title: "denied with this change", kind: "number", value: (row) => make("strong", {}, number(row.denied_after)), isShown: (rows) => !rows.some((row) => row.recorded) },
  { title: "bounds", kind: "number", value: boundsText, isShown: (rows) => rows.some((row) => boundsText(row)) },
  { title: "clients or users affected", kind: "number", value: (row) => (row.bearer_count === undefined ? number(row.client_count) : `${number(row.concerned_count)} of ${number(row.bearer_count)}`) },
];
const RECORDED_COLUMNS = [
  { title: "client", kind: "name", value: (row) => make("a", { href: clientUrl(row.client_id) }, visible(row.client_id)) },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : visible(row.username)), isShown: (rows) => rows.some((row) => row.username !== null) },
  { title: "last hour", kind: "number", value: (row) => row.hour || "–" },
  { title: "last day", kind: "number", value: (row) => row.day || "–" },
];

function changeText(row) {
  if (row.action === "set") return `${whatText(row)}: ${valueText(row)}, ${endText(row.until)}`;
  if (row.action === "unset") return `${whatText(row)}: removed`;
  return `counters${row.username === null ? "" : ` of ${visible(row.username)}`}: ${row.action}`;
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
    setText(find("client-note"), "Its exact client_id. A * is not a pattern here.");
    return;
  }
  const params = id === null ? {} : { id };
  const [present, client] = await Promise.all([fetchData("current", params), id === null ? null : fetchData("client", params)]);
  if (!present || asked !== JSON.stringify(clientId())) return;
  tiers.fill(present.limits, client && client.verdict.policy ? { policy: client.verdict.policy, use: client.verdict.highest_use } : null);
  find("mode").value = present.mode;
  setText(find("mode-note"), `now ${present.mode}, from ${originText(present.mode_origin)}`);
  if (client) showKnown(client.verdict);
  return client && client.verdict;
}

function showKnown(verdict) {
  const note = find("client-note");
  if (!verdict || verdict.kind !== "unknown") {
    note.replaceChildren("");
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
  const replaced = answer.replaces.map((row) => `Replaces the ${whatText(row)} set by ${visible(row.by)}: ${valueText(row)}`);
  find("preview-notes").replaceChildren(...[...dropped, ...replaced, ...answer.notes].map((text) => make("div", { className: "notice warn" }, make("p", {}, visible(text)))));
  table(find("preview-changes"), CHANGE_COLUMNS, answer.changes, { keyOf: (row) => row.what, empty: "Nothing changes: this applies already." });
  setText(find("preview-keys"), keysText(answer.keys, { isLimit: answer.overrides[0].kind === "limit" }));
  showRecorded(answer.recorded);
  const override = answer.overrides[0];
  find("confirm").replaceChildren(
    "Apply to ", make("strong", {}, clientText(override.client_id)), ": ",
    answer.overrides.map((each) => `${whatText(each)} ${valueText(each)}`).join("; "), ", ", make("strong", {}, endText(override.until)), "?",
  );
}

// The effect on the requests of the last hour and day, and the clients most affected.
function showRecorded({ hour, day }) {
  const spans = [["last hour", hour], ["last day", day]];
  const effects = spans.flatMap(([span, effect]) => (effect.limits || [effect]).map((each) => ({ span, ...each })));
  table(find("recorded-effects"), EFFECT_COLUMNS, effects, { keyOf: (row) => `${row.span}/${row.policy}`, empty: "" });
  find("recorded-card").hidden = !effects.length;
  const missing = new Set(spans.flatMap(([, effect]) => effect.missing || []).map((each) => `${each.policy}: ${each.reason}`));
  setText(find("recorded-missing"), [...missing].join(" "));
  const rows = new Map();
  for (const [span, effect] of [["hour", hour], ["day", day]]) {
    for (const row of effect.top || effect.limits.flatMap((limit) => limit.top)) {
      const key = JSON.stringify([row.client_id, row.username]);
      rows.set(key, { ...row, ...rows.get(key), [span]: effect.top ? `${number(row.denied_before)} → ${number(row.denied_after)}` : number(row.denied) });
    }
  }
  find("recorded-top").hidden = !rows.size;
  setText(find("recorded-top-title"), hour.top ? "Denied requests of the clients most affected, before → with this change" : "Most requests over the new limit");
  table(find("recorded-clients"), RECORDED_COLUMNS, [...rows.values()].slice(0, 5), { keyOf: (row) => JSON.stringify([row.client_id, row.username]), empty: "" });
}

function keysText(keys, { isLimit }) {
  if (!keys.read_count) return "No keys are in use now.";
  const total = `${keys.is_complete ? "" : "the first "}${counted(keys.read_count, "key")} in use`;
  const parts = [["denied", keys.denied_before_count, keys.denied_after_count], ["would be denied (dry run)", keys.would_deny_before_count, keys.would_deny_after_count]]
    .filter(([, before, after]) => before || after).map(([name, before, after]) => `${name} ${number(before)} now, ${number(after)} after`);
  if (!parts.length) return `Of ${total}, none is over a limit, now or with this change.`;
  return `Of ${total}: ${parts.join("; ")}.${isLimit ? " A limit with another window may start at zero." : ""}`;
}

function closePreview() {
  previewed = null;
  find("preview").hidden = true;
}

async function apply() {
  if (!previewed) return;
  try {
    const answer = await send("apply", previewed);
    closePreview();
    find("reason").value = "";
    await showDone(appliedText(answer));
  } catch (error) {
    showServerProblem(error);
  }
}

async function showDone(text) {
  showMessage("done", text);
  await refresh();
  find("done").focus();
  fillPresent();
}

async function start() {
  find("length-field").append(lengthSelect("length"));
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
  showKind();
  const verdict = await fillPresent();
  if (chosen.kind === "limit" && verdict) tiers.select(verdict.policy);
  for (const kind of ["client", "user", "client_total"]) if (query.has(kind)) tiers.propose(kind, query.getAll(kind));
}

if (canChange) start();
pollVerdict();
poll(refresh);
