// The instances, and what they go by.

import { facts, find, make, table, tag, tiles } from "./dom.js";
import { askStatus, canaryText, keepUp, originText } from "./server.js";
import { count, counted, duration, percent, visible } from "./words.js";

let mode = "";

const COLUMNS = [
  { title: "instance", kind: "name", value: (row) => visible(row.instance) },
  { title: "state", value: (row) => (row.is_late ? tag("late", "bad") : tag("well", "good")), sign: (row) => String(row.is_late) },
  { title: "heard of", kind: "number", value: (row) => `${duration(row.seen_s)} ago` },
  { title: "running for", kind: "number", value: (row) => duration(row.up_s) },
  { title: "mode", value: (row) => make("span", {}, tag(row.mode), row.mode === mode ? "" : " not yet what holds"), sign: (row) => `${row.mode}/${mode}` },
  { title: "lag", kind: "number", value: (row) => `${row.lag_s.toFixed(1)} s` },
  { title: "overrides", kind: "number", value: (row) => count(row.override_count) },
  { title: "written", kind: "number", value: (row) => count(row.flushed_count) },
  { title: "conflicts", kind: "number", value: conflictText },
  { title: "failed cycles", kind: "number", value: (row) => count(row.failure_count) },
  { title: "clock", kind: "number", value: (row) => `${row.clock_offset_s >= 0 ? "+" : ""}${row.clock_offset_s.toFixed(1)} s` },
  { title: "version", value: (row) => row.version },
];

function conflictText(row) {
  const tries = row.flushed_count + row.conflict_count;
  return row.conflict_count ? `${count(row.conflict_count)} (${percent(row.conflict_count / tries)})` : "0";
}

function limitsText(limits) {
  return Object.entries(limits).map(([kind, list]) => make("div", {}, `${kind}: ${list.join(", ") || "no limit"}`));
}

async function look() {
  const status = await askStatus();
  if (!status) return;
  mode = status.mode;
  const { instances } = status;
  const sum = (name) => instances.reduce((total, instance) => total + instance[name], 0);
  const oldest = Math.max(0, ...instances.map((instance) => instance.seen_s));
  tiles(find("tiles"), [
    ["Instances", count(instances.length), `${instances.filter((instance) => instance.is_late).length} late`],
    ["Longest not heard of", instances.length ? duration(oldest) : "–", `a sync cycle every ${status.sync_interval_s} s`],
    ["Conflicts", count(sum("conflict_count")), `of ${count(sum("flushed_count"))} documents written`],
    ["Failed cycles", count(sum("failure_count")), "since each has started"],
  ]);
  table(find("instances"), COLUMNS, instances, {
    keyOf: (row) => row.instance,
    empty: "No instance has told of itself lately; one starts with its first token request.",
  });
  facts(find("facts"), [
    ["Mode", make("span", {}, tag(status.mode), ` set by ${originText(status.mode_origin)}`)],
    ["Canary", canaryText(status.canary)],
    ["Limits for everybody", make("span", {}, limitsText(status.limits))],
    ["Trusted", status.trusted.map(visible).join(", ") || "nobody"],
    ["Clients with rules of their own", count(status.own_rules_count)],
    ["MongoDB", `${status.mongodb.version}, about ${counted(status.mongodb.document_count, "counter document")}`],
  ]);
}

keepUp(look);
