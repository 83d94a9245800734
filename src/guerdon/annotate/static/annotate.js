"use strict";
// People judge items. Texts and pictures come from the server and are shown by texts.js; a judgement is kept here until it is confirmed.
const AHEAD = 6; // items in hand
const WAIT = 15000, FIGURES = 120000, AGAIN = 1000, POLL = 5000; // milliseconds: for an answer, for figures, until a server that was away is asked again, until others may be done
const PARALLEL = 3, NEAR = 2, FORWARD = 400, FIRST = 40, PICTURES = 4000; // pictures: at once, rows beyond the one on screen soon and later, rows of the next items, kept
const KEYS = { success: "s", failure: "f", cannot_tell: "u", discard: "d", right: "y", wrong: "n", first: "1", second: "2", equal: "e" };
const QUESTIONS = { responses: "Is the response right?", pairs: "Which response is better?", steps: "Which step is the first wrong one?" };
const NO_MOMENT = "no moment is marked: success from the last row";
const ASIDE = { discard: "not to be used", equal: "neither is better" };

const token = location.hash.slice(1);
window.addEventListener("hashchange", () => location.reload());
let setup, current = null, queue = [];
const path = []; // judgements of this page, so that they can be taken back: {key, entry}
const wordOf = (choices, digit) => (digit ? choices[digit - 1] : "cannot tell"); // of a criterion
const keyOf = (word) => (setup.kind === "steps" && word === "wrong" ? "x" : KEYS[word] ?? word);
const labelOf = (word) => word.replaceAll("_", " ");
const fresh = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const pauseFor = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const tell = (text) => said($("status"), text, $("status").replaceChildren());

// ---- the server
const AWAY = "The server is away", NO_TOKEN = "This address has no token that is valid here: open the one that guerdon annotate printed for you";
class Away extends Error {} // what was asked can be asked again later
class Refused extends Error {}

async function call(address, body, wait = WAIT) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = { headers, cache: "no-store", signal: AbortSignal.timeout(wait) };
  if (body) Object.assign(options, { method: "POST", body: JSON.stringify(body), headers: { ...headers, "Content-Type": "application/json" } });
  const answer = await fetch(address, options).catch(() => { throw new Away(AWAY); });
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  const message = answer.status === 401 ? NO_TOKEN : told.error?.message ?? `The server answered with status ${answer.status}`;
  if ([401, 403, 429].includes(answer.status) || answer.status >= 500) throw new Away(message);
  throw new Refused(message);
}

let requests = 0, counted = 0; // sent, and the one whose counts are shown: an answer that was overtaken has old ones
async function asked(address, body, wait) {
  const number = ++requests, answer = await call(address, body, wait);
  const found = await answer.json().catch(() => { throw new Away(AWAY); });
  $("away").hidden = true;
  if ("done" in found && number > counted) {
    counted = number;
    $("progress").textContent = `${found.done.toLocaleString("en")} judged, ${found.left.toLocaleString("en")} left`;
  }
  return found;
}

function away(message) {
  const kept = pending.length ? ` ${pending.length} judgement${pending.length > 1 ? "s are" : " is"} kept here and sent when it answers.` : "";
  said($("away"), `${message.replace(/\.$/, "")}. It is asked again every second.${kept}`, $("away").replaceChildren());
  $("away").hidden = false;
}

// ---- judgements that the server has not confirmed: in the browser's storage, and sent in order
let pending = [], sending = null, last = 0;
const storage = () => `guerdon annotate ${setup.id} ${setup.person ?? ""} `;

function keep(body) {
  last = Math.max(last + 1, Date.now());
  let name = `${storage()}${last} ${body.key}`;
  try {
    localStorage.setItem(name, JSON.stringify(body));
  } catch {
    name = null; // full, or not allowed: a page that is closed would lose it
  }
  pending.push({ name, body });
  deliver();
}

