// The panel to act on a client, or on everybody: raise, reuse, trust, dry run, undo; what a change would do.

import { announce, find, make, showMessage } from "./dom.js";
import { NO_ANSWER, chosenUser, query, refreshAll, refusal, setQuery } from "./page.js";

const clientId = query().get("id");
const FIELDS = { limits: "Limits", for: "Ends after", reason: "Reason" };
const BODIES = { limit: () => ({ limits: changedAmounts() }), reuse: () => ({ kind: "limit", on_limit: "reuse" }), mode: () => ({ mode: "dry-run" }), trusted: () => ({}) };
const TYPING_MS = 500;
const GONE = "Nothing to undo: the override was removed or has ended before.";
const form = find("panel-form");
let typing = null;
let isEndChosen = false; // then overrides whose amounts stay get another end
let asked = 0; // number of the last preview: an answer to an earlier one is dropped

const kind = () => form.querySelector("#act input:checked")?.value || "limit";
const amounts = () => [...form.querySelectorAll("input[type=number]")];
const overridden = () => [...document.querySelectorAll("[data-undo]")].map((each) => JSON.parse(each.dataset.undo).limit_kind).filter(Boolean);
const body = () => ({ kind: kind(), client_id: clientId, for: find("panel-length").value, ...BODIES[kind()]() });

function changedAmounts() {
  const limits = {};
  for (const { value, defaultValue, dataset } of amounts()) if (value && value !== defaultValue) (limits[dataset.kind] ||= {})[dataset.name] = Number(value);
  if (isEndChosen && !Object.keys(limits).length) for (const limitKind of overridden()) limits[limitKind] = {};
  return limits;
}

// Sends a change and returns the answer; throws an Error with the messages of the server, by field, if it fails.
async function send(name, content) {
  let response;
  const { root, token } = document.body.dataset;
  const headers = { "Content-Type": "application/json", "X-Ratelimit-Token": token };
  try {
    response = await fetch(`${root}api/${name}`, { method: "POST", redirect: "manual", headers, body: JSON.stringify(content) });
  } catch {
    throw new Error(NO_ANSWER);
  }
  const answer = await response.json().catch(() => null);
  if (!answer) throw new Error(refusal(response));
  const { text, fields = [] } = answer.problem || {};
  if (text) throw new Error(fields.map((each) => `${FIELDS[each.field.split(/[.[]/)[0]] || each.field}: ${each.text}.`).join(" ") || text);
  return answer;
}

async function preview() {
  const lines = find("panel-preview").firstElementChild;
  const isChanged = kind() !== "limit" || Object.keys(changedAmounts()).length > 0;
  const asking = asked += 1;
  showMessage("panel-problem", "");
  find("panel-preview").hidden = !isChanged;
  if (!isChanged) return;
  lines.replaceChildren(make("p", {}, "Computing what this does …"));
  try {
    const answer = await send("preview", { ...body(), user: chosenUser() });
    if (asking !== asked) return;
    const proposed = Object.entries(answer.proposal);
    lines.replaceChildren(...answer.lines.map((text) => make("p", {}, text)), ...proposed.length && kind() === "limit" ? [proposalButton(proposed)] : []);
  } catch (error) {
    if (asking !== asked) return;
    find("panel-preview").hidden = true;
    showMessage("panel-problem", error.message);
  }
}

function proposalButton(proposed) {
  const button = make("button", { type: "button", className: "small" }, "Enter these amounts, too");
  button.addEventListener("click", () => {
    for (const [limitKind, found] of proposed) for (const [name, amount] of Object.entries(found)) find(`panel-${limitKind}-${name}`).value = amount;
    preview();
  });
  return button;
}

// Sends a change with a button, which is disabled meanwhile, so that a second click sends nothing.
async function change(button, name, content) {
  if (button.disabled) return;
  button.disabled = true;
  try {
    const answer = await send(name, content);
    find("panel-reason").value = "";
    showMessage("panel-problem", "");
    announce(name === "apply" ? "Applied." : answer.is_removed ? "Undone." : GONE);
    await setQuery({ since: answer.since_s || null });
    isEndChosen = false;
    if (name === "apply") {
      find("panel-outcome").focus();
      find("panel-preview").hidden = true; // it would say that the end changes by some seconds
    } else preview();
  } catch (error) {
    showMessage("panel-problem", error.message);
  }
  button.disabled = false;
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  change(find("panel-apply"), "apply", { ...body(), reason: find("panel-reason").value });
});
form.addEventListener("change", ({ target }) => {
  if (target.name === "act") setQuery({ panel: target.value });
  else if (target.id === "panel-length") isEndChosen = true;
  else return;
  preview();
});
form.addEventListener("input", ({ target }) => {
  if (target.type !== "number") return;
  clearTimeout(typing);
  typing = setTimeout(preview, TYPING_MS);
});
document.addEventListener("click", ({ target }) => { if (target.dataset.undo) change(target, "remove", JSON.parse(target.dataset.undo)); });
preview();
