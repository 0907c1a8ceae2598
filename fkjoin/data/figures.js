// The figures of one query: those of this moment, and charts of the last hour.
import { BYTES, Chart, TIMES, WHOLE } from "./charts.js";
import { byId, make, sumOf, tableOf, update } from "./elements.js";
import { PHASES, aSecond, bytes, clock, compact, number, seconds } from "./words.js";

const FEWEST_S = 120; // the shortest time that curves show
const MOST_SERIES = 6;
const BARS = 40;
const NO_BATCH = "No batch yet: the curves begin with the first one. It takes longest, as Spark and its workers start.";

// --- of this moment ---

export function tiles(status, query, health) {
  const behind = health?.state === "behind" ? "warn" : "";
  const shown = query ? [
    lagTile(status, query, behind),
    ["Read", "fkjoin_input_rows_total", aSecond(health.read), `${compact(query.all_inputs)} rows since the start`],
    ["Delay, at most", "From a record's arrival to its result, if records go on to come as they do: the batch at work when it comes, "
     + "the batch that reads it, and the lag before it", seconds(health.delay), "from a record to its result", behind],
    batchTile(status, query),
    stateTile(query),
  ] : ["Left to read", "Read", "Delay, at most", "Last batch", "State"].map(name => [name, "", "–", "no batch yet"]);
  update(byId("tiles"), [...shown, deadTile(status)], ([name]) => name, makeTile, fillTile);
}

const OLD_S = 30; // the age from which on the time of a figure is shown

function lagTile(status, query, tint) {
  const topics = Object.entries(query.lag).sort(([, one], [, other]) => total(other) - total(one));
  if (!topics.length) return ["Left to read", "fkjoin_lag_records", "–", "files have no lag"];
  const lag = sumOf(topics.map(([, parts]) => total(parts)));
  const more = !lag ? "all records are read" : topics.length > 1 ? `most of them in ${topics[0][0]}` : `records of ${topics[0][0]}`;
  const old = (status.now_ms - query.lag_ms) / 1000 > OLD_S ? `, as of ${clock(query.lag_ms, true)}` : "";
  return ["Left to read", "fkjoin_lag_records", compact(lag), `${more}${old}`, tint];
}

const total = parts => sumOf(Object.values(parts));

function batchTile(status, query) {
  const ago = (status.now_ms - Date.parse(query.time)) / 1000 - query.seconds;
  return ["Last batch", "fkjoin_batch_seconds", seconds(query.seconds), `#${query.batch}, ${seconds(Math.max(0, Math.round(ago)))} ago`];
}

function stateTile(query) {
  const sizes = Object.values(query.state);
  if (!sizes.length) return ["State", "fkjoin_state_bytes", "–", "nothing is kept"];
  const rows = sumOf(sizes.map(of => of["state-rows"]));
  return ["State", "fkjoin_state_bytes, fkjoin_state_rows", bytes(sumOf(sizes.map(of => of["state-bytes"]))), rows ? `some ${compact(rows)} rows` : "few rows"];
}

function deadTile(status) {
  const {operators, sinks} = status.dead_letters;
  const dead = sumOf(Object.values(operators).map(([, all]) => all)) + sumOf(Object.values(sinks));
  const hint = "fkjoin_dead_letters_total, fkjoin_sink_dead_letters_total";
  return ["Dead letters", hint, number(dead), dead ? "since the start; see below" : "since the start", dead ? "warn" : ""];
}

function makeTile() {
  const tile = make("div", "tile");
  tile.append(make("p", "name"), make("p", "figure"), make("p", "more"));
  return tile;
}

function fillTile(tile, [name, hint, figure, more, tint = ""]) {
  const [first, second, third] = tile.children;
  tile.className = `tile ${tint}`;
  first.textContent = name;
  first.title = hint;
  second.textContent = figure;
  third.textContent = more;
}

// --- charts ---

