// Active overrides, a new one with a preview, removal, history.

import { find, make, radioGroup, showMessage, table, tag } from "./dom.js";
import { canChange, clientUrl, fetchData, fetchStatus, poll, send } from "./server.js";
import { counted, dateTime, duration, number, visible } from "./format.js";

const query = new URLSearchParams(location.search);
const KINDS = [["limit", "Limits"], ["mode", "Mode"], ["trusted", "Trust"]];
const LIMIT_KINDS = ["client", "user", "client_total"];
const chosen = {
  kind: KINDS.some(([kind]) => kind === query.get("kind")) ? query.get("kind") : "limit",
  scope: query.has("kind") && !query.get("id") ? "everybody" : "client",
};
let previewed = null; // the override in the preview, which is the one that is applied
let removing = null; // the override to remove

const what = (row) => (row.limit_kind ? `${row.limit_kind} limit` : row.kind);
const value = (row) => row.mode || row.limits.join(", ") || (row.kind === "limit" ? "no limit" : "trusted");
const clientCell = (row) => (row.client_id === null ? make("strong", {}, "everybody") : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id)));

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
  { title: "", kind: "name", value: (row) => row.what },
  { title: "now", kind: "wide", value: (row) => (row.is_changed ? make("del", {}, row.before) : row.before) },
  { title: "after", kind: "wide", value: (row) => (row.is_changed ? make("ins", {}, tag("changes", "warn"), " ", row.after) : "no change") },
];

function removeButton(row) {
  const button = make("button", { type: "button", className: "small danger", "aria-haspopup": "dialog" }, "Remove");
  button.addEventListener("click", () => {
    removing = row;
    find("remove-target").textContent = `${what(row)} of ${row.client_id === null ? "everybody" : visible(row.client_id)}: ${value(row)}`;
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
  find("history-details").querySelector("summary").textContent = `History (${number(answer.history_count)})`;
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
  find("client-note").textContent = "Its client_id.";
  closePreview();
}

function formBody() {
  const body = {
    kind: chosen.kind,
    client_id: chosen.scope === "everybody" ? null : find("client-id").value.trim(),
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
  showMessage("form-problem", "");
  showMessage("done", "");
  const body = formBody();
  let answer;
  try {
    answer = await send("preview", body);
  } catch (error) {
    showMessage("form-problem", error.message);
    return;
  }
  previewed = body;
  find("preview-of").textContent = body.client_id === null ? "for everybody without rules of their own" : visible(body.client_id);
  const replaced = answer.replaces.map((row) => `Replaces the ${what(row)} set by ${visible(row.by)}: ${value(row)}`);
  find("preview-notes").replaceChildren(...[...replaced, ...answer.notes].map((text) => make("div", { className: "notice warn" }, make("p", {}, text))));
  table(find("preview-changes"), CHANGE_COLUMNS, answer.changes, { keyOf: (row) => row.what, empty: "" });
  find("preview-keys").textContent = keysText(answer.keys);
  find("preview-past").replaceChildren(...answer.past.map((past) => make("p", {}, pastText(past))));
  find("preview").hidden = false;
  find("preview").focus();
}

function keysText(keys) {
  if (!keys.read_count) return "No keys in use are affected.";
  const total = `${keys.is_complete ? "" : "the first "}${counted(keys.read_count, "key")} in use`;
  return `Of ${total}: denied ${number(keys.denied_before_count)} before, ${number(keys.denied_after_count)} after; ` +
    `would be denied (dry run) ${number(keys.would_deny_before_count)} before, ${number(keys.would_deny_after_count)} after. ` +
    "A limit with another frame length starts at zero when it takes effect.";
}

function pastText(past) {
  const total = counted(past.bearer_count, past.kind === "user" ? "user" : "client");
  return `In the last day, the limit ${past.policy} would have denied about ${number(past.denied)} of ${counted(past.offered, "request")} ` +
    `(${number(past.at_least)} to ${number(past.at_most)}), and affected ${number(past.concerned_count)} of ${total}.`;
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
    showMessage("done", `Applied. Takes effect on every instance within ${duration(answer.takes_effect_within_s)}.`);
    find("reason").value = "";
  } catch (error) {
    showMessage("form-problem", error.message);
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
}

if (canChange) {
  radioGroup(find("kind"), KINDS, { chosen: chosen.kind, onChange: (kind) => { chosen.kind = kind; showKind(); } });
  radioGroup(find("scope"), [["client", "One client"], ["everybody", "Everybody"]], {
    chosen: chosen.scope, onChange: (scope) => { chosen.scope = scope; showKind(); },
  });
  find("client-id").value = query.get("id") || "";
  for (const kind of LIMIT_KINDS) find(`limit-${kind}`).value = query.get(kind) || "";
  showKind();
  find("form").addEventListener("submit", preview);
  find("form").addEventListener("input", closePreview);
  find("apply").addEventListener("click", apply);
  find("cancel").addEventListener("click", () => { closePreview(); find("show-preview").focus(); });
  find("remove-form").addEventListener("submit", remove);
  find("remove-cancel").addEventListener("click", () => find("remove").close());
}
poll(fetchStatus);
poll(refresh);
