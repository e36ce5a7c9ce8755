// Puts the page together: the connection, the state of the desktop, the task and its score.

import { Keyboard } from "./keyboard.js";
import { Line } from "./line.js";
import { Panel } from "./panel.js";
import { Screen } from "./screen.js";

const BUSY_SHOWN_MS = 150;  // what takes less is not worth a flicker
const RETRY_MS = [300, 1000, 3000];
const PILLS = { starting: "Starting", ready: "Ready", busy: "Working", broken: "Broken", closed: "Ended", lost: "No connection" };
const byId = (id) => document.getElementById(id);

let socket = null;
let retries = 0;
let state = { phase: "starting", task: null };
let busyTimer = 0;
let shownTask = "";

function send(command) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(command));
}

// In the order in which a person did things: what is still held back goes first.
function sendAfter(command) {
  screen.flush();
  keyboard.flush();
  send(command);
}

const screen = new Screen({ send, begin: () => keyboard.flush() });
const keyboard = new Keyboard(byId("canvas"), { send, begin: () => screen.flush(), leave: () => byId("line").focus() });
const line = new Line(sendAfter);
const panel = new Panel({ put: (text) => line.put(text), light: (number) => screen.light(number) });

// --- connection --------------------------------------------------------------------------------------------------

function connect() {
  const address = new URL("socket", location.href);
  address.protocol = "ws:";
  socket = new WebSocket(address);
  socket.binaryType = "arraybuffer";
  socket.addEventListener("message", (event) => {
    if (typeof event.data !== "string") return screen.part(event.data);
    const news = JSON.parse(event.data);
    return HANDLERS[news.kind](news);
  });
  socket.addEventListener("open", () => { retries = 0; });
  socket.addEventListener("close", () => {
    showPhase("lost");
    setTimeout(connect, RETRY_MS[Math.min(retries++, RETRY_MS.length - 1)]);
  });
}

const HANDLERS = {
  hello(hello) {
    screen.size(hello.width, hello.height);
    line.know(hello.actions);
    panel.help(hello);
    const apps = Map.groupBy ? Map.groupBy(hello.families, (family) => family.app) : new Map([["tasks", hello.families]]);
    byId("family").replaceChildren(...[...apps].map(([app, families]) => {
      const group = document.createElement("optgroup");
      group.label = app;
      group.append(...families.map((family) => {
        const option = new Option(family.name, family.name);
        option.title = family.description;
        return option;
      }));
      return group;
    }));
    shownTask = "";
  },
  state(news) {
    state = news;
    showState();
  },
  screen(news) {
    screen.show(news.elements);
    panel.elements(news.elements);
    byId("app").textContent = [news.app, news.title].filter(Boolean).join(" · ");
  },
  log(news) {
    panel.log(news.entries, news.fresh);
  },
  refused(news) {
    notice(news.reason);
  },
};

// --- state -------------------------------------------------------------------------------------------------------

function showState() {
  const chosen = `${state.choice[0]}:${state.choice[1]}`;
  if (chosen !== shownTask) {
    [byId("family").value, byId("seed").value] = state.choice;
    shownTask = chosen;
  }
  byId("instruction").textContent = state.instruction || (state.phase === "ready" ? "" : "…");
  showVerdict();
  showRecorded();
  if (state.saved) notice(`Saved: ${state.saved}`, true);
  else notice(state.phase === "broken" ? "" : state.reason);
  clearTimeout(busyTimer);
  if (state.phase === "ready" && state.busy) busyTimer = setTimeout(() => showPhase("busy"), BUSY_SHOWN_MS);
  else showPhase(state.phase);
}

function showRecorded() {
  const number = state.num_actions ?? 0;
  byId("recorded").textContent = number ? `${number} ${number === 1 ? "action" : "actions"} recorded` : "";
}

function showVerdict() {
  const verdict = byId("verdict");
  delete verdict.dataset.success;
  if (state.verdict) {
    verdict.dataset.success = state.verdict.success;
    verdict.textContent = `Score ${state.verdict.reward} · ${state.verdict.detail}`;
  } else {
    verdict.textContent = "";
  }
}

function notice(text, good = false) {
  const shown = byId("notice");
  shown.textContent = text;
  shown.dataset.good = good;
  shown.hidden = !text;
}

function showPhase(phase) {
  const pill = byId("pill");
  pill.dataset.state = phase;
  pill.textContent = phase === "ready" && state.finished ? "Task ended" : PILLS[phase];
  const usable = phase === "ready" || phase === "busy";
  for (const id of ["load", "again", "next", "score", "save", "run"]) byId(id).disabled = !usable;
  byId("save").disabled = !usable || state.num_actions === 0;
  const scrim = {
    starting: ["Starting the desktop", "This takes a few seconds."],
    broken: ["The desktop is broken", state.reason],
    closed: ["The desktop has ended", "Start it again with computerrl desktop."],
    lost: ["No connection", "computerrl desktop does not answer: it has been stopped, or the way to it is interrupted. Trying again."],
  }[phase];
  byId("scrim").hidden = !scrim;
  if (scrim) [byId("scrim-title").textContent, byId("scrim-text").textContent] = scrim;
  const restart = byId("restart");
  if (phase === "broken" && restart.hidden) setTimeout(() => restart.focus(), 0);
  restart.hidden = phase !== "broken";
}

// --- task --------------------------------------------------------------------------------------------------------

function choose(family, seed) {
  shownTask = "";
  send({ do: "choose", family, seed });
  byId("canvas").focus({ preventScroll: true });
}

byId("chooser").addEventListener("submit", (event) => {
  event.preventDefault();
  choose(byId("family").value, byId("seed").valueAsNumber);
});
byId("again").addEventListener("click", () => choose(...state.choice));
byId("next").addEventListener("click", () => choose(byId("family").value, byId("seed").valueAsNumber + 1));
byId("score").addEventListener("click", () => sendAfter({ do: "score" }));
byId("save").addEventListener("click", () => sendAfter({ do: "save" }));
byId("restart").addEventListener("click", () => send({ do: "restart" }));
byId("text-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("text");
  if (field.value) sendAfter({ do: "type", text: field.value, enter: false });
  field.value = "";
});
byId("keys").addEventListener("click", (event) => {
  const keys = event.target.closest("[data-keys]")?.dataset.keys;
  if (keys) sendAfter({ do: "key", keys });
});

connect();
