// One client: a verdict, the limits that lead to it, its recorded traffic, and a letter to its owner.

import { Chart, SPANS } from "./chart.js";
import { announce, facts, find, make, radioGroup, setText, showMessage, table, tag } from "./dom.js";
import { hasAmount, raiseButton, removeButton, valueText, whatText } from "./override.js";
import { coloursOf } from "./palette.js";
import { canChange, clientUrl, fetchData, originText, overrideUrl, poll, pollVerdict, userFragment } from "./server.js";
import { MODE, SCOPE, USE } from "./usage.js";
import { counted, dateTime, duration, number, percent, utcOffset, visible } from "./format.js";

const query = new URLSearchParams(location.search);
const id = query.get("id");
const chosen = { span: "1h" };
const fields = ["id", "grant"];
const user = new URLSearchParams(location.hash.slice(1)).get("user") || "";

const LIMIT_COLUMNS = [
  { title: "policy", kind: "name", value: (row) => row.policy },
  { title: "from", kind: "wide", value: (row) => originText(row.origin) },
  MODE, ...USE,
];
const USER_COLUMNS = [
  { title: "user", kind: "name", value: (row) => (row.username === null ? "– (without a user)" : make("a", { href: clientUrl(id, row.username) }, visible(row.username))), version: (row) => String(row.username) },
  SCOPE,
  { title: "policy", value: (row) => row.policy },
  MODE, ...USE,
];
const HEAVIEST_COLUMNS = [
  { title: "user", kind: "name", value: (row) => make("a", { href: clientUrl(id, row.username) }, visible(row.username)), version: (row) => row.username },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "over a limit", kind: "number", value: (row) => number(row.over) },
];
const GRANT_COLUMNS = [
  { title: "grant type", kind: "name", value: (row) => row.grant },
  { title: "for", value: (row) => (row.kind === "user" ? "users" : "the client") },
  { title: "requests", kind: "number", value: (row) => number(row.offered) },
  { title: "allowed", kind: "number", value: (row) => number(row.issued) },
  { title: "denied", kind: "number", value: (row) => number(row.denied) },
  { title: "would be denied", kind: "number", value: (row) => number(row.would_deny), isShown: (rows) => rows.some((row) => row.would_deny) },
];
const OVERRIDE_COLUMNS = [
  { title: "what", kind: "name", value: whatText },
  { title: "value", kind: "wide", value: valueText },
  { title: "until", kind: "word", value: (row) => (row.until ? dateTime(row.until) : "no end") },
  { title: "by", kind: "wide", value: (row) => visible(row.by) },
  { title: "reason", kind: "wide", value: (row) => visible(row.reason) },
  ...canChange ? [{ title: "", kind: "act", value: (row) => removeButton(row, showDone), version: (row) => row.at }] : [],
];

