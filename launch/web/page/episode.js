// One stored episode as a film strip with everything about each step. Also part of shared files, where pictures are in the data.
// Texts go in as text, never as markup. Needs places.js.
"use strict";

const make = (tag, properties = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
};

function tokenTint(logprob) {  // the less likely a token was, the stronger
  const share = logprob === null ? 0 : Math.min(1, -logprob / 3);
  return `color-mix(in srgb, var(--s2) ${Math.round(share * 45)}%, transparent)`;
}

function answerOf(step) {
  if (!step.tokens.length) return make("pre", { textContent: step.action_text || "(nothing)" });
  const newest = Math.max(...step.tokens.map((token) => token.version ?? -1));
  const line = make("pre");
  for (const token of step.tokens) {
    const told = [token.logprob === null ? "" : `log-prob ${token.logprob.toFixed(3)}, probability ${(100 * Math.exp(token.logprob)).toFixed(1)} %`,
      token.version === null ? "" : `policy version ${token.version}`].filter(Boolean).join(", ");
    const piece = make("span", { className: token.version !== null && token.version < newest ? "token v1" : "token", title: told, textContent: token.text });
    piece.style.background = tokenTint(token.logprob);
    line.append(piece);
  }
  return line;
}

function numbersOf(step) {
  const versions = [...new Set(step.tokens.map((token) => token.version).filter((version) => version !== null))];
  const logprobs = step.tokens.map((token) => token.logprob).filter((logprob) => logprob !== null);
  const mean = logprobs.reduce((sum, value) => sum + value, 0) / logprobs.length;
  return [
    step.advantage === null || step.advantage === undefined ? "not in a loss" : `advantage ${step.advantage}`,
    versions.length ? `policy version ${versions.join(", ")}` : "",
    logprobs.length ? `mean log-prob ${mean.toFixed(3)}` : "",
    `generated in ${step.timing.generate_s.toFixed(2)} s, desktop ${step.timing.desktop_s.toFixed(2)} s (${step.settled_by})`,
  ].filter(Boolean).join(" · ");
}

// A picture whose room on the page is kept before it has loaded, so that nothing jumps; ``shot`` knows its width and height.
function imageOf(picture, shot, told) {
  return make("img", { src: picture, width: shot.width, height: shot.height, alt: told, loading: "lazy" });
}

// A picture of a screen with the places at which the action on it pointed; "" where there is no picture.
function screenOf(picture, shot, places, alt) {
  if (!picture) return "";
  return make("span", { className: "shot" }, imageOf(picture, shot, alt), marksOf(places, shot.width, shot.height));
}

// The prompt as the model read it: texts, and a thumbnail where an image's tokens are.
function promptOf(parts, pictures) {
  const line = make("pre");
  for (const part of parts) {
    if (typeof part === "string") { line.append(part); continue; }
    const told = `image of ${part.width} x ${part.height} pixels, ${part.num_tokens} tokens`, picture = pictures(part.content_hash, true);
    const shown = picture ? imageOf(picture, part, told) : make("span", { textContent: `[${told}]` });
    shown.className = "inside";
    line.append(shown);
  }
  return line;
}

function stepOf(step, index, pictures) {
  const facts = make("dl");
  const fact = (name, ...inside) => facts.append(make("dt", { textContent: name }), make("dd", {}, ...inside));
  if (step.timing) fact("what the model said", answerOf(step));
  fact(step.format_ok ? "action" : "no action", make("pre", { textContent: step.action_text || "–" }));
  if (step.places && step.places.length) fact("pointed at", make("span", { className: "mono", textContent: placesText(step.places) }));
  if (step.action_error) fact("result", make("span", { className: "no", textContent: step.action_error }));
  if (step.timing) fact("numbers", make("span", { className: "soft", textContent: numbersOf(step) }));
  if (step.prompt !== null && step.prompt !== undefined) {
    facts.append(make("details", {}, make("summary", { textContent: "prompt, as the model read it" }), promptOf(step.prompt, pictures)));
  }
  const shown = screenOf(pictureFor(step.screenshot, pictures, false), step.screenshot, step.places, `screen before step ${index + 1}`) || make("p", { className: "soft", textContent: "no picture" });
  return make("section", { className: "step", id: `step-${index}` }, make("div", { className: "screen" }, shown), make("div", {}, make("h3", { textContent: `step ${index + 1}` }), facts));
}

const pictureFor = (shot, pictures, small) => shot ? pictures(shot.content_hash, small) : "";

// pictures(hash, small): address of a screenshot by the hash of its content; "" where it cannot be had.
function episodeOf(episode, pictures, actions = []) {
  const place = make("article", { className: "card" });
  const verdict = make("span", { className: episode.success ? "ok" : "no", textContent: `${episode.success ? "success" : "failure"}${episode.reward === null ? "" : `, reward ${episode.reward}`}` });
  const told = [episode.family ? `${episode.family} #${episode.seed}` : "", episode.end_reason.replaceAll("_", " "), episode.shown_by ? `shown by ${episode.shown_by}` : "", episode.outcome ? episode.outcome.replaceAll("_", " ") : "",
    episode.age_max === null || episode.age_max === undefined ? "" : `oldest step ${episode.age_max} versions old`, `${episode.steps.length} steps${episode.duration_s === undefined ? "" : ` in ${episode.duration_s.toFixed(1)} s`}`, episode.actor];
  place.append(make("div", { className: "row" }, make("h2", { textContent: episode.trajectory_id, style: "margin:0" }), verdict, ...actions),
    make("p", { textContent: episode.instruction }), make("p", { className: "soft", textContent: told.filter(Boolean).join(" · ") }));
  const strip = make("div", { className: "strip" });
  episode.steps.forEach((step, index) => {
    const small = screenOf(pictureFor(step.screenshot, pictures, true), step.screenshot, step.places, `step ${index + 1}`);
    const button = make("button", { type: "button", title: step.action_text, onclick: () => place.querySelectorAll(".step")[index].scrollIntoView({ behavior: "smooth", block: "start" }) },
      small, make("span", { className: "mono", textContent: `${index + 1} ${step.action_text.slice(0, 24)}` }));
    strip.append(button);
  });
  const last = pictureFor(episode.final_screenshot, pictures, true);
  if (last) strip.append(make("button", { type: "button", onclick: () => place.querySelector(".end").scrollIntoView({ behavior: "smooth" }) }, imageOf(last, episode.final_screenshot, "end"), make("span", { className: "mono", textContent: "end" })));
  place.append(strip, ...episode.steps.map((step, index) => stepOf(step, index, pictures)));
  const end = pictureFor(episode.final_screenshot, pictures, false);
  place.append(make("section", { className: "step end" }, make("div", { className: "screen" }, end ? imageOf(end, episode.final_screenshot, "the end") : ""), make("div", {}, make("h3", { textContent: "end" }), verdict.cloneNode(true))));
  return place;
}

// A shared file: its episodes are in the page, with their pictures.
const shared = document.getElementById("shared");
if (shared) {
  const { episodes, pictures } = JSON.parse(shared.textContent);
  document.getElementById("episodes").append(make("div", { className: "pair" },
    ...episodes.map((episode) => episodeOf(episode, (hash) => pictures[hash] || ""))));
}
