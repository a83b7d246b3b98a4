// Requests to the server, the messages when they fail, and the line of state in the head of each page.

import { find, make, setText, showMessage } from "./dom.js";
import { chooseZone, chosenZone, dateTime, localZone, timeOfDay, visible } from "./format.js";

const settings = document.body.dataset;
const POLL_MS = 5000;

export const canChange = Boolean(settings.canChange);

let readAt = null; // time of the last answer from MongoDB
let outageSince = null; // as the first answer had it: processes differ by a second, and each change would be announced
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

const NO_ANSWER = "The server does not answer.";

// Explains a response without data: it comes from the login, or from a proxy.
function refusal({ type, status }) {
  if (type === "opaqueredirect" || status === 401) return "You are no longer signed in. Sign in, then reload this page.";
  if (status === 403) return "You may not see this page, or you are no longer signed in. Sign in, then reload it.";
  return `The server answered with status ${status} and no data. If you are no longer signed in, sign in and reload this page.`;
}

async function jsonOf(response) {
  try {
    return await response.json();
  } catch {
    return null;
  }
}

// Returns the answer to a query; shows the problem and returns null if it fails.
export async function fetchData(name, params = {}, { inForm = false, user = "" } = {}) {
  const headers = user ? { "X-Ratelimit-User": encodeURIComponent(user) } : {};
  let response;
  try {
    response = await fetch(`${settings.api}${name}?${new URLSearchParams(params)}`, { redirect: "manual", headers });
  } catch {
    return fail(NO_ANSWER);
  }
  const answer = await jsonOf(response);
  if (!answer) return fail(refusal(response));
  const { kind, text, since_s: sinceS } = answer.problem || {};
  const isFormProblem = inForm && kind === "input";
  if (inForm) showMessage("form-problem", isFormProblem ? text : "");
  if (isFormProblem) return null;
  if (answer.problem) return fail(text, sinceS);
  if (answer.store && !answer.store.is_reachable) {
    fail(answer.store.error, answer.store.since_s);
    return answer;
  }
  readAt = Date.now() / 1000;
  outageSince = null;
  showMessage("problem", "");
  document.body.classList.remove("is-stale", "is-empty");
  setText(find("updated"), `updated ${timeOfDay(readAt)}`);
  return answer;
}

// sinceS: time of the last answer from MongoDB to any process, null if that is not the problem
function fail(text, sinceS = null) {
  if (sinceS) outageSince ||= sinceS;
  showMessage("problem", sinceS ? `${text} Last answer: ${dateTime(outageSince)}.` : text);
  document.body.classList.add("is-stale");
  document.body.classList.toggle("is-empty", !readAt);
  setText(find("updated"), readAt ? `numbers of ${timeOfDay(readAt)}` : "no numbers");
  return null;
}

// Sends a change and returns the answer; throws an Error with the server's message, and the messages by field, if it fails.
export async function send(name, body) {
  let response;
  try {
    response = await fetch(`${settings.api}${name}`, {
      method: "POST",
      redirect: "manual",
      headers: { "Content-Type": "application/json", "X-Ratelimit-Token": settings.token },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Error(NO_ANSWER);
  }
  const answer = await jsonOf(response);
  if (!answer) throw new Error(refusal(response));
  if (answer.problem) throw Object.assign(new Error(answer.problem.text), { fields: answer.problem.fields || [] });
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
  const outage = store.is_reachable ? "reachable" : store.since_s ? `unreachable since ${timeOfDay(outageSince)}` : "cannot be read by this page";
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
