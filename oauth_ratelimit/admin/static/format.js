// Values as text for people: numbers, durations, times, names.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const timeOfDay = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayOfYear = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const OTHERS = ""; // client id of requests that statistics do not attribute to a client

export function number(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 100 && !Number.isInteger(value) ? fine.format(value) : whole.format(value);
}

// "1 instance", "2 instances"
export function counted(value, word) {
  return `${number(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.01) return "< 1 %";
  return `${whole.format(share * 100)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "never"; // JSON has no infinity
  const total = Math.ceil(seconds);
  for (const [size, unit, restSize, rest] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (total >= size) {
      const more = Math.floor((total % size) / restSize);
      return `${Math.floor(total / size)} ${unit}${more ? ` ${more} ${rest}` : ""}`;
    }
  }
  return `${total} s`;
}

// Includes the year unless it is the current one.
export function dateTime(text) {
  if (!text) return "–";
  const when = new Date(text);
  return (when.getFullYear() === new Date().getFullYear() ? day : dayOfYear).format(when);
}

export function timeLabel(seconds, step) {
  return (step >= 600 ? day : timeOfDay).format(new Date(seconds * 1000));
}

// Escapes control characters and direction marks. Clients choose their own names.
export function visible(name) {
  return name.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

export function clientName(id) {
  return id === OTHERS ? "all others" : visible(id);
}
