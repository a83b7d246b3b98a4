// One client: why it is limited like that, how it behaves, who of its users is near a limit.

import { Chart } from "./chart.js";
import { choices, facts, find, make, say, table, tag, usedBar } from "./dom.js";
import { ask, askStatus, clientUrl, keepUp, mayChange, originText, overrideUrl, userFragment } from "./server.js";
import { count, counted, duration, moment, percent, visible } from "./words.js";

const SPANS = [["1h", "1 hour"], ["6h", "6 hours"], ["1d", "1 day"], ["7d", "7 days"]];
const query = new URLSearchParams(location.search);
const id = query.get("id");
const chosen = { span: "1h" };
const names = ["id", "grant"];
const user = new URLSearchParams(location.hash.slice(1)).get("user") || "";

const used = { title: "used", kind: "bar", value: (row) => usedBar(row.used_ratio), sign: (row) => row.used_ratio.toFixed(3) };
const mode = { title: "mode", value: (row) => tag(row.mode), sign: (row) => row.mode };
const hits = { title: "hits / limit", kind: "number", value: (row) => `${count(Math.round(row.estimate * 10) / 10)} / ${count(row.limit)} in ${duration(row.window_s)}` };
const next = { title: "next in", kind: "number", value: (row) => (row.retry_after_s ? duration(row.retry_after_s) : "now") };

const LIMIT_COLUMNS = [
  { title: "policy", kind: "name", value: (row) => row.policy },
  { title: "set by", kind: "wide", value: (row) => originText(row.origin) },
  mode, used, hits, next,
];
const USER_COLUMNS = [
  { title: "user", kind: "name", value: (row) => (row.username === null ? "– (without a user)" : make("a", { href: clientUrl(id, row.username) }, visible(row.username))), sign: (row) => String(row.username) },
  { title: "counted at", value: (row) => row.scope || "token" },
  { title: "policy", value: (row) => row.policy },
  mode, used, hits, next,
];
const HEAVIEST_COLUMNS = [
  { title: "user", kind: "name", value: (row) => make("a", { href: clientUrl(id, row.username) }, visible(row.username)), sign: (row) => row.username },
  { title: "requests", kind: "number", value: (row) => count(row.offered) },
  { title: "over a limit", kind: "number", value: (row) => count(row.over) },
];
const GRANT_COLUMNS = [
  { title: "grant type", kind: "name", value: (row) => row.grant },
  { title: "for", value: (row) => (row.kind === "user" ? "users" : "the client") },
  { title: "requests", kind: "number", value: (row) => count(row.offered) },
  { title: "allowed", kind: "number", value: (row) => count(row.issued) },
  { title: "denied", kind: "number", value: (row) => count(row.denied) },
  { title: "would be denied", kind: "number", value: (row) => count(row.would_deny) },
];
export const OVERRIDE_COLUMNS = [
  { title: "what", value: (row) => (row.limit_kind ? `${row.limit_kind} limit` : row.kind) },
  { title: "value", kind: "wide", value: (row) => row.mode || row.limits.join(", ") || (row.kind === "limit" ? "no limit" : "trusted") },
  { title: "until", value: (row) => (row.until ? moment(row.until) : "you take it back") },
  { title: "by", kind: "name", value: (row) => visible(row.by) },
  { title: "why", kind: "wide", value: (row) => visible(row.reason) },
];

