// Overview: two charts, and the parts that the server renders.

import { coloursOf, REST } from "./palette.js";
import { counted } from "./format.js";
import { find, setText } from "./dom.js";
import { chosenSpan, fetchData, poll, query, showParts } from "./server.js";

let colours = new Map();

function showColours() {
  for (const row of document.querySelectorAll("#clients tr[data-key]")) {
    row.querySelector(".swatch").className = `swatch s${colours.get(row.dataset.key) || REST}`;
  }
}

showParts((name) => { if (name === "clients") showColours(); });

// Charts come after the verdict: the library is as large as all the rest.
const { Chart, link } = await import("./chart.js");
const denied = new Chart(find("denied"), { name: "Requests over a limit by client", empty: "No requests over a limit in this time.", hasMarks: false });
const issued = new Chart(find("issued"), { name: "Issued tokens and admitted requests by client", empty: "No requests in this time." });
link(denied, issued);

async function refreshTraffic() {
  const span = chosenSpan();
  const traffic = await fetchData("traffic", { span, at: query().get("at") || "" }, { element: find("traffic") });
  if (!traffic) return;
  colours = coloursOf(traffic.lines.map((line) => line.client_id));
  const lines = traffic.lines.map((line) => ({ ...line, colour: colours.get(line.client_id) }));
  if (traffic.rest) lines.push({ ...traffic.rest, colour: REST });
  const base = { times: traffic.times, step: traffic.step_s, unit: `requests, ${traffic.unit}`, marks: traffic.marks };
  const over = (line) => ["denied", "would_deny"].filter((outcome) => line[outcome].some(Boolean)).map((outcome) => ({
    name: line.client_id, colour: line.colour, dashed: outcome === "would_deny", values: line[outcome],
  }));
  denied.show({ ...base, lines: lines.flatMap(over) });
  issued.show({ ...base, lines: lines.map((line) => ({ name: line.client_id, colour: line.colour, values: line.issued })) });
  const notes = [traffic.rest_count ? `${counted(traffic.rest_count, "other client")} in grey.` : "", traffic.is_complete ? "" : "Older requests are still being read."];
  setText(find("shown-note"), notes.join(" ").trim());
  showColours();
}

poll(refreshTraffic, { everyMs: 10_000 });
