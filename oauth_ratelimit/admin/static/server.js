// Requests to the server, and the messages when they fail.

import { find, make, showMessage, tag } from "./dom.js";
import { dateTime, visible } from "./format.js";

const settings = document.body.dataset;
const POLL_MS = 5000;

export const canChange = Boolean(settings.canChange);

// The username goes into the fragment, which browsers do not send, because access logs keep URLs.
export function clientUrl(id, user) {
  return `${settings.client}?${new URLSearchParams({ id })}${userFragment(user)}`;
}

export function userFragment(user) {
  return user ? `#${new URLSearchParams({ user })}` : "";
}

export function overrideUrl(id, kind) {
  return `${settings.overrides}?${new URLSearchParams({ id, kind })}`;
}

// Returns the answer to a query; shows the problem and returns null if it fails.
export async function fetchData(name, params = {}, { inForm = false, user = "" } = {}) {
  const headers = user ? { "X-Ratelimit-User": encodeURIComponent(user) } : {};
  let answer;
  try {
    const response = await fetch(`${settings.api}${name}?${new URLSearchParams(params)}`, { redirect: "manual", headers });
    if (response.type === "opaqueredirect" || response.status === 401 || response.status === 403) {
      showProblem("You are no longer signed in. Reload the page.");
      return null;
    }
    answer = await response.json();
  } catch {
    showProblem("The server does not answer. This page may be out of date.");
    return null;
  }
  const { kind, text } = answer.problem || {};
  const isFormProblem = inForm && kind === "input";
  if (inForm) showMessage("form-problem", isFormProblem ? text : "");
  if (answer.problem && !isFormProblem) showProblem(kind === "database" ? `${text}. Tokens are still issued; this page may be out of date.` : text);
  if (answer.problem) return null;
  showProblem("");
  return answer;
}

function showProblem(text) {
  showMessage("problem", text);
}

// Sends a change and returns the answer; throws an Error with the server's message if it fails.
export async function send(name, body) {
  let response;
  try {
    response = await fetch(`${settings.api}${name}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Ratelimit-Token": settings.token },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server does not answer.");
  }
  let answer = {};
  try {
    answer = await response.json();
  } catch {
    // the status is enough
  }
  if (!response.ok) throw new Error(answer.problem ? answer.problem.text : `The server answered ${response.status}.`);
  return answer;
}

// Calls a function now and every few seconds while the page is visible.
export function poll(refresh, { everyMs = POLL_MS } = {}) {
  let timer = null;
  const run = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    await refresh();
    clearTimeout(timer);
    timer = setTimeout(run, everyMs);
  };
  document.addEventListener("visibilitychange", run);
  run();
}

export async function fetchStatus() {
  const status = await fetchData("status");
  if (status) find("mode-badge").replaceChildren(make("span", { className: "visually-hidden" }, "Mode: "), tag(status.mode));
  return status;
}

// Origin of a configured value.
export function originText(origin) {
  if (!origin.by) return origin.layer === "mode" || origin.layer === "limits" ? "the configuration" : `${visible(origin.layer)} in the configuration`;
  return `an override by ${visible(origin.by)}${origin.until ? ` until ${dateTime(origin.until)}` : ""}: ${visible(origin.reason)}`;
}

export function canaryText(canary) {
  if (!canary) return "none";
  return canary.instances.length ? `instances ${canary.instances.join(", ")}` : `${canary.percent} % of the clients`;
}
