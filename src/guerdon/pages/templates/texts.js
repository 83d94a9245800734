"use strict";
// How pages show texts of data: they are only ever set as text.
const root = document.documentElement;
window.addEventListener("error", (event) => { root.dataset.error = event.message; });
window.addEventListener("unhandledrejection", (event) => { root.dataset.error = String(event.reason); });

const $ = (id) => document.getElementById(id);
const SHOWN_TOKENS = 4000;
const UNPRINTABLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/u;
const UNPRINTABLES = new RegExp(`(${UNPRINTABLE.source})`, "gu");

function element(name, text = "", properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== "") made.append(text);
  return made;
}

const named = (character) => `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

// A text in which characters that cannot be seen, or that turn the direction of writing, have a name.
function said(into, text) {
  text.split(UNPRINTABLES).forEach((part, i) => {
    if (i % 2) into.append(element("span", named(part), { className: "unprintable" }));
    else if (part) into.append(part);
  });
  return into;
}

const inLine = (text) => text.slice(0, 160).replace(/\s+/gu, " ").replace(UNPRINTABLES, (c) => `[${named(c)}]`).slice(0, 160);

function numeral(value) {
  if (value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return String(value).replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

// A conversation, or prompt and response, and the reference answer, where they are known, each below its heading; `put` writes a text into an element.
function texts(text, put = said) {
  const shown = [];
  const block = (name, content, className = "said") => { shown.push(said(element("h4"), name), put(element("div", "", { className }), content)); };
  const spoken = text.messages || [];
  for (const [role, content] of spoken) block(role, content, `said role-${role.replace(/\W/g, "")}`);
  if (!spoken.length) block("Prompt", text.prompt);
  if (text.tokens) shown.push(element("h4", "Response, each token with its reward"), tokens(text));
  else if (text.response !== undefined && (!spoken.length || spoken[spoken.length - 1][1] !== text.response)) block("Response", text.response);
  if (text.truth) block("Reference answer", text.truth);
  return shown;
}

function tokens(text) {
  const into = element("div", "", { className: "said" });
  const scale = text.values.reduce((most, value) => Math.max(most, Math.abs(value || 0)), 0);
  text.tokens.slice(0, SHOWN_TOKENS).forEach((token, i) => {
    const value = text.values[i];
    const level = value === null || value === undefined || !scale ? 0 : Math.round(5 * value / scale);
    into.append(said(element("i", "", { className: level ? `h${level}` : "", title: value === null || value === undefined ? "no reward" : numeral(value) }), token));
  });
  const more = Math.max(text.tokens.length - SHOWN_TOKENS, 0) + (text.more || 0);
  if (more) into.append(element("span", ` … ${more} more tokens`, { className: "none" }));
  into.append(element("div", `The strongest colour is ${numeral(scale)}; blue is above 0, orange below.`, { className: "none" }));
  return into;
}
