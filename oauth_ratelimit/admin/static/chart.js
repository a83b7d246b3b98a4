// Line chart over time with a legend, the values at the cursor, and a table of the same numbers. The pointer or arrow keys move the cursor.

import uPlot from "./vendor/uPlot.min.js";
import { make } from "./dom.js";
import { axisLabels, clientName, counted, dateInZone, dateTime, number, visible } from "./format.js";

const HEIGHT = 270;
const MARKS = 5; // changes in the legend
const FONT = "12px system-ui, sans-serif";

document.head.append(make("link", { rel: "stylesheet", href: new URL("./vendor/uPlot.min.css", import.meta.url).href }));

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The present minute is not complete and would look like a drop. It is drawn only if all others are empty. A longer step has an average.
function withoutPresentMinute(content) {
  const { times, lines, step } = content;
  if (step > 60 || !lines.some((line) => line.values.slice(0, -1).some(Boolean))) return content;
  return { ...content, times: times.slice(0, -1), lines: lines.map((line) => ({ ...line, values: line.values.slice(0, -1) })) };
}

// Lets the cursors of charts move together.
export function link(...charts) {
  for (const chart of charts) chart.peers = charts.filter((other) => other !== chart);
}

export class Chart {
  // name: what the values count; empty: text without data; hasMarks: names the marks in the legend
  constructor(element, { name, empty, hasMarks = true }) {
    this.name = name;
    this.empty = empty;
    this.hasMarks = hasMarks;
    this.peers = [];
    this.plot = null;
    this.restored = null; // time of the cursor before the last redraw
    this.content = null;
    this.isFollowing = false;
    this.area = make("div", { className: "plot", tabIndex: 0, role: "img", "aria-label": name }, make("p", { className: "blank" }, "Reading …"));
    this.tip = make("div", { className: "tip", hidden: true, "aria-hidden": "true" });
    this.legend = make("ul", { className: "legend" });
    this.marks = make("ul", { className: "legend marks" });
    this.numbers = make("table", {});
    this.details = make("details", { className: "as-table" }, make("summary", {}, "Show as a table"),
      make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": `${name}, as a table` }, this.numbers));
    element.replaceChildren(make("div", { className: "frame" }, this.area, this.tip), this.legend, this.marks, this.details);
    new ResizeObserver(() => this.#resize()).observe(this.area);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
    this.area.addEventListener("keydown", (event) => this.#onKey(event));
    this.area.addEventListener("blur", () => this.#hideCursor());
    this.details.addEventListener("toggle", () => this.#fillTable());
  }

  // times: seconds; step: seconds; unit: for the axis; lines: [{ name, label, colour, dashed, values, note }];
  // marks: [{ at_s, text }]
  show(content) {
    this.content = withoutPresentMinute({ marks: [], ...content });
    this.#redraw();
    this.#fillLegend();
    this.#fillTable();
    const total = this.content.lines.map((line) => `${labelOf(line)}: at most ${number(Math.max(0, ...line.values))}`);
    this.area.setAttribute("aria-label", `${this.name}, ${this.content.unit}. ${total.join("; ") || this.empty}`);
  }

  #top() {
    return Math.max(0, ...this.content.lines.flatMap((line) => line.values.filter(Number.isFinite)));
  }

  #redraw() {
    if (!this.content) return;
    const index = this.plot ? this.plot.cursor.idx : null;
    const moment = index === null || index === undefined ? null : this.plot.data[0][index];
    if (this.plot) this.plot.destroy();
    const { times, lines } = this.content;
    this.plot = null;
    this.tip.hidden = true;
    this.restored = moment;
    this.details.hidden = !lines.length;
    this.area.replaceChildren(...(lines.length ? [] : [make("p", { className: "blank" }, this.empty)]));
    if (lines.length) this.plot = new uPlot(this.#options(), [times, ...lines.map((line) => line.values)], this.area);
  }

  #options() {
    const { lines, unit } = this.content;
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: FONT };
    return {
      width: Math.max(220, this.area.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      padding: [14, 22, 0, 0],
      tzDate: (seconds) => dateInZone(uPlot.tzDate, seconds),
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true }, y: { range: () => [0, (this.#top() || 1) * 1.12] } },
      axes: [
        { ...axis, space: 62, size: 42, values: (plot, ticks, index, space, step) => axisLabels(ticks, step) },
        {
          ...axis, label: unit, labelSize: 20, labelFont: FONT, labelGap: 2, gap: 4,
          size: (plot, values) => 10 + 7 * Math.max(1, ...(values || [""]).map((value) => value.length)),
          values: (plot, ticks) => ticks.map((tick) => number(tick)),
        },
      ],
      series: [{}, ...lines.map((line) => ({
        stroke: colour(variable(line.colour)),
        width: 2,
        dash: line.isStepped ? [2, 3] : line.dashed ? [6, 4] : undefined,
        paths: line.isStepped ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
        points: { show: false },
        spanGaps: true,
      }))],
      hooks: { draw: [(plot) => this.#drawMarks(plot)], setCursor: [(plot) => this.#onCursor(plot)], ready: [(plot) => this.#restoreCursor(plot)] },
    };
  }

  // A line at each change, with a triangle above the plot where it covers nothing. The legend has the texts.
  #drawMarks(plot) {
    const { ctx, bbox } = plot;
    const size = 5 * devicePixelRatio;
    for (const mark of this.#shownMarks()) {
      const x = plot.valToPos(mark.at_s, "x", true);
      this.#stroke(plot, [x, bbox.top], [x, bbox.top + bbox.height], { name: "--dim", dash: [1, 3] });
      ctx.fillStyle = colour("--dim");
      ctx.beginPath();
      ctx.moveTo(x - size, bbox.top - 2 * size);
      ctx.lineTo(x + size, bbox.top - 2 * size);
      ctx.lineTo(x, bbox.top - size / 2);
      ctx.fill();
    }
  }

  #shownMarks() {
    const { times, marks } = this.content;
    return marks.filter((mark) => mark.at_s >= times[0] && mark.at_s <= times.at(-1));
  }

  #stroke(plot, from, to, { name, dash }) {
    const { ctx } = plot;
    ctx.save();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.restore();
  }

  #fillLegend() {
    const { lines } = this.content;
    const entries = lines.map((line) => make("li", {}, make("i", { className: `stroke${line.isStepped ? " limit" : line.dashed ? " dashed" : ""} s${line.colour}` }), labelOf(line)));
    this.legend.replaceChildren(...entries);
    const marks = this.hasMarks && lines.length ? this.#shownMarks() : [];
    const rest = marks.length > MARKS ? [make("li", {}, `▾ ${counted(marks.length - MARKS, "earlier change")}: see Instances and the history of overrides`)] : [];
    this.marks.replaceChildren(...rest, ...marks.slice(-MARKS).map((mark) => make("li", {}, `▾ ${dateTime(mark.at_s)}: ${visible(mark.text)}`)));
  }

  #fillTable() {
    if (!this.details.open || !this.content) return;
    const { times, lines } = this.content;
    const head = make("tr", {}, make("th", { scope: "col" }, "from"), lines.map((line) => make("th", { scope: "col", className: "number" }, labelOf(line))));
    const rows = times.map((time, index) => make("tr", {}, make("th", { scope: "row" }, dateTime(time)), lines.map((line) => make("td", { className: "number" }, number(line.values[index])))));
    this.numbers.replaceChildren(make("thead", {}, head), make("tbody", {}, rows.reverse()));
  }

  #onCursor(plot) {
    const index = plot.cursor.idx;
    const isOff = index === null || index === undefined || plot.cursor.left < 0;
    if (isOff) this.tip.hidden = true;
    else this.#showTip(plot, index);
    if (this.isFollowing) return;
    for (const peer of this.peers) peer.follow(isOff ? null : this.content.times[index]);
  }

  // Moves the cursor to a time, or hides it.
  follow(time) {
    if (!this.plot) return;
    this.isFollowing = true;
    if (time === null) this.#hideCursor();
    else this.#moveTo(time);
    this.isFollowing = false;
  }

  #showTip(plot, index) {
    const { times, lines } = this.content;
    const rows = lines.map((line) => ({ line, value: line.values[index] })).filter(({ value }) => value).sort((one, other) => other.value - one.value);
    this.tip.replaceChildren(
      make("strong", {}, dateTime(times[index])),
      ...rows.map(({ line, value }) => make(
        "div", {}, make("i", { className: `swatch s${line.colour}` }),
        make("span", { className: "what" }, labelOf(line)), make("span", { className: "value" }, number(value)),
      )),
      rows.length ? "" : "no requests",
    );
    this.tip.hidden = false;
    const left = plot.valToPos(times[index], "x") + plot.bbox.left / devicePixelRatio;
    const isRight = left > this.area.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : `${left + 14}px`;
    this.tip.style.right = isRight ? `${this.area.clientWidth - left + 14}px` : "auto";
  }

  #onKey(event) {
    if (!this.plot) return;
    const last = this.content.times.length - 1;
    const now = this.plot.cursor.idx ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#hideCursor();
    if (next === undefined) return;
    event.preventDefault();
    this.#moveTo(this.content.times[Math.min(last, Math.max(0, next))]);
  }

  // A chart is drawn after its constructor has returned.
  #restoreCursor(plot) {
    if (this.restored !== null) plot.setCursor({ left: plot.valToPos(this.restored, "x"), top: 10 });
  }

  #moveTo(time) {
    this.plot.setCursor({ left: this.plot.valToPos(time, "x"), top: 10 });
  }

  #hideCursor() {
    if (this.plot) this.plot.setCursor({ left: -10, top: -10 });
  }

  #resize() {
    if (this.plot && Math.abs(this.plot.width - this.area.clientWidth) > 1) {
      this.plot.setSize({ width: Math.max(220, this.area.clientWidth), height: HEIGHT });
    }
  }
}

const variable = (name) => (name === "bad" ? "--bad" : `--series-${name}`);
const labelOf = (line) => line.label || `${clientName(line.name)}${line.dashed ? " (dry run)" : ""}`;