function restored() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(storage())).sort();
    return names.map((name) => ({ name, body: JSON.parse(localStorage.getItem(name)) }));
  } catch {
    return []; // a browser that allows no storage
  }
}

const deliver = () => (sending ??= send().finally(() => { sending = null; }));
async function send() {
  while (pending.length) {
    const { name, body } = pending[0];
    try {
      const found = await asked("api/judgements", body);
      if (body.undo === null) takenBack(found.undone);
    } catch (error) {
      if (error instanceof Away) {
        away(error.message);
        await pauseFor(AGAIN);
        continue;
      }
      $("refused").hidden = false;
      $("refused").firstElementChild.append(said(element("li"), `Not stored: ${labelOf(body.judgement ?? "taking back")}: ${error.message}`));
    }
    pending.shift();
    if (name) localStorage.removeItem(name);
  }
}
window.addEventListener("beforeunload", (event) => { if (pending.some(({ name }) => !name)) event.preventDefault(); });

// ---- what is asked next
let asking = false;
const touched = new Set(); // judged while the next items were asked for
const entryOf = (one) => ({ at: 0, shown: null, moment: one.row ?? null, loaded: 0, ...one, note: one.note ?? "", step: one.step ?? (setup.criteria ? 0 : null), scores: new Map(Object.entries(one.scores ?? {})) });

async function ask() {
  if (asking || queue.length > AHEAD / 2) return;
  asking = true;
  let again = null;
  try {
    await deliver();
    touched.clear();
    const { items, left } = await asked(`api/next?count=${AHEAD}`);
    const known = new Map(queue.map((entry) => [entry.item, entry]));
    const seen = queue.filter((entry) => entry.wasShown), first = new Set(seen.map(({ item }) => item)); // what z put back comes first
    const others = items.filter(({ item }) => item !== current?.item && !touched.has(item) && !first.has(item));
    queue = [...seen, ...others.map((one) => known.get(one.item) ?? entryOf(one))];
    if (!current && queue.length) show(queue.shift());
    if (!current && touched.size) again = 0; // chosen before the last judgements: it does not say what is left
    else if (!current) again = waitForOthers(left);
    root.dataset.ready = "true";
  } catch (error) {
    away(error.message);
    again = AGAIN;
  }
  asking = false;
  if (again !== null) setTimeout(ask, again);
  prepare();
}

function waitForOthers(left) {
  show(null, left > 0 ? "Others are judging what is left. It is asked again every five seconds." : "Nothing is left to judge. The summary has the figures.");
  return left > 0 ? POLL : null;
}

function show(entry, text = "") {
  playing = null;
  if (current) current.note = $("note").value;
  current = entry;
  if (entry) entry.wasShown = true;
  $("note").value = entry?.note ?? "";
  for (const button of [...$("judgements").children, $("skip")]) button.disabled = !entry;
  $("criterion").hidden = !entry || !setup.criteria;
  $("item").replaceChildren(element("p", text, { className: "lead" }));
  if (entry) view(entry);
  tell(entry ? text : "");
  window.scrollTo(0, 0);
  root.dataset.item = entry?.item ?? "";
  clock.restart();
  prepare();
}

function view(entry) {
  $("item").replaceChildren(...VIEWS[entry.kind](entry));
  if (entry.kind === "steps" || setup.criteria) choose(entry.step);
  if (entry.kind !== "episodes") return;
  entry.shown = null;
  readout(entry);
  draw();
}

function judge(word) {
  const entry = current;
  if (!entry) return;
  const body = { key: fresh(), item: entry.item, judgement: word };
  if (word !== "skip") {
    const isStep = entry.kind === "steps" && word === "wrong";
    if (isStep && entry.step === null) return tell("Choose the first wrong step with the arrows, then x.");
    const note = $("note").value.trim();
    Object.assign(body, { row: word === "success" ? entry.moment : null, step: isStep ? entry.step : null, note, seconds: clock.seconds() });
    if (word === "rated") body.scores = Object.fromEntries(entry.scores);
  }
  path.push({ key: body.key, entry });
  touched.add(entry.item);
  keep(body);
  const next = queue.shift() ?? null, where = body.step ?? body.row ?? "";
  show(next, next ? `${labelOf(word)} ${where}; z takes it back`.replace(" ;", ";") : "Waiting for the next item.");
  ask();
}

