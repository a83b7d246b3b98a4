// The limits of a form, one field for each tier, filled with what applies now.

import { find, make, setText } from "./dom.js";
import { originText } from "./server.js";

const KINDS = { client: "Per client, without a user", user: "Per user", client_total: "Per client in total" };
const NO_LIMIT = "none";

export class Tiers {
  constructor(element, { onChange }) {
    this.onChange = onChange;
    this.groups = Object.entries(KINDS).map(([kind, title]) => {
      const group = {
        kind, title, present: [], nextId: 0,
        rows: make("div", { className: "stack tight" }), origin: make("p", { className: "note" }), warning: make("p", { className: "dropped", role: "status" }),
      };
      const add = make("button", { type: "button", className: "small" }, "Add a tier");
      add.addEventListener("click", () => {
        this.#addRow(group, null, "").focus();
        this.#changed();
      });
      element.append(make("fieldset", { className: "tiers" }, make("legend", {}, title), group.origin, group.rows, group.warning, make("div", { className: "actions" }, add)));
      return group;
    });
  }

  // limits: by kind { texts, origin }, as the server has them now
  fill(limits) {
    for (const group of this.groups) {
      const { texts = [], origin = null } = limits[group.kind] || {};
      group.present = texts.filter((text) => text !== NO_LIMIT);
      group.nextId = 0;
      group.rows.replaceChildren();
      for (const text of group.present) this.#addRow(group, text, text);
      setText(group.origin, origin ? `now ${group.present.join(" and ") || "no limit"}, from ${originText(origin)}` : "");
    }
    this.#warn();
  }

  // Replaces the limits of a kind by others, tier by tier.
  propose(kind, texts) {
    const group = this.groups.find((each) => each.kind === kind);
    texts.forEach((text, index) => {
      const row = group.rows.children[index];
      if (row) inputIn(row).value = text;
      else this.#addRow(group, null, text);
    });
    this.#warn();
  }

  #addRow(group, present, text) {
    const id = `limit-${group.kind}-${group.nextId += 1}`;
    const name = `${group.title}, tier ${group.nextId}`;
    const input = make("input", { id, value: text, placeholder: "100/minute", autocomplete: "off", spellcheck: false, "aria-describedby": `${id}-problem`, "aria-label": name });
    const remove = make("button", { type: "button", className: "small", "aria-label": `Remove: ${name}` }, "Remove");
    const row = make("div", { className: "tier" }, input, remove, make("p", { className: "field-problem", id: `${id}-problem` }));
    row.present = present;
    remove.addEventListener("click", () => {
      const next = row.nextElementSibling || row.previousElementSibling;
      row.remove();
      (next ? inputIn(next) : group.rows.parentElement.querySelector(".actions button")).focus();
      this.#changed();
    });
    input.addEventListener("input", () => this.#warn());
    group.rows.append(row);
    return input;
  }

  #changed() {
    this.#warn();
    this.onChange();
  }

  #warn() {
    for (const group of this.groups) {
      const kept = filledRows(group).map((row) => row.present);
      const dropped = group.present.filter((text) => !kept.includes(text));
      const rest = kept.length ? "" : " No limit of this kind is left.";
      setText(group.warning, dropped.length ? `⚠ Drops ${dropped.join(" and ")}.${rest}` : "");
    }
  }

  // Returns the limits to send, by kind. Kinds that do not change are left out.
  limits() {
    const limits = {};
    for (const group of this.groups) {
      const texts = filledRows(group).map((row) => inputIn(row).value.trim());
      if (texts.join("\n") !== group.present.join("\n")) limits[group.kind] = texts.length ? texts : [NO_LIMIT];
    }
    return limits;
  }

  // Returns the field of a kind and position, as the server counts them.
  inputAt(kind, index) {
    const group = this.groups.find((each) => each.kind === kind);
    const row = group && filledRows(group)[index];
    return row && inputIn(row);
  }

  clearProblems() {
    for (const group of this.groups) for (const row of group.rows.children) showFieldProblem(inputIn(row), "");
  }
}

const inputIn = (row) => row.querySelector("input");
const filledRows = (group) => [...group.rows.children].filter((row) => inputIn(row).value.trim());

// Shows a problem at a field and returns the field; an empty text removes it.
export function showFieldProblem(input, text) {
  setText(find(`${input.id}-problem`), text);
  if (text) input.setAttribute("aria-invalid", "true");
  else input.removeAttribute("aria-invalid");
  return input;
}
