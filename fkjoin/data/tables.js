// Dead letters, hot keys, and all numbers as tables.
import { byId, grid, make, renew, sayEmpty, tableOf } from "./elements.js";
import { counterName } from "./map.js";
import { aSecond, bytes, clock, seconds } from "./words.js";

const MOST_KEYS = 10;
const MOST_BATCHES = 12;

export function letters(status) {
  const {operators, sinks, last, place} = status.dead_letters;
  const rows = [
    ...Object.entries(operators).map(([name, [lately, total]]) => [name, lately, total]),
    ...Object.entries(sinks).map(([name, total]) => [name, "–", total]),
  ];
  if (!rows.length) return sayEmpty("letters", "None. Records that do not parse, rows on which an expression throws and rows "
    + "that a PostgreSQL table cannot store would be counted here.");
  const parts = [grid(["where", "last hour", "since the start"], rows)];
  if (Object.keys(operators).length) parts.push(make("p", "hint", place
    ? `Records that cannot be used are in ${place}, each with its reason.`
    : "The records are not kept. A section [dead_letters] in the job file keeps them; in Python, a table's dead_letters does."));
  if (last.length) parts.push(make("h3", "", "The last reasons, the commonest of each batch"), reasons(last));
  renew(byId("letters"), parts);
}

function reasons(events) {
  const list = make("ul", "reasons");
  for (const {at_ms, place, words} of [...events].reverse()) {
    const line = make("li");
    line.append(make("span", "hint", `${clock(at_ms, true)} ${place}`), words);
    list.append(line);
  }
  return list;
}

export function hotKeys(status) {
  const found = {};
  for (const query of Object.values(status.queries))
    for (const [operator, keys] of Object.entries(query.hot_keys))
      for (const [key, answers] of Object.entries(keys)) found[`${operator} ${key}`] = [key, answers, tableOf(status, operator)];
  const rows = Object.values(found).sort(([, one], [, other]) => other - one);
  if (!rows.length) return sayEmpty("hot", "None. A right row whose change makes 1,000 answers or more in a batch is named here: "
    + "one task does them all.");
  const advice = make("p", "advice");
  advice.append("A change of such a row is the work of one task, and makes its batch long. Name the columns that you need in ",
    make("code", "", "joiner"), ": changes of other columns then send nothing. Or let the row change less often. ",
    make("code", "", "spread"), " gives a join's left rows to several tasks; it needs a new checkpoint.");
  renew(byId("hot"), [grid(["key", "answers in a batch", "join"], rows.slice(0, MOST_KEYS)), advice]);
}

const HEADS = {
  batches: ["query", "batch", "began", "rows read", "took"],
  counters: ["query", "operator", "what", "lately", "since the start"],
  sizes: ["query", "operator", "rows, about", "rows and keys", "change logs", "indexes"],
  lag: ["query", "topic", "partition", "left to read"],
};

export function allNumbers(status) {
  if (!byId("all").open) return;
  for (const [id, rows] of Object.entries(numbers(status)))
    if (rows.length) renew(byId(id), [grid(HEADS[id], rows)]);
    else sayEmpty(id, "None yet.");
}

function numbers(status) {
  const rows = {batches: [], counters: [], sizes: [], lag: []};
  for (const [name, query] of Object.entries(status.queries)) {
    for (const batch of query.recent.slice(0, MOST_BATCHES))
      rows.batches.push([name, batch.batch, clock(Date.parse(batch.time), true), batch.inputs, seconds(batch.seconds)]);
    for (const [operator, totals] of Object.entries(query.totals))
      for (const [item, total] of Object.entries(totals))
        rows.counters.push([name, operator, counterName(item), aSecond(query.rates[operator]?.[item] ?? 0), total]);
    for (const [operator, of] of Object.entries(query.state))
      rows.sizes.push([name, operator, of["state-rows"], bytes(of["state-bytes"]), bytes(of["log-bytes"]), bytes(of["index-bytes"])]);
    for (const [topic, parts] of Object.entries(query.lag))
      for (const [part, records] of Object.entries(parts)) rows.lag.push([name, topic, part, records]);
  }
  return rows;
}
