"""What is run inside MiniWoB++ pages over DevTools: making them repeatable, starting an instance, reading its state.

Nothing here acts for the agent, and nothing of it is within the agent's reach.
"""

from __future__ import annotations

EVERY_PAGE = """(() => {
  // The context menu leads to the page's source and to new windows, a modified click on a link to a window with an address bar.
  window.addEventListener('contextmenu', event => event.preventDefault(), true);
  for (const kind of ['click', 'auxclick'])
    window.addEventListener(kind, event => {
      const modified = event.ctrlKey || event.shiftKey || event.metaKey || event.button !== 0;
      if (modified && event.target.closest && event.target.closest('a')) event.preventDefault();
    }, true);
  // A page shows the same on every day: its clock starts at one moment and runs on from there.
  const RealDate = Date, begin = RealDate.UTC(2017, 0, 2, 12), loaded = RealDate.now();
  const now = () => begin + RealDate.now() - loaded;
  window.Date = new Proxy(RealDate, {
    construct: (date, args) => args.length ? new date(...args) : new date(now()),
    apply: () => new RealDate(now()).toString(),
    get: (date, name) => name === 'now' ? now : Reflect.get(date, name),
  });
})();"""

NEW_PAGE = """(() => {
  if (window !== window.top) return;
  // Before the first frame: a page that begins with its cover is laid out, painted and described twice.
  const started = new Promise((done, failed) => window.addEventListener('load', () => {
    const start = () => {
      if (!(window.core && core.cover_div)) return void setTimeout(start, 5);
      try { %s; done(true); } catch (error) { failed(error); }
    };
    setTimeout(start, 0);
  }));
  started.catch(() => {});  // told to whoever waits for it
  Object.defineProperty(window, 'computerrlStarted', {value: started});
})()"""
"""Runs in a new document before the page's own scripts, with `START` in it."""

STARTED = (
    "new Promise((done, failed) => { const check = () => window.computerrlStarted ? computerrlStarted.then(done, failed)"
    " : setTimeout(check, 5); check(); })"
)
"""Ends once the instance that `NEW_PAGE` starts is there."""

START = """(() => {
  // Animations and pop-up delays end at once: what is on screen depends on what was done, not on when.
  if (window.jQuery) {
    jQuery.fx.off = true;
    const ui = jQuery.ui || {};
    if (ui.autocomplete) ui.autocomplete.prototype.options.delay = 0;
    if (ui.menu) ui.menu.prototype.delay = 0;
  }
  const style = document.createElement('style');
  style.textContent = '*, *::before, *::after { transition: none !important; animation: none !important; }';
  document.head.appendChild(style);
  core.setDataMode('train');
  Math.seedrandom(%d);
  core.EPISODE_MAX_TIME = 2e9;
  core.startEpisodeReal();
  // The cover that comes after the end starts nothing: a second click may not wipe out a verdict.
  core.startEpisodeReal = () => {};
  clearInterval(core.CD_TIMER);
  for (const id of ['reward-display', 'click-canvas']) {
    const node = document.getElementById(id);
    if (node) node.style.display = 'none';
  }
  if (document.activeElement) document.activeElement.blur();
  if (typeof flicker !== 'undefined') {  // the terminal's cursor blinks, and it takes the focus after a while
    clearInterval(flicker);
    document.getElementById('terminal-target').focus();
  }
  return true;
})()"""

STATE = """(() => {
  const said = core.getUtterance();
  return {
    done: WOB_DONE_GLOBAL, raw_reward: WOB_RAW_REWARD_GLOBAL, reason: String(WOB_REWARD_REASON || ''), episode_id: WOB_EPISODE_ID,
    fields: typeof said === 'string' ? {utterance: said} : {...said.fields, utterance: said.utterance},
  };
})()"""

SHAPES = """(() => {
  // Client coordinates start below whatever the window has above the page.
  const scale = window.devicePixelRatio;
  const left = window.screenX + (window.outerWidth - window.innerWidth) / 2;
  const top = window.screenY + window.outerHeight - window.innerHeight;
  const skipped = '#reward-display, #click-canvas, #sync-task-cover, #computerrl-frame, script, style, option, head';
  const name = url => (/([^/"]+)\\.(png|jpg|gif)/.exec(url || '') || [])[1] || '';
  const found = [];
  for (const node of document.body.querySelectorAll('*')) {
    if (node.closest(skipped) || found.length >= %d) continue;
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    if (box.width + box.height === 0 || style.visibility === 'hidden') continue;
    const own = [...node.childNodes].filter(child => child.nodeType === 3).map(child => child.data).join(' ').trim();
    const color = node.getAttribute('fill') || node.style.backgroundColor || style.backgroundColor;
    const boxed = color !== 'rgba(0, 0, 0, 0)' || parseFloat(style.borderTopWidth) > 0;
    const text = own || (boxed && node.childElementCount === 1 ? node.textContent.trim() : '');
    const picture = name(node.src) || name(style.content) || name(style.backgroundImage);
    const is_drawn = node instanceof SVGElement || picture || node.childElementCount === 0 || boxed;
    if (!is_drawn) continue;
    found.push({
      tag: node.tagName.toLowerCase(), id: node.id, kind: String(node.getAttribute('class') || ''), text, color, picture,
      x: (left + box.left + box.width / 2) * scale, y: (top + box.top + box.height / 2) * scale,
      width: box.width * scale, height: box.height * scale,
    });
  }
  return found;
})()"""
MAX_SHAPES = 600

MARK = "computerrl-frame-"
"""Name of an invisible object on the page; its number tells which painted frame the accessibility tree shows.

It is a check box that toggles, because Chromium passes on such a change at once and most others after 150 ms.
"""
PAINTED = """(() => {
  let mark = document.getElementById('computerrl-frame');
  if (!mark) {
    mark = document.createElement('div');
    mark.id = 'computerrl-frame';
    mark.setAttribute('role', 'checkbox');
    mark.style.cssText = 'position:fixed;left:0;top:0;width:1px;height:1px;pointer-events:none';
    document.body.appendChild(mark);
  }
  mark.setAttribute('aria-label', '%s');
  mark.setAttribute('aria-checked', mark.getAttribute('aria-checked') === 'true' ? 'false' : 'true');
  return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => {
    try { done(%s); } catch (error) { done(null); }
  })));
})()"""
"""With the mark's name, and what is asked for once it is painted."""
