// Use of limits: a bar, and the columns that tables of limits share.

import { isVaried, make, tag } from "./dom.js";
import { duration, number, percent } from "./format.js";

const BAR_END = 3; // times the limit, so that 900 % looks different from 101 %; the mark is the limit

export function usageBar(ratio) {
  const kind = ratio >= BAR_END ? "over far" : ratio >= 1 ? "over" : ratio >= 0.8 ? "near" : "";
  const bar = make("progress", { max: BAR_END, value: Math.min(BAR_END, ratio), className: kind, "aria-hidden": "true" });
  return make("div", { className: "used" }, make("span", { className: "gauge" }, bar), make("span", { className: `figure ${kind}` }, percent(ratio)));
}

const hitsText = (row) => `${number(Math.round(row.estimate * 10) / 10)} / ${number(row.limit)} in ${duration(row.window_s)}`;

export const SCOPE = { title: "counted at", value: (row) => row.scope || "token", isShown: isVaried((row) => row.scope) };
export const MODE = { title: "mode", value: (row) => tag(row.mode), version: (row) => row.mode, isShown: isVaried((row) => row.mode) };
export const USE = [
  { title: "used", kind: "bar", value: (row) => usageBar(row.used_ratio), version: (row) => row.used_ratio.toFixed(3) },
  { title: "hits / limit", kind: "number hits", value: hitsText },
  { title: "next request in", kind: "number", value: (row) => (row.retry_after_s ? duration(row.retry_after_s) : "now") },
];
