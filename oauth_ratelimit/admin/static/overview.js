// Overview: status, two charts, keys nearest to a limit.

import { Chart } from "./chart.js";
import { find, make, radioGroup, showMessage, table, tag, tiles, usageBar } from "./dom.js";
import { canaryText, clientUrl, fetchData, fetchStatus, originText, poll } from "./server.js";
import { OTHERS, clientName, counted, duration, number, percent, visible } from "./format.js";

export const SPANS = [["15m", "15 min"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"]];
const OUTCOMES = [["both", "All"], ["denied", "Denied"], ["would_deny", "Would be denied"]];
const TRAFFIC_MS = 10_000;

const requestedSpan = new URLSearchParams(location.search).get("span");
const chosen = { span: SPANS.some(([span]) => span === requestedSpan) ? requestedSpan : "1h", outcome: "both", only: null };
const empty = "No token requests in this time.";
const denied = new Chart(find("denied"), { unit: "Requests over a limit per minute", empty: "No requests over a limit in this time." });
const allowed = new Chart(find("allowed"), { unit: "Allowed requests per minute", empty });
let traffic = null;

function clientLink(row) {
  return row.client_id === OTHERS ? "all others" : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id));
}

function modeTag(row) {
  if (!row.mode) return "–";
  return tag(row.is_canary ? `${row.mode}, canary` : row.mode, row.mode === "trusted" ? "good" : row.mode);
}

const CLIENT_COLUMNS = [
  { title: "client", kind: "name", value: (row) => make("span", {}, make("i", { className: row.colour ? `swatch s${row.colour}` : "swatch" }), clientLink(row)), version: (row) => `${row.client_id}/${row.colour}` },
  { title: "mode", value: modeTag, version: (row) => `${row.mode}${row.is_canary}` },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "allowed", kind: "number", value: (row) => number(row.issued) },
  { title: "denied", kind: "number", value: (row) => number(row.denied) },
  { title: "would be denied", kind: "number", value: (row) => number(row.would_deny) },
  { title: "over the limit", kind: "number", value: (row) => percent(row.offered ? (row.denied + row.would_deny) / row.offered : 0) },
  { title: "highest use of a limit", kind: "bar", value: (row) => (row.highest_use === null ? "–" : usageBar(row.highest_use)), version: (row) => String(row.highest_use) },
  { title: "chart", kind: "act", value: onlyButton, version: (row) => `${row.colour}/${chosen.only === row.client_id}` },
];

const TOP_COLUMNS = [
  { title: "client", kind: "name", value: clientLink, version: (row) => row.client_id },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : make("a", { href: clientUrl(row.client_id, row.username) }, visible(row.username))), version: (row) => String(row.username) },
  { title: "counted at", value: (row) => row.scope || "token" },
  { title: "policy", value: (row) => row.policy },
  { title: "mode", value: (row) => tag(row.mode), version: (row) => row.mode },
  { title: "used", kind: "bar", value: (row) => usageBar(row.used_ratio), version: (row) => row.used_ratio.toFixed(3) },
  { title: "hits / limit", kind: "number", value: (row) => `${number(Math.round(row.estimate * 10) / 10)} / ${number(row.limit)} in ${duration(row.window_s)}` },
  { title: "next in", kind: "number", value: (row) => (row.retry_after_s ? duration(row.retry_after_s) : "now") },
];

function onlyButton(row) {
  if (!row.colour || row.colour === 6) return "";
  const isOnly = chosen.only === row.client_id;
  const button = make("button", { type: "button", className: "small", "aria-pressed": String(isOnly) }, isOnly ? "show all" : "only this");
  button.addEventListener("click", () => {
    chosen.only = isOnly ? null : row.client_id;
    showTraffic();
    find("clients").querySelector(`tr[data-key="${CSS.escape(row.client_id)}"] button`)?.focus();
  });
  return button;
}

function drawnLines() {
  const lines = traffic.lines.map((line, index) => ({ ...line, colour: index + 1 }));
  if (traffic.rest) lines.push({ ...traffic.rest, colour: 6 });
  return lines;
}

