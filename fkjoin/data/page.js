// The live page of a job: asks for its status every second and for its last hour every five, and shows both.
import { byId, make, update } from "./elements.js";
import { bars, curves, tiles } from "./figures.js";
import { map } from "./map.js";
import { allNumbers, hotKeys, letters } from "./tables.js";
import { STATES, clock, seconds } from "./words.js";

const STATUS_MS = 1000;
const HISTORY_MS = 5000;

const seen = {status: null, history: null, historyAt: 0, answeredAt: null};
let chosenQuery = null;

// --- asking ---

class Locked extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, token ? {headers: {Authorization: `Bearer ${token}`}} : {});
  byId("ask").hidden = answer.status !== 401;
  if (answer.status === 401) throw new Locked(token ? "This is not the job's token." : "The job is shown to those that have its token.");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

async function look() {
  try {
    await learn();
  } catch (error) {
    if (error instanceof Locked) return say("locked", error.message);
    lost();
    return void setTimeout(look, STATUS_MS);
  }
  show();
  setTimeout(look, STATUS_MS);
}

async function learn() {
  const batches = status => Object.values(status?.queries ?? {}).reduce((sum, query) => sum + query.batches, 0);
  const before = batches(seen.status);
  seen.status = await ask("status.json");
  const first = !before && batches(seen.status); // the first batch is shown at once
  if (!seen.history || first || Date.now() - seen.historyAt > HISTORY_MS) {
    seen.history = await ask("history.json");
    seen.historyAt = Date.now();
  }
  seen.answeredAt = Date.now();
}

function lost() {
  document.body.classList.add("lost");
  byId("now").textContent = "";
  if (seen.status?.ended) return headline(seen.status);
  const since = seen.answeredAt ? `since ${clock(seen.answeredAt, true)}` : "";
  const old = seen.answeredAt ? " What is below is from before." : "";
  say("lost", `The job has ended, or cannot be reached: its terminal or its log says which.${old}`, since);
}

// --- showing ---

function say(state, words, since = "") {
  byId("headline").dataset.state = state;
  byId("state").textContent = STATES[state];
  byId("since").textContent = since;
  if (byId("words").textContent !== words) byId("words").textContent = words; // it is read aloud when it changes
}

function headline(status) {
  if (status.ended) return ended(status);
  const {state, words, since_ms, query} = status.health;
  document.title = `${status.job} · ${STATES[state].toLowerCase()} · fkjoin`;
  byId("job").textContent = status.job;
  const lasted = Math.max(0, Math.round((status.now_ms - since_ms) / 1000));
  say(state, query ? `${query}: ${words}` : words, `since ${clock(since_ms)}, for ${seconds(lasted)}`);
}

// The job's end, which stays when its server is gone.
function ended({job, ended: {state, words, at_ms}}) {
  document.title = `${job} · ${STATES[state].toLowerCase()} · fkjoin`;
  byId("job").textContent = job;
  say(state, `The job ended: it ${words}`, `since ${clock(at_ms, true)}`);
}

// Since when the job runs, and what the query works on at this moment.
function now({began_ms, now_ms, doing}, name) {
  const began = began_ms == null ? "" : `started ${clock(began_ms)}, ${seconds(Math.max(0, Math.round((now_ms - began_ms) / 1000)))} ago`;
  byId("now").textContent = [began, doing[name]].filter(Boolean).join(" · ");
}

function show() {
  const {status, history} = seen;
  document.body.classList.remove("lost");
  byId("main").hidden = false;
  byId("links").hidden = sessionStorage.getItem("token") !== null; // a link sends no token
  headline(status);
  const names = Object.keys(status.health.queries);
  const name = names.includes(chosenQuery) ? chosenQuery : status.health.query ?? names[0] ?? null;
  now(status, name);
  queryButtons(status, names, name);
  tiles(status, status.queries[name], status.health.queries[name]);
  curves(status, history.queries[name], status.queries[name]);
  bars(status, status.queries[name]);
  map(status);
  letters(status);
  hotKeys(status);
  allNumbers(status);
}

// Of several queries, the figures and charts are those of one.
function queryButtons(status, names, name) {
  byId("queries").hidden = names.length < 2;
  update(byId("queries"), names, one => one, makeButton, (button, one) => {
    const {state, words} = status.health.queries[one];
    button.setAttribute("aria-pressed", String(one === name));
    button.title = words;
    button.firstChild.dataset.state = state;
    button.lastChild.textContent = `${one}: ${STATES[state].toLowerCase()}`;
  });
}

function makeButton() {
  const button = make("button");
  button.append(make("span", "mark"), make("span"));
  button.addEventListener("click", () => {
    chosenQuery = button.dataset.key;
    show();
  });
  return button;
}

byId("ask").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value);
  look();
});
byId("all").addEventListener("toggle", () => seen.status && allNumbers(seen.status));
look();
