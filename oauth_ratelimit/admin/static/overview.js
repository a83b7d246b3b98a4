// Overview: the verdict, two charts, the clients, and the keys nearest to a limit.

import { Chart, SPANS, link } from "./chart.js";
import { find, make, radioGroup, setText, showMessage, table, tag, tiles } from "./dom.js";
import { REST, coloursOf } from "./palette.js";
import { clientUrl, fetchData, poll, pollVerdict } from "./server.js";
import { MODE, SCOPE, USE, usageBar } from "./usage.js";
import { OTHERS, clientName, counted, number, percent, visible } from "./format.js";

const OUTCOMES = [["both", "All"], ["denied", "Denied"], ["would_deny", "Would be denied"]];
const TRAFFIC_MS = 10_000;
const PAGE_SIZE = 25;
const TYPING_MS = 250;

const requestedSpan = new URLSearchParams(location.search).get("span");
const chosen = {
  span: SPANS.some(([span]) => span === requestedSpan) ? requestedSpan : "1h",
  outcome: "both",
  only: null, // the client that is drawn alone, with its limit
  sort: "over",
  descending: true,
  filter: "",
  page: 1,
};
const denied = new Chart(find("denied"), { name: "Requests over a limit by client", empty: "No requests over a limit in this time.", onChoose: choose, hasMarks: false });
const allowed = new Chart(find("allowed"), { name: "Allowed requests by client", empty: "No token requests in this time.", onChoose: choose });
link(denied, allowed);
let traffic = null;
let colours = new Map();
let clientsPage = null;

function clientLink(row) {
  if (row.client_id === OTHERS) return "all others";
  return make("a", { href: clientUrl(row.client_id) }, visible(row.client_id));
}

function modeTag(row) {
  if (!row.mode) return "–";
  return tag(row.is_canary ? `${row.mode}, canary` : row.mode, row.mode === "trusted" ? "good" : row.mode);
}

function colourOf(row) {
  return colours.get(row.client_id) || (traffic && traffic.rest ? REST : null);
}

const CLIENT_COLUMNS = [
  { title: "client", sort: "client_id", kind: "name", value: (row) => make("span", { className: "keyed" }, make("i", { className: colourOf(row) ? `swatch s${colourOf(row)}` : "swatch" }), clientLink(row)), version: (row) => `${row.client_id}/${colourOf(row)}` },
  { title: "over a limit", sort: "over", kind: "number", value: (row) => number(row.over) },
  { title: "share over", sort: "over_share", kind: "number", value: (row) => percent(row.over_share) },
  { title: "highest use of a limit", sort: "highest_use", kind: "bar", value: (row) => (row.highest_use === null ? "–" : usageBar(row.highest_use)), version: (row) => String(row.highest_use) },
  { title: "of policy", sort: "policy", kind: "word", value: (row) => row.policy || "–" },
  { title: "requests", sort: "offered", kind: "number", value: (row) => number(row.offered) },
  { title: "allowed", sort: "issued", kind: "number", value: (row) => number(row.issued) },
  { title: "denied", sort: "denied", kind: "number", value: (row) => number(row.denied) },
  { title: "would be denied", sort: "would_deny", kind: "number", value: (row) => number(row.would_deny), isShown: (rows) => rows.some((row) => row.would_deny) },
  { title: "mode", sort: "mode", value: modeTag, version: (row) => `${row.mode}${row.is_canary}` },
  { title: "chart", kind: "act", value: onlyButton, version: (row) => String(chosen.only === row.client_id) },
];

const TOP_COLUMNS = [
  { title: "client", kind: "name", value: clientLink, version: (row) => row.client_id },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : make("a", { href: clientUrl(row.client_id, row.username) }, visible(row.username))), version: (row) => String(row.username), isShown: (rows) => rows.some((row) => row.username !== null) },
  SCOPE,
  { title: "policy", value: (row) => row.policy },
  MODE, ...USE,
];

function onlyButton(row) {
  if (row.client_id === OTHERS) return "";
  const isOnly = chosen.only === row.client_id;
  const button = make("button", { type: "button", className: "small", "aria-pressed": String(isOnly) }, isOnly ? "show all" : "only this");
  button.addEventListener("click", async () => {
    await choose(isOnly ? null : row.client_id);
    find("clients").querySelector(`tr[data-key="${CSS.escape(row.client_id)}"] button`)?.focus();
  });
  return button;
}

