// Line chart over time, with limits as horizontal lines and the values at the cursor. The pointer or arrow keys move it.

import uPlot from "./vendor/uPlot.esm.js";
import { make } from "./dom.js";
import { clientName, number, timeLabel } from "./format.js";

const HEIGHT = 250;
const OFF_SCALE = 3; // a limit this many times above all values is listed and not drawn, because it would flatten the lines

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The last step is not complete and would look like a drop. It is drawn only if all others are empty.
function withoutIncompleteStep({ times, lines, limits, step }) {
  if (!lines.some((line) => line.values.slice(0, -1).some(Boolean))) return { times, lines, limits, step };
  return { times: times.slice(0, -1), lines: lines.map((line) => ({ ...line, values: line.values.slice(0, -1) })), limits, step };
}

export class Chart {
  // unit: what the values count, for screen readers; empty: text without data.
  constructor(element, { unit, empty, format = number, ceiling = null }) {
    this.element = element;
    this.unit = unit;
    this.empty = empty;
    this.format = format;
    this.ceiling = ceiling;
    this.tip = make("div", { className: "tip", hidden: true, "aria-hidden": "true" });
    this.plot = null;
    this.content = null;
    element.tabIndex = 0;
    element.setAttribute("role", "img");
    new ResizeObserver(() => this.#resize()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
    element.addEventListener("keydown", (event) => this.#onKey(event));
    element.addEventListener("blur", () => this.#hideCursor());
  }

  // times: seconds; lines: [{ name, colour: 1..6, dashed, values }]; limits: [{ text, value }]
  show(content) {
    this.content = withoutIncompleteStep(content);
    this.#redraw();
    const total = this.content.lines.map((line) => `${clientName(line.name)}${line.dashed ? " (dry run)" : ""}: at most ${this.format(Math.max(0, ...line.values))}`);
    this.element.setAttribute("aria-label", `${this.unit}. ${total.join("; ") || this.empty}`);
  }

  get offScale() {
    return this.content ? this.content.limits.filter((limit) => limit.value > this.#top() * OFF_SCALE) : [];
  }

  #top() {
    return Math.max(0, ...this.content.lines.flatMap((line) => line.values.filter(Number.isFinite)));
  }

  #redraw() {
    if (!this.content) return;
    const focus = this.plot ? this.plot.cursor.idx : null;
    if (this.plot) this.plot.destroy();
    const { times, lines } = this.content;
    this.element.replaceChildren(this.tip);
    this.tip.hidden = true;
    this.plot = new uPlot(this.#options(), [times, ...lines.map((line) => line.values)], this.element);
    if (!lines.length) this.element.append(make("div", { className: "blank" }, this.empty));
    if (focus !== null && this.element === document.activeElement) this.#moveCursor(focus);
  }

  #options() {
    const { lines, step } = this.content;
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(220, this.element.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      padding: [12, 8, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      scales: { x: { time: true }, y: { range: () => [0, this.#scaleTop()] } },
      axes: [
        { ...axis, space: 70, values: (plot, ticks) => ticks.map((tick) => timeLabel(tick, step)), size: 30 },
        { ...axis, size: (plot, values) => 14 + 7 * Math.max(1, ...(values || [""]).map((value) => value.length)), values: (plot, ticks) => ticks.map((tick) => this.format(tick)), gap: 4 },
      ],
      series: [{}, ...lines.map((line) => ({
        stroke: colour(`--series-${line.colour}`),
        width: 2,
        dash: line.dashed ? [6, 4] : undefined,
        paths: uPlot.paths.linear(),
        points: { show: false },
        spanGaps: true,
      }))],
      hooks: { draw: [(plot) => this.#drawLimits(plot)], setCursor: [(plot) => this.#showValues(plot)] },
    };
  }

  #scaleTop() {
    const top = this.#top();
    const limits = this.content.limits.map((limit) => limit.value).filter((value) => value <= top * OFF_SCALE);
    return this.ceiling && top <= this.ceiling ? this.ceiling * 1.08 : Math.max(top, ...limits, top ? 0 : 1) * 1.12;
  }

  #drawLimits(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.fillStyle = colour("--limit");
    ctx.lineJoin = "round";
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    for (const limit of this.content.limits) {
      if (limit.value > plot.scales.y.max) continue;
      const y = plot.valToPos(limit.value, "y", true);
      ctx.strokeStyle = colour("--limit");
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash([7 * ratio, 5 * ratio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.strokeStyle = colour("--card"); // an outline, so that it can be read across lines
      ctx.lineWidth = 4 * ratio;
      ctx.setLineDash([]);
      ctx.strokeText(limit.text, bbox.left + 6 * ratio, y - 6 * ratio);
      ctx.fillText(limit.text, bbox.left + 6 * ratio, y - 6 * ratio);
    }
    ctx.restore();
  }

  #showValues(plot) {
    const index = plot.cursor.idx;
    if (index === null || index === undefined || !this.content.lines.length) {
      this.tip.hidden = true;
      return;
    }
    const { times, lines, step } = this.content;
    const rows = lines
      .map((line) => ({ line, value: line.values[index] }))
      .filter(({ value }) => value)
      .sort((one, other) => other.value - one.value);
    this.tip.replaceChildren(
      make("strong", {}, timeLabel(times[index], step)),
      ...rows.map(({ line, value }) => make(
        "div", {}, make("i", { className: `swatch s${line.colour}` }),
        make("span", { className: "what" }, `${clientName(line.name)}${line.dashed ? " (dry run)" : ""}`),
        make("span", { className: "value" }, this.format(value)),
      )),
      rows.length ? "" : "no requests",
    );
    this.tip.hidden = false;
    const left = plot.valToPos(times[index], "x") + plot.bbox.left / devicePixelRatio;
    const isRight = left > this.element.clientWidth / 2;
    this.tip.style.left = isRight ? "auto" : `${left + 14}px`;
    this.tip.style.right = isRight ? `${this.element.clientWidth - left + 14}px` : "auto";
  }

  #onKey(event) {
    if (!this.plot || !this.content.lines.length) return;
    const last = this.content.times.length - 1;
    const now = this.plot.cursor.idx ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#hideCursor();
    if (next === undefined) return;
    event.preventDefault();
    this.#moveCursor(Math.min(last, Math.max(0, next)));
  }

  #moveCursor(index) {
    const left = this.plot.valToPos(this.content.times[index], "x");
    this.plot.setCursor({ left, top: 10 });
  }

  #hideCursor() {
    if (this.plot) this.plot.setCursor({ left: -10, top: -10 });
  }

  #resize() {
    if (this.plot && Math.abs(this.plot.width - this.element.clientWidth) > 1) {
      this.plot.setSize({ width: Math.max(220, this.element.clientWidth), height: HEIGHT });
    }
  }
}
