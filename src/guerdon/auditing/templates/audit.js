// The page reads well without this script; it adds the list of rows, whose texts are shown by texts.js.
const LINE = 30; // pixels of a line of the list
const SLICE = 20; // milliseconds of work before the browser may do something else
const KEPT = 32; // parts with texts that stay open
const SHOWN_GROUP = 200;

// ---- what the page carries: base64 of gzip, in script elements that no browser runs
function opened(id) {
  const packed = atob($(id).textContent);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

const pause = () => new Promise((done) => setTimeout(done));

async function start() {
  const about = await opened("about").json();
  const data = await opened("columns").arrayBuffer();
  const n = about.rows;
  const column = {};
  about.columns.forEach((name, i) => { column[name] = new Float64Array(data, 8 * n * i, n); });
  const none = new Float64Array(0);
  const get = (name, place) => (column[name] || none)[place];
  const placeOfText = new Int32Array(about.texts).fill(-1);
  for (let i = 0; i < n; i++) if (!Number.isNaN(column.text[i])) placeOfText[column.text[i]] = i;
  const group = column.group || column.episode;
  const marked = new Uint8Array(n); // rows of any finding
  const masks = about.findings.map(() => null);

  await pause();

  // ---- places: rows of the page, in ascending order of their numbers in the log
  function placeOf(row) {
    let low = 0, high = n;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (column.row[middle] < row) low = middle + 1; else high = middle;
    }
    return column.row[low] === row ? low : -1;
  }

  function maskOf(finding) {
    if (masks[finding] === null) {
      masks[finding] = new Uint8Array(n);
      for (const row of about.findings[finding].rows) {
        const place = placeOf(row);
        if (place >= 0) masks[finding][place] = marked[place] = 1;
      }
    }
    return masks[finding];
  }
  about.findings.forEach((_, finding) => maskOf(finding));

  // ---- texts: a part is opened when one of its rows is looked at, and the parts looked at last stay open
  const parts = new Map();
  function part(number) {
    const known = parts.get(number) || opened(`part-${number}`).json();
    parts.delete(number);
    parts.set(number, known);
    if (parts.size > KEPT) parts.delete(parts.keys().next().value);
    return known;
  }
  function partOf(text) {
    let low = 0, high = about.starts.length;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (about.starts[middle] <= text) low = middle; else high = middle;
    }
    return low;
  }
  async function textOf(place) {
    const text = column.text[place];
    if (Number.isNaN(text)) return null;
    const number = partOf(text);
    return (await part(number))[text - about.starts[number]];
  }

  // ---- which rows are in the list, and in which order
  await pause();
  const steps = column.step ? [...new Set(column.step)].filter((s) => !Number.isNaN(s)).sort((a, b) => a - b) : [];
  const list = $("list"), space = $("space"), detail = $("detail"), status = $("status");
  const control = (name) => $(name) || { value: "" };
  let view = new Int32Array(0), chosen = -1, found = null, searching = 0, onlyGroup = NaN, progress = "";

  function filtered() {
    const [low, high] = ["low", "high"].map((name) => ($(name).value === "" ? NaN : Number($(name).value)));
    const step = $("step") && Number($("step").value) ? steps[Number($("step").value) - 1] : NaN;
    const cut = control("truncated").value;
    const mask = $("finding").value === "" ? null : maskOf(Number($("finding").value));
    const fits = (i) => (mask === null || mask[i]) && (found === null || found[i])
      && (Number.isNaN(step) || column.step[i] === step) && !(column.reward[i] < low) && !(column.reward[i] > high)
      && ((Number.isNaN(low) && Number.isNaN(high)) || !Number.isNaN(column.reward[i]))
      && (cut === "" || column.truncated[i] === Number(cut)) && (Number.isNaN(onlyGroup) || group[i] === onlyGroup);
    const order = column[`order/${$("sort").value}`];
    const valued = order ? about.valued[$("sort").value] : n;
    const down = $("down").checked;
    const kept = new Int32Array(n);
    let count = 0;
    for (let k = 0; k < n; k++) {
      const at = down && k < valued ? valued - 1 - k : k; // rows without a value stay at the end
      const i = order ? order[at] : at;
      if (fits(i)) kept[count++] = i;
    }
    return kept.subarray(0, count);
  }

  function apply() {
    view = filtered();
    space.style.height = `${view.length * LINE}px`;
    const where = Number.isNaN(onlyGroup) ? "" : ", one group";
    status.textContent = `${view.length.toLocaleString("en")} of ${n.toLocaleString("en")} rows${where}${progress}`;
    draw();
  }

  // ---- the list: only the lines in sight exist
  const lines = [];
  function fresh() {
    const line = element("div", "", { className: "row-line" });
    line.setAttribute("role", "option");
    for (let i = 0; i < 6; i++) line.append(element("span"));
    line.addEventListener("click", () => choose(line.place));
    space.append(line);
    return line;
  }
  function draw() {
    const first = Math.max(0, Math.floor(list.scrollTop / LINE) - 4);
    const last = Math.min(view.length, first + Math.ceil(list.clientHeight / LINE) + 8);
    while (lines.length < last - first) lines.push(fresh());
    lines.forEach((line, k) => {
      const at = first + k;
      line.hidden = at >= last;
      if (line.hidden) { line.style.display = "none"; return; }
      const place = view[at];
      line.style.display = "";
      line.style.transform = `translateY(${at * LINE}px)`;
      line.setAttribute("aria-selected", place === chosen);
      line.setAttribute("aria-setsize", view.length);
      line.setAttribute("aria-posinset", at + 1);
      line.id = `line-${place}`;
      line.classList.toggle("marked", Boolean(marked[place]));
      if (line.place !== place) {
        line.place = place;
        const cells = ["row", "step", "reward", "truth", "length"].map((name) => numeral(get(name, place)));
        cells.forEach((text, i) => { line.children[i].textContent = text; });
        line.lastChild.textContent = get("truncated", place) ? "[truncated]" : "";
        textOf(place).then((text) => {
          if (text && line.place === place) line.lastChild.textContent = (get("truncated", place) ? "[truncated] " : "") + inLine(text.response);
        });
      }
    });
    if (chosen >= 0 && $(`line-${chosen}`)) list.setAttribute("aria-activedescendant", `line-${chosen}`);
    else list.removeAttribute("aria-activedescendant");
  }
  let waiting = false;
  list.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  });
  window.addEventListener("resize", draw);

  function intoSight(at) {
    if (at * LINE < list.scrollTop) list.scrollTop = at * LINE;
    else if ((at + 1) * LINE > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * LINE - list.clientHeight;
  }

  // ---- one row
  async function choose(place, scroll = false) {
    chosen = place;
    const row = column.row[place];
    history.replaceState(null, "", `#row=${row}`);
    if (scroll) intoSight(view.indexOf(place));
    draw();
    const text = await textOf(place);
    if (chosen !== place) return;
    const title = element("h3", "Row ");
    title.append(element("a", String(row), { href: `#row=${row}`, title: "link to this row" }));
    const file = about.files[get("file", place)];
    const facts = element("ul", "", { className: "facts" });
    const fact = (name, value) => { const item = element("li", `${name} `); item.append(element("b", value)); facts.append(item); };
    if (file !== undefined) fact("in", `${file}, line ${numeral(get("line", place))}`);
    for (const name of about.columns) {
      if (/^(row|file|line|text|group|order\/.*)$/.test(name)) continue;
      const value = column[name][place];
      if (name === "truncated" || name === "failed" || name === "done") { if (value) fact(name, "yes"); }
      else fact(name.replace(/^rewards\//, ""), numeral(value));
    }
    const names = about.findings.filter((_, i) => maskOf(i)[place]).map((one) => one.name);
    if (names.length) fact("findings", [...new Set(names)].join(", "));
    detail.replaceChildren(title, facts);
    for (const [of, name, line] of about.notes) if (of === row) detail.append(element("p", `${name}: ${line}`, { className: "notice" }));
    detail.append(...videosOf(place));
    detail.append(...groupOf(place));
    if (text === null) detail.append(element("p", about.texts ? "The text of this row is not on the page: texts are of a sample." : "The log has no texts.", { className: "lead" }));
    else detail.append(...texts(text));
    detail.scrollTop = 0;
    detail.dataset.row = row;
  }

  // ---- videos of an episode, at the time of the row; the next row of the same episode moves them there
  let players = { episode: NaN, figures: [] };
  function videosOf(place) {
    const episode = get("episode", place), clips = about.videos[episode] || [];
    if (players.episode !== episode) players = { episode, figures: clips.map(player) };
    clips.forEach(([, , start, stop, fps], i) => {
      const video = players.figures[i].querySelector("video");
      if (video) video.currentTime = Math.min(start + (get("frame", place) + 0.5) / fps, stop - 0.5 / fps); // in the middle of the frame
    });
    return players.figures;
  }
  function player([camera, address, start, stop]) {
    const file = `${address}#t=${start.toFixed(3)},${stop.toFixed(3)}`;
    const video = element("video", "", { src: file, controls: true, muted: true, preload: "metadata" });
    video.addEventListener("error", () => video.remove(), { once: true }); // the link stays
    const figure = element("figure", "", { className: "video" });
    figure.append(video, element("a", `video of the episode, ${camera}`, { href: file, target: "_blank" }));
    return figure;
  }

  function membersOf(place) {
    const members = [];
    if (group && !Number.isNaN(group[place])) for (let i = 0; i < n; i++) if (group[i] === group[place]) members.push(i);
    return members;
  }

  function groupOf(place) {
    const members = membersOf(place);
    if (members.length < 2) return [];
    const known = members.map((i) => column.reward[i]).filter((value) => !Number.isNaN(value));
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    const logged = Boolean(column.advantage), robots = !column.group;
    const head = element("h4", robots ? `Episode, ${members.length} steps ` : `Group, ${members.length} responses; advantages ${logged ? "as logged" : "are rewards minus the group's mean"} `);
    head.append(element("button", "only these rows", { type: "button", className: "group-filter", onclick: () => { onlyGroup = group[place]; top(); } }));
    const names = [["row", "row"], ...(robots ? [["frame", "frame"]] : []), ["reward", "reward"], ...(column.truth ? [["truth", "truth"]] : []), ...(column.second ? [["second", "second"]] : [])];
    const table = element("table");
    const top = element("tr");
    for (const [title] of names) top.append(element("th", title, { scope: "col" }));
    if (!robots) top.append(element("th", "advantage", { scope: "col" }));
    table.append(top);
    for (const i of members.slice(0, SHOWN_GROUP)) {
      const line = element("tr");
      if (i === place) line.setAttribute("aria-current", "true");
      for (const [, name] of names) {
        const cell = element("td");
        cell.append(name === "row" ? element("a", String(column.row[i]), { href: `#row=${column.row[i]}` }) : numeral(get(name, i)));
        line.append(cell);
      }
      if (!robots) line.append(element("td", numeral(logged ? column.advantage[i] : column.reward[i] - mean)));
      table.append(line);
    }
    const box = element("div", "", { className: "group" });
    box.append(table);
    if (members.length > SHOWN_GROUP) box.append(element("p", `${members.length - SHOWN_GROUP} more`, { className: "none" }));
    return [head, box];
  }

  // ---- search: part after part, a little at a time
  async function search(query) {
    const run = ++searching;
    if (query === "") { found = null; progress = ""; apply(); return; }
    const wanted = query.toLowerCase();
    const fits = (text) => text !== undefined && text.toLowerCase().includes(wanted);
    found = new Uint8Array(n);
    let since = performance.now(), shown = since;
    for (let number = 0; number < about.starts.length; number++) {
      const rows = await part(number);
      if (run !== searching) return;
      for (let k = 0; k < rows.length; k++) {
        const text = rows[k];
        if (fits(text.prompt) || fits(text.response) || fits(text.truth)) found[placeOfText[about.starts[number] + k]] = 1;
        if (performance.now() - since > SLICE) {
          await pause();
          if (run !== searching) return;
          since = performance.now();
        }
      }
      if (performance.now() - shown > 300) {
        progress = `, searched ${Math.round(100 * number / about.starts.length)} %`;
        apply();
        await pause();
        if (run !== searching) return;
        since = shown = performance.now();
      }
    }
    progress = about.texts < n ? ` (texts of ${about.texts.toLocaleString("en")} rows searched)` : "";
    apply();
    root.dataset.searched = query;
  }

  // ---- controls
  const top = () => { list.scrollTop = 0; apply(); };
  let typing = 0;
  $("query").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => { list.scrollTop = 0; search($("query").value.trim()); }, 150); });
  for (const name of ["finding", "truncated", "low", "high", "sort", "down"]) if ($(name)) $(name).addEventListener("input", top);
  function nameStep() {
    const at = Number($("step").value);
    $("step-name").textContent = at ? `step ${numeral(steps[at - 1])}` : "all steps";
  }
  if ($("step")) {
    $("step").max = steps.length;
    $("step").addEventListener("input", () => { nameStep(); top(); });
  }
  function reset() {
    for (const name of ["query", "finding", "truncated", "low", "high"]) if ($(name)) $(name).value = "";
    $("sort").value = "row";
    $("down").checked = false;
    if ($("step")) { $("step").value = 0; nameStep(); }
    onlyGroup = NaN;
    searching++;
    found = null;
    progress = "";
    top();
  }
  $("reset").addEventListener("click", reset);

  function move(by) {
    if (!view.length) return;
    const at = chosen < 0 ? -1 : view.indexOf(chosen);
    choose(view[Math.min(view.length - 1, Math.max(0, at < 0 ? 0 : at + by))], true);
  }
  function sideways(by) {
    const members = chosen < 0 ? [] : membersOf(chosen);
    const next = members[members.indexOf(chosen) + by];
    if (next !== undefined) choose(next, view.includes(next));
  }
  const page = () => Math.max(1, Math.floor(list.clientHeight / LINE) - 1);
  const keys = {
    ArrowDown: () => move(1), ArrowUp: () => move(-1), j: () => move(1), k: () => move(-1), PageDown: () => move(page()), PageUp: () => move(-page()),
    Home: () => move(-view.length), End: () => move(view.length), ArrowRight: () => sideways(1), ArrowLeft: () => sideways(-1),
    g: () => { if (chosen >= 0 && group) { onlyGroup = Number.isNaN(onlyGroup) ? group[chosen] : NaN; top(); } },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typed = /^(input|select|textarea)$/i.test(event.target.tagName);
    if (event.key === "/" && !typed) { event.preventDefault(); $("query").focus(); return; }
    if (event.key === "Escape" && event.target === $("query")) { list.focus(); return; }
    if ((event.target === list || event.target === detail) && Object.hasOwn(keys, event.key)) {
      if (event.target === detail && /^(Arrow(Up|Down)|Page|Home|End)/.test(event.key)) return; // they scroll it
      event.preventDefault();
      keys[event.key]();
    }
  });

  // ---- links: #row=17, #finding=length
  function follow() {
    const link = /^#(row|finding)=(.*)$/.exec(location.hash);
    if (!link) return;
    if (link[1] === "finding") {
      const number = about.findings.findIndex((one) => one.name === decodeURIComponent(link[2]));
      if (number < 0) return;
      reset();
      $("finding").value = number;
      top();
      if (view.length) choose(view[0]);
    } else {
      const place = placeOf(Number(link[2]));
      if (place < 0) { status.textContent = `row ${Number(link[2])} is not on this page`; return; }
      if (!view.includes(place)) reset();
      choose(place, true);
    }
    $("rows").scrollIntoView();
  }
  window.addEventListener("hashchange", follow);

  // ---- what a page that reloads itself keeps
  const chosenBy = ["query", "finding", "truncated", "low", "high", "sort", "step"];
  live.keep = () => ({
    values: chosenBy.filter($).map((name) => [name, name === "finding" && $(name).value !== "" ? about.findings[$(name).value].name : $(name).value]),
    down: $("down").checked, group: onlyGroup, row: chosen < 0 ? null : column.row[chosen], list: list.scrollTop, detail: detail.scrollTop,
  });
  async function restore(kept) {
    for (const [name, value] of kept.values) {
      if (!$(name)) continue;
      $(name).value = name === "finding" && value !== "" ? about.findings.findIndex((one) => one.name === value) : value;
      if ($(name).selectedIndex === -1) $(name).value = ""; // it is found no longer
    }
    $("down").checked = kept.down;
    onlyGroup = kept.group === null ? NaN : kept.group;
    if ($("step")) nameStep();
    await search($("query").value.trim());
    if (kept.row !== null && placeOf(kept.row) >= 0) await choose(placeOf(kept.row));
    list.scrollTop = kept.list;
    detail.scrollTop = kept.detail;
    draw();
    await pause(); // until the browser has laid the page out
    backTo(kept.page);
  }
  await pause();
  $("browser").hidden = false;
  const kept = history.state && history.state.kept;
  if (kept && kept.values) await restore(kept);
  else {
    apply();
    follow();
  }
  root.dataset.ready = "true";
}

if (!$("about")) {
  if (history.state && history.state.kept) backTo(history.state.kept.page);
  root.dataset.ready = "true";
} else if (typeof DecompressionStream === "undefined") root.dataset.error = "this browser has no DecompressionStream";
else start();