function showTraffic() {
  const lines = drawnLines();
  const shown = lines.filter((line) => chosen.only === null || line.client_id === chosen.only);
  const base = { times: traffic.times, step: traffic.step_s };
  const outcomes = ["denied", "would_deny"].filter((outcome) => chosen.outcome === "both" || chosen.outcome === outcome);
  denied.show({
    ...base,
    limits: [],
    lines: shown.flatMap((line) => outcomes.filter((outcome) => line[outcome].some(Boolean)).map((outcome) => ({
      name: line.client_id, colour: line.colour, dashed: outcome === "would_deny", values: line[outcome],
    }))),
  });
  allowed.show({
    ...base,
    limits: limitLines(shown),
    lines: shown.map((line) => ({ name: line.client_id, colour: line.colour, dashed: false, values: line.issued })),
  });
  const offScale = allowed.offScale.map((limit) => limit.text);
  find("off-scale").textContent = offScale.length ? `above the chart: ${offScale.join(", ")}` : "";
  showClients(lines);
  const total = traffic.total;
  showMessage("traffic-note", total.offered ? "" : "No statistics for this time: there were no token requests, or statistics are switched off. Instances write them about every ten seconds.");
}

// One line per distinct limit, named by its clients unless all clients share it.
function limitLines(lines) {
  const found = new Map();
  for (const line of lines) {
    for (const rate of line.rates) {
      const known = found.get(rate.per_minute) || { value: rate.per_minute, names: new Set() };
      known.names.add(clientName(line.client_id));
      found.set(rate.per_minute, known);
    }
  }
  const isShared = found.size === 1 && [...found.values()][0].names.size === lines.length;
  return [...found.values()].map(({ value, names }) => ({
    value, text: isShared ? `current limit ${number(value)}` : `current limit ${number(value)}: ${[...names].slice(0, 2).join(", ")}${names.size > 2 ? " …" : ""}`,
  }));
}

function showClients(lines) {
  const colours = new Map(lines.map((line) => [line.client_id, line.colour]));
  const rows = traffic.clients.map((row) => ({ ...row, colour: colours.get(row.client_id) || (traffic.rest ? 6 : null) }));
  table(find("clients"), CLIENT_COLUMNS, rows, { keyOf: (row) => row.client_id, empty });
  const notes = [];
  if (traffic.rest_count) notes.push(traffic.rest_count === 1 ? "1 other client is drawn in grey" : `${number(traffic.rest_count)} other clients are drawn as one grey line`);
  if (traffic.client_count > rows.length) notes.push(`${rows.length} of ${number(traffic.client_count)} clients, those with most requests`);
  if (traffic.sampled_every > 1) notes.push(`estimated from every ${traffic.sampled_every}th minute`);
  find("shown-note").textContent = notes.join("; ");
}

function firstStep(answer) {
  const steps = [...answer.lines, ...answer.rest ? [answer.rest] : []].map((line) => line.issued.findIndex((value, index) => value || line.denied[index]));
  return Math.min(...steps.filter((step) => step >= 0));
}

async function refreshTraffic() {
  const answer = await fetchData("traffic", { span: chosen.span });
  if (!answer) return;
  // Right after the start of the first instance a shorter span shows more.
  const isFirst = !traffic && chosen.span === "1h" && !requestedSpan;
  traffic = answer;
  if (isFirst && traffic.total.offered && firstStep(traffic) > traffic.times.length * 0.75) {
    document.querySelector("input[name=span][value='15m']").click();
    return;
  }
  if (chosen.only !== null && !traffic.lines.some((line) => line.client_id === chosen.only)) chosen.only = null;
  showTraffic();
}

async function refreshStatus() {
  const status = await fetchStatus();
  if (!status) return;
  const late = status.instances.filter((instance) => instance.is_late).length;
  tiles(find("tiles"), [
    ["Mode", tag(status.mode, `${status.mode} big`), `from ${originText(status.mode_origin)}`],
    ["Canary", canaryText(status.canary), status.canary ? "enforced there, dry run elsewhere" : "the mode applies to all"],
    ["Instances", number(status.instances.length), late ? tag(`${late} late`, "bad") : "all seen lately"],
    ["Overrides", number(status.override_count), status.override_count ? "override the configuration" : "the configuration applies"],
    ["MongoDB", status.mongodb.version, counted(status.mongodb.document_count, "counter document")],
  ]);
  const top = await fetchData("top");
  if (!top) return;
  table(find("top"), TOP_COLUMNS, top.rows, {
    keyOf: (row) => JSON.stringify([row.client_id, row.username, row.scope]),
    empty: "No recent requests.",
  });
  find("top-note").textContent = top.is_complete
    ? `${counted(top.read_count, "key")} in use`
    : `of the ${number(top.read_count)} keys with the longest windows and the busiest ones`;
}

radioGroup(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; refreshTraffic(); } });
radioGroup(find("outcome"), OUTCOMES, { chosen: chosen.outcome, onChange: (outcome) => { chosen.outcome = outcome; if (traffic) showTraffic(); } });
poll(refreshStatus);
poll(refreshTraffic, { everyMs: TRAFFIC_MS });
