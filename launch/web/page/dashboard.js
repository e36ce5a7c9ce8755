// The dashboard: asks for the state once a second and shows what changed. Texts go in as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
};
const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };

const EVERY_MS = 1000;
const SHOWN_MS = 2000;  // a picture is asked for at most so often, when many are seen
const CURVES_MS = 5000;  // learning is slower than desktops
let state = null, numRecords = null, curvesAt = -CURVES_MS, failures = 0, seen = new Set(), tiles = new Map(), opened = null;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

async function beat() {
  try {
    state = await ask("state.json");
    failures = 0;
    show();
    if (state.num_records !== numRecords && performance.now() - curvesAt >= CURVES_MS) {
      curvesAt = performance.now();
      await showCurves();
    }
    if (opened) await showDetail(opened);
  } catch (error) {
    failures += 1;
    showLost(error.message);
  }
  setTimeout(beat, EVERY_MS);
}

// The page of `train --dashboard` ends with its run, which is nothing to worry about.
function showLost(reason) {
  const isOver = state && (state.is_ended || state.goes_with_run);
  const ended = isOver && state.is_ended ? state.ended : "The run has ended, and this page's server with it.";
  say(isOver
    ? `${ended} Open its report: ${state.report} – or see this page again: computerrl dashboard ${state.name}`
    : `The dashboard does not answer (${reason}). What is shown is ${failures} s old; is \`computerrl dashboard\` still running?`);
  $("live").className = isOver ? "live" : "live is-lost";
  set($("live"), isOver ? "ended" : "not answering");
  if (isOver) { document.body.classList.add("is-ended"); $("to-report").hidden = true; }
}

function say(text) {
  $("lost").hidden = text === "";
  set($("lost"), text);
}

function show() {
  say(state.is_ended ? state.ended : "");
  document.body.classList.toggle("is-ended", state.is_ended);
  $("to-report").hidden = !state.has_report;
  document.title = `${state.name} – ComputerRL`;
  set($("name"), state.name);
  $("live").className = `live ${state.is_paused ? "is-paused" : state.is_live ? "is-live" : ""}`;
  set($("live"), state.is_ended ? "ended" : state.is_paused ? "paused" : state.is_live ? "live" : "not running");
  set($("phase"), state.is_ended ? "" : [state.phase, state.note || state.reason].filter(Boolean).join(" – "));
  showTiles();
  if (state.is_ended) return;
  showWall();
  showFlow();
  table($("peers"), ["process", "state", "host", "pid", "restarts", "doing"],
    state.processes.map((row) => [row.name, row.state, row.host, row.pid ?? "", row.restarts, row.note]));
  showControls();
}

function showTiles() {
  const place = $("tiles");
  while (place.children.length > state.tiles.length) place.lastChild.remove();
  while (place.children.length < state.tiles.length) place.append(make("div", { className: "tile" }, make("b"), make("span"), make("span")));
  state.tiles.forEach((row, index) => {
    const [value, title, remark] = place.children[index].children;
    set(value, row.value); set(title, row.title); set(remark, row.remark);
  });
}

// --- desktops -----------------------------------------------------------------------------------------------------------

const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) seen.add(entry.target.dataset.id); else seen.delete(entry.target.dataset.id);
  }
  showPictures();
}, { rootMargin: "100px" });

function wanted(row) {
  const which = $("which").value;
  const fits = which === "" || row.state === which || (which === "unwell" && (row.state === "broken" || row.state === "quarantined"));
  return fits && row.task.toLowerCase().includes($("task").value.toLowerCase());
}

function showWall() {
  const place = $("wall"), counts = {}, there = new Set();
  for (const row of state.desktops) {
    counts[row.state] = (counts[row.state] || 0) + 1;
    there.add(row.id);
    let tile = tiles.get(row.id);
    if (!tile) {
      tile = make("button", { className: "desktop" }, make("img", { alt: "", hidden: true }), make("div", { className: "noshot" }),
        make("div", {}, make("span", { className: "badge" }), make("b"), make("div", { className: "soft" }), make("div", { className: "mono" })), make("span"));
      tile.dataset.id = row.id;
      tile.addEventListener("click", () => open(row.id));
      tiles.set(row.id, tile);
      place.append(tile);
      sight.observe(tile);
    }
    const isWanted = wanted(row);
    if (tile.hidden === isWanted) { tile.hidden = !isWanted; tile.style.display = isWanted ? "" : "none"; }
    if (tile.row && ["state", "task", "steps", "action", "picture", "why", "reward", "places"].every((key) => String(tile.row[key]) === String(row[key]))) continue;
    tile.row = row;
    const [badge, task, where, action] = tile.children[2].children;
    badge.className = `badge ${row.state}`;
    set(badge, row.state);
    set(task, row.task || "no task yet");
    set(where, `desktop ${row.id}${row.holder ? `, ${row.holder}` : ""}, step ${row.steps}${row.reward === null ? "" : `, reward ${row.reward}`}`);
    set(action, row.why || row.action || "–");
    tile.setAttribute("aria-label", `desktop ${row.id}: ${row.task || "no task"}, ${row.state}`);
  }
  for (const [id, tile] of tiles) if (!there.has(id)) { sight.unobserve(tile); tile.remove(); tiles.delete(id); seen.delete(id); }
  const words = Object.entries(counts).map(([name, count]) => `${count} ${name}`);
  set($("counts"), state.desktops.length ? `${state.desktops.length} desktops: ${words.join(", ")}` : state.is_live ? "no env_server has answered yet" : "desktops are shown while the run is under way");
  showPictures();
}

