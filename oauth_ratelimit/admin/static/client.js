// One client: two charts, and the parts that the server renders; panel.js has what an operator can do.

import { find } from "./dom.js";
import { chosenSpan, chosenUser, fetchData, poll, query, showParts, userFragment } from "./server.js";
import { number, visible } from "./format.js";

const id = query().get("id");
const FIELDS = ["id", "grant"];

find("user").value = chosenUser();
window.addEventListener("hashchange", () => location.reload());
// Empty fields stay out of the URL.
find("search").addEventListener("submit", () => {
  find("search").action = location.pathname + userFragment(find("user").value);
  for (const name of FIELDS) find(name).disabled = !find(name).value;
  setTimeout(() => FIELDS.forEach((name) => { find(name).disabled = false; }));
});
showParts();
if (id) {
  document.title = `${visible(id)} – rate limit`;
  showCharts();
} else if (!query().get("decision")) {
  find("id").focus();
}

async function showCharts() {
  const { Chart, link } = await import("./chart.js");
  const chart = new Chart(find("chart"), { name: "Requests at all endpoints", empty: "No requests in this time." });
  const uses = new Chart(find("uses"), { name: "Highest use of each limit", empty: "Shown for up to 6 hours.", hasMarks: false });
  link(chart, uses);
  poll(async () => {
    const span = chosenSpan();
    const answer = await fetchData("traffic", { span, id, at: query().get("at") || "" }, { element: find("traffic") });
    if (!answer) return;
    const line = answer.lines[0];
    const lines = !line ? [] : [
      { name: "issued", label: "issued", colour: 1, values: line.issued },
      { name: "denied", label: "denied", colour: "bad", values: line.denied },
      { name: "would_deny", label: "would be denied (dry run)", colour: "bad", dashed: true, values: line.would_deny },
    ].filter((each) => each.name === "issued" || each.values.some(Boolean));
    // A limit per minute can be compared with requests per minute; another window only with its own use.
    const steps = answer.uses.filter((use) => !use.is_per_user && use.window_s.some((windowS) => windowS === 60));
    if (line && answer.step_s === 60) lines.push(...steps.map((use) => ({ name: use.policy, label: `limit of ${use.policy}`, colour: "rest", isStepped: true, values: use.limit })));
    const base = { times: answer.times, step: answer.step_s, marks: answer.marks };
    chart.show({ ...base, unit: `requests, ${answer.unit}`, lines });
    uses.show({ ...base, unit: "% of the limit", lines: [...answer.uses.map(useLine), ...answer.uses.length ? [{ name: "limit", label: "the limit", colour: "bad", isStepped: true, values: answer.times.map(() => 100) }] : []] });
  }, { everyMs: 10_000 });
}

// The use of a limit as it was at each time; the legend has the limit, and the former ones.
function useLine({ policy, share, limit, window_s: windowS }, index) {
  const rates = limit.map((value, at) => (value === null ? null : `${number(value)} in ${windowS[at]} s`)).filter(Boolean);
  const steps = rates.filter((rate, at) => rate !== rates[at - 1]);
  return { name: policy, label: `${policy}: ${steps.slice(-3).join(" → ")}`, colour: index + 1, values: share.map((value) => (value === null ? null : value * 100)) };
}