const place = byId("charts");
const lagChart = new Chart(place, {
  title: "Left to read", hint: "fkjoin_lag_records", format: compact, incrs: WHOLE,
  empty: "No topic has been read yet. Records that are left to read are counted in topics; files have no lag.",
});
const rateChart = new Chart(place, {
  title: "Rows a second", hint: "fkjoin_input_rows_total, fkjoin_out_total", format: compact, empty: NO_BATCH,
});
const delayChart = new Chart(place, {
  title: "Delay, and time of batches", hint: "The delay is computed; fkjoin_batch_seconds", format: seconds, incrs: TIMES, empty: NO_BATCH,
});
const phaseChart = new Chart(place, {
  title: "Each batch, by step", hint: "fkjoin_batch_seconds, by Spark's phases", format: seconds, incrs: TIMES,
  empty: "No batch yet: each one will be a bar, made of what took its time.",
});
const stageChart = new Chart(place, {
  title: "Work in each batch, by stage", hint: "fkjoin_stage_seconds_total: the time of all tasks together", format: seconds, incrs: TIMES,
  empty: "No stage has worked yet. Joins and aggregates have stages; the slowest is the tallest part of a bar.",
});
const stateChart = new Chart(place, {
  title: "Growth of state", hint: "fkjoin_state_bytes", format: bytes, incrs: BYTES,
  empty: "Nothing is kept yet. Joins and aggregates keep rows, and this shows how much they take.",
});

export function curves(status, past, query) {
  const now = status.now_ms / 1000;
  const time = past?.time ?? [];
  const range = [Math.min(Math.max(now - 3600, time[0] ?? now), now - FEWEST_S), now];
  const draw = (chart, series) => chart.curves(time, series, range);
  draw(lagChart, [["records", past?.lag ?? []]]);
  lagChart.card.hidden = Boolean(query) && !Object.keys(query.lag).length; // its figure says that files have none
  draw(rateChart, [["rows read", past?.read ?? []], ...largest(results(status, past?.out), name => `results of ${name}`)]);
  draw(delayChart, [["delay, at most", past?.delay ?? []], ["longest batch", past?.batch ?? []]]);
  draw(stateChart, largest(byTable(status, past?.state, (one, other) => one + other), name => name));
}

// The columns of operators, together by the table that they make.
function byTable(status, columns, both) {
  const found = {};
  for (const [operator, values] of Object.entries(columns ?? {})) {
    const name = tableOf(status, operator);
    const known = found[name];
    found[name] = known ? values.map((value, at) => both(value ?? 0, known[at] ?? 0)) : values;
  }
  return found;
}

// Results leave a table once: stages before its last operator are left out, and several readers get the same ones.
function results(status, columns = {}) {
  const isLast = (operator, name) => operator === name || !(name in columns);
  const last = Object.entries(columns).filter(([operator]) => isLast(operator, tableOf(status, operator)));
  return byTable(status, Object.fromEntries(last), Math.max);
}

export function bars(status, query) {
  const recent = query ? query.recent.slice(0, BARS).reverse() : [];
  const labels = recent.map(batch => `#${batch.batch}`);
  phaseChart.bars(labels, phases(recent));
  stageChart.bars(labels, largest(stages(status, recent), name => name));
}

function phases(batches) {
  const known = Object.keys(PHASES).filter(phase => batches.some(batch => batch.phases[phase]));
  const rest = batch => Math.max(0, batch.seconds - sumOf(known.map(phase => batch.phases[phase] ?? 0)));
  const series = known.map(phase => [PHASES[phase][0], batches.map(batch => batch.phases[phase] ?? 0), PHASES[phase][1]]);
  return [...series, ["other", batches.map(rest), "all else that the batch took"]];
}

function stages(status, batches) {
  const found = {};
  for (const [at, batch] of batches.entries())
    for (const [operator, times] of Object.entries(batch.stages))
      for (const [stage, time] of Object.entries(times))
        (found[`${tableOf(status, operator)}: ${stage}`] ??= batches.map(() => 0))[at] += time;
  return found;
}

// The series with the largest values, and the sum of the others.
function largest(columns, title) {
  const all = Object.entries(columns ?? {}).sort(([, one], [, other]) => Math.max(...other) - Math.max(...one));
  const shown = all.slice(0, all.length > MOST_SERIES ? MOST_SERIES - 1 : MOST_SERIES);
  const others = all.slice(shown.length).map(([, values]) => values);
  const named = shown.map(([name, values]) => [title(name), values]);
  return others.length ? [...named, ["all others", others[0].map((_, at) => sumOf(others.map(values => values[at] ?? 0)))]] : named;
}
