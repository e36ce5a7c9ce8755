// The list of stored episodes with its filters, and one or two of them above it. What is shown is in the address: #id=…&beside=…
"use strict";

const $ = (id) => document.getElementById(id);
const form = $("filter");
let start = 0, total = 0;

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

async function list() {
  const query = new URLSearchParams(new FormData(form));
  query.set("start", start);
  let found;
  try { found = await ask(`episodes.json?${query}`); } catch (error) { $("total").textContent = error.message; return; }
  total = found.total;
  for (const [name, values] of Object.entries(found.choices)) {
    const select = form.elements[name], before = select.value;
    if (select.options.length !== values.length + 1) {
      select.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(value.replaceAll("_", " "), value)));
      select.value = before;
    }
  }
  const last = Math.min(total, start + found.rows.length);
  $("total").textContent = total ? `${start + 1} to ${last} of ${total}${total === found.of ? "" : `, ${found.of} in all`}` : found.of ? "none of them fits" : "no episode is stored yet";
  $("newer").disabled = start === 0;
  $("older").disabled = last >= total;
  const titles = ["episode", "kind", "task", "instruction", "reward", "ended by", "outcome", "age", "version", "steps"];
  const head = make("tr", {}, ...titles.map((title) => make("th", { textContent: title, scope: "col" })));
  const rows = found.rows.map((row) => {
    const link = make("a", { href: `#id=${encodeURIComponent(row.trajectory_id)}`, textContent: row.trajectory_id });
    const versions = row.max_policy_version < 0 ? "–" : row.min_policy_version === row.max_policy_version ? row.max_policy_version : `${row.min_policy_version}–${row.max_policy_version}`;
    const cells = [link, row.kind, `${row.family} #${row.seed}`, row.instruction, make("span", { className: row.success ? "ok" : "no", textContent: row.reward }),
      (row.end_reason || "").replaceAll("_", " "), (row.outcome || "–").replaceAll("_", " "), row.age_max ?? "–", versions, row.num_steps];
    return make("tr", {}, ...cells.map((cell) => make("td", {}, cell)));
  });
  $("list").replaceChildren(head, ...rows);
}

const picturesOf = (id) => (hash, small) => `frame?${new URLSearchParams({ episode: id, image: hash, ...(small ? { small: 1 } : {}) })}`;

async function show() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const names = [wanted.get("id"), wanted.get("beside")].filter(Boolean);
  const place = $("episodes");
  if (!names.length) return place.replaceChildren();
  try {
    const found = await Promise.all(names.map((name) => ask(`episode.json?id=${encodeURIComponent(name)}`)));
    const shown = found.map((episode, position) => {
      const others = make("select", { ariaLabel: "side by side with" }, new Option("side by side with …", ""),
        ...episode.group.filter((name) => !names.includes(name)).map((name) => new Option(name, name)));
      others.onchange = () => { location.hash = `id=${encodeURIComponent(names[0])}&beside=${encodeURIComponent(others.value)}`; };
      const query = new URLSearchParams({ id: names[0], ...(names[1] ? { beside: names[1] } : {}) });
      const share = make("a", { href: `share?${query}`, textContent: "save as one file", download: "" });
      const close = make("a", { href: "#", textContent: "close" });
      return episodeOf(episode, picturesOf(episode.trajectory_id), position === 0 ? [others, share, close] : []);
    });
    place.replaceChildren(make("div", { className: "pair", style: "margin-top:18px" }, ...shown));
    scrollTo({ top: 0 });
  } catch (error) {
    place.replaceChildren(make("p", { className: "note", textContent: error.message }));
  }
}

form.addEventListener("input", () => { start = 0; list(); });
form.addEventListener("submit", (event) => event.preventDefault());
$("newer").addEventListener("click", () => { start = Math.max(0, start - 200); list(); });
$("older").addEventListener("click", () => { start += 200; list(); });
addEventListener("hashchange", show);
list();
show();
