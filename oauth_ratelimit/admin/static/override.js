// An override as text, and the dialogs that remove one or raise a limit.

import { make, setText } from "./dom.js";
import { dateTime, duration, visible } from "./format.js";
import { send } from "./server.js";

const LENGTHS = [["30m", "30 minutes"], ["2h", "2 hours"], ["12h", "12 hours"], ["1d", "1 day"], ["7d", "7 days"], ["30d", "30 days"], ["", "no end"]];
const USUAL_LENGTH = "2h";
const FIELDS = { limits: "Limit", for: "Ends after", reason: "Reason" };
const AMOUNT = /\d+(?= *(?:\/|per))/; // the hits of a limit such as "burst: 40/5s"

export const whatText = (row) => (row.limit_kind ? `${row.limit_kind} limit` : row.kind);
export const valueText = (row) => row.mode || row.limits.join(", ") || (row.kind === "limit" ? "no limit" : "trusted");
export const clientText = (clientId) => (clientId === null ? "everybody" : visible(clientId));
export const endText = (until) => (until ? `until ${dateTime(until)}` : "without an end");
export const hasAmount = (text) => AMOUNT.test(text);

// Selects the amount of a limit, so that it can be typed over.
export function selectAmount(input) {
  const found = AMOUNT.exec(input.value);
  input.focus();
  if (found) input.setSelectionRange(found.index, found.index + found[0].length);
}

export function lengthSelect(id) {
  return make("select", { id }, LENGTHS.map(([value, text]) => make("option", { value, selected: value === USUAL_LENGTH }, text)));
}

function field(id, name, input) {
  return make("div", { className: "field" }, make("label", { htmlFor: id }, name), input);
}

function reasonField(id) {
  return field(id, "Reason", make("input", { id, maxLength: 1000, autocomplete: "off" }));
}

// Errors of fields have the field's name on the page instead of its name for the server.
function problemText({ fields = [], message }) {
  return fields.map(({ field: name, text }) => `${FIELDS[name.split(/[.[]/)[0]]}: ${text}.`).join(" ") || message;
}

// Opens a dialog with fields. onConfirm may throw an error, whose text is shown; else the dialog closes.
function ask({ id, title, text = null, fields, verb, onConfirm }) {
  const problem = make("div", { className: "notice bad", role: "alert", hidden: true }, make("p"));
  const cancel = make("button", { type: "button" }, "Cancel");
  const form = make("form", { method: "dialog", className: "stack" }, make("h2", { id: `${id}-title` }, title), text && make("p", {}, text), fields, problem,
    make("div", { className: "actions" }, make("button", { className: "primary" }, verb), cancel));
  const dialog = make("dialog", { id, "aria-labelledby": `${id}-title` }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await onConfirm();
      dialog.close();
    } catch (error) {
      setText(problem.firstElementChild, problemText(error));
      problem.hidden = false;
    }
  });
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  document.querySelector("main").append(dialog);
  dialog.showModal();
}

const takesEffect = (answer) => `Takes effect on every instance within ${duration(answer.takes_effect_within_s)}.`;

export function appliedText(answer) {
  const [{ client_id: clientId, until }] = answer.overrides;
  return `Applied to ${clientText(clientId)} ${endText(until)}. ${takesEffect(answer)}`;
}

// onDone(text): called after the override was removed
export function removeButton(row, onDone) {
  const name = `the ${whatText(row)} of ${clientText(row.client_id)}`;
  const button = make("button", { type: "button", className: "small danger", "aria-haspopup": "dialog", "aria-label": `Remove ${name}` }, "Remove");
  button.addEventListener("click", () => ask({
    id: "remove",
    title: `Remove ${name}`,
    text: `${valueText(row)}, ${endText(row.until)}. What applied before applies again.`,
    fields: [reasonField("remove-reason")],
    verb: "Remove",
    onConfirm: async () => {
      const { kind, client_id, limit_kind } = row;
      const answer = await send("remove", { kind, client_id, limit_kind, reason: document.getElementById("remove-reason").value });
      onDone(answer.is_removed ? `Removed. ${takesEffect(answer)}` : "This override was already removed.");
    },
  }));
  return button;
}

// texts: all limits of a kind of a client; index: the one to raise; onDone(text): called after it was applied
export function raiseButton({ clientId, policy, kind, texts, index }, onDone) {
  const button = make("button", { type: "button", className: "small", "aria-haspopup": "dialog" }, `Raise ${policy}`);
  button.addEventListener("click", () => {
    const limit = make("input", { id: "raise-limit", value: texts[index], autocomplete: "off", spellcheck: false });
    ask({
      id: "raise",
      title: `Raise ${policy} of ${visible(clientId)}`,
      fields: [field("raise-limit", `Limit, now ${texts[index]}`, limit), field("raise-length", "Ends after", lengthSelect("raise-length")), reasonField("raise-reason")],
      verb: "Apply",
      onConfirm: async () => {
        if (limit.value.trim() === texts[index]) throw new Error(`${texts[index]} applies already: enter another limit.`);
        const limits = { [kind]: texts.map((text, each) => (each === index ? limit.value.trim() : text)) };
        const [length, reason] = ["raise-length", "raise-reason"].map((id) => document.getElementById(id).value);
        onDone(appliedText(await send("apply", { kind: "limit", client_id: clientId, limits, for: length, reason })));
      },
    });
    selectAmount(limit);
  });
  return button;
}
