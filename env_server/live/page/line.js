// The line for actions as an agent writes them, with completion and help from the action table.

const MAX_CHOICES = 12;
const byId = (id) => document.getElementById(id);

export class Line {
  constructor(send) {
    this.send = send;
    this.actions = [];
    this.history = [];
    this.past = null;
    this.active = -1;
    this.field = byId("line");
    this.list = byId("choices");
    this.field.addEventListener("input", () => { this.past = null; this.offer(); });
    this.field.addEventListener("focus", () => this.help());
    this.field.addEventListener("blur", () => this.close());
    this.field.addEventListener("keydown", (event) => this.press(event));
    byId("line-form").addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
  }

  know(actions) {
    this.actions = actions;
  }

  put(text) {
    this.field.value = text;
    this.close();
    this.help();
    this.field.focus();
  }

  run() {
    const text = this.field.value.trim();
    if (!text) return;
    this.send({ do: "act", text });
    if (this.history.at(-1) !== text) this.history.push(text);
    this.past = null;
    this.field.value = "";
    this.close();
    this.help();
  }

  // --- completion ----------------------------------------------------------------------------------------------

  offer() {
    const text = this.field.value;
    const word = text.trim().toLowerCase();
    const fits = text.includes("(") || word === "" ? [] : this.actions.filter((action) => action.name.includes(word));
    fits.sort((a, b) => a.name.indexOf(word) - b.name.indexOf(word));
    this.list.replaceChildren(...fits.slice(0, MAX_CHOICES).map((action, index) => this.choice(action, index)));
    this.activate(fits.length ? 0 : -1);
    this.list.hidden = fits.length === 0;
    this.field.setAttribute("aria-expanded", String(fits.length > 0));
    this.help();
  }

  choice(action, index) {
    const item = document.createElement("li"), name = document.createElement("span"), help = document.createElement("small");
    item.id = `choice-${index}`;
    item.setAttribute("role", "option");
    item.dataset.name = action.name;
    name.className = "mono";
    name.textContent = action.signature;
    help.textContent = action.help;
    item.append(name, help);
    item.addEventListener("pointerdown", (event) => { event.preventDefault(); this.accept(index); });
    return item;
  }

  activate(index) {
    this.active = index;
    [...this.list.children].forEach((item, its) => item.setAttribute("aria-selected", String(its === index)));
    if (index >= 0) {
      this.field.setAttribute("aria-activedescendant", `choice-${index}`);
      this.list.children[index].scrollIntoView({ block: "nearest" });
    } else {
      this.field.removeAttribute("aria-activedescendant");
    }
  }

  accept(index) {
    const action = this.actions.find((known) => known.name === this.list.children[index].dataset.name);
    const bare = action.signature.endsWith("()");
    this.put(bare ? action.signature : `${action.name}(`);
  }

  close() {
    this.list.hidden = true;
    this.active = -1;
    this.field.setAttribute("aria-expanded", "false");
    this.field.removeAttribute("aria-activedescendant");
  }

  press(event) {
    const open = !this.list.hidden, count = this.list.children.length;
    if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      this.activate((this.active + (event.key === "ArrowDown" ? 1 : count - 1)) % count);
    } else if (open && (event.key === "Enter" || event.key === "Tab") && this.active >= 0) {
      event.preventDefault();
      this.accept(this.active);
    } else if (open && event.key === "Escape") {
      this.close();
    } else if (!open && (event.key === "ArrowUp" || event.key === "ArrowDown")) {
      event.preventDefault();
      this.recall(event.key === "ArrowUp" ? -1 : 1);
    }
  }

  recall(step) {
    const at = (this.past ?? this.history.length) + step;
    if (at < 0 || at > this.history.length) return;
    this.past = at;
    this.field.value = this.history[at] ?? "";
    this.help();
  }

  help() {
    const name = this.field.value.split("(")[0].trim();
    const action = this.actions.find((known) => known.name === name);
    byId("line-help").textContent = action ? `${action.signature}: ${action.help}` : "";
  }
}