function undo() {
  if (current?.scores.size) return forget(current);
  const before = path.pop();
  keep({ key: fresh(), undo: before ? before.key : null });
  if (before) takenBack(before.entry);
}

function takenBack(one) {
  if (!one) return tell("There is nothing to take back.");
  const entry = "shown" in one ? one : entryOf(one);
  queue = [current, ...queue].filter((other) => other && other.item !== entry.item); // it may have been asked again meanwhile
  show(entry, "Taken back: judge it again.");
  if (setup.criteria?.length === entry.scores.size) forget(entry);
}

// ---- rubrics: a score for one criterion after the other; with the last of them the item is judged
function rate(digit) { // null: it cannot be told
  if (!current) return;
  const { step, scores } = current, { name, choices } = setup.criteria[step];
  if (digit > choices.length) return;
  scores.delete(name); // so that the score that was given last is the last one
  scores.set(name, digit);
  const left = setup.criteria.flatMap((one, i) => (scores.has(one.name) ? [] : [i]));
  if (!left.length) return judge([...scores.values()].some((one) => one !== null) ? "rated" : "cannot_tell");
  choose(left.find((i) => i > step) ?? left[0]);
  tell(`${name}: ${wordOf(choices, digit)}; z takes it back`);
}

function forget({ scores }) { // the last score of an item
  const name = [...scores.keys()].at(-1);
  scores.delete(name);
  choose(setup.criteria.findIndex((one) => one.name === name));
  tell(`${name}: taken back.`);
}

function showCriterion({ step, scores }) {
  const { name, text, choices } = setup.criteria[step], focused = [...$("judgements").children].indexOf(document.activeElement);
  said($("criterion"), `${step + 1} of ${setup.criteria.length}. ${name}: ${text}`, $("criterion").replaceChildren());
  $("judgements").replaceChildren(...choices.map((choice, i) => keyButton(i + 1, choice, () => rate(i + 1))), keyButton("u", "cannot tell", () => rate(null)));
  $("judgements").children[focused]?.focus();
  setup.criteria.forEach((one, i) => {
    const place = $(`step-${i}`).lastChild;
    said(place, scores.has(one.name) ? wordOf(one.choices, scores.get(one.name)) : "", place.replaceChildren());
  });
}

const clock = { // seconds during which the page was visible
  sum: 0, since: null,
  run() { if (this.since === null && !document.hidden) this.since = performance.now(); },
  stop() { if (this.since !== null) this.sum += performance.now() - this.since; this.since = null; },
  restart() { this.since = null; this.sum = 0; this.run(); },
  seconds() { this.stop(); this.run(); return Math.round(this.sum) / 1000; },
};
document.addEventListener("visibilitychange", () => (document.hidden ? clock.stop() : clock.run()));

