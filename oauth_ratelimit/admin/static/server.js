// Requests to the server, the messages when they fail, and the line of state in the head of each page.

import { find, make, setText, showMessage } from "./dom.js";
import { chooseZone, chosenZone, dateTime, localZone, timeOfDay, visible } from "./format.js";

const settings = document.body.dataset;
const POLL_MS = 5000;

export const canChange = Boolean(settings.canChange);

let readAt = null; // time of the last answer from MongoDB
const refreshers = [];

// The username goes into the fragment, which browsers do not send, because access logs keep URLs.
export function clientUrl(id, user) {
  return `${settings.client}?${new URLSearchParams({ id })}${userFragment(user)}`;
}

export function userFragment(user) {
  return user ? `#${new URLSearchParams({ user })}` : "";
}

export function overrideUrl(id, kind) {
  return `${settings.overrides}?${new URLSearchParams({ ...id ? { id } : {}, kind })}`;
}

// Returns the answer to a query; shows the problem and returns null if it fails.
export async function fetchData(name, params = {}, { inForm = false, user = "" } = {}) {
  const headers = user ? { "X-Ratelimit-User": encodeURIComponent(user) } : {};
  let answer;
  try {
    const response = await fetch(`${settings.api}${name}?${new URLSearchParams(params)}`, { redirect: "manual", headers });
    if (response.type === "opaqueredirect" || response.status === 401) return fail("You are no longer signed in. Sign in, then reload this page.");
    if (response.status === 403) return fail("You may not see this page, or you are no longer signed in. Sign in, then reload it.");
    answer = await response.json();
  } catch {
    return fail("The server does not answer. The numbers below are old.");
  }
  const { kind, text } = answer.problem || {};
  const isFormProblem = inForm && kind === "input";
  if (inForm) showMessage("form-problem", isFormProblem ? text : "");
  if (isFormProblem) return null;
  if (answer.problem) return fail(text);
  if (answer.store && !answer.store.is_reachable) {
    fail(answer.store.error);
    return answer;
  }
  readAt = Date.now() / 1000;
  showMessage("problem", "");
  document.body.classList.remove("is-stale");
  setText(find("updated"), `updated ${timeOfDay(readAt)}`);
  return answer;
}

function fail(text) {
  showMessage("problem", text);
  document.body.classList.add("is-stale");
  setText(find("updated"), readAt ? `numbers of ${timeOfDay(readAt)}` : "no numbers");
  return null;
}

// Sends a change and returns the answer; throws an Error with the server's message, and the messages by field, if it fails.
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
  if (!response.ok) {
    const error = new Error(answer.problem ? answer.problem.text : `The server answered ${response.status}.`);
    error.fields = (answer.problem && answer.problem.fields) || [];
    throw error;
  }
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
  refreshers.push(run);
  run();
}

// Shows the state in the head of the page, and passes on the answer.
export function pollVerdict(onVerdict = () => {}) {
  poll(async () => {
    const verdict = await fetchData("verdict");
    if (!verdict) return;
    showState(verdict);
    onVerdict(verdict);
  });
}

function showState({ mode, canary, instances, store }) {
  const parts = [["mode", mode, mode === "off" ? "bad" : ""]];
  if (canary) parts.push(["canary", canaryText(canary), ""]);
  if (instances && !instances.count) parts.push(["instances", "none seen in the last 10 minutes", "bad"]);
  else if (instances) parts.push(["instances", `${instances.count}${instances.late ? `, ${instances.late} late` : ""}`, instances.late ? "bad" : ""]);
  const outage = store.is_reachable ? "reachable" : `unreachable${store.since_s ? ` since ${timeOfDay(store.since_s)}` : ""}`;
  parts.push(["MongoDB", outage, store.is_reachable ? "" : "bad"]);
  const isBad = parts.some(([, , kind]) => kind);
  find("state").className = isBad ? "state bad" : "state";
  const texts = parts.map((part) => part.join());
  if (find("state-parts").dataset.version === texts.join()) return; // a live region speaks when it changes
  find("state-parts").dataset.version = texts.join();
  find("state-parts").replaceChildren(...parts.map(([name, text, kind]) => make("span", { className: kind }, `${kind ? "⚠ " : ""}${name} `, make("strong", {}, text))));
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

// The choice between UTC and local time. All texts with a time are made anew.
const zone = find("zone");
zone.append(make("option", { value: "utc" }, "UTC"), make("option", { value: "local" }, `Local (${localZone()})`));
zone.value = chosenZone();
zone.addEventListener("change", () => {
  chooseZone(zone.value);
  for (const refresh of refreshers) refresh();
});
