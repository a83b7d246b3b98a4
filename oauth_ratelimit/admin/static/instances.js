// Instances and their configuration.

import { facts, find, make, table, tag, tiles } from "./dom.js";
import { canaryText, fetchData, originText, poll, pollVerdict } from "./server.js";
import { counted, duration, number, percent, visible } from "./format.js";

let mode = "";

const COLUMNS = [
  { title: "instance", kind: "name", value: (row) => visible(row.instance) },
  { title: "state", value: (row) => (row.is_late ? tag("late", "bad") : tag("ok", "good")), version: (row) => String(row.is_late) },
  { title: "last seen", kind: "number", value: (row) => `${duration(row.seen_s)} ago` },
  { title: "up", kind: "number", value: (row) => duration(row.up_s) },
  { title: "mode", value: (row) => make("span", {}, tag(row.mode), row.mode === mode ? "" : " (not yet changed)"), version: (row) => `${row.mode}/${mode}` },
  { title: "lag", kind: "number", value: (row) => `${row.lag_s.toFixed(1)} s` },
  { title: "overrides", kind: "number", value: (row) => number(row.override_count) },
  { title: "flushed", kind: "number", value: (row) => number(row.flushed_count) },
  { title: "conflicts", kind: "number", value: conflictText },
  { title: "failed cycles", kind: "number", value: (row) => number(row.failure_count) },
  { title: "over-admitted", kind: "number", value: (row) => number(row.over_admitted_count) },
  { title: "clock", kind: "number", value: (row) => `${row.clock_offset_s >= 0 ? "+" : ""}${row.clock_offset_s.toFixed(1)} s` },
  { title: "version", value: (row) => row.version },
];

function conflictText(row) {
  const writes = row.flushed_count + row.conflict_count;
  return row.conflict_count ? `${number(row.conflict_count)} (${percent(row.conflict_count / writes)})` : "0";
}

function limitsText(limits) {
  return Object.entries(limits).map(([kind, list]) => make("div", {}, `${kind}: ${list.join(", ") || "no limit"}`));
}

async function refresh() {
  const status = await fetchData("status");
  if (!status) return;
  mode = status.mode;
  const { instances } = status;
  const sum = (name) => instances.reduce((total, instance) => total + instance[name], 0);
  const oldest = Math.max(0, ...instances.map((instance) => instance.seen_s));
  tiles(find("tiles"), [
    ["Instances", number(instances.length), `${instances.filter((instance) => instance.is_late).length} late`],
    ["Oldest heartbeat", instances.length ? duration(oldest) : "–", `a sync cycle every ${status.sync_interval_s} s`],
    ["Conflicts", number(sum("conflict_count")), `of ${counted(sum("flushed_count"), "document")} flushed`],
    ["Failed cycles", number(sum("failure_count")), "since each instance started"],
  ]);
  table(find("instances"), COLUMNS, instances, {
    keyOf: (row) => row.instance,
    empty: "No instance seen in the last 10 minutes; an instance starts with its first token request.",
  });
  facts(find("facts"), [
    ["Mode", make("span", {}, tag(status.mode), ` from ${originText(status.mode_origin)}`)],
    ["Canary", canaryText(status.canary)],
    ["Limits for everybody", make("span", {}, limitsText(status.limits))],
    ["Trusted", status.trusted.map(visible).join(", ") || "no client"],
    ["Clients with limits or modes of their own", number(status.configured_client_count)],
    ["MongoDB", `${status.mongodb.version}, about ${counted(status.mongodb.document_count, "counter document")}`],
  ]);
}

pollVerdict();
poll(refresh);
