// Numbers and times as text for people.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const DAY_S = 86_400;
const ZONE_KEY = "oauth-ratelimit-zone";

let formats = {};
let isUtc = true;

// Chooses UTC or the zone of the browser for all times, and remembers it.
export function chooseZone(name) {
  isUtc = name !== "local";
  localStorage.setItem(ZONE_KEY, isUtc ? "utc" : "local");
  makeFormats();
}

export const chosenZone = () => (isUtc ? "utc" : "local");
export const utcOffset = () => (isUtc ? 0 : -new Date().getTimezoneOffset()); // minutes ahead of UTC
export const localZone = () => Intl.DateTimeFormat().resolvedOptions().timeZone;

function makeFormats() {
  const make = (parts) => new Intl.DateTimeFormat("en-GB", { timeZone: isUtc ? "UTC" : undefined, hourCycle: "h23", ...parts });
  const seconds = { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  formats = {
    minute: make({ hour: "2-digit", minute: "2-digit" }),
    second: make({ ...seconds, timeZoneName: "short" }),
    day: make({ day: "numeric", month: "short" }),
    year: make({ year: "numeric" }),
    zone: make({ hour: "2-digit", timeZoneName: "short" }),
  };
}

isUtc = localStorage.getItem(ZONE_KEY) !== "local";
makeFormats();

export function number(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 100 && !Number.isInteger(value) ? fine.format(value) : whole.format(value);
}

// "22 Nov 17:28:03 UTC", with the year unless it is the current one.
export function dateTime(seconds) {
  const when = new Date(seconds * 1000);
  const year = formats.year.format(when);
  return `${formats.day.format(when)}${year === formats.year.format(new Date()) ? "" : ` ${year}`} ${formats.second.format(when)}`;
}

// Labels of a time axis. The second line has the day where it changes, and the zone at the start.
export function axisLabels(ticks, step) {
  let day = null;
  return ticks.map((tick) => {
    const when = new Date(tick * 1000);
    const before = day;
    day = formats.day.format(when);
    const second = [day === before || step >= DAY_S ? "" : day, before === null ? zoneName() : ""].filter(Boolean).join(" ");
    return `${step >= DAY_S ? day : formats.minute.format(when)}\n${second}`;
  });
}

function zoneName() {
  return formats.zone.formatToParts(new Date()).find((part) => part.type === "timeZoneName").value;
}

export const dateInZone = (plotDate, seconds) => (isUtc ? plotDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000));
