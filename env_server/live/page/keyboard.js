// The keyboard on the picture: characters are collected into one `type`, everything else is a `key`.

const PAUSE_MS = 700;
const NAMES = {
  Enter: "enter", Tab: "tab", Escape: "esc", Backspace: "backspace", Delete: "delete", Insert: "insert", Home: "home", End: "end",
  PageUp: "pageup", PageDown: "pagedown", ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right",
  ContextMenu: "menu", " ": "space", "+": "plus", "-": "minus",
};
const LONE = new Set(["Control", "Shift", "Alt", "Meta", "AltGraph", "CapsLock", "NumLock", "ScrollLock", "Dead", "Process", "Unidentified"]);
const OURS = new Set(["F5", "F11", "F12"]);  // the browser's: nobody wants to lose them

export class Keyboard {
  // `begin` is called when a key was pressed, before anything is sent for it.
  constructor(canvas, { send, begin, leave }) {
    this.send = send;
    this.begin = begin;
    this.text = "";
    this.timer = 0;
    this.shown = document.getElementById("typing");
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "F8") {
        event.preventDefault();
        this.flush();
        leave();
      } else {
        this.press(event);
      }
    });
    canvas.addEventListener("blur", () => this.flush());
  }

  press(event) {
    if (event.isComposing || LONE.has(event.key) || OURS.has(event.key)) return;
    const altGraph = event.getModifierState("AltGraph");
    const held = !altGraph && (event.ctrlKey || event.altKey || event.metaKey);
    const printable = [...event.key].length === 1;
    if (event.ctrlKey && event.shiftKey && "IJC".includes(event.key.toUpperCase()) && printable) return;  // developer tools
    event.preventDefault();
    this.begin();
    if (printable && !held) this.collect(event.key);
    else if (event.key === "Backspace" && !held && this.text) this.set(this.text.slice(0, -1));
    else if (event.key === "Enter" && !held && !event.shiftKey && this.text) this.flush(true);
    else this.chord(event, held);
  }

  chord(event, held) {
    this.flush();
    const name = NAMES[event.key] ?? event.key.toLowerCase();
    const parts = [];
    if (held && event.ctrlKey) parts.push("ctrl");
    if (held && event.altKey) parts.push("alt");
    if (held && event.metaKey) parts.push("super");
    if (event.shiftKey) parts.push("shift");
    this.send({ do: "key", keys: [...parts, name].join("+") });
  }

  collect(character) {
    this.set(this.text + character);
  }

  set(text) {
    this.text = text;
    clearTimeout(this.timer);
    if (text) this.timer = setTimeout(() => this.flush(), PAUSE_MS);
    this.shown.textContent = text;
    this.shown.hidden = text === "";
  }

  // Send what was typed so far; everything else that is sent comes after it.
  flush(enter = false) {
    const text = this.text;
    if (text === "") return;
    this.set("");
    this.send({ do: "type", text, enter });
  }
}
