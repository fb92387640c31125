// Formats numbers, amounts and times for people. Every amount has its unit.

const BYTES = [[2 ** 50, "Pi"], [2 ** 40, "Ti"], [2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]];
const PLAIN = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const scaled = (value, steps) => {
  for (const [size, prefix] of steps) if (Math.abs(value) >= size * 0.9995) return `${+(value / size).toPrecision(3)} ${prefix}`;
  return `${+value.toPrecision(3)} `;
};

/** Formats an amount of a resource: thousandths of cores for cpu, bytes for memory and storage, a count for all others. */
export function amount(resource, value) {
  if (value === null || value === undefined) return "-";
  if (resource === "cpu") return `${count(+(value / 1000).toPrecision(4))} ${value === 1000 ? "core" : "cores"}`;
  if (resource === "memory" || resource.endsWith("storage") || resource.startsWith("hugepages-")) return `${scaled(value, BYTES)}B`;
  return plain(value);
}

const FIELDS = { cpuMilli: "cpu", memoryBytes: "memory" };

/** Formats amounts by resource, or by the field names of documents about loans. @param {Record<string, number>} found */
export const amounts = (found) =>
  Object.entries(found).map(([name, value]) => `${amount(FIELDS[name] ?? name, value)} ${FIELDS[name] ?? name}`).join(", ") || "-";

/** Formats a number with three digits and a unit prefix such as k or M. */
export const plain = (value) => (value === null || value === undefined ? "-" : scaled(value, PLAIN).trim());

export const count = (value) => (value === null || value === undefined ? "-" : value.toLocaleString("en"));

export const percent = (share) =>
  (share === null || share === undefined || Number.isNaN(share) ? "-" : share < 100 ? `${Math.round(100 * share)} %` : "> 9,999 %");

/** Formats milliseconds, as seconds from one second on. */
export const ms = (value) => (value >= 1000 ? `${+(value / 1000).toPrecision(3)} s` : `${+value.toPrecision(3)} ms`);

const UNITS = { cpu: "cores", memory: "bytes" };

/** The unit of a dimension of the forecast. Its documents have whole units, such as cores instead of thousandths. */
export const unit = (dimension) => UNITS[dimension] ?? dimension;

/** Formats an amount of a dimension of the forecast. */
export const measure = (dimension, value) => amount(dimension, dimension === "cpu" && known(value) ? 1000 * value : value);

/** False for a missing value. */
export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** Formats a duration with one or two units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const whole = Math.round(seconds);
  if (seconds < 10) return `${+seconds.toFixed(1)} s`;
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.floor(whole / 60)} min`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} days`;
}

/** Formats the time of day of a Unix time, in the browser's time zone. */
export const clock = (seconds) => new Date(1000 * seconds).toLocaleTimeString("en-GB");

/** Formats date and time of an RFC 3339 time, in the browser's time zone. */
export const moment = (text) => (text ? new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }) : "-");

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