// What a tile's picture shows: a screen, and where the last action pointed.
const shownAs = (row) => `${row.picture} ${row.places}`;

function showPictures() {
  const now = performance.now();
  for (const id of seen) {
    const tile = tiles.get(id);
    if (!tile || !tile.row || !tile.row.picture || tile.shown === shownAs(tile.row) || tile.loading) continue;
    if (seen.size > 30 && now - (tile.shownAt || -SHOWN_MS) < SHOWN_MS) continue;
    const row = tile.row, image = new Image();
    tile.loading = true;
    tile.shownAt = now;
    image.onload = () => { tile.loading = false; tile.shown = shownAs(row); tile.children[3].replaceChildren(marksOf(row.places, ...row.size)); tile.children[0].src = image.src; tile.children[0].hidden = false; tile.children[1].hidden = true; tile.children[1].style.display = "none"; };
    image.onerror = () => { tile.loading = false; };
    image.src = `thumb/${row.picture}`;
  }
}

async function open(id) {
  opened = id;
  $("detail").replaceChildren(make("p", { className: "soft", textContent: "asking the desktop…" }));
  if (!$("one").open) $("one").showModal();
  await showDetail(id);
}

let detailShown = "";
async function showDetail(id) {
  let row;
  try { row = await ask(`desktop/${id}`); } catch (error) { row = { id, gone: error.message }; }
  const text = JSON.stringify(row);
  if (opened !== id || text === detailShown && $("detail").querySelector("h3")) return;
  detailShown = text;
  const hadOverlay = $("overlay") ? $("overlay").checked : true;
  const close = make("button", { textContent: "Close", onclick: () => $("one").close() });
  if (row.gone) return $("detail").replaceChildren(make("h3", { textContent: `Desktop ${id}` }), make("p", { textContent: row.gone }), close);
  const screen = make("div", { className: hadOverlay ? "screen" : "screen plain" });
  if (row.picture) {
    screen.append(make("img", { src: `shot/${row.picture}`, alt: `what desktop ${id} shows` }), marksOf(row.places, ...row.size));
    for (const one of row.elements) {
      const box = make("div", { className: "box", title: `${one.role} ${one.text}` }, make("b", { textContent: one.number }));
      Object.assign(box.style, {
        left: `${(one.x - one.width / 2) / row.size[0] * 100}%`, top: `${(one.y - one.height / 2) / row.size[1] * 100}%`,
        width: `${one.width / row.size[0] * 100}%`, height: `${one.height / row.size[1] * 100}%`,
      });
      screen.append(box);
    }
  } else screen.append(make("p", { className: "soft", textContent: "it has shown nothing yet" }));
  const overlay = make("input", { type: "checkbox", id: "overlay", checked: hadOverlay, onchange: (event) => screen.classList.toggle("plain", !event.target.checked) });
  const facts = make("dl");
  const fact = (name, value, mono) => facts.append(make("dt", { textContent: name }), make("dd", { textContent: value || "–", className: mono ? "mono" : "" }));
  fact("task", row.task); fact("instruction", row.instruction); fact("held by", row.holder); fact("step", String(row.steps));
  fact("what the model said", row.completion, true); fact("action", row.action, true);
  if (row.error) fact("what went wrong", row.error);
  if (row.why) fact("why it broke", row.why);
  fact("reward", row.reward === null ? "not judged yet" : String(row.reward));
  const tree = make("pre", { textContent: row.elements.map((one) => `${one.number}  ${one.role}  ${one.text}${one.states.length ? `  [${one.states.join(", ")}]` : ""}`).join("\n") });
  $("detail").replaceChildren(
    make("div", { className: "row" }, make("h3", { textContent: `Desktop ${id}, ${row.state}` }), make("label", {}, overlay, " tree on the picture"), close),
    make("div", { className: "split" }, screen, make("div", {}, facts, make("details", {}, make("summary", { textContent: `tree, ${row.elements.length} elements` }), tree))));
}
$("one").addEventListener("close", () => { const tile = tiles.get(opened); opened = null; detailShown = ""; if (tile) tile.focus(); });
$("which").addEventListener("change", () => state && showWall());
$("task").addEventListener("input", () => state && showWall());

