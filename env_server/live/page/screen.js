// The live picture: draws what comes, outlines elements, and turns mouse and touch into commands.

import { elementAt } from "./pointing.js";

const DOUBLE_CLICK_MS = 230;
const DOUBLE_CLICK_PIXELS = 8;
const LONG_PRESS_MS = 500;
const CLICK_SLACK = 6;   // CSS pixels: more is a drag
const WHEEL_STEP = 50;   // of deltaY: less is the trembling of a touch pad
const WHEEL_PAUSE_MS = 150;
const BUTTONS = ["left", "middle", "right"];

const byId = (id) => document.getElementById(id);

export class Screen {
  // `begin` is called when something is done with the pointer, before it is known what.
  constructor({ send, begin }) {
    this.send = send;
    this.begin = begin;
    this.canvas = byId("canvas");
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.elements = [];
    this.boxes = new Map();
    this.drawing = Promise.resolve();
    this.down = null;
    this.pointer = null;
    this.pendingClick = null;
    this.wheel = { x: 0, y: 0, after: 0 };
    this.showElements = byId("show-elements");
    this.showElements.addEventListener("change", () => this.showOverlay());
    this.listen();
    this.showOverlay();
  }

  size(width, height) {
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
  }

  // One part of a frame: left, top, width, height, then WebP. Decoding takes its time, so parts are drawn in turn.
  part(buffer) {
    const view = new DataView(buffer);
    const left = view.getUint16(0), top = view.getUint16(2);
    const decoded = createImageBitmap(new Blob([new Uint8Array(buffer, 8)], { type: "image/webp" }));
    this.drawing = this.drawing.then(async () => {
      const bitmap = await decoded;
      this.context.drawImage(bitmap, left, top);
      bitmap.close();
    }).catch((error) => console.error(error));
  }

  // --- elements ------------------------------------------------------------------------------------------------

  show(elements) {
    this.elements = elements;
    const overlay = byId("overlay"), { width, height } = this.canvas;
    this.boxes = new Map();
    overlay.replaceChildren(...elements.map((element) => {
      const box = document.createElement("div"), label = document.createElement("span");
      box.className = element.in_content ? "box" : "box frame";
      box.style.left = `${100 * (element.x - element.width / 2) / width}%`;
      box.style.top = `${100 * (element.y - element.height / 2) / height}%`;
      box.style.width = `${100 * element.width / width}%`;
      box.style.height = `${100 * element.height / height}%`;
      label.textContent = element.number;
      box.append(label);
      this.boxes.set(element.number, box);
      return box;
    }));
    this.showOverlay();
  }

  showOverlay() {
    byId("overlay").hidden = !this.showElements.checked;
    byId("tip").hidden = true;
    if (this.pointer !== null) this.tip();
  }

  // Light one element up, also when the outlines are hidden; null: none.
  light(number) {
    for (const [its, box] of this.boxes) box.classList.toggle("lit", its === number);
    const alone = number !== null && !this.showElements.checked;
    byId("overlay").hidden = !this.showElements.checked && !alone;
    for (const [its, box] of this.boxes) box.hidden = alone && its !== number;
  }

