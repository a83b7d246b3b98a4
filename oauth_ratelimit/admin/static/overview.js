// The overview: how things are, the two charts, who is nearest to a limit.

import { Chart } from "./chart.js";
import { choices, find, make, say, table, tag, tiles, usedBar } from "./dom.js";
import { ask, askStatus, canaryText, clientUrl, keepUp, originText } from "./server.js";
import { OTHERS, clientName, count, counted, duration, percent, visible } from "./words.js";

export const SPANS = [["15m", "15 min"], ["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"]];
const OUTCOMES = [["both", "All"], ["denied", "Denied"], ["would_deny", "Dry run"]];
const TRAFFIC_MS = 10_000;

const asked = new URLSearchParams(location.search).get("span");
const chosen = { span: SPANS.some(([span]) => span === asked) ? asked : "1h", outcome: "both", only: null };
const empty = "No token requests in this time.";
const denied = new Chart(find("denied"), { unit: "Requests over a limit per minute", empty: "Nobody was over a limit in this time." });
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
  { title: "client", kind: "name", value: (row) => make("span", {}, make("i", { className: row.colour ? `swatch s${row.colour}` : "swatch" }), clientLink(row)), sign: (row) => `${row.client_id}/${row.colour}` },
  { title: "mode", value: modeTag, sign: (row) => `${row.mode}${row.is_canary}` },
  { title: "requests", kind: "number", value: (row) => count(row.offered) },
  { title: "allowed", kind: "number", value: (row) => count(row.issued) },
  { title: "denied", kind: "number", value: (row) => count(row.denied) },
  { title: "would be denied", kind: "number", value: (row) => count(row.would_deny) },
  { title: "over the limit", kind: "number", value: (row) => percent(row.offered ? (row.denied + row.would_deny) / row.offered : 0) },
  { title: "fullest use of a limit", kind: "bar", value: (row) => (row.fullest === null ? "–" : usedBar(row.fullest)), sign: (row) => String(row.fullest) },
  { title: "chart", kind: "act", value: onlyButton, sign: (row) => `${row.colour}/${chosen.only === row.client_id}` },
];

const TOP_COLUMNS = [
  { title: "client", kind: "name", value: clientLink, sign: (row) => row.client_id },
  { title: "user", kind: "name", value: (row) => (row.username === null ? "–" : make("a", { href: clientUrl(row.client_id, row.username) }, visible(row.username))), sign: (row) => String(row.username) },
  { title: "counted at", value: (row) => row.scope || "token" },
  { title: "policy", value: (row) => row.policy },
  { title: "mode", value: (row) => tag(row.mode), sign: (row) => row.mode },
  { title: "used", kind: "bar", value: (row) => usedBar(row.used_ratio), sign: (row) => row.used_ratio.toFixed(3) },
  { title: "hits / limit", kind: "number", value: (row) => `${count(Math.round(row.estimate * 10) / 10)} / ${count(row.limit)} in ${duration(row.window_s)}` },
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
  const far = allowed.offScale.map((limit) => limit.text);
  find("off-scale").textContent = far.length ? `above the chart: ${far.join(", ")}` : "";
  showClients(lines);
  const total = traffic.total;
  say("traffic-note", total.offered ? "" : "No statistics for this time: nobody has asked for a token, or statistics are switched off. Instances write them about every ten seconds.");
}

// One line for each different limit; with names, unless it is that of every line drawn.
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
    value, text: isShared ? `limit now ${count(value)}` : `limit now ${count(value)}: ${[...names].slice(0, 2).join(", ")}${names.size > 2 ? " …" : ""}`,
  }));
}

function showClients(lines) {
  const colours = new Map(lines.map((line) => [line.client_id, line.colour]));
  const rows = traffic.clients.map((row) => ({ ...row, colour: colours.get(row.client_id) || (traffic.rest ? 6 : null) }));
  table(find("clients"), CLIENT_COLUMNS, rows, { keyOf: (row) => row.client_id, empty });
  const notes = [];
  if (traffic.rest_count) notes.push(traffic.rest_count === 1 ? "1 without a line of its own is drawn in grey" : `${count(traffic.rest_count)} without a line of their own are drawn together, in grey`);
  if (traffic.client_count > rows.length) notes.push(`the ${rows.length} with most requests of ${count(traffic.client_count)}`);
  if (traffic.sampled_every > 1) notes.push(`estimated from every ${traffic.sampled_every}th minute`);
  find("shown-note").textContent = notes.join("; ");
}

function firstStep(told) {
  const steps = [...told.lines, ...told.rest ? [told.rest] : []].map((line) => line.issued.findIndex((value, index) => value || line.denied[index]));
  return Math.min(...steps.filter((step) => step >= 0));
}

async function lookAtTraffic() {
  const told = await ask("traffic", { span: chosen.span });
  if (!told) return;
  // Somebody who has only just started sees what there is, and not an hour of nothing before it.
  const isNew = !traffic && chosen.span === "1h" && !asked;
  traffic = told;
  if (isNew && traffic.total.offered && firstStep(traffic) > traffic.times.length * 0.75) {
    document.querySelector("input[name=span][value='15m']").click();
    return;
  }
  if (chosen.only !== null && !traffic.lines.some((line) => line.client_id === chosen.only)) chosen.only = null;
  showTraffic();
}

async function lookAtNow() {
  const status = await askStatus();
  if (!status) return;
  const late = status.instances.filter((instance) => instance.is_late).length;
  tiles(find("tiles"), [
    ["Mode", tag(status.mode, `${status.mode} big`), `set by ${originText(status.mode_origin)}`],
    ["Canary", canaryText(status.canary), status.canary ? "enforced there, dry run elsewhere" : "the mode holds for all"],
    ["Instances", count(status.instances.length), late ? tag(`${late} late`, "bad") : "all heard of lately"],
    ["Overrides", count(status.override_count), status.override_count ? "over the configuration" : "the configuration holds"],
    ["MongoDB", status.mongodb.version, counted(status.mongodb.document_count, "counter")],
  ]);
  const top = await ask("top");
  if (!top) return;
  table(find("top"), TOP_COLUMNS, top.rows, {
    keyOf: (row) => JSON.stringify([row.client_id, row.username, row.scope]),
    empty: "Nobody is being counted right now.",
  });
  find("top-note").textContent = top.is_complete
    ? `${counted(top.read_count, "key")} ${top.read_count === 1 ? "is" : "are"} being counted`
    : `of the ${count(top.read_count)} keys that matter longest`;
}

choices(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; lookAtTraffic(); } });
choices(find("outcome"), OUTCOMES, { chosen: chosen.outcome, onChange: (outcome) => { chosen.outcome = outcome; if (traffic) showTraffic(); } });
keepUp(lookAtNow);
keepUp(lookAtTraffic, { everyMs: TRAFFIC_MS });
