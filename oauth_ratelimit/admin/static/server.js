// Requests to the server, and the messages when they fail.

import { announce, find, make, showMessage } from "./dom.js";
import { chooseZone, chosenZone, localZone, utcOffset } from "./format.js";

const settings = document.body.dataset;
const POLL_MS = 5000;
const TIMEOUT_MS = 8000;
const GREY_S = 15; // data that are older were not refreshed
const NO_ANSWER = "The server does not answer.";

export const canChange = Boolean(settings.canChange);
export const chosenSpan = () => query().get("span") || document.querySelector("[data-span][aria-current]")?.dataset.span || "1h";
export const query = () => new URLSearchParams(location.search);

// The username goes into the fragment, which browsers do not send, because access logs keep URLs.
export const chosenUser = () => new URLSearchParams(location.hash.slice(1)).get("user") || "";
export const userFragment = (user) => (user ? `#${new URLSearchParams({ user })}` : "");

export function clientUrl(id, user) {
  return `${settings.client}?${new URLSearchParams({ id })}${userFragment(user)}`;
}

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

// The problem of each block, so that one that works hides none that fails. Each text is shown once.
const problems = new Map();

function setProblem(name, text) {
  if (text) problems.set(name, text);
  else problems.delete(name);
  showMessage("problem", [...new Set(problems.values())].join(" "));
  showEmpty();
}

// Without any numbers there is nothing to see but the problem.
function showEmpty() {
  document.body.classList.toggle("is-empty", problems.size > 0 && ![...seen.keys()].some((name) => name !== "state"));
}

// Blocks by name: { at: time of the shown data by performance.now(), freshS: how long such data may be kept }
const seen = new Map();

// Notes how old the shown data of a block are. Returns false if those that are shown are newer: processes keep answers.
function noteAge(name, element, ageS, freshS) {
  const at = performance.now() - ageS * 1000;
  if (seen.has(name) && at < seen.get(name).at - 500 && seen.get(name).address === location.href) return false;
  seen.set(name, { at, freshS, element, address: location.href });
  showEmpty();
  return true;
}

setInterval(() => {
  for (const { at, freshS, element } of seen.values()) {
    const ageS = Math.round((performance.now() - at) / 1000);
    element.classList.toggle("is-old", ageS > GREY_S + freshS);
    element.dataset.old = `These numbers are ${ageS} s old.`;
  }
}, 1000);

// Returns the answer to a query; shows the problem and returns null if it fails.
export async function fetchData(name, params = {}, { inForm = false, element = document.createElement("i") } = {}) {
  let response;
  try {
    response = await fetch(`${settings.root}api/${name}?${new URLSearchParams(params)}`, { redirect: "manual", signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch {
    return setProblem(name, NO_ANSWER), null;
  }
  const answer = await jsonOf(response);
  const { kind, text } = answer?.problem || {};
  const isFormProblem = inForm && kind === "input";
  if (inForm) showMessage("form-problem", isFormProblem ? text : "");
  if (isFormProblem) return null;
  setProblem(name, answer ? text : refusal(response));
  if (!answer || text) return null;
  return noteAge(name, element, Number(response.headers.get("X-Ratelimit-Age")), answer.fresh_s || 0) ? answer : null;
}

// Sends a change and returns the answer; throws an Error with the server's message, and the messages by field, if it fails.
export async function send(name, body) {
  let response;
  try {
    response = await fetch(`${settings.root}api/${name}`, {
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

const refreshers = [];

// Calls a function now and every few seconds while the page is visible.
export function poll(refresh, { everyMs = POLL_MS, isAtOnce = true } = {}) {
  let timer = null;
  const later = () => { clearTimeout(timer); timer = setTimeout(run, everyMs); };
  const run = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    await refresh();
    later();
  };
  document.addEventListener("visibilitychange", run);
  refreshers.push(run);
  if (isAtOnce) run();
  else later();
}

export function refreshAll() {
  for (const refresh of refreshers) refresh();
}

// Changes the URL, which holds all that is chosen, and shows it.
function setQuery(changes, method) {
  history[method](null, "", `?${new URLSearchParams({ ...Object.fromEntries(query()), ...changes })}${location.hash}`);
  const span = chosenSpan();
  for (const each of document.querySelectorAll("[data-span]")) {
    if (each.dataset.span === span) each.setAttribute("aria-current", "true");
    else each.removeAttribute("aria-current");
  }
  refreshAll();
}

document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-set]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    const given = new URL(link.href).searchParams;
    const names = link.dataset.set.split(" ");
    setQuery({ ...names.includes("page") ? {} : { page: 1 }, ...Object.fromEntries(names.map((name) => [name, given.get(name)])) }, "pushState");
  }
  const copied = event.target.closest("[data-copy]");
  if (copied) {
    await navigator.clipboard.writeText(find(copied.dataset.copy).textContent);
    announce("Copied.");
  }
});
window.addEventListener("popstate", refreshAll);
const form = document.querySelector("form[data-set]");
const setFilter = () => setQuery({ page: 1, filter: find("filter").value.trim() }, "replaceState");
form?.addEventListener("submit", (event) => { event.preventDefault(); setFilter(); });
let typing = null;
form?.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(setFilter, 250); });

