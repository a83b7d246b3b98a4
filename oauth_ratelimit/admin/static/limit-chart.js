// Clients ranked by their busiest window, with the limit as a line to drag: by pointer, by touch, or with the arrow keys.

import uPlot from "./vendor/uPlot.esm.js";
import { colour } from "./chart.js";
import { make } from "./dom.js";
import { counted, number } from "./format.js";

const HEIGHT = 320;
const FONT = "12px system-ui, sans-serif";
const GUTTER = 76; // to the right of the bars, for the number at the line
const MANY = 40; // from here on ranks have a logarithmic axis
const KEY_FACTORS = { ArrowUp: 1.02, ArrowRight: 1.02, ArrowDown: 1 / 1.02, ArrowLeft: 1 / 1.02, PageUp: 1.25, PageDown: 1 / 1.25 };

export class LimitChart {
  // onMove(limit): called while the line moves
  constructor(element, { onMove }) {
    this.onMove = onMove;
    this.content = null;
    this.plot = null;
    this.area = make("div", { className: "plot tall" });
    this.line = make("div", { className: "limit-line", tabIndex: 0, role: "slider", "aria-label": "Limit", "aria-orientation": "vertical", "aria-valuemin": "1" }, make("span", {}));
    element.classList.add("chart");
    element.append(make("div", { className: "frame" }, this.area, this.line));
    new ResizeObserver(() => this.#redraw()).observe(this.area);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
    this.line.addEventListener("keydown", (event) => this.#onKey(event));
    this.line.addEventListener("pointerdown", (event) => this.#onDown(event));
    this.line.addEventListener("pointermove", (event) => this.#onDrag(event));
  }

  // peaks: highest number in a window of each client or user, highest first; count: number of all, drawn or not;
  // limit; unit: "per minute"; noun: "client"; empty: text without data
  show(content) {
    this.content = content;
    this.#redraw();
  }

  setLimit(limit) {
    if (!this.content) return;
    this.content.limit = limit;
    this.#redraw();
  }

  #highest() {
    return Math.max(10, this.content.limit, this.content.peaks[0] || 0);
  }

  #redraw() {
    if (!this.content || !this.area.clientWidth) return;
    const { peaks, limit, empty } = this.content;
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.line.hidden = !peaks.length;
    this.area.replaceChildren(...(peaks.length ? [] : [make("p", { className: "blank" }, empty)]));
    if (!peaks.length) return;
    const over = peaks.map((peak) => (peak > limit ? peak : null));
    this.plot = new uPlot(this.#options(), [peaks.map((_, index) => index + 1), peaks.map((peak) => Math.max(peak, 1)), over], this.area);
  }

  #options() {
    const { peaks, unit, noun } = this.content;
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: FONT, labelFont: FONT, labelSize: 20, labelGap: 2 };
    const isPower = (tick) => /^10*$/.test(String(tick));
    const isMany = peaks.length > MANY;
    const bars = isMany ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.bars({ size: [0.8, 60] });
    const fill = (name) => ({ stroke: colour(name), fill: colour(name), width: 1, paths: bars, points: { show: false } });
    const top = this.#highest() * 1.5;
    return {
      width: Math.max(220, this.area.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      padding: [10, GUTTER, 0, 0],
      cursor: { show: false },
      scales: {
        x: { time: false, distr: isMany ? 3 : 1, range: () => (isMany ? [1, peaks.length] : [0.4, Math.max(1, peaks.length) + 0.6]) },
        y: { distr: 3, range: () => [0.8, top] },
      },
      axes: [
        { ...axis, label: `${noun}s, busiest first`, size: 30, space: 50, filter: (plot, ticks) => ticks.map((tick) => (isMany ? isPower(tick) : Number.isInteger(tick)) ? tick : null), values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
        { ...axis, label: `most requests ${unit}`, space: 24, size: 62, filter: (plot, ticks) => ticks.map((tick) => (isPower(tick) ? tick : null)), values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
      ],
      series: [{}, fill("--bar"), fill("--bar-bad")],
      hooks: { draw: [(plot) => this.#placeLine(plot)] },
    };
  }

  #placeLine(plot) {
    const { limit, unit, peaks, count, noun } = this.content;
    const { over } = plot;
    this.line.style.top = `${this.area.offsetTop + over.offsetTop + plot.valToPos(limit, "y")}px`;
    this.line.style.left = `${over.offsetLeft}px`;
    this.line.style.width = `${over.clientWidth + GUTTER}px`;
    const text = `${number(limit)} ${unit}`;
    this.line.firstElementChild.textContent = number(limit);
    this.line.setAttribute("aria-valuenow", String(limit));
    this.line.setAttribute("aria-valuemax", String(this.#highest()));
    this.line.setAttribute("aria-valuetext", `${text}, exceeded by ${number(peaks.filter((peak) => peak > limit).length)} of ${counted(count, noun)}`);
  }

  #move(limit) {
    const next = Math.min(this.#highest(), Math.max(1, Math.round(limit)));
    if (next === this.content.limit) return;
    this.setLimit(next);
    this.onMove(next);
  }

  #onKey(event) {
    if (!this.content) return;
    const { limit } = this.content;
    const factor = KEY_FACTORS[event.key];
    const next = event.key === "Home" ? 1 : event.key === "End" ? this.#highest() : factor && Math.round(limit * factor);
    if (!next && next !== 0) return;
    event.preventDefault();
    this.#move(factor && next === limit ? limit + Math.sign(factor - 1) : next); // at least one
  }

  #onDown(event) {
    this.line.setPointerCapture(event.pointerId);
    this.line.focus();
    event.preventDefault();
  }

  #onDrag(event) {
    if (!this.line.hasPointerCapture(event.pointerId)) return;
    this.#move(this.plot.posToVal(event.clientY - this.plot.over.getBoundingClientRect().top, "y"));
  }
}
