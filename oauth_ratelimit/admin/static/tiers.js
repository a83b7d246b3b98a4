// The limits of a form, one field for each tier, filled with what applies now.

import { make, setText, showFieldProblem } from "./dom.js";
import { percent } from "./format.js";
import { selectAmount } from "./override.js";
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

  // limits: by kind { texts, names, origin }, as the server has them now; highest: { policy, use } to name at its tier
  fill(limits, highest = null) {
    for (const group of this.groups) {
      const { texts = [], names = [], origin = null } = limits[group.kind] || {};
      group.present = texts.filter((text) => text !== NO_LIMIT);
      group.nextId = 0;
      group.rows.replaceChildren();
      group.present.forEach((text, index) => {
        const input = this.#addRow(group, text, text);
        input.dataset.policy = names[index];
        if (highest && highest.policy === names[index]) inRow(input).use = `highest use: ${percent(highest.use)}`;
      });
      setText(group.origin, origin ? `${group.present.length ? "" : "no limit, "}from ${originText(origin)}` : "");
    }
    this.#update();
  }

  // Goes to the limit of a policy.
  select(policy) {
    const input = this.groups.flatMap((group) => [...group.rows.querySelectorAll("input")]).find((each) => each.dataset.policy === policy);
    if (input) selectAmount(input);
  }

  // Replaces the limits of a kind by others, tier by tier.
  propose(kind, texts) {
    const group = this.groups.find((each) => each.kind === kind);
    texts.forEach((text, index) => {
      const row = group.rows.children[index];
      if (row) inputIn(row).value = text;
      else this.#addRow(group, null, text);
    });
    this.#update();
  }

  #addRow(group, present, text) {
    const id = `limit-${group.kind}-${group.nextId += 1}`;
    const name = `${group.title}, tier ${group.nextId}`;
    const input = make("input", { id, value: text, placeholder: "100/minute", autocomplete: "off", spellcheck: false, "aria-describedby": `${id}-note ${id}-problem`, "aria-label": name });
    const remove = make("button", { type: "button", className: "small", "aria-label": `Remove: ${name}`, title: "Remove this tier" }, "×");
    const row = make("div", { className: "tier" }, input, remove, make("p", { className: "note", id: `${id}-note` }), make("p", { className: "field-problem", id: `${id}-problem` }));
    row.present = present;
    row.use = "";
    remove.addEventListener("click", () => {
      const next = row.nextElementSibling || row.previousElementSibling;
      row.remove();
      (next ? inputIn(next) : group.rows.parentElement.querySelector(".actions button")).focus();
      this.#changed();
    });
    input.addEventListener("input", () => this.#update());
    group.rows.append(row);
    return input;
  }

  #changed() {
    this.#update();
    this.onChange();
  }

  #update() {
    for (const group of this.groups) {
      for (const row of group.rows.children) {
        const isChanged = row.present !== null && inputIn(row).value.trim() !== row.present;
        setText(row.querySelector(".note"), [isChanged ? `now ${row.present}` : "", row.use].filter(Boolean).join("; "));
      }
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
const inRow = (input) => input.parentElement;
const filledRows = (group) => [...group.rows.children].filter((row) => inputIn(row).value.trim());