// ---- the four kinds
const put = (into, text) => ($("formulas").checked ? withFormulas(into, text) : said(into, text));
const heading = (text) => said(element("h2"), text);
const asTexts = ({ messages, prompt, response, reference }) => texts({ messages, prompt, response, truth: reference }, put);
const VIEWS = {
  responses: ({ show: shown }) => [heading(questionOf()), ...asTexts(shown), ...(setup.criteria ? [element("h4", "Criteria"), linesOf("Criteria", setup.criteria.map(({ name, text }) => `${name}: ${text}`), 1)] : [])],
  pairs({ show: shown }) {
    const sides = element("div", "", { className: "sides" });
    for (const name of ["first", "second"]) {
      const side = element("section");
      side.append(element("h4", `${name === "first" ? "First" : "Second"} response`), put(element("div", "", { className: "said" }), shown[name]));
      sides.append(side);
    }
    return [heading(QUESTIONS.pairs), ...asTexts({ ...shown, response: undefined }), sides];
  },
  steps: ({ show: shown }) => [heading(QUESTIONS.steps), ...asTexts({ ...shown, response: undefined }), element("h4", "Steps"), linesOf("Steps, from 0", shown.steps, 0)],
  episodes(entry) {
    const { episode, task, rows, cameras, problem } = entry.show;
    const views = element("div", "", { className: "cameras" });
    for (const camera of cameras) {
      const figure = element("figure"), canvas = element("canvas", "", { role: "img", ariaLabel: `Camera ${camera}`, width: 320, height: 240 });
      figure.append(canvas, said(element("figcaption"), camera));
      views.append(figure);
    }
    const line = element("div", "", { className: "transport" }), bar = element("div", "", { className: "rows" });
    const scrub = element("input", "", { type: "range", id: "scrub", min: 0, max: rows - 1, value: entry.at, ariaLabel: "Row", oninput: () => go(Number(scrub.value)) });
    bar.append(scrub, element("span", "", { id: "moment-mark", hidden: true }));
    const player = element("button", "", { type: "button", id: "play", onclick: play }), marker = element("button", "", { type: "button", id: "moment", onclick: mark });
    player.append(element("kbd", "Space"), element("span", " Play"));
    marker.append(element("kbd", "m"), " Moment of success");
    line.append(player, bar, marker, element("output", "", { id: "row" }));
    const reason = said(element("p", "", { className: "notice", id: "problem", hidden: !problem }), problem ? problemOf(problem) : "");
    return [heading(`Episode ${episode}: ${task}`), reason, ...(cameras.length ? [] : [element("p", "It has no pictures.", { className: "lead" })]), views, line];
  },
};
function questionOf() {
  if (setup.criteria) return "What is true of the response?";
  return setup.scale ? `How good is the response, from 1 to ${setup.scale}?` : QUESTIONS.responses;
}
function linesOf(ariaLabel, lines, first) { // that arrows choose
  const list = element("ol", "", { className: setup.criteria ? "steps criteria" : "steps", id: "steps", tabIndex: 0, role: "listbox", ariaLabel });
  lines.forEach((text, i) => {
    const line = element("li", "", { id: `step-${i}`, role: "option", onclick: () => choose(i) });
    line.append(element("span", String(first + i)), put(element("div", "", { className: "said" }), text.replace(/\n+$/, "")), ...(setup.criteria ? [element("output")] : []));
    list.append(line);
  });
  return list;
}
const problemOf = (reason) => `The pictures cannot be shown: ${reason}`;

function choose(to) { // a step or a criterion; null: none
  const lines = [...$("steps").children];
  current.step = to === null ? null : Math.min(Math.max(to, 0), lines.length - 1);
  lines.forEach((line, i) => line.setAttribute("aria-selected", i === current.step));
  if (current.step !== null) $("steps").setAttribute("aria-activedescendant", `step-${current.step}`);
  if (setup.criteria) showCriterion(current);
}

function chooseNext(by) {
  choose(current.step === null ? (by > 0 ? 0 : Infinity) : current.step + by);
  $(`step-${current.step}`).scrollIntoView({ block: "nearest" });
}

// ---- the rows of an episode, as pictures: the row on screen is the one that was drawn last
const pictures = new Map();
function picture(item, camera, row) {
  const name = [item, camera, row].map((part) => encodeURIComponent(String(part).toWellFormed())).join("/");
  if (!pictures.has(name)) {
    const found = call(`api/frames/${name}`).then((answer) => answer.blob().catch(() => { throw new Away(AWAY); }));
    found.catch(() => pictures.delete(name));
    pictures.set(name, found);
    if (pictures.size > PICTURES) pictures.delete(pictures.keys().next().value);
  }
  return pictures.get(name);
}

