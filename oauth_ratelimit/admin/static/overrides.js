// Active overrides and their history; panel.js has the changes for everybody.

import { find, make, setText, table } from "./dom.js";
import { dateTime, number, visible } from "./format.js";
import { endText, valueText, whatText } from "./panel.js";
import { clientUrl, fetchData, poll, showParts } from "./server.js";

const OWNER = { title: "client", kind: "name", value: (row) => (row.client_id === null ? make("strong", {}, "everybody") : make("a", { href: clientUrl(row.client_id) }, visible(row.client_id))), version: (row) => String(row.client_id) };
const BY = { title: "by", kind: "wide", value: (row) => visible(row.by) };
const REASON = { title: "reason", kind: "wide", value: (row) => visible(row.reason) };
const COLUMNS = [
  OWNER,
  { title: "what", value: whatText },
  { title: "value", kind: "wide", value: valueText },
  { title: "until", kind: "word", value: (row) => (row.until ? dateTime(row.until) : "no end") },
  BY, REASON,
];
const HISTORY_COLUMNS = [{ title: "when", kind: "word", value: (row) => dateTime(row.at) }, OWNER, { title: "change", kind: "wide", value: changeText }, BY, REASON];

function changeText(row) {
  if (row.action === "set") return `${whatText(row)}: ${valueText(row)}, ${endText(row.until)}`;
  if (row.action === "unset") return `${whatText(row)}: removed`;
  return `counters${row.username === null ? "" : ` of ${visible(row.username)}`}: ${row.action}`;
}

async function refresh() {
  const answer = await fetchData("overrides");
  if (!answer) return;
  table(find("active"), COLUMNS, answer.overrides, {
    keyOf: (row) => JSON.stringify([row.kind, row.client_id, row.limit_kind]), empty: "No overrides: the configuration applies.",
  });
  table(find("history"), HISTORY_COLUMNS, answer.history, {
    keyOf: (row) => JSON.stringify([row.at, row.kind, row.client_id, row.limit_kind, row.username, row.action]),
    empty: "No overrides and no resets so far.",
  });
  setText(find("history-details").querySelector("summary"), `History (${number(answer.history_count)})`);
}

showParts();
poll(refresh);
