// Names in people's words, and how to write numbers, sizes and times.

// By the counter's name: what people call it, and what it means.
export const COUNTERS = {
  "left-in": ["Changes of left rows", "changes of the left table that reached the join"],
  "right-in": ["Changes of right rows", "changes of the right table that reached the join"],
  "rows-in": ["Changes that came in", "changes that reached the stage"],
  "answers": ["Answers from right rows", "messages from right rows to the left rows that name them"],
  "out": ["Results", "results that are emitted"],
  "idempotent-update-skip": ["Unchanged, left out", "changes that leave something as it was go no further"],
  "stale-dropped": ["Stale, left out", "changes that are not newer than what is known"],
  "tombstones-suppressed": ["Deletions of nothing", "deletions of rows that were not there"],
  "null-key-dropped": ["Without a key, left out", "records that have no key"],
  "dead-letters": ["Dead letters", "records and rows that cannot be used"],
  "unavailable": ["Values left out by PostgreSQL", "changes that lack a value which no change before them had; their rows wait for it"],
  "version-ties": ["Changes with equal versions", "changes of a key with the version of another one; their contents decide which counts"],
  "source-restarts": ["Rows that started over", "rows whose topic was created again, or is another one"],
  "index-rebuilt": ["Indexes built anew", "local indexes that were lost or damaged, and were built from their logs"],
};

export const STATES = {
  healthy: "Healthy", idle: "Idle", behind: "Behind", failing: "Failing", still: "Standing still",
  starting: "Starting", ended: "Ended", failed: "Failed", lost: "No answer", locked: "Locked",
};

// By Spark's phase of a batch: a word for a legend, and what happens in it.
export const PHASES = {
  addBatch: ["work", "addBatch: reading, all stages, and writing the results"],
  latestOffset: ["sources", "latestOffset: asking the sources what is new"],
  queryPlanning: ["planning", "queryPlanning: Spark plans the batch"],
  walCommit: ["offsets", "walCommit: writing down what the batch reads"],
  commitOffsets: ["commit", "commitOffsets: writing down that the batch is done"],
};

export const metric = counter => `fkjoin_${counter.replaceAll("-", "_")}_total`;

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const short = new Intl.NumberFormat("en", {notation: "compact", maximumSignificantDigits: 3});
const two = new Intl.NumberFormat("en", {maximumFractionDigits: 1});
const few = new Intl.NumberFormat("en", {maximumSignificantDigits: 3});

export const number = value => value == null ? "–" : whole.format(value);

export function compact(value) {
  if (value == null) return "–";
  return (value < 1000 ? few : value < 10000 ? whole : short).format(value);
}

export const aSecond = value => value == null ? "–" : `${compact(value)}/s`;

export function bytes(value) {
  if (value == null) return "–";
  const steps = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = Math.min(steps.length - 1, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${few.format(value / 1024 ** step)} ${steps[step]}`;
}

export function seconds(value) {
  if (value == null) return "–";
  if (value === 0) return "0 s";
  if (value < 1) return `${few.format(1000 * value)} ms`;
  if (value < 120) return `${two.format(value < 10 ? value : Math.round(value))} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${few.format(value / 3600)} h`;
}

export function clock(ms, withSeconds = false) {
  const parts = {hour: "2-digit", minute: "2-digit", hour12: false};
  return new Date(ms).toLocaleTimeString([], withSeconds ? {...parts, second: "2-digit"} : parts);
}