// Reads a part of the page that the server renders. An XMLHttpRequest parses HTML without running anything in it.
function request(name) {
  const params = new URLSearchParams(location.search);
  params.set("utc_offset", utcOffset());
  return new Promise((resolve) => {
    const sent = new XMLHttpRequest();
    sent.open("GET", `${settings.root}part/${name}?${params}`);
    sent.responseType = "document";
    sent.timeout = TIMEOUT_MS;
    if (chosenUser()) sent.setRequestHeader("X-Ratelimit-User", encodeURIComponent(chosenUser()));
    sent.onload = () => resolve(sent);
    sent.onerror = sent.ontimeout = () => resolve(null);
    sent.send();
  });
}

async function refreshPart(element, onShown) {
  const name = element.dataset.part;
  const asked = location.href;
  const sent = await request(name);
  if (asked !== location.href) return;
  if (!sent) return setProblem(name, NO_ANSWER);
  if (sent.getResponseHeader("X-Ratelimit-Part") !== name) return setProblem(name, refusal(sent.responseURL.includes(`/part/${name}`) ? sent : { status: 401 }));
  const { body } = sent.response;
  takeProblem(name, body);
  if (!body.childElementCount) return;
  if (!noteAge(name, element, Number(sent.getResponseHeader("X-Ratelimit-Age")), Number(sent.getResponseHeader("X-Ratelimit-Fresh")))) return;
  replace(element, body);
  onShown(name);
}

// Shows the problem that a part consists of, or holds beside what is known.
function takeProblem(name, body) {
  const problem = body.querySelector(".problem");
  setProblem(name, problem ? problem.textContent : "");
  problem?.remove();
}

const FOCUSABLE = "a, button, input, summary, [tabindex]";

// Replaces the content. Focus, open details and scrolled tables stay as they are; selected text is not touched.
function replace(element, body) {
  if (element.innerHTML === body.innerHTML) return;
  const selected = getSelection();
  if (!selected.isCollapsed && element.contains(selected.anchorNode)) return;
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  const index = [...element.querySelectorAll(FOCUSABLE)].indexOf(focused);
  const open = [...element.querySelectorAll("details[open]")].map((each) => each.id);
  const scrolled = [...element.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const before = element.querySelector(".lead")?.textContent;
  element.replaceChildren(...document.importNode(body, true).childNodes);
  for (const id of open) find(id)?.setAttribute("open", "");
  element.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
  if (focused) {
    const all = [...element.querySelectorAll(FOCUSABLE)];
    (all.find((each) => focused.href && each.href === focused.href) || all[index])?.focus({ preventScroll: true });
  }
  const lead = element.querySelector(".lead")?.textContent;
  if (before && lead !== before) announce(lead);
}

// Keeps the parts up to date; onShown(name) is called after one has changed.
export function showParts(onShown = () => {}) {
  for (const element of document.querySelectorAll("[data-part]")) {
    const name = element.dataset.part;
    if (element.dataset.age) noteAge(name, element, Number(element.dataset.age), Number(element.dataset.fresh));
    takeProblem(name, element);
    const isAtOnce = !element.dataset.age || chosenUser() !== "" || utcOffset() !== 0;
    poll(() => refreshPart(element, onShown), { isAtOnce });
    if (!isAtOnce) onShown(name);
  }
}

// The choice between UTC and local time. All texts with a time are made anew.
const zone = find("zone");
zone.append(make("option", { value: "utc" }, "UTC"), make("option", { value: "local" }, `Local (${localZone()})`));
zone.value = chosenZone();
zone.addEventListener("change", () => {
  chooseZone(zone.value);
  refreshAll();
});