  // What lies under the resting pointer.
  tip() {
    if (!this.showElements.checked) return;
    const at = this.pointer, place = this.place(at), element = elementAt(this.elements, place.x, place.y);
    this.light(element ? element.number : null);
    const tip = byId("tip");
    tip.hidden = element === null;
    if (element === null) return;
    const role = document.createElement("i"), text = document.createElement("b"), rest = document.createElement("i");
    role.textContent = `${element.number} · ${element.role} `;
    text.textContent = element.text;
    rest.textContent = element.states.length ? ` ${element.states.join(", ")}` : "";
    tip.replaceChildren(role, text, rest);
    const stage = byId("stage").getBoundingClientRect();
    const left = Math.min(at.clientX - stage.left + 14, stage.width - tip.offsetWidth - 4);
    const below = at.clientY - stage.top + 18;
    const fits = below + tip.offsetHeight < stage.height;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${fits ? below : Math.max(4, below - tip.offsetHeight - 30)}px`;
  }

  // --- mouse and touch -----------------------------------------------------------------------------------------

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = (at, length, pixels) => Math.max(0, Math.min(pixels - 1, Math.floor(at * pixels / length)));
    return {
      x: scale(event.clientX - box.left, box.width, this.canvas.width),
      y: scale(event.clientY - box.top, box.height, this.canvas.height),
    };
  }

  exact() {
    return byId("exact").checked;
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("contextmenu", (event) => event.preventDefault());
    canvas.addEventListener("pointerdown", (event) => {
      this.begin();
      canvas.focus({ preventScroll: true });
      if (event.pointerType === "mouse") {
        event.preventDefault();
        canvas.setPointerCapture(event.pointerId);
      }
      this.down = { x: event.clientX, y: event.clientY, place: this.place(event), at: event.timeStamp };
    });
    canvas.addEventListener("pointerup", (event) => this.release(event));
    canvas.addEventListener("pointercancel", () => { this.down = null; });
    canvas.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "mouse") return;
      this.pointer = { clientX: event.clientX, clientY: event.clientY };
      this.tip();
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      byId("tip").hidden = true;
      this.light(null);
    });
    canvas.addEventListener("wheel", (event) => this.turn(event), { passive: false });
  }

  release(event) {
    const down = this.down;
    this.down = null;
    if (down === null) return;
    const touch = event.pointerType !== "mouse";
    const moved = Math.hypot(event.clientX - down.x, event.clientY - down.y) > CLICK_SLACK;
    if (moved) {
      if (!touch && event.button === 0) {
        const to = this.place(event);
        this.sendAfter({ do: "drag", x: down.place.x, y: down.place.y, to_x: to.x, to_y: to.y, exact: this.exact() });
      }
      return;
    }
    const long = touch && event.timeStamp - down.at >= LONG_PRESS_MS;
    const button = long ? "right" : BUTTONS[event.button] ?? "left";
    if (event.shiftKey) this.sendAfter({ do: "hover", ...down.place, exact: this.exact() });
    else if (button === "left") this.leftClick(down.place);
    else this.sendAfter({ do: "click", ...down.place, button, exact: this.exact() });
  }

  // A click is held back until it cannot become a double click: an agent does one or the other.
  leftClick(place) {
    const before = this.pendingClick?.place;
    const again = before !== undefined && Math.hypot(before.x - place.x, before.y - place.y) < DOUBLE_CLICK_PIXELS;
    this.flush(again ? 2 : 1);
    if (!again) this.pendingClick = { place, timer: setTimeout(() => this.flush(), DOUBLE_CLICK_MS) };
  }

  // Send the click that is held back, if there is one.
  flush(count = 1) {
    if (this.pendingClick === null) return;
    const { place, timer } = this.pendingClick;
    clearTimeout(timer);
    this.pendingClick = null;
    this.send({ do: "click", ...place, count, exact: this.exact() });
  }

  sendAfter(command) {
    this.flush();
    this.send(command);
  }

  turn(event) {
    if (event.ctrlKey) return;  // the browser's own zoom
    event.preventDefault();
    const wheel = this.wheel;
    wheel.x += event.deltaX;
    wheel.y += event.deltaY;
    const vertical = Math.abs(wheel.y) >= Math.abs(wheel.x);
    const distance = vertical ? wheel.y : wheel.x;
    if (Math.abs(distance) < WHEEL_STEP || event.timeStamp < wheel.after) return;
    const direction = vertical ? (distance > 0 ? "down" : "up") : (distance > 0 ? "right" : "left");
    this.wheel = { x: 0, y: 0, after: event.timeStamp + WHEEL_PAUSE_MS };
    this.begin();
    this.sendAfter({ do: "scroll", ...this.place(event), direction, exact: this.exact() });
  }
}