async function choose(clientId) {
  chosen.only = clientId;
  showClients();
  await refreshTraffic();
}

function trend({ value, before }, { isBadUp = true } = {}) {
  if (value === null || value === undefined) return ["–", "", ""];
  const isUp = value > before * 1.1 + 0.1;
  const isDown = value < before * 0.9 - 0.1;
  const text = isUp ? `▲ from ${number(before)}` : isDown ? `▼ from ${number(before)}` : "steady";
  return [number(value), `a minute, ${text}`, isBadUp && value > 0 ? "warn" : ""];
}

function showVerdict(verdict) {
  if (!verdict.store.is_reachable) return;
  const { clients_over: overCount, worst } = verdict;
  const rates = [verdict.denied_per_minute, verdict.would_deny_per_minute, verdict.allowed_per_minute];
  const isIdle = !rates.some(({ value }) => value);
  find("verdict").className = `verdict ${isIdle ? "" : overCount ? "warn" : "good"}`;
  const clients = `${counted(overCount, "client")} ${overCount === 1 ? "was" : "were"}`;
  const sentence = isIdle ? "No token requests were recorded in the last 5 full minutes." : `${overCount ? clients : "No client was"} over a limit in the last 5 minutes.`;
  const parts = [make("strong", {}, sentence)];
  const outcome = worst && (worst.denied >= worst.would_deny ? "denied" : "would be denied");
  if (worst) parts.push(" Worst: ", make("a", { href: clientUrl(worst.client_id) }, visible(worst.client_id)), `, ${percent(worst.share)} of its requests ${outcome}.`);
  const version = `${sentence}/${worst && worst.client_id}/${worst && percent(worst.share)}/${outcome}`;
  if (find("verdict-text").dataset.version !== version) {
    find("verdict-text").dataset.version = version;
    find("verdict-text").replaceChildren(...parts);
  }
  tiles(find("tiles"), [
    ["Denied", ...trend(verdict.denied_per_minute)],
    ["Would be denied (dry run)", ...trend(verdict.would_deny_per_minute)],
    ["Allowed", ...trend(verdict.allowed_per_minute, { isBadUp: false })],
  ]);
}

function showTraffic() {
  const named = traffic.lines.map((line) => line.client_id);
  colours = coloursOf(named);
  const lines = traffic.lines.map((line) => ({ ...line, colour: colours.get(line.client_id) }));
  if (traffic.rest) lines.push({ ...traffic.rest, colour: REST });
  const outcomes = ["denied", "would_deny"].filter((outcome) => chosen.outcome === "both" || chosen.outcome === outcome);
  const base = { times: traffic.times, step: traffic.step_s, unit: traffic.unit, marks: traffic.marks, chosen: chosen.only };
  denied.show({
    ...base,
    lines: lines.flatMap((line) => outcomes.filter((outcome) => line[outcome].some(Boolean)).map((outcome) => ({
      name: line.client_id, colour: line.colour, dashed: outcome === "would_deny", values: line[outcome],
    }))),
  });
  allowed.show({
    ...base,
    lines: lines.map((line) => ({ name: line.client_id, colour: line.colour, dashed: false, values: line.issued, note: useOf(line.client_id) })),
    limits: chosen.only === null ? [] : lines.flatMap((line) => (line.rates || []).map((rate) => ({
      value: rate.per_minute, colour: line.colour, text: `limit ${number(rate.per_minute)} per minute (${rate.policy})`,
    }))),
  });
  const isEmpty = !traffic.total.offered && chosen.only === null;
  showMessage("traffic-note", isEmpty ? "No statistics for this time: there were no token requests, or statistics are switched off. Instances write them about every ten seconds." : "");
  const notes = [];
  if (chosen.only !== null) notes.push(`Only ${clientName(chosen.only)}, with its limit.`);
  else if (traffic.rest_count) notes.push(`${counted(traffic.rest_count, "other client")} in grey.`);
  if (!traffic.is_complete) notes.push("Older requests are still being read.");
  setText(find("shown-note"), notes.join(" "));
  find("show-all").hidden = chosen.only === null;
  find("choose-note").hidden = chosen.only !== null;
}