async function lookAtCase() {
  const question = Object.fromEntries(names.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
  const told = await ask("client", question, { user });
  if (!told) return;
  find("found").hidden = false;
  say("hint", told.hint);
  find("name").textContent = visible(id) + (told.username === null ? "" : ` · ${visible(told.username)}`);
  find("forecast").replaceChildren(tag(told.forecast.text, `${told.forecast.kind} big`));
  facts(find("facts"), [
    ["Mode", make("span", {}, tag(told.mode), ` set by ${originText(told.mode_origin)}`)],
    ["Trusted", told.trusted ? `yes, by ${originText(told.trusted)}` : "no"],
    ["Canary", told.canary],
    ["Plan", told.plan || "none"],
    ["Counted at", told.scope || "token"],
    ["Counted by", `${counted(told.instance_count, "instance")} lately`],
    ...Object.entries(told.limits_now).map(([kind, list]) => [
      `${kind} limit`, `${list.join(", ") || "none"}, set by ${originText(told.limit_origins[kind])}`,
    ]),
  ]);
  table(find("limits"), LIMIT_COLUMNS, told.limits, { keyOf: (row) => `${row.kind}/${row.policy}`, empty: "No limit applies." });
  table(find("users"), USER_COLUMNS, told.users, {
    keyOf: (row) => JSON.stringify([row.username, row.scope]), empty: "None of them is being counted right now.",
  });
  find("users-note").textContent = told.are_users_complete ? "" : "of the first 5,000 that are being counted";
  find("own-overrides").hidden = !told.overrides.length;
  table(find("overrides"), OVERRIDE_COLUMNS, told.overrides, { keyOf: (row) => `${row.kind}/${row.limit_kind}`, empty: "" });
  find("grants").replaceChildren(...told.grants.map((grant) => make("option", { value: grant })));
}

async function lookAtDenial(decision) {
  const told = await ask("denial", { decision }, { inForm: true });
  if (!told) return;
  const { denial } = told;
  find("by-decision").open = !denial;
  say("form-problem", denial ? "" : `No denial with this id is known. It is older than ${duration(told.kept_s)}, or its process has not told of it yet, which takes ten seconds.`);
  find("denial").hidden = !denial;
  if (!denial) return;
  facts(find("denial-facts"), [
    ["Decision", make("code", {}, denial.decision_id)],
    ["Which", denial.position ? `number ${count(denial.position)} after the first, ${denial.logged_decision_id}` : `the first; ${count(denial.suppressed_count)} more followed`],
    ["Client", make("a", { href: clientUrl(denial.client_id, denial.username) }, visible(denial.client_id))],
    ["User", denial.username === null ? "none" : visible(denial.username)],
    ["Grant type", denial.grant_type || "unknown"],
    ["Counted at", denial.scope || "token"],
    ["Policy", denial.policy || "unknown"],
    ["Limit", denial.limit ? `${count(denial.limit)} in ${duration(denial.window_s)}` : "unknown"],
    ["Mode", tag(denial.mode)],
    ["Told to wait", duration(denial.retry_after_s)],
    ["First, last", `${moment(denial.first_at)}, ${moment(denial.last_at)}`],
    ["Instance", visible(denial.instance)],
    ["Trace", denial.trace_id || denial.request_id || "none"],
  ]);
}

let chart = null;

async function lookAtTraffic() {
  const told = await ask("traffic", { span: chosen.span, id });
  if (!told) return;
  const line = told.lines[0];
  const lines = !line ? [] : [
    { name: "allowed", colour: 1, dashed: false, values: line.issued },
    { name: "denied", colour: 2, dashed: false, values: line.denied },
    { name: "would be denied", colour: 5, dashed: true, values: line.would_deny },
  ].filter((each) => each.name === "allowed" || each.values.some(Boolean));
  chart.show({
    times: told.times, step: told.step_s, lines,
    limits: !line ? [] : line.rates.map((rate) => ({ value: rate.per_minute, text: `limit now ${count(rate.per_minute)}` })),
  });
  const keys = lines.map((each) => make("span", {}, make("i", { className: `swatch s${each.colour}` }), each.name));
  const far = chart.offScale.map((limit) => limit.text);
  if (far.length) keys.push(make("span", {}, `above the chart: ${far.join(", ")}`));
  if (told.sampled_every > 1) keys.push(make("span", {}, `estimated from every ${told.sampled_every}th minute`));
  find("chart-keys").replaceChildren(...keys);
}

async function lookAtHabits() {
  const told = await ask("habits", { id });
  if (!told) return;
  find("habits").hidden = !told.offered;
  if (!told.offered) return;
  facts(find("habit-facts"), [
    ["Requests", `${count(told.offered)}, of which ${count(told.over)} over a limit`],
    ["Users", told.user_count ? `about ${count(Math.round(told.user_count))}` : "none"],
    ["Requests per user and hour", count(told.per_user_hour)],
    ["It needs", `about ${count(Math.round(told.needed))} tokens`],
    ["Share of refreshes", told.refresh_share === null ? "–" : percent(told.refresh_share)],
    ["Retried too early", count(told.retries)],
    ["Most within a second", `${count(told.burst)} at one instance`],
    ["Busiest minute", told.busiest_count ? `${counted(told.busiest_count, "request")}, ${moment(told.busiest_at)}` : "–"],
    ...told.peaks.map((peak) => [`Fullest of ${peak.policy}`, `${percent(peak.share)}: ${count(peak.used)} of ${count(peak.limit)} in ${duration(peak.window_s)}`]),
  ]);
  find("faults-card").hidden = !told.faults.length;
  find("faults").replaceChildren(...told.faults.map((text) => make("li", {}, text)));
  find("habit-verdict").replaceChildren(tag(told.verdict, "warn"));
  if (find("letter").textContent !== told.letter) find("letter").textContent = told.letter || "";
  find("heaviest-card").hidden = !told.users.length;
  table(find("heaviest"), HEAVIEST_COLUMNS, told.users, { keyOf: (row) => row.username, empty: "" });
  table(find("by-grant"), GRANT_COLUMNS, told.grants, { keyOf: (row) => `${row.kind}/${row.grant}`, empty: "No statistics yet." });
}

for (const name of names) find(name).value = query.get(name) || "";
find("user").value = user;
window.addEventListener("hashchange", () => location.reload());
// Only what is filled in goes into the address.
find("search").addEventListener("submit", () => {
  find("search").action = location.pathname + userFragment(find("user").value);
  for (const name of names) find(name).disabled = !find(name).value;
  setTimeout(() => names.forEach((name) => { find(name).disabled = false; }));
});
keepUp(askStatus);
find("by-decision").hidden = Boolean(id);
if (id) {
  document.title = `${visible(id)} – rate limit`;
  chart = new Chart(find("chart"), { unit: "Requests per minute", empty: "No statistics for this time." });
  choices(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; lookAtTraffic(); } });
  if (mayChange) {
    find("actions").replaceChildren(...[["limit", "Change limits"], ["mode", "Change mode"], ["trusted", "Trust"]].map(
      ([kind, text]) => make("a", { className: "button", href: overrideUrl(id, kind) }, text),
    ));
  }
  keepUp(lookAtCase);
  keepUp(lookAtTraffic, { everyMs: 10_000 });
  keepUp(lookAtHabits, { everyMs: 30_000 });
} else if (query.get("decision")) {
  find("decision").value = query.get("decision");
  lookAtDenial(query.get("decision"));
} else {
  find("id").focus();
}
