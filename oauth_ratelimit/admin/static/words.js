// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayOfYear = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });

export const OTHERS = ""; // the statistics' name for the clients beyond those that have a name of their own

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 100 && !Number.isInteger(value) ? fine.format(value) : whole.format(value);
}

// "1 instance", "2 instances"
export function counted(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

export function percent(share) {
  if (share === null || share === undefined) return "–";
  if (share > 0 && share < 0.01) return "< 1 %";
  return `${whole.format(share * 100)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "never"; // infinity has no number in JSON
  const total = Math.ceil(seconds);
  for (const [size, unit, restSize, rest] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
    if (total >= size) {
      const more = Math.floor((total % size) / restSize);
      return `${Math.floor(total / size)} ${unit}${more ? ` ${more} ${rest}` : ""}`;
    }
  }
  return `${total} s`;
}

// With its year, unless that is the present one.
export function moment(text) {
  if (!text) return "–";
  const when = new Date(text);
  return (when.getFullYear() === new Date().getFullYear() ? day : dayOfYear).format(when);
}

export function at(seconds, step) {
  return (step >= 600 ? day : clock).format(new Date(seconds * 1000));
}

// What would not simply be seen, such as controls and direction marks, as escapes. Names come from clients.
export function visible(name) {
  return name.replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
}

export function clientName(id) {
  return id === OTHERS ? "all others" : visible(id);
}
