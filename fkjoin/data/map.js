// The topology as a map: a box is chosen by a click, or by Tab and Enter, and its numbers stand beside it.
import { byId, grid, make, renew, titled, update } from "./elements.js";
import { COUNTERS, aSecond, bytes, metric, seconds } from "./words.js";

const LEAST_SCALE = 0.75; // of the picture: its letters can be read then

let chosen = null;
let last = null;

export function map(status) {
  last = status;
  const steps = status.steps.length ? status.steps : operatorsAsSteps(status);
  const step = steps.find(one => one.id === chosen) ?? null;
  byId("map-title").textContent = status.steps.length ? "Map" : "Operators";
  if (status.steps.length) picture(status.picture);
  else operatorButtons(steps);
  byId("map-hint").hidden = !steps.length;
  byId("map").classList.toggle("chosen", step !== null);
  for (const box of byId("picture").querySelectorAll("[data-step]"))
    box.setAttribute("aria-pressed", String(box.dataset.step === step?.id));
  renew(byId("detail"), step ? detail(status, step) : []);
}

// The queries of a program have no picture: their operators are a list.
function operatorsAsSteps(status) {
  const names = new Set(Object.values(status.queries).flatMap(query => [...Object.keys(query.totals), ...Object.keys(query.state)]));
  return [...names].map(name => ({id: name, about: "", facts: [], operators: [name], topics: []}));
}

function operatorButtons(steps) {
  const place = byId("picture");
  place.className = "operators";
  if (!steps.length) place.textContent = "No batch yet: joins, aggregates and views are listed from the first one on.";
  else update(place, steps, step => step.id, () => make("button"), (button, step) => {
    button.textContent = button.dataset.step = step.id;
  });
}

// The picture is drawn once. After that only the rates on its arrows change, so that neither focus nor clicks are lost.
function picture(svg) {
  const place = byId("picture");
  const fresh = [...new DOMParser().parseFromString(svg, "text/html").querySelectorAll("text.rate")];
  const there = [...place.querySelectorAll("text.rate")];
  if (place.firstElementChild && fresh.length === there.length) {
    there.forEach((text, at) => { text.textContent = fresh[at].textContent; });
    return;
  }
  const focused = document.activeElement?.dataset?.step;
  place.innerHTML = svg;
  const drawn = place.firstElementChild;
  drawn.style.minWidth = `${Math.round(LEAST_SCALE * drawn.viewBox.baseVal.width)}px`;
  if (focused) place.querySelector(`[data-step="${CSS.escape(focused)}"]`)?.focus();
}

function choose(event) {
  const box = event.target.closest("[data-step]");
  if (!box || (event.type === "keydown" && (box.tagName === "BUTTON" || !["Enter", " "].includes(event.key)))) return;
  event.preventDefault();
  chosen = chosen === box.dataset.step ? null : box.dataset.step;
  map(last);
  box.scrollIntoView({block: "nearest", inline: "nearest"});
}

// --- the numbers of the chosen box ---

function detail(status, step) {
  const parts = [make("h3", "", step.id)];
  if (step.about) parts.push(make("p", "hint", step.about));
  for (const [title, table] of tables(status, step)) parts.push(make("h4", "", title), table);
  return parts;
}

function* tables(status, step) {
  const queries = Object.values(status.queries);
  for (const operator of step.operators) {
    const query = queries.find(one => operator in one.totals || operator in one.state);
    if (query) yield* ofOperator(query, operator, step.operators.length > 1 ? ` of ${operator}` : "");
  }
  const lag = queries.flatMap(query => Object.entries(query.lag)).filter(([topic]) => step.topics.includes(topic));
  const partitions = Object.fromEntries(lag.flatMap(([topic, parts]) => Object.entries(parts).map(([part, left]) => [`${topic} ${part}`, left])));
  if (lag.length) yield ["Left to read", grid(["topic and partition", "records"], Object.entries(partitions))];
  if (step.facts.length) yield ["What it is", grid(["", ""], step.facts)];
}

function* ofOperator(query, operator, suffix) {
  const counted = Object.entries(query.totals[operator] ?? {}).map(([item, total]) =>
    [counterName(item), aSecond(query.rates[operator]?.[item] ?? 0), total]);
  if (counted.length) yield [`Rows${suffix}`, grid(["", "lately", "since the start"], counted)];
  const recent = query.recent[0]?.stages[operator] ?? {};
  const times = Object.entries(query.stages[operator] ?? {}).map(([stage, time]) => [stage, seconds(recent[stage] ?? 0), seconds(time)]);
  if (times.length) yield [`Work of stages, all tasks together${suffix}`, grid(["", "last batch", "since the start"], times)];
  const sizes = query.state[operator];
  if (sizes) yield [`State${suffix}`, grid(["", ""], stateRows(sizes))];
  const hot = Object.entries(query.hot_keys[operator] ?? {});
  if (hot.length) yield [`Hot keys${suffix}`, grid(["key", "answers in a batch"], hot)];
}

const stateRows = sizes => [
  [titled("Rows, about", "fkjoin_state_rows"), sizes["state-rows"]],
  [titled("Rows and keys", "fkjoin_state_bytes"), bytes(sizes["state-bytes"])],
  [titled("Change logs, in the checkpoint", "fkjoin_log_bytes"), bytes(sizes["log-bytes"])],
  [titled("Indexes, on local disks", "fkjoin_index_bytes"), bytes(sizes["index-bytes"])],
];

export function counterName(item) {
  const [words, meaning] = COUNTERS[item] ?? [item, ""];
  return titled(words, `${metric(item)}: ${meaning}`);
}

byId("picture").addEventListener("click", choose);
byId("picture").addEventListener("keydown", choose);