async function refreshExplanation() {
  const params = Object.fromEntries(fields.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
  const answer = await fetchData("client", params, { user });
  if (!answer) return;
  find("found").hidden = false;
  setText(find("name"), visible(id) + (answer.is_chosen && answer.username !== null ? ` · ${visible(answer.username)}` : ""));
  setText(find("why-note"), whyText(answer));
  showVerdict(answer.verdict);
  showActions(answer);
  find("known").hidden = answer.verdict.kind === "unknown";
  find("forecast").replaceChildren("Next request: ", tag(answer.forecast.text, answer.forecast.kind), ` in mode ${answer.mode}, from ${originText(answer.mode_origin)}.`);
  facts(find("facts"), [
    answer.trusted ? ["Trusted", `yes, by ${originText(answer.trusted)}`] : null,
    answer.canary === "none" ? null : ["Canary", answer.canary],
    answer.plan ? ["Plan", answer.plan] : null,
    answer.scope ? ["Counted at", answer.scope] : null,
    answer.instance_count ? ["Sent by", `${counted(answer.instance_count, "instance")} lately`] : null,
    ...Object.entries(answer.limits_now).map(([kind, list]) => [
      `${kind} limit`, `${list.join(", ") || "none"}, from ${originText(answer.limit_origins[kind])}`,
    ]),
  ]);
  table(find("limits"), LIMIT_COLUMNS, answer.limits.sort((one, other) => other.used_ratio - one.used_ratio), { keyOf: (row) => `${row.kind}/${row.policy}`, empty: "No limit applies." });
  const users = answer.users.filter((row) => row.used_ratio >= 0.005);
  find("users-card").hidden = !users.length;
  table(find("users"), USER_COLUMNS, users, { keyOf: (row) => JSON.stringify([row.username, row.scope]), empty: "" });
  setText(find("users-note"), answer.are_users_complete ? "" : "of the first 5,000 keys");
  find("own-overrides").hidden = !answer.overrides.length;
  table(find("overrides"), OVERRIDE_COLUMNS, answer.overrides, { keyOf: (row) => `${row.kind}/${row.limit_kind}`, empty: "" });
  find("grants").replaceChildren(...answer.grants.map((grant) => make("option", { value: grant })));
}

// The limits of the grant that the client really uses, unless another one is asked for.
function whyText({ is_chosen: isChosen, username, grant_type: grant }) {
  const request = `a request${grant ? ` with grant type ${grant}` : ""}${username === null ? " without a user" : ` of user ${visible(username)}`}`;
  return `for ${request}${isChosen || !grant ? "" : ": its heaviest use in the last hour"}`;
}

const VERDICT_KINDS = { over: "bad", near: "warn", ok: "good", trusted: "good", idle: "", unknown: "" };

// The limit with the highest use, if its amount can be typed over.
function raisable({ verdict, current }) {
  if (!["over", "near"].includes(verdict.kind)) return null;
  const found = Object.entries(current.limits).map(([kind, { names, texts }]) => ({ clientId: id, policy: verdict.policy, kind, texts, index: names.indexOf(verdict.policy) }));
  return found.find(({ texts, index }) => index >= 0 && hasAmount(texts[index])) || null;
}

function showActions(answer) {
  if (!canChange || answer.verdict.kind === "unknown") return;
  const raised = raisable(answer);
  const version = JSON.stringify([raised, Boolean(answer.trusted)]);
  if (find("actions").dataset.version === version) return;
  find("actions").dataset.version = version;
  const links = [["limit", "Change limits"], ["mode", "Change mode"], ...answer.trusted ? [] : [["trusted", "Trust"]]];
  find("actions").replaceChildren(...raised ? [raiseButton(raised, showDone)] : [],
    ...links.map(([kind, text]) => make("a", { className: "button small", href: overrideUrl(id, kind) }, text)));
}

async function showDone(text) {
  showMessage("done", text);
  await refreshExplanation();
  find("done").focus();
}

function showVerdict(verdict) {
  find("verdict").className = `verdict ${VERDICT_KINDS[verdict.kind]}`;
  setText(find("verdict-text"), visible(verdict.text));
  const links = verdict.suggestions.flatMap((each, index) => [index ? ", " : "Did you mean ", make("a", { href: clientUrl(each) }, visible(each))]);
  const version = JSON.stringify(verdict);
  if (find("verdict-more").dataset.version === version) return;
  find("verdict-more").dataset.version = version;
  const users = verdict.kind === "unknown" ? [] : verdict.worst_users.filter((each) => each.over).flatMap((each, index) => [
    index ? ", " : "Users most over a limit: ", make("a", { href: clientUrl(id, each.username) }, visible(each.username)), ` ${number(each.over)} of ${counted(each.offered, "request")}`,
  ]);
  const text = links.length ? [...links, "?"] : users;
  find("verdict-more").replaceChildren(...text);
  find("verdict-more").hidden = !text.length;
}

async function showDenial(decision) {
  const answer = await fetchData("denial", { decision }, { inForm: true });
  if (!answer) return;
  const { denial } = answer;
  find("by-decision").open = !denial;
  showMessage("form-problem", denial ? "" : `No denial with this id is recorded. It is older than ${duration(answer.kept_s)}, or its instance has not sent it yet, which takes ten seconds.`);
  find("denial").hidden = !denial;
  if (!denial) return;
  facts(find("denial-facts"), [
    ["Decision", make("code", {}, denial.decision_id)],
    ["Position", denial.position ? `number ${number(denial.position)} after the first, ${denial.logged_decision_id}` : `the first; ${number(denial.suppressed_count)} more within a minute`],
    ["Client", make("a", { href: clientUrl(denial.client_id, denial.username) }, visible(denial.client_id))],
    ["User", denial.username === null ? "none" : visible(denial.username)],
    ["Grant type", denial.grant_type || "unknown"],
    ["Counted at", denial.scope || "token"],
    ["Policy", denial.policy || "unknown"],
    ["Limit", denial.limit ? `${number(denial.limit)} in ${duration(denial.window_s)}` : "unknown"],
    ["Mode", tag(denial.mode)],
    ["Retry after", duration(denial.retry_after_s)],
    ["First, last", `${dateTime(denial.first_at)}, ${dateTime(denial.last_at)}`],
    ["Instance", visible(denial.instance)],
    ["Trace", denial.trace_id || denial.request_id || "none"],
  ]);
}

let chart = null;

async function refreshTraffic() {
  const answer = await fetchData("traffic", { span: chosen.span, id });
  if (!answer) return;
  const line = answer.lines[0];
  const colour = coloursOf([id]).get(id);
  const lines = !line ? [] : [
    { name: "allowed", label: "allowed", colour, dashed: false, values: line.issued },
    { name: "denied", label: "denied", colour: "bad", dashed: false, values: line.denied },
    { name: "would_deny", label: "would be denied (dry run)", colour: "bad", dashed: true, values: line.would_deny },
  ].filter((each) => each.name === "allowed" || each.values.some(Boolean));
  chart.show({
    times: answer.times, step: answer.step_s, unit: answer.unit, marks: answer.marks, lines,
    limits: !line ? [] : line.rates.map((rate) => ({ value: rate.per_minute, colour, text: `limit ${number(rate.per_minute)} per minute (${rate.policy})` })),
  });
}

async function refreshRecorded() {
  const answer = await fetchData("client-day", { id, utc_offset: utcOffset() });
  if (!answer) return;
  find("recorded").hidden = !answer.offered;
  if (!answer.offered) return;
  facts(find("recorded-facts"), [
    ["Requests", `${number(answer.offered)}, of which ${number(answer.over)} over a limit`],
    ["Users", answer.user_count ? `about ${number(Math.round(answer.user_count))}` : "none"],
    ["Requests per user and hour", number(answer.per_user_hour)],
    ["Tokens needed", `about ${number(Math.round(answer.needed))}`],
    ["Share of refreshes", answer.refresh_share === null ? "–" : percent(answer.refresh_share)],
    ["Retries before Retry-After", number(answer.retries)],
    ["Most within a second", `${number(answer.burst)} on one instance`],
    ["Busiest minute", answer.busiest_count ? `${counted(answer.busiest_count, "request")}, ${dateTime(answer.busiest_at)}` : "–"],
    ...answer.peaks.map((peak) => [`Highest use of ${peak.policy}`, `${percent(peak.share)}: ${number(peak.used)} of ${number(peak.limit)} in ${duration(peak.window_s)}`]),
  ]);
  find("faults-card").hidden = !answer.faults.length;
  find("faults").replaceChildren(...answer.faults.map((text) => make("li", {}, text)));
  find("advice").replaceChildren(tag(answer.verdict, "warn"));
  setText(find("letter"), answer.letter || "");
  find("heaviest-card").hidden = !answer.users.length;
  table(find("heaviest"), HEAVIEST_COLUMNS, answer.users, { keyOf: (row) => row.username, empty: "" });
  table(find("by-grant"), GRANT_COLUMNS, answer.grants, { keyOf: (row) => `${row.kind}/${row.grant}`, empty: "No statistics yet." });
}

for (const name of fields) find(name).value = query.get(name) || "";
find("user").value = user;
window.addEventListener("hashchange", () => location.reload());
// Empty fields stay out of the URL.
find("search").addEventListener("submit", () => {
  find("search").action = location.pathname + userFragment(find("user").value);
  for (const name of fields) find(name).disabled = !find(name).value;
  setTimeout(() => fields.forEach((name) => { find(name).disabled = false; }));
});
pollVerdict();
if (id) {
  document.title = `${visible(id)} – rate limit`;
  chart = new Chart(find("chart"), { name: "Token requests", empty: "No statistics for this time." });
  radioGroup(find("span"), SPANS, { chosen: chosen.span, onChange: (span) => { chosen.span = span; refreshTraffic(); } });
  find("copy").addEventListener("click", async () => {
    await navigator.clipboard.writeText(find("letter").textContent);
    announce("Copied.");
  });
  poll(refreshExplanation);
  poll(refreshTraffic, { everyMs: 10_000 });
  poll(refreshRecorded, { everyMs: 30_000 });
} else if (query.get("decision")) {
  find("decision").value = query.get("decision");
  showDenial(query.get("decision"));
} else {
  find("id").focus();
}
