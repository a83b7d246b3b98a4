// Talks to the server, and says plainly when there is nothing to be told.

import { make, say, tag, find } from "./dom.js";
import { moment, visible } from "./words.js";

const here = document.body.dataset;
const POLL_MS = 5000;

export const mayChange = Boolean(here.mayChange);

// A user's name stands behind the #, which browsers keep to themselves: addresses are kept in access logs.
export function clientUrl(id, user) {
  return `${here.client}?${new URLSearchParams({ id })}${userFragment(user)}`;
}

export function userFragment(user) {
  return user ? `#${new URLSearchParams({ user })}` : "";
}

export function overrideUrl(id, kind) {
  return `${here.overrides}?${new URLSearchParams({ id, kind })}`;
}

// Returns what the server tells, null if it has nothing; the reason is shown then.
export async function ask(name, question = {}, { inForm = false, user = "" } = {}) {
  const headers = user ? { "X-Ratelimit-User": encodeURIComponent(user) } : {};
  let told;
  try {
    const response = await fetch(`${here.api}${name}?${new URLSearchParams(question)}`, { redirect: "manual", headers });
    if (response.type === "opaqueredirect" || response.status === 401 || response.status === 403) {
      problem("You are no longer signed in. Load the page again.");
      return null;
    }
    told = await response.json();
  } catch {
    problem("The server does not answer. What is shown may be old.");
    return null;
  }
  const mistake = told.problem && told.problem.kind === "question" ? told.problem.text : "";
  if (inForm) say("form-problem", mistake);
  if (told.problem && !(inForm && mistake)) problem(explain(told.problem));
  if (told.problem) return null;
  problem("");
  return told;
}

function explain({ kind, text }) {
  if (kind === "database") return `${text}. Tokens are issued all the same; what is shown may be old.`;
  return text;
}

function problem(text) {
  say("problem", text);
}

// Sends a change. Returns what the server tells; throws an Error with its words if it does not do it.
export async function send(name, body) {
  let response;
  try {
    response = await fetch(`${here.api}${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Ratelimit-Token": here.token },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server does not answer.");
  }
  let told = {};
  try {
    told = await response.json();
  } catch {
    // the status says enough
  }
  if (!response.ok) throw new Error(told.problem ? told.problem.text : `The server answered ${response.status}.`);
  return told;
}

// Calls something now and every few seconds while somebody can see the page.
export function keepUp(look, { everyMs = POLL_MS } = {}) {
  let timer = null;
  const go = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    await look();
    clearTimeout(timer);
    timer = setTimeout(go, everyMs);
  };
  document.addEventListener("visibilitychange", go);
  go();
  return go;
}

export async function askStatus() {
  const status = await ask("status");
  if (status) find("mode-badge").replaceChildren(make("span", { className: "visually-hidden" }, "Mode: "), tag(status.mode));
  return status;
}

// Where a value comes from.
export function originText(origin) {
  if (!origin.by) return origin.layer === "mode" || origin.layer === "limits" ? "the configuration" : `${visible(origin.layer)} in the configuration`;
  return `an override by ${visible(origin.by)}${origin.until ? ` until ${moment(origin.until)}` : ""}: ${visible(origin.reason)}`;
}

export function canaryText(canary) {
  if (!canary) return "none";
  return canary.instances.length ? `instances ${canary.instances.join(", ")}` : `${canary.percent} % of the clients`;
}
