// Numbers and times as text for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const exact = new Intl.NumberFormat("en");
const DAY_S = 86_400;
const ZONE_KEY = "oauth-ratelimit-zone";
const MINUTE = { hour: "2-digit", minute: "2-digit" };
const SECOND = { ...MINUTE, second: "2-digit", timeZoneName: "short" };
const DAY = { day: "numeric", month: "short" };

let formats = new Map();
let isUtc = localStorage.getItem(ZONE_KEY) !== "local";

// Chooses UTC or the zone of the browser for all times, and remembers it.
export function chooseZone(name) {
  isUtc = name !== "local";
  localStorage.setItem(ZONE_KEY, isUtc ? "utc" : "local");
  formats = new Map();
}

export const chosenZone = () => (isUtc ? "utc" : "local");
export const utcOffset = () => (isUtc ? 0 : -new Date().getTimezoneOffset()); // minutes ahead of UTC

function format(parts) {
  if (!formats.has(parts)) formats.set(parts, new Intl.DateTimeFormat("en-GB", { timeZone: isUtc ? "UTC" : undefined, hourCycle: "h23", ...parts }));
  return formats.get(parts);
}

export function number(value) {
  if (value === null || value === undefined) return "–";
  return (Math.abs(value) < 9.95 ? fine : whole).format(value);
}

export const tickLabel = (value) => exact.format(value); // rounded, ticks would not be even

// "22 Nov 17:28:03 UTC"
export function dateTime(seconds) {
  return `${format(DAY).format(seconds * 1000)} ${format(SECOND).format(seconds * 1000)}`;
}

// Labels of a time axis. The second line has the day where it changes, and the zone at the start.
export function axisLabels(ticks, step) {
  let day = null;
  return ticks.map((tick) => {
    const before = day;
    day = format(DAY).format(tick * 1000);
    const zone = before === null ? format(SECOND).formatToParts(tick * 1000).at(-1).value : "";
    const second = [day === before || step >= DAY_S ? "" : day, zone].filter(Boolean).join(" ");
    return `${step >= DAY_S ? day : format(MINUTE).format(tick * 1000)}\n${second}`;
  });
}

export const dateInZone = (plotDate, seconds) => (isUtc ? plotDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000));
