"use strict";
// ---- the page of work that goes on: how old it is, and read again from time to time, at the same place
function since(seconds) {
  for (const [size, name] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${name} ago`;
  return `${Math.max(0, Math.floor(seconds))} s ago`;
}

// A page's own script says what the reader chose, so that the page comes back to it, and whether it must stay now.
const live = { keep: () => ({}), isBusy: () => false };

// The section at the top of the window and how far it is from there: what stands above it may have grown.
function placeOfWindow() {
  const sections = [...document.querySelectorAll("main section")].filter((one) => one.getBoundingClientRect().top < 120);
  const section = sections[sections.length - 1];
  return section ? { section: section.id, top: section.getBoundingClientRect().top } : { section: "", top: window.scrollY };
}
function backTo(place) {
  const section = place.section && document.getElementById(place.section);
  const top = section ? window.scrollY + section.getBoundingClientRect().top - place.top : place.top;
  window.scrollTo({ top, behavior: "instant" });
}

const QUIET = 600; // seconds without a result after which the page says so
function readAgain(written) {
  history.scrollRestoration = "manual"; // the browser would come back to a height, and not to what stands there
  const opened = Date.now(), at = Date.parse(written.dateTime), quiet = document.getElementById("quiet");
  function look() {
    const age = (Date.now() - at) / 1000;
    written.textContent = since(age);
    if (quiet) {
      const rest = (Date.now() - Date.parse(quiet.dataset.changed)) / 1000;
      quiet.hidden = rest < Math.max(QUIET, 2 * Number(written.dataset.every));
      quiet.querySelector("b").textContent = since(rest);
    }
    const every = Math.max(Number(written.dataset.every), age / 10); // of work that rests, more and more rarely
    if ((Date.now() - opened) / 1000 < every) return;
    const plays = [...document.querySelectorAll("video")].some((video) => !video.paused);
    if (!getSelection().isCollapsed || plays || live.isBusy() || document.hidden) return;
    history.replaceState({ kept: { ...live.keep(), page: placeOfWindow() } }, "");
    location.reload();
  }
  look();
  setInterval(look, 1000);
}
if (document.getElementById("written")) readAgain(document.getElementById("written"));

