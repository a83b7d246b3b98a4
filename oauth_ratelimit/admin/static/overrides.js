// Overrides: those in force, a new one with a look at what it would change, taking back, history.

import { choices, find, make, say, table, tag } from "./dom.js";
import { ask, askStatus, clientUrl, keepUp, mayChange, send } from "./server.js";
import { count, counted, duration, moment, visible } from "./words.js";

const query = new URLSearchParams(location.search);
const KINDS = [["limit", "Limits"], ["mode", "Mode"], ["trusted", "Trust"]];
const LIMIT_KINDS = ["client", "user", "client_total"];
const chosen = {
  kind: KINDS.some(([kind]) => kind === query.get("kind")) ? query.get("kind") : "limit",
  whose: query.has("kind") && !query.get("id") ? "everybody" : "client",
};
let previewed = null; // exactly what was looked at is what is put in force
let leaving = null; // the override that is to be taken back

const what = (row) => (row.limit_kind ? `${row.limit_kind} limit` : row.kind);
const value = (row) => row.mode || row.limits.join(", ") || (row.kind === "limit" ? "no limit" : "trusted");
const whose = (row) => (row.client_id === null ? make("strong", {}, "everybody") : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id)));

const COLUMNS = [
  { title: "whose", kind: "name", value: whose, sign: (row) => String(row.client_id) },
  { title: "what", value: what },
  { title: "value", kind: "wide", value },
  { title: "until", value: (row) => (row.until ? moment(row.until) : "you take it back") },
  { title: "by", kind: "name", value: (row) => `${visible(row.by)}, ${moment(row.at)}` },
  { title: "why", kind: "wide", value: (row) => visible(row.reason) },
  ...mayChange ? [{ title: "", kind: "act", value: takeBackButton, sign: (row) => row.at }] : [],
];
const HISTORY_COLUMNS = [
  { title: "when", value: (row) => moment(row.at) },
  { title: "by", kind: "name", value: (row) => visible(row.by) },
  { title: "did", value: (row) => row.action },
  { title: "whose", kind: "name", value: whose, sign: (row) => String(row.client_id) },
  { title: "what", value: (row) => (row.username === null ? what(row) : `counters of ${visible(row.username)}`) },
  { title: "value", kind: "wide", value: (row) => (row.action === "set" ? value(row) : "") },
  { title: "until", value: (row) => (row.until ? moment(row.until) : "") },
  { title: "why", kind: "wide", value: (row) => visible(row.reason) },
];
const CHANGE_COLUMNS = [
  { title: "", kind: "name", value: (row) => row.what },
  { title: "now", kind: "wide", value: (row) => (row.is_changed ? make("del", {}, row.before) : row.before) },
  { title: "then", kind: "wide", value: (row) => (row.is_changed ? make("ins", {}, tag("changes", "warn"), " ", row.after) : "as it is") },
];

function takeBackButton(row) {
  const button = make("button", { type: "button", className: "small danger", "aria-haspopup": "dialog" }, "Take back");
  button.addEventListener("click", () => {
    leaving = row;
    find("take-back-what").textContent = `${what(row)} of ${row.client_id === null ? "everybody" : visible(row.client_id)}: ${value(row)}`;
    find("take-back-reason").value = "";
    say("take-back-problem", "");
    find("take-back").showModal();
  });
  return button;
}

async function look() {
  const told = await ask("overrides");
  if (!told) return;
  table(find("in-force"), COLUMNS, told.overrides, {
    keyOf: (row) => JSON.stringify([row.kind, row.client_id, row.limit_kind]), empty: "None: the configuration holds.",
  });
  const first = told.history_count;
  table(find("history"), HISTORY_COLUMNS, told.history, {
    keyOf: (row) => JSON.stringify([row.at, row.kind, row.client_id, row.limit_kind, row.username, row.action]),
    empty: "Nothing was ever overridden or reset.",
  });
  find("past").querySelector("summary").textContent = `History (${count(first)})`;
}

function showKind() {
  for (const element of document.querySelectorAll("[data-kind]")) element.hidden = element.dataset.kind !== chosen.kind;
  const forAll = document.querySelector("input[name=whose][value=everybody]");
  forAll.disabled = chosen.kind === "trusted"; // trusting everybody is mode off
  if (forAll.disabled && chosen.whose === "everybody") {
    chosen.whose = "client";
    document.querySelector("input[name=whose][value=client]").checked = true;
  }
  find("client-field").hidden = chosen.whose === "everybody";
  find("client-note").textContent = chosen.kind === "trusted" ? "Its client_id, or a pattern such as mobile-*." : "Its client_id.";
  closePreview();
}

