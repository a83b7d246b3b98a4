// Every page: keeps the parts that the server renders up to date, and what is chosen in the URL.

import { announce, find, showMessage } from "./dom.js";
import { chooseZone, chosenZone, utcOffset } from "./format.js";

const POLL_MS = 5000;
const TIMEOUT_MS = 8000;
const GREY_S = 15; // data that are older were not refreshed
export const NO_ANSWER = "The server does not answer.";

export const query = () => new URLSearchParams(location.search);
// The username goes into the fragment, which browsers do not send, because access logs keep URLs.
export const chosenUser = () => new URLSearchParams(location.hash.slice(1)).get("user") || "";

const address = () => location.search + chosenUser();
let shown = address();

// Explains a response without data: it comes from the login, or from a proxy.
export function refusal({ type, status }) {
  if (type === "opaqueredirect" || status === 401) return "You are no longer signed in. Sign in, then reload this page.";
  if (status === 403) return "You may not see this page, or you are no longer signed in. Sign in, then reload it.";
  return `The server answered with status ${status} and no data. If you are no longer signed in, sign in and reload this page.`;
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

// Blocks by name: { at: time of the shown data by performance.now(), readAt: the same by the servers' clocks, freshS: how long such data may be kept }
const seen = new Map();

setInterval(() => {
  for (const { at, freshS, element } of seen.values()) {
    const ageS = Math.round((performance.now() - at) / 1000);
    element.classList.toggle("is-old", ageS > GREY_S + freshS);
    element.dataset.old = `These numbers are ${ageS} s old.`;
  }
}, 1000);

// Reads all parts anew, in one request, so that they are of one moment; or only those that are due.
export async function refreshAll(isWanted = () => true) {
  const elements = [...document.querySelectorAll("[data-part]")].filter(isWanted);
  const asked = shown;
  const begunAt = performance.now();
  const sent = await request(elements.map((each) => each.dataset.part));
  if (asked !== shown) return;
  for (const element of elements) {
    const name = element.dataset.part;
    const part = sent?.response?.querySelector(`[data-part="${name}"]`);
    if (part) show(element, part, begunAt);
    else setProblem(name, sent ? refusal(sent.responseURL.includes("/part/") ? sent : { status: 401 }) : NO_ANSWER);
  }
}

// The time of the newest numbers that are kept for longer than a poll, because reading them takes a while: another page may show older ones.
const newestKept = () => Number(sessionStorage.getItem("oauth-ratelimit-kept"));

function isDue(element) {
  const before = seen.get(element.dataset.part);
  return before?.address !== shown || performance.now() - before.at >= before.freshS * 1000;
}

// Changes the URL, which holds all that is chosen; null removes a choice.
export function setQuery(changes, method = "replaceState") {
  const chosen = Object.entries({ ...Object.fromEntries(query()), ...changes }).filter(([, value]) => value !== null);
  history[method](null, "", `?${new URLSearchParams(chosen)}${location.hash}`);
  shown = address();
  for (const each of document.querySelectorAll("[data-span]")) {
    if (each.dataset.span === changes.span) each.setAttribute("aria-current", "true");
    else if (changes.span) each.removeAttribute("aria-current");
  }
  return refreshAll();
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
for (const event of ["popstate", "hashchange"]) window.addEventListener(event, () => { if (address() !== shown) location.reload(); });
const form = document.querySelector("form[data-set]");
const setFilter = () => setQuery({ page: 1, filter: find("filter").value.trim() });
form?.addEventListener("submit", (event) => { event.preventDefault(); setFilter(); });
let typing = null;
form?.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(setFilter, 250); });

// Reads parts of the page that the server renders, none older than what is shown. An XMLHttpRequest parses HTML without running anything in it.
function request(names) {
  const params = new URLSearchParams(location.search);
  params.set("utc_offset", utcOffset());
  return new Promise((resolve) => {
    const sent = new XMLHttpRequest();
    sent.open("GET", `${document.body.dataset.root}part/${names}?${params}`);
    sent.responseType = "document";
    sent.timeout = TIMEOUT_MS;
    sent.setRequestHeader("X-Ratelimit-Kept", newestKept());
    sent.setRequestHeader("X-Ratelimit-After", Math.max(0, ...[...seen.values()].map((each) => each.readAt)));
    if (chosenUser()) sent.setRequestHeader("X-Ratelimit-User", encodeURIComponent(chosenUser()));
    sent.onload = () => resolve(sent);
    sent.onerror = sent.ontimeout = () => resolve(null);
    sent.send();
  });
}

// Shows a part, unless the shown one is newer: each process keeps its answers, and an answer may be late.
// A problem that it consists of, or holds, goes to the top.
function show(element, part, begunAt) {
  const { part: name, at: readAt, age, fresh } = part.dataset;
  const problem = part.querySelector(".problem");
  setProblem(name, problem ? problem.textContent : "");
  problem?.remove();
  if (age === "") return;
  const before = seen.get(name);
  if (before?.address === shown && Number(readAt) < before.readAt) return;
  seen.set(name, { at: begunAt - age * 1000, readAt: Number(readAt), freshS: Number(fresh), element, address: shown });
  if (Number(fresh)) sessionStorage.setItem("oauth-ratelimit-kept", Math.max(readAt, newestKept()));
  showEmpty();
  if (part !== element) replace(element, part);
  if (name === "traffic") import("./chart.js").then(({ showCharts }) => showCharts(JSON.parse(element.firstElementChild.dataset.content)));
}

const FOCUSABLE = "a, button, input, summary, [tabindex]";

// Replaces the content. Focus, open details and scrolled tables stay as they are; selected text and what is being pressed are not touched.
function replace(element, body) {
  if (element.innerHTML === body.innerHTML || element.matches(":active")) return;
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

// The choice between UTC and local time. All texts with a time are made anew.
const zone = find("zone");
zone.value = chosenZone();
zone.addEventListener("change", () => {
  chooseZone(zone.value);
  refreshAll();
});

// The form of a client. An empty grant type stays out of the URL.
const search = find("search");
if (search) {
  find("user").value = chosenUser();
  if (!query().get("id") && !query().get("decision")) find("id").focus();
  search.addEventListener("submit", () => {
    const user = find("user").value;
    search.action = location.pathname + (user ? `#${new URLSearchParams({ user })}` : "");
    find("grant").disabled = !find("grant").value;
    setTimeout(() => { find("grant").disabled = false; });
  });
}

const parts = [...document.querySelectorAll("[data-part]")];
for (const element of parts) show(element, element, 0);
if (parts.some((each) => !each.dataset.age) || chosenUser() || utcOffset()) refreshAll();
const poll = () => { if (!document.hidden) refreshAll(isDue); };
document.addEventListener("visibilitychange", poll);
setInterval(poll, POLL_MS);
if (find("panel-form")) import("./panel.js");