// --- learning, flow -----------------------------------------------------------------------------------------------------

// Charts come as SVG, drawn and escaped by launch/charts.py, and are read as such: what is no picture does not get in.
const readPicture = (text) => document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);

function figures(place, rows) {
  while (place.children.length > rows.length) place.lastChild.remove();
  while (place.children.length < rows.length) place.append(make("figure", {}, make("h3"), make("figcaption"), make("div")));
  rows.forEach((row, index) => {
    const [title, caption, chart] = place.children[index].children;
    set(title, row.title); set(caption, row.caption || "");
    if (chart.drawn === row.figure) return;
    chart.drawn = row.figure;
    chart.replaceChildren(readPicture(row.figure));
  });
}

async function showCurves() {
  const found = await ask(`curves.json?have=${numRecords}`);
  if (!found) return;
  numRecords = found.num_records;
  figures($("charts"), found.charts);
  figures($("families"), found.families);
  document.body.classList.toggle("without-curves", found.charts.length === 0);
  $("no-curves").hidden = found.charts.length > 0;
}

function table(place, titles, rows) {
  const key = JSON.stringify(rows);
  if (place.key === key) return;
  place.key = key;
  const head = make("tr", {}, ...titles.map((title) => make("th", { textContent: title, scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...row.map((value) => make("td", { textContent: value ?? "–" }))));
  place.replaceChildren(...(titles.length ? [head] : []), ...body);
}

function showFlow() {
  const flow = state.flow;
  const key = JSON.stringify(flow.time);
  if ($("time").key !== key) {
    $("time").key = key;
    $("time").replaceChildren(...flow.time.filter((row) => row.shares.length).flatMap((row) => [
      make("p", { className: "soft", textContent: row.who }),
      make("div", { className: "bar", role: "img", ariaLabel: row.shares.map((part) => `${part.name} ${Math.round(part.share * 100)} %`).join(", ") },
        ...row.shares.map((part, index) => { const piece = make("i", { className: `c${index}`, title: part.name }); piece.style.flex = part.share; return piece; })),
      make("div", { className: "keys" }, ...row.shares.map((part, index) => make("span", {}, make("i", { className: `c${index}` }), `${part.name} ${Math.round(part.share * 100)} %`))),
    ]));
  }
  table($("queues"), [], flow.queues.map((row) => [row.name, row.value]));
  table($("drops"), [], flow.drops.length ? flow.drops.map((row) => [row.reason, row.count]) : [["none", ""]]);
  set($("bias"), `How far what is trained lies from what was submitted, 0 to 1: ${flow.bias.map((row) => `${row.name} ${row.value}`).join(", ")}`);
  table($("weights"), [], flow.weights.map((row) => [row.name, row.value]));
}

// --- controls -----------------------------------------------------------------------------------------------------------

let chosen = null;
function showControls() {
  const place = $("buttons");
  while (place.children.length < state.controls.length) {
    const button = make("button");
    button.addEventListener("click", () => confirmControl(button.row));
    place.append(button);
  }
  state.controls.forEach((row, index) => {
    const button = place.children[index];
    button.row = row;
    button.id = `do-${row.name}`;
    set(button, row.title);
    button.className = row.is_grave ? "grave" : "";
    button.disabled = row.refusal !== "";
    button.title = row.refusal || row.consequence;
  });
  table($("pressed"), state.pressed.length ? ["when", "control", "by", "phase"] : [],
    state.pressed.map((row) => [new Date(row.time * 1000).toLocaleString(), row.control, row.by, row.phase]));
}

function confirmControl(row) {
  chosen = row;
  set($("what"), `${row.title}?`);
  set($("consequence"), row.consequence);
  $("sure").showModal();
}
$("cancel").addEventListener("click", () => $("sure").close());
$("yes").addEventListener("click", async () => {
  $("sure").close();
  const answer = await fetch(`control/${chosen.name}`, { method: "POST" });
  const said = await answer.json();
  set($("answer"), said.done ? `${chosen.title}: asked for. ${said.done}` : `${chosen.title} was refused: ${said.refused}`);
});

beat();