function described() {
  const body = {
    kind: chosen.kind,
    client_id: chosen.whose === "everybody" ? null : find("client-id").value.trim(),
    for: find("length").value,
    reason: find("reason").value,
  };
  if (chosen.kind === "mode") body.mode = find("mode").value;
  if (chosen.kind === "limit") {
    body.limits = {};
    for (const kind of LIMIT_KINDS) {
      const text = find(`limit-${kind}`).value.trim();
      if (text) body.limits[kind] = text.startsWith("{") ? [text] : text.split(/[;,]/).map((part) => part.trim()).filter(Boolean);
    }
  }
  return body;
}

async function preview(event) {
  event.preventDefault();
  say("form-problem", "");
  say("done", "");
  const body = described();
  let told;
  try {
    told = await send("preview", body);
  } catch (error) {
    say("form-problem", error.message);
    return;
  }
  previewed = body;
  find("preview-of").textContent = body.client_id === null ? "for everybody of whom nothing else is said" : visible(body.client_id);
  const replaced = told.replaces.map((row) => `Replaces the ${what(row)} that ${visible(row.by)} has set: ${value(row)}`);
  find("preview-notes").replaceChildren(...[...replaced, ...told.notes].map((text) => make("div", { className: "notice warn" }, make("p", {}, text))));
  table(find("preview-changes"), CHANGE_COLUMNS, told.changes, { keyOf: (row) => row.what, empty: "" });
  find("preview-keys").textContent = keysText(told.keys);
  find("preview-past").replaceChildren(...told.past.map((past) => make("p", {}, pastText(past))));
  find("preview").hidden = false;
  find("preview").focus();
}

function keysText(keys) {
  if (!keys.read_count) return "Nobody that it is about is being counted right now.";
  const of = `${keys.is_complete ? "" : "the first "}${count(keys.read_count)} ${keys.read_count === 1 ? "key that is" : "keys that are"} being counted now`;
  return `Of ${of}: denied ${count(keys.denied_before_count)} before, ${count(keys.denied_after_count)} after; ` +
    `over a limit in a dry run ${count(keys.would_deny_before_count)} before, ${count(keys.would_deny_after_count)} after. ` +
    "A window that is cut in another way begins to count when it takes force.";
}

function pastText(past) {
  const whom = counted(past.bearer_count, past.kind === "user" ? "user" : "client");
  return `In the last day the limit ${past.policy} would have denied about ${count(past.denied)} of ${counted(past.offered, "request")} ` +
    `(${count(past.at_least)} to ${count(past.at_most)}), of ${count(past.concerned_count)} of ${whom}.`;
}

function closePreview() {
  previewed = null;
  find("preview").hidden = true;
}

async function put() {
  if (!previewed) return;
  try {
    const told = await send("put", previewed);
    closePreview();
    say("done", `In force. Every instance follows within ${duration(told.arrives_within_s)}.`);
    find("reason").value = "";
  } catch (error) {
    say("form-problem", error.message);
  }
  await look();
  find("done").scrollIntoView({ block: "center" });
}

async function takeBack(event) {
  event.preventDefault();
  try {
    const { kind, client_id, limit_kind } = leaving;
    const told = await send("remove", { kind, client_id, limit_kind, reason: find("take-back-reason").value });
    find("take-back").close();
    say("done", told.is_removed ? `Taken back. Every instance follows within ${duration(told.arrives_within_s)}.` : "Somebody was quicker: it is gone already.");
  } catch (error) {
    say("take-back-problem", error.message);
    return;
  }
  await look();
}

if (mayChange) {
  choices(find("kind"), KINDS, { chosen: chosen.kind, onChange: (kind) => { chosen.kind = kind; showKind(); } });
  choices(find("whose"), [["client", "One client"], ["everybody", "Everybody"]], {
    chosen: chosen.whose, onChange: (each) => { chosen.whose = each; showKind(); },
  });
  find("client-id").value = query.get("id") || "";
  for (const kind of LIMIT_KINDS) find(`limit-${kind}`).value = query.get(kind) || "";
  showKind();
  find("form").addEventListener("submit", preview);
  find("form").addEventListener("input", closePreview);
  find("put").addEventListener("click", put);
  find("cancel").addEventListener("click", () => { closePreview(); find("look").focus(); });
  find("take-back-form").addEventListener("submit", takeBack);
  find("take-back-no").addEventListener("click", () => find("take-back").close());
}
keepUp(askStatus);
keepUp(look);
