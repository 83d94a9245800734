// The page reads well without this script; it adds the switches, the readouts and the video scrubbers.
const root = document.documentElement;
window.addEventListener("error", (event) => { root.dataset.error = event.message; });

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// ---- switches: mean or IQM, steps or wall-clock
const curves = document.getElementById("curves");
for (const input of curves ? all(".switches input", curves) : []) {
  input.addEventListener("change", () => { curves.dataset[input.name] = input.value; rest(); });
}

// ---- readouts: the value of every arm under the pointer
const pathPoints = (path) => path.getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(Number));

function at(points, x) {
  if (x < points[0][0] - 0.5 || x > points[points.length - 1][0] + 0.5) return null;
  const i = Math.max(1, points.findIndex(([px]) => px >= x));
  const [a, b] = [points[i - 1], points[Math.min(i, points.length - 1)]];
  return b[0] === a[0] ? b[1] : a[1] + (b[1] - a[1]) * Math.min(1, Math.max(0, (x - a[0]) / (b[0] - a[0])));
}

const count = curves ? curves.dataset.count : "steps";

function short(value, unit) {
  if (unit) return value.toFixed(value < 10 ? 1 : 0) + " " + unit;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (value >= size) return +(value / size).toPrecision(3) + letter + " " + count;
  }
  return Math.round(value) + " " + count;
}

function say(readout, when, pairs, digits) {
  readout.textContent = when;
  for (const [arm, value] of pairs) {
    const bold = document.createElement("b");
    bold.textContent = arm;
    readout.append("\u2003", bold, " " + (value === null ? "no value" : value.toFixed(digits)));
  }
}

function readOut(chart) {
  const readout = chart.closest("figure").querySelector(".readout");
  const lines = all(".line", chart).map((path) => [path.dataset.arm, pathPoints(path)]);
  if (!readout || !lines.length) return;
  const [[x0, x1], [y0, y1]] = [chart.dataset.x, chart.dataset.y].map((pair) => pair.split(" ").map(Number));
  const [left, right, top, bottom] = chart.dataset.box.split(" ").map(Number);
  const value = (y) => y === null ? null : y0 + (bottom - y) / (bottom - top) * (y1 - y0);
  // a path has tenths of a pixel: no more digits than these tell apart
  const digits = Math.min(2, Math.max(0, Math.floor(-Math.log10((y1 - y0) / (bottom - top) / 10))));
  const guide = chart.querySelector(".axis").cloneNode();
  guide.setAttribute("class", "guide");
  guide.removeAttribute("d");
  chart.append(guide);
  chart.rest = () => say(readout, "At the end:", lines.map(([arm, p]) => [arm, value(p[p.length - 1][1])]), digits);
  chart.addEventListener("pointermove", (event) => {
    const rect = chart.getBoundingClientRect();
    const x = (event.clientX - rect.left) / rect.width * chart.viewBox.baseVal.width;
    if (x < left || x > right) return;
    guide.setAttribute("d", `M${x} ${top}V${bottom}`);
    const when = short(x0 + (x - left) / (right - left) * (x1 - x0), chart.parentElement.dataset.unit);
    say(readout, `At ${when}:`, lines.map(([arm, points]) => [arm, value(at(points, x))]), digits);
  });
  chart.addEventListener("pointerleave", () => { guide.removeAttribute("d"); chart.rest(); });
}

// Only the charts that the switches leave visible speak.
function rest() {
  for (const chart of all("svg.curves")) {
    if (chart.rest && chart.getClientRects().length) chart.rest();
  }
}
all("svg.curves").forEach(readOut);
rest();

// ---- videos: the scrubber moves through the frames; #video-2-frame-5 links to one of them
function setUp(video) {
  const thumbs = all(".strip li", video);
  const [slider, screen, output] = ["input", ".screen img", "output"].map((part) => video.querySelector(part));
  const [badge, cursor, button] = [".badge", ".cursor", "button"].map((part) => video.querySelector(part));
  let timer = null;
  const show = (index) => {
    const thumb = thumbs[index];
    const picture = thumb.querySelector("img");
    screen.src = picture.src;
    screen.alt = picture.alt;
    output.textContent = `row ${thumb.dataset.row}: ${thumb.dataset.text}`;
    badge.hidden = !thumb.classList.contains("won");
    cursor.setAttribute("d", cursor.getAttribute("d").replace(/^M[-\d.]+/, "M" + thumb.dataset.x));
    slider.value = index;
    slider.setAttribute("aria-valuetext", output.textContent);
    thumbs.forEach((other, i) => other.classList.toggle("now", i === index));
    const strip = thumb.parentElement;
    strip.scrollLeft = thumb.offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
    video.dataset.frame = index;
  };
  const stop = () => { clearInterval(timer); timer = null; button.textContent = "Play"; };
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  thumbs.forEach((thumb, i) => thumb.addEventListener("click", () => { stop(); show(i); }));
  button.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    if (Number(slider.value) === thumbs.length - 1) show(0);
    button.textContent = "Pause";
    timer = setInterval(() => {
      const next = Number(slider.value) + 1;
      if (next >= thumbs.length) stop(); else show(next);
    }, 180);
  });
  video.show = show;
  video.isPlaying = () => timer !== null;
  show(0);
}

function follow() {
  const link = /^#(video-\d+)-frame-(\d+)$/.exec(location.hash);
  const video = link && document.getElementById(link[1]);
  if (!video) return;
  video.show(Math.min(Number(link[2]), all(".strip li", video).length - 1));
  video.scrollIntoView();
}

all(".video").forEach(setUp);

// ---- the picture of the task at the top plays the frames of its video
function setUpTask(figure) {
  const frames = all(`#${figure.dataset.video} .strip img`);
  const [picture, button] = ["img", "button"].map((part) => figure.querySelector(part));
  const still = picture.src;
  let timer = null;
  const stop = () => { clearInterval(timer); timer = null; picture.src = still; button.textContent = "Play"; };
  button.hidden = frames.length < 2;
  button.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    let next = 0;
    button.textContent = "Stop";
    timer = setInterval(() => { if (next < frames.length) picture.src = frames[next++].src; else stop(); }, 180);
  });
  figure.isPlaying = () => timer !== null;
}
all(".task[data-video]").forEach(setUpTask);

// ---- what the reader chose, for the page of a study that goes on
function partsBySection(selector, use) {
  for (const section of all("main section")) all(selector, section).forEach((part, i) => use(`${section.id} ${i}`, part));
}
live.isBusy = () => all(".video, .task").some((figure) => figure.isPlaying && figure.isPlaying());
live.keep = () => {
  const kept = { open: {}, checked: {}, frames: {} };
  partsBySection("details", (name, part) => { kept.open[name] = part.open; });
  partsBySection(".switches input", (name, input) => { kept.checked[name] = input.checked; });
  for (const video of all(".video")) kept.frames[video.id] = Number(video.dataset.frame);
  return kept;
};
function restore(kept) {
  partsBySection("details", (name, part) => { if (name in kept.open) part.open = kept.open[name]; });
  partsBySection(".switches input", (name, input) => { if (kept.checked[name] && !input.checked) input.click(); });
  for (const video of all(".video")) {
    if (video.id in kept.frames) video.show(Math.min(kept.frames[video.id], all(".strip li", video).length - 1));
  }
  backTo(kept.page);
}
window.addEventListener("hashchange", follow);
if (history.state && history.state.kept) restore(history.state.kept);
else follow();

// ---- paper: open what is folded, so that it is printed
window.addEventListener("beforeprint", () => all("details").forEach((details) => { details.open = true; }));

root.dataset.ready = "true";