function go(row) {
  current.at = Math.min(Math.max(row, 0), current.show.rows - 1);
  $("scrub").value = current.at;
  current.loaded = Math.max(current.loaded, current.at * current.show.cameras.length); // from here on they are loaded ahead
  draw();
}

let drawn = null; // the entry whose row is being drawn
async function draw() {
  const entry = current;
  if (entry?.kind !== "episodes" || drawn === entry) return;
  const row = entry.at;
  drawn = entry;
  try {
    const found = await Promise.all(entry.show.cameras.map((camera) => picture(entry.item, camera, row).then((blob) => createImageBitmap(blob))));
    if (current === entry) paint(entry, row, found);
  } catch (error) {
    if (error instanceof Away) away(error.message);
    if (error instanceof Away && current === entry) setTimeout(draw, AGAIN);
    else if (current === entry) unreadable(entry, row, error.message);
  }
  if (drawn === entry) drawn = null;
  if (current === entry && entry.at !== row) draw();
  loadAhead();
}

function paint(entry, row, found) {
  [...$("item").querySelectorAll("canvas")].forEach((canvas, i) => {
    Object.assign(canvas, { width: found[i].width, height: found[i].height });
    canvas.getContext("2d").drawImage(found[i], 0, 0);
    found[i].close();
  });
  entry.shown = row;
  if (!pending.length) $("away").hidden = true;
  readout(entry);
}

function unreadable(entry, row, reason) {
  for (const canvas of $("item").querySelectorAll("canvas")) canvas.width = canvas.width; // empty
  entry.shown = null;
  playing = null;
  said($("problem"), problemOf(`row ${row}: ${reason}`), $("problem").replaceChildren()).hidden = false;
  readout(entry);
}

function readout({ shown, moment, show: { rows, fps } }) {
  const time = fps && shown !== null ? `, ${(shown / fps).toFixed(2)} s` : "";
  $("row").textContent = `${shown === null ? "no row" : `row ${shown}`} of 0 to ${rows - 1}${time}; ${moment === null ? NO_MOMENT : `moment of success: row ${moment}`}`;
  $("row").dataset.row = shown ?? "";
  $("play").lastChild.textContent = playing ? " Pause" : " Play";
  $("moment-mark").hidden = moment === null;
  $("moment-mark").style.left = `${(100 * (moment ?? 0)) / Math.max(rows - 1, 1)}%`;
}

function mark() {
  if (current.shown === null) return tell("No row is on screen.");
  current.moment = current.moment === current.shown ? null : current.shown;
  readout(current);
}

let playing = null;
function play() {
  const entry = current, run = (playing = playing ? null : {});
  const { rows, fps } = entry.show;
  if (playing && entry.at === rows - 1) go(0);
  readout(entry);
  let due = performance.now();
  function tick(now) {
    if (playing !== run || run === null) return;
    if (entry.shown === entry.at && now >= due) { // every row is shown: on a slow machine it takes longer
      if (entry.at === rows - 1) playing = null;
      else go(entry.at + 1);
      due = Math.max(due + 1000 / (fps || 10), now - 50);
      readout(entry);
    }
    requestAnimationFrame(tick);
  }
  requestAnimationFrame(tick);
}

let loading = 0;
function loadAhead() {
  const isWanted = (entry, end) => entry?.kind === "episodes" && entry.loaded < Math.min(entry.show.rows, end) * entry.show.cameras.length;
  const at = current?.at ?? 0, next = queue.slice(0, 2), upTo = (rows) => next.map((one) => [one, rows]);
  const order = [[current, at + NEAR], ...upTo(1), [current, at + FORWARD], ...upTo(FIRST)]; // the next item is there when this one is judged soon
  while (loading < PARALLEL) {
    const [entry] = order.find(([one, end]) => isWanted(one, end)) ?? [];
    if (!entry) return;
    const { cameras } = entry.show, place = entry.loaded++;
    loading++;
    picture(entry.item, cameras[place % cameras.length], Math.floor(place / cameras.length)).catch(() => { entry.loaded = Infinity; }).finally(() => { loading--; loadAhead(); });
  }
}

