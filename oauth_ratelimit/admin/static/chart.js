// Line charts over time with a legend, the values at the cursor, and a table of the same numbers. The pointer or arrow keys move the cursor.

import uPlot from "./vendor/uPlot.min.js";
import { make } from "./dom.js";
import { axisLabels, dateInZone, dateTime, number, tickLabel } from "./format.js";

const HEIGHT = 270;
const FONT = "12px system-ui, sans-serif";
const DASHES = { dashed: [6, 4], dotted: [2, 3], stepped: [2, 3] };

document.head.append(make("link", { rel: "stylesheet", href: new URL("./vendor/uPlot.min.css", import.meta.url).href }));

const charts = new Map();
const probe = document.body.appendChild(make("i", { hidden: true }));

// Returns a colour of the style sheet, as it is in the present theme.
function colour(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

// Draws all charts of the page. content: { times: seconds, step_s, unit, marks: [{ at_s, text }],
// charts: by id: [{ label, colour, style: "dashed", "dotted", "stepped" or "", values }] }
export function showCharts(content) {
  for (const element of document.querySelectorAll(".chart")) {
    if (!charts.has(element)) charts.set(element, new Chart(element));
    charts.get(element).show(content, content.charts[element.id]);
  }
}

class Chart {
  // data-name: what the values count; data-empty: text without data; data-unit: other than requests; data-marks: names the marks in the legend
  constructor(element) {
    this.options = element.dataset;
    this.plot = null;
    this.look = ""; // of the lines in the plot
    this.area = make("div", { className: "plot", tabIndex: 0, role: "img" });
    this.tip = make("div", { className: "tip", hidden: true, "aria-hidden": "true" });
    this.legend = make("ul", { className: "legend" });
    this.named = make("ul", { className: "legend marks" });
    this.numbers = make("table");
    this.details = make("details", { className: "as-table" }, make("summary", {}, "Show as a table"),
      make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": `${this.options.name}, as a table` }, this.numbers));
    element.replaceChildren(make("div", { className: "frame" }, this.area, this.tip), this.legend, this.named, this.details);
    new ResizeObserver(() => { if (this.plot && this.plot.width !== this.#width()) this.plot.setSize({ width: this.#width(), height: HEIGHT }); }).observe(this.area);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw({ isNew: true }));
    this.area.addEventListener("keydown", (event) => this.#onKey(event));
    this.area.addEventListener("blur", () => this.#moveTo(null));
    this.details.addEventListener("toggle", () => this.#fillTable());
  }

  // The present minute is not complete and would look like a drop. It is drawn only if all others are empty. A longer step has an average.
  show({ times, step_s: stepS, unit, marks }, lines) {
    const isCut = stepS <= 60 && lines.some((line) => line.values.slice(0, -1).some(Boolean));
    const end = isCut ? -1 : undefined;
    this.times = times.slice(0, end);
    this.lines = lines.map((line) => ({ ...line, values: line.values.slice(0, end) }));
    this.unit = this.options.unit || `requests, ${unit}`;
    this.marks = lines.length ? marks.filter((mark) => mark.at_s >= times[0] && mark.at_s < times.at(-1) + stepS) : [];
    this.#draw();
    this.#fillLegend();
    this.#fillTable();
    const total = this.lines.map((line) => `${line.label}: at most ${number(Math.max(0, ...line.values))}`);
    this.area.setAttribute("aria-label", `${this.options.name}, ${this.unit}. ${total.join("; ") || this.options.empty}`);
  }

  // Other numbers keep the plot with its cursor; other lines need a new one.
  #draw({ isNew = false } = {}) {
    const look = JSON.stringify([this.unit, this.lines.map(({ label, colour: name, style }) => [label, name, style])]);
    const data = [this.times, ...this.lines.map((line) => line.values)];
    this.details.hidden = !this.lines.length;
    if (this.plot && look === this.look && !isNew) return this.plot.setData(data);
    this.look = look;
    this.plot?.destroy();
    this.plot = null;
    this.tip.hidden = true;
    this.area.replaceChildren(...this.lines.length ? [] : [make("p", { className: "blank" }, this.options.empty)]);
    if (this.lines.length) this.plot = new uPlot(this.#options(), data, this.area);
  }

  #options() {
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: FONT };
    const top = () => Math.max(0, ...this.lines.flatMap((line) => line.values.filter(Number.isFinite))) || 1;
    return {
      width: this.#width(),
      height: HEIGHT,
      legend: { show: false },
      padding: [14, 22, 0, 0],
      tzDate: (seconds) => dateInZone(uPlot.tzDate, seconds),
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 }, sync: { key: "time", scales: ["x", null] } },
      scales: { x: { time: true, range: (plot, from, to) => [from, Math.max(to, ...this.marks.map((mark) => mark.at_s))] }, y: { range: () => [0, top() * 1.12] } },
      axes: [
        { ...axis, space: 62, size: 42, values: (plot, ticks, index, space, step) => axisLabels(ticks, step) },
        {
          ...axis, label: this.unit, labelSize: 20, labelFont: FONT, labelGap: 2, gap: 4,
          size: (plot, values) => 10 + 7 * Math.max(1, ...(values || [""]).map((value) => value.length)),
          values: (plot, ticks) => ticks.map(tickLabel),
        },
      ],
      series: [{}, ...this.lines.map((line) => ({
        stroke: colour(line.colour === "bad" ? "--bad" : `--series-${line.colour}`),
        width: 2,
        dash: DASHES[line.style],
        paths: line.style === "stepped" ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
        points: { show: false },
        spanGaps: true,
      }))],
      hooks: { draw: [(plot) => this.#drawMarks(plot)], setCursor: [(plot) => this.#showTip(plot)] },
    };
  }

  // A line at each change, with a triangle above the plot where it covers nothing. The legend has the texts.
  #drawMarks({ ctx, bbox: { top, height }, valToPos }) {
    const size = 5 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--dim");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([devicePixelRatio, 3 * devicePixelRatio]);
    for (const mark of this.marks) {
      const x = valToPos(mark.at_s, "x", true);
      ctx.stroke(new Path2D(`M ${x} ${top} v ${height}`));
      ctx.fill(new Path2D(`M ${x - size} ${top - 2 * size} h ${2 * size} L ${x} ${top - size / 2} Z`));
    }
    ctx.restore();
  }

  #fillLegend() {
    this.legend.replaceChildren(...this.lines.map((line) => make("li", {}, make("i", { className: `stroke ${line.style} s${line.colour}` }), line.label)));
    if (!("marks" in this.options)) return;
    const last = this.marks.at(-1);
    const more = this.marks.length > 1 ? ` · ${this.marks.length - 1} earlier` : "";
    this.named.replaceChildren(...last ? [make("li", { title: last.text }, `▾ ${dateTime(last.at_s)}: ${last.text}${more}`)] : []);
  }

  #fillTable() {
    if (!this.details.open) return;
    const head = make("tr", {}, make("th", { scope: "col" }, "from"), this.lines.map((line) => make("th", { scope: "col", className: "number" }, line.label)));
    const rows = this.times.map((time, index) => make("tr", {}, make("th", { scope: "row" }, dateTime(time)), this.lines.map((line) => make("td", { className: "number" }, number(line.values[index])))));
    this.numbers.replaceChildren(make("thead", {}, head), make("tbody", {}, rows.reverse()));
  }

  #showTip(plot) {
    const index = plot.cursor.idx;
    this.tip.hidden = index === null || plot.cursor.left < 0;
    if (this.tip.hidden) return;
    const rows = this.lines.filter((line) => line.values[index]).sort((one, other) => other.values[index] - one.values[index]);
    this.tip.replaceChildren(
      make("strong", {}, dateTime(this.times[index])),
      ...rows.map((line) => make("div", {}, make("i", { className: `swatch s${line.colour}` }), make("span", { className: "what" }, line.label), make("span", { className: "value" }, number(line.values[index])))),
      rows.length ? "" : "no requests",
    );
    const left = plot.valToPos(this.times[index], "x") + plot.bbox.left / devicePixelRatio;
    const isRight = left > this.area.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : `${left + 14}px`;
    this.tip.style.right = isRight ? `${this.area.clientWidth - left + 14}px` : "auto";
  }

  #onKey(event) {
    if (!this.plot) return;
    const last = this.times.length - 1;
    const now = this.plot.cursor.idx ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#moveTo(null);
    if (next === undefined) return;
    event.preventDefault();
    this.#moveTo(this.times[Math.min(last, Math.max(0, next))]);
  }

  // Moves the cursors of all charts to a time, or hides them.
  #moveTo(time) {
    this.plot?.setCursor({ left: time === null ? -10 : this.plot.valToPos(time, "x"), top: time === null ? -10 : 10 }, true, true);
  }

  #width() {
    return Math.max(220, this.area.clientWidth);
  }
}