function useOf(clientId) {
  const row = traffic.clients && traffic.clients.find((each) => each.client_id === clientId);
  return row && row.highest_use !== null ? `up to ${percent(row.highest_use)} of its limit` : null;
}

function showClients() {
  if (!clientsPage) return;
  const { rows, total, page, size } = clientsPage;
  table(find("clients"), CLIENT_COLUMNS, rows, {
    keyOf: (row) => row.client_id,
    empty: chosen.filter ? `No client has ${visible(chosen.filter)} in its id.` : "No token requests in this time.",
    sorted: { by: chosen.sort, descending: chosen.descending, onSort: sortBy },
  });
  const last = Math.max(1, Math.ceil(total / size));
  find("paging").hidden = last === 1;
  find("previous").disabled = page <= 1;
  find("next").disabled = page >= last;
  const range = total ? `${number((page - 1) * size + 1)} to ${number(Math.min(total, page * size))} of ${counted(total, "client")}` : "no clients";
  setText(find("range"), range);
}

function sortBy(name) {
  chosen.descending = chosen.sort === name ? !chosen.descending : !["client_id", "mode", "policy"].includes(name);
  chosen.sort = name;
  chosen.page = 1;
  refreshClients();
}

let lastClients = 0;

async function refreshClients() {
  const request = lastClients += 1;
  const answer = await fetchData("clients", {
    span: chosen.span, sort: chosen.sort, descending: chosen.descending ? 1 : 0, filter: chosen.filter, page: chosen.page, size: PAGE_SIZE,
  });
  if (!answer || request !== lastClients) return; // a newer request is under way
  clientsPage = answer;
  showClients();
}

function firstStep(answer) {
  const steps = [...answer.lines, ...answer.rest ? [answer.rest] : []].map((line) => line.issued.findIndex((value, index) => value || line.denied[index]));
  return Math.min(...steps.filter((step) => step >= 0));
}

let lastTraffic = 0;

async function refreshTraffic() {
  const request = lastTraffic += 1;
  const answer = await fetchData("traffic", { span: chosen.span, ...chosen.only === null ? {} : { id: chosen.only } });
  if (!answer || request !== lastTraffic) return;
  // Right after the start of the first instance a shorter span shows more.
  const isFirst = !traffic && chosen.span === "1h" && !requestedSpan;
  traffic = answer;
  if (isFirst && traffic.total.offered && firstStep(traffic) > traffic.times.length * 0.75) {
    document.querySelector("input[name=span][value='15m']").click();
    return;
  }
  showTraffic();
  showClients();
}

async function refreshTop() {
  const top = await fetchData("top");
  if (!top) return;
  table(find("top"), TOP_COLUMNS, top.rows.filter((row) => row.used_ratio >= 0.005), {
    keyOf: (row) => JSON.stringify([row.client_id, row.username, row.scope]),
    empty: "No recent requests.",
  });
  setText(find("top-note"), top.is_complete
    ? `${counted(top.read_count, "key")} in use`
    : `of the ${number(top.read_count)} keys with the longest windows and the busiest ones`);
}

function refreshSpan() {
  refreshTraffic();
  refreshClients();
}

function turnPage(step) {
  chosen.page += step;
  refreshClients();
}

let typing = null;
find("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    chosen.filter = find("filter").value.trim();
    chosen.page = 1;
    refreshClients();
  }, TYPING_MS);
});
find("previous").addEventListener("click", () => turnPage(-1));
find("next").addEventListener("click", () => turnPage(1));
find("show-all").addEventListener("click", () => choose(null));
radioGroup(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; chosen.page = 1; refreshSpan(); } });
radioGroup(find("outcome"), OUTCOMES, { chosen: chosen.outcome, onChange: (outcome) => { chosen.outcome = outcome; if (traffic) showTraffic(); } });
pollVerdict(showVerdict);
poll(refreshTraffic, { everyMs: TRAFFIC_MS });
poll(refreshClients, { everyMs: TRAFFIC_MS });
poll(refreshTop);
