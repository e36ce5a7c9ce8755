// The details beside the picture: action log, elements, help.

const byId = (id) => document.getElementById(id);
const TABS = ["log", "elements", "help"];

function part(tag, text, className = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  if (className) node.className = className;
  return node;
}

export class Panel {
  constructor({ put, light }) {
    this.put = put;
    this.light = light;
    for (const name of TABS) {
      const tab = byId(`tab-${name}`);
      tab.addEventListener("click", () => this.choose(name));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: TABS.length - 1 }[event.key];
        if (step) this.choose(TABS[(TABS.indexOf(name) + step) % TABS.length], true);
      });
    }
  }

  choose(chosen, focus = false) {
    for (const name of TABS) {
      const tab = byId(`tab-${name}`), selected = name === chosen;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
      byId(`${name}-panel`).hidden = !selected;
      if (selected && focus) tab.focus();
    }
  }

  log(entries, fresh) {
    const list = byId("log");
    if (fresh) list.replaceChildren();
    for (const entry of entries) {
      const item = document.createElement("li"), text = part("button", entry.text || "(nothing)", "mono");
      text.type = "button";
      text.title = "Put it into the action line";
      text.addEventListener("click", () => this.put(entry.text));
      item.append(text, part("small", entry.error && !entry.duration_ms ? "" : `${entry.duration_ms} ms`));
      if (entry.result) item.append(part("span", entry.result, "result"));
      if (entry.error) item.append(part("span", entry.error, "error"));
      list.append(item);
    }
    byId("log-empty").hidden = list.children.length > 0;
    byId("num-log").textContent = list.children.length || "";
    byId("log-panel").scrollTop = byId("log-panel").scrollHeight;
  }

  elements(elements) {
    byId("num-elements").textContent = elements.length || "";
    byId("elements").replaceChildren(...elements.map((element) => {
      const item = document.createElement("li"), row = document.createElement("button"), text = document.createElement("span");
      row.type = "button";
      text.append(part("i", `${element.role} `), element.text, part("i", element.states.length ? ` ${element.states.join(", ")}` : ""));
      row.append(part("b", element.number), text);
      row.addEventListener("click", () => this.put(`click(${element.number})`));
      for (const [event, number] of [["pointerenter", element.number], ["focus", element.number], ["pointerleave", null], ["blur", null]]) {
        row.addEventListener(event, () => this.light(number));
      }
      item.append(row);
      return item;
    }));
  }

  help(hello) {
    byId("actions").replaceChildren(...hello.actions.flatMap((action) => [part("dt", action.signature), part("dd", action.help)]));
    const [first, past] = hello.demonstration_seeds;
    byId("seeds").textContent = `${first} to ${past - 1}`;
    byId("folder").textContent = hello.recordings;
  }
}