function prepare() {
  loadAhead();
  for (const entry of queue.slice(0, 2)) {
    if (!entry.prepared) for (const text of Object.values(entry.show).flat(2)) if (typeof text === "string") put(element("div"), text);
    entry.prepared = true;
  }
}

// ---- mathematics: Temml makes MathML in a worker, which is ended after a second; only what is listed here is built of it
const LONGEST = 2000, DEEPEST = 40, LIMIT = 1000; // characters, elements inside each other, milliseconds
const GROWTH = 60, SMALLEST = 2000; // characters of MathML for each one of the source, and for the shortest: macros write long formulas in few characters
const CLOSING = { "```": "```", "`": "`", "$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$" };
const ELEMENTS = new Set("math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts mtable mtr mtd mstyle".split(" "));
const ATTRIBUTES = new Set("display displaystyle scriptlevel stretchy fence form separator symmetric largeop movablelimits minsize maxsize lspace rspace accent accentunder linethickness mathvariant columnspan rowspan width".split(" "));

// A text as parts: [plain text, source of the formula behind it, how that stands in the text, whether it has a line of its own].
function* parts(text) {
  const opening = /\\[\\$]|```|`|\$\$|\\\[|\\\(|\$/g, ends = {};
  let start = 0;
  for (let found = opening.exec(text); found; found = opening.exec(text)) {
    const close = CLOSING[found[0]], from = opening.lastIndex;
    if (!close) continue;
    if (!(ends[close] >= from)) ends[close] = text.includes(close, from) ? text.indexOf(close, from) : Infinity;
    const end = ends[close], source = end - from <= LONGEST ? text.slice(from, end) : "";
    const isCode = close[0] === "`", isMoney = close === "$" && (/^\s|\s$|\n\s*\n|\\$/.test(source) || /\d/.test(text[end + 1] ?? ""));
    if (isCode && end < Infinity) opening.lastIndex = end + close.length;
    if (isCode || isMoney || !source.trim() || UNPRINTABLE.test(source.replace(/\r/g, ""))) continue;
    opening.lastIndex = end + close.length;
    yield [text.slice(start, found.index), source, text.slice(found.index, opening.lastIndex), /\$\$|\\\[/.test(found[0])];
    start = opening.lastIndex;
  }
  yield [text.slice(start)];
}

function withFormulas(into, text) {
  let isBelow = false; // a formula on a line of its own, which ends that line
  for (const [plain, source, whole, display] of parts(text)) {
    said(into, isBelow ? plain.replace(/^\n/, "") : plain);
    if (!source) continue;
    isBelow = display;
    const place = said(element("span", "", { className: display ? "display" : "", title: source }), whole);
    into.append(place);
    const found = mathml(source, display);
    const fill = (made) => { const built = made && tree(made); if (built) place.replaceChildren(built); };
    if (found instanceof Promise) found.then(fill);
    else fill(found);
  }
  return into;
}

function tree(text) {
  const read = new DOMParser().parseFromString(text, "application/xml");
  return read.querySelector("parsererror") ? null : build(read.documentElement, 0);
}

function build(node, depth) { // null: the source stays, as without this part it would say something else
  if (node.nodeType === Node.TEXT_NODE) return UNPRINTABLE.test(node.data.replace(/[\u2061-\u2064]/g, "")) ? null : document.createTextNode(node.data);
  if (!ELEMENTS.has(node.localName) || depth > DEEPEST) return null;
  const made = document.createElementNS("http://www.w3.org/1998/Math/MathML", node.localName);
  for (const { name, value } of node.attributes) {
    if (ATTRIBUTES.has(name) && /^(?:[a-z-]{1,20}|[+-]?\d|\d?(?:\.\d+)?[a-z]{2})$/.test(value)) made.setAttribute(name, value);
    if (name === "style" && value.includes("border:1px solid")) made.classList.add("boxed");
    if (name === "class" && /^tml-(?:left|right)$/.test(value)) made.classList.add(value.slice(4));
  }
  for (const child of node.childNodes) {
    const inner = build(child, depth + 1);
    if (inner === null) return null;
    made.append(inner);
  }
  return made;
}

const formulas = new Map(), jobs = [];
let worker = null, isBusy = false;
function mathml(source, display) { // a text, null where it cannot be read, or a promise of these
  const name = `${display} ${source}`;
  if (formulas.size > 5000) formulas.clear();
  if (!formulas.has(name)) {
    formulas.set(name, new Promise((done) => { jobs.push({ source, display, done: (made) => { formulas.set(name, made); done(made); } }); }));
    work();
  }
  return formulas.get(name);
}

async function work() {
  if (isBusy || !jobs.length) return;
  isBusy = true;
  worker ??= new Promise((ready) => {
    const started = new Worker("static/mathematics.js");
    started.onmessage = () => ready(started);
    started.onerror = () => ready(null);
  });
  const able = await worker, { source, display, done } = jobs.shift();
  const made = able && await new Promise((end) => {
    const limit = setTimeout(() => { able.terminate(); worker = null; end(null); }, LIMIT);
    able.onmessage = ({ data }) => { clearTimeout(limit); end(data?.length > SMALLEST + GROWTH * source.length ? null : data); };
    able.postMessage({ source, display });
  });
  done(made);
  isBusy = false;
  work();
}

// ---- keys and controls
const acts = { // what a key does once
  z: undo, k: () => judge("skip"), c: () => $("note").focus(), "?": help,
};
const moves = {}; // what a held key does again
function keyButton(key, text, onclick) {
  const button = element("button", "", { type: "button", onclick });
  button.append(element("kbd", String(key)), said(element("span"), text));
  return button;
}

function start() {
  $("title").textContent = "";
  said($("title"), `${setup.data}${setup.person ? `, ${setup.person}` : ""}`);
  document.title = `${$("title").textContent} · guerdon annotate`;
  for (const word of setup.criteria ? [] : setup.judgements) {
    acts[keyOf(word)] = () => judge(word);
    $("judgements").append(Object.assign(keyButton(keyOf(word), labelOf(word), acts[keyOf(word)]), { title: ASIDE[word] ?? "", disabled: true }));
  }
  if (setup.criteria) {
    for (const digit of "123456789") acts[digit] = () => rate(Number(digit));
    acts.u = () => rate(null);
  }
  if (setup.kind === "episodes") {
    Object.assign(acts, { m: () => current && mark(), " ": () => current && play() });
    Object.assign(moves, { ArrowLeft: (by) => go(current.at - by), ArrowRight: (by) => go(current.at + by) });
  }
  if (setup.kind === "steps" || setup.criteria) for (const [name, by] of [["ArrowUp", -1], ["ArrowLeft", -1], ["ArrowDown", 1], ["ArrowRight", 1]]) moves[name] = () => chooseNext(by);
}

function help() {
  const words = setup.criteria ? [] : setup.judgements;
  const lines = words.map((word) => [keyOf(word), labelOf(word) + (word in ASIDE ? ` (${ASIDE[word]})` : "") + (keyOf(word) === "x" ? ": the chosen step is the first wrong one" : "")]);
  if (setup.kind === "steps") lines.push(["↑ ↓", "choose a step"]);
  if (setup.criteria) lines.push(["1 to 9", "a choice of the criterion; the next one follows, and with the last one the item is judged"], ["u", "this criterion cannot be told"], ["↑ ↓", "choose a criterion"]);
  if (setup.kind === "episodes") lines.push(["← →", "one row; with Shift ten"], ["Space", "play, pause"], ["m", "the row on screen is the moment of success; again: it is not"]);
  lines.push(["z", `take back the last ${setup.criteria ? "score" : "judgement"}, again the one before`], ["k", "skip: asked again at the end"], ["c", "write a note, Esc leaves it"], ["?", "this page"]);
  const list = element("dl"), into = $("help-view").querySelector("div");
  for (const [name, text] of lines) { const term = element("dt"); term.append(element("kbd", name)); list.append(term, element("dd", text)); }
  into.replaceChildren(list);
  if (setup.guideline) into.append(element("h2", "Guideline"), put(element("div", "", { className: "said" }), setup.guideline.text));
  $("help-view").showModal();
}

async function summary() {
  const into = $("summary-view").querySelector("div");
  into.replaceChildren(element("p", "Waiting for the server."));
  $("summary-view").showModal();
  const found = await asked("api/summary", null, FIGURES).catch((error) => ({ tables: [], reason: error.message }));
  into.replaceChildren(...(found.reason ? [said(element("p"), found.reason)] : []));
  for (const { title, note, columns, rows } of found.tables) {
    const table = element("table", "", { className: "text" }), box = element("div", "", { className: "scroll" });
    const line = (name, cells) => { const made = element("tr"); made.append(...cells.map((cell) => said(element(name), String(cell)))); return made; };
    table.append(said(element("caption"), note ? `${title}. ${note}` : title), line("th", columns), ...rows.map((cells) => line("td", cells)));
    box.append(table);
    into.append(box);
  }
  root.dataset.summary = "shown";
}

function keyName({ key, code, shiftKey }) { // where the layout has no such letter, the key at its place
  if (/^Key[A-Z]$/.test(code) && key.length === 1 && key > "\u007f") return code.slice(3).toLowerCase();
  if (/^Digit\d$/.test(code) && !shiftKey && !/^\w$/.test(key)) return code.slice(5);
  return key.length === 1 ? key.toLowerCase() : key;
}

document.addEventListener("keydown", (event) => {
  if (!setup || event.ctrlKey || event.altKey || event.metaKey || event.getModifierState("AltGraph") || event.isComposing || event.keyCode === 229) return;
  const key = keyName(event), isPress = key === "Enter" || key === " ", isControl = event.target.matches("button, input[type=checkbox]");
  if (event.target === $("note")) { if (key === "Escape") $("note").blur(); return; }
  if (isPress && isControl) { if (event.repeat) event.preventDefault(); return; } // a held key presses once
  const dialog = document.querySelector("dialog[open]");
  if (dialog) { if (key === "?" && !event.repeat) dialog.close(); return; }
  if (Object.hasOwn(moves, key)) {
    event.preventDefault();
    if (current) moves[key](event.shiftKey ? 10 : 1);
  } else if (Object.hasOwn(acts, key)) {
    event.preventDefault();
    if (!event.repeat) acts[key]();
  }
});

for (const [name, act] of Object.entries({ undo, skip: acts.k, help, summary })) $(name).onclick = act;
for (const button of document.querySelectorAll("dialog .close")) button.onclick = () => button.closest("dialog").close();
document.addEventListener("click", (event) => { if (event.detail) document.activeElement?.closest("button")?.blur(); }); // of a mouse: the next Space is not for this button
$("dismiss").onclick = () => { $("refused").hidden = true; $("refused").firstElementChild.replaceChildren(); };
$("formulas").onchange = () => { if (current) view(current); };

async function open() {
  while (!setup) {
    setup = await asked("api/setup").catch((error) => { away(error.message); });
    if (!setup) await pauseFor(AGAIN);
  }
  start();
  pending = restored();
  ask();
}
open();
