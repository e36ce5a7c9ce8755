"""Which objects of a web page a click reaches: layers of one page lie above each other, and accessibility does not tell which.

The page itself does (`MISSED`): of everything on it that a click in the middle would miss, where a click meets it, if anywhere.
What lies in frames and in closed shadow roots is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..reading.roles import COVERED
from ..reading.tree_walk import Extents, Node

Missed = tuple[Extents, Extents | None]
"""A box whose middle shows something else, and the part of it where a click meets it; None: there is none. Pixels of the screen,
from the corner of the page."""
_TOLERANCE = 2
"""Pixels by which the boxes of an object and of its element may differ."""
_FARTHEST = 1e5
_DOCUMENT = "document-web"

MISSED = """(() => {
  if (document.visibilityState !== 'visible') return null;
  const roles = 'button link checkbox radio switch tab menuitem slider spinbutton textbox combobox'.split(' ');
  const operated = 'a[href], button, input, select, textarea, summary' + roles.map(role => `, [role=${role}]`).join('');
  const drawn = 'img, video, canvas, iframe, embed, object, svg *, input, textarea, select, button';
  const holds = (outer, node) => {
    while (node && node !== outer) node = node.assignedSlot || node.parentNode || node.host;
    return !!outer && !!node;
  };
  const isClear = element => {
    const {backgroundImage, backgroundColor} = getComputedStyle(element);
    return !element.matches(drawn) && backgroundImage === 'none' && /^rgba.*, 0\\)$/.test(backgroundColor);
  };
  // What is operated has to be met itself, or by its label; of a text or picture it is enough that it can be seen.
  const isMet = (element, isOperated, x, y) => {
    let top = document.elementFromPoint(x, y), deeper = top;
    while (deeper && deeper.shadowRoot && (deeper = deeper.shadowRoot.elementFromPoint(x, y)) && deeper !== top) top = deeper;
    if (!top || holds(element, top)) return !!top;
    if (isOperated) {
      const label = top.closest('label');
      return !!label && (label.control === element || holds(label, element));
    }
    const isRelated = layer => holds(layer, element) || holds(element, layer);
    return isRelated(document.elementsFromPoint(x, y).find(layer => isRelated(layer) || !isClear(layer)));
  };
  // Of each line the middle and what is next to the middles of its sides.
  const parts = boxes => [...boxes].flatMap(box => [box, ...[[1, 0], [1, 2], [0, 1], [2, 1]].map(([column, row]) => ({
    left: box.left + box.width * column / 3, top: box.top + box.height * row / 3, width: box.width / 3, height: box.height / 3,
  }))]);
  const scaled = box => [box.left, box.top, box.width, box.height].map(length => length * devicePixelRatio);
  const missed = [], met = [];
  const look = (area, element, isOperated) => {
    const whole = area.getBoundingClientRect();
    const isOff = whole.right <= 0 || whole.bottom <= 0 || whole.left >= innerWidth || whole.top >= innerHeight;
    if (isOff || !whole.width || !whole.height) return;
    const isHit = box => isMet(element, isOperated, box.left + box.width / 2, box.top + box.height / 2);
    if (!isHit(whole)) {
      const part = parts(area.getClientRects()).find(isHit);
      missed.push([scaled(whole), part ? scaled(part) : null]);
    } else if (isOperated) met.push(scaled(whole));
  };
  const range = document.createRange();
  const visit = root => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && missed.length < 500) {
      const node = walker.currentNode, above = node.parentElement;
      if (node.nodeType === Node.ELEMENT_NODE) {
        if (node.matches('img, canvas') || node.matches(operated)) look(node, node, node.matches(operated) && !node.disabled);
        if (node.shadowRoot) visit(node.shadowRoot);
      } else if (node.data.trim() && above && !above.closest('select, svg')) {  // places of texts in drawings are not scaled
        range.selectNodeContents(node);
        look(range, above, false);
      }
    }
  };
  visit(document);
  const alike = (one, other) => one.every((length, place) => Math.abs(length - other[place]) < 1);
  return missed.filter(([box, part]) => part || !met.some(other => alike(box, other)));
})()"""


class Page(Protocol):
    """A browser with a page in front."""

    def ask_missed(self) -> Callable[[], Sequence[Missed]]:
        """Ask the page what a click would miss; the function waits for its answer. Nothing where it does not answer."""


def missed_from(found: Any) -> list[Missed]:
    """What a page answered to `MISSED`; nothing where a page's own scripts made something else of it."""
    answer = []
    for pair in found if isinstance(found, list) else ():
        box, part = (_box(pair[0]), _box(pair[1])) if isinstance(pair, list) and len(pair) == 2 else (None, None)
        if box is not None and (part is not None or pair[1] is None):
            answer.append((box, part))
    return answer


def within_reach(nodes: Sequence[Node], missed: Sequence[Missed]) -> list[Node]:
    """A browser's nodes, where its largest page missed these: with `COVERED`, or the place where a click meets them."""
    pages = [index for index, node in enumerate(nodes) if node.role == _DOCUMENT]
    if not pages or not missed:
        return list(nodes)
    page = max(pages, key=lambda index: nodes[index].extents[2] * nodes[index].extents[3])
    left, top, _, _ = nodes[page].extents
    below = {page}
    found = []
    for index, node in enumerate(nodes):
        if node.parent not in below or node.role == _DOCUMENT:
            found.append(node)
            continue
        below.add(index)
        x, y, width, height = node.extents
        box = (x - left, y - top, width, height)
        part = next((part for other, part in missed if _is_same(box, other)), box)
        if part is None:
            found.append(replace(node, states=node.states | 1 << COVERED))
        else:
            found.append(replace(node, extents=(part[0] + left, part[1] + top, part[2], part[3])))
    return found


def _box(found: Any) -> Extents | None:
    numbers = found if isinstance(found, list) and len(found) == 4 else []
    if not numbers or not all(isinstance(one, int | float) and abs(one) < _FARTHEST for one in numbers):
        return None
    x, y, width, height = map(round, numbers)
    return x, y, width, height


def _is_same(one: Extents, other: Extents) -> bool:
    return all(abs(a - b) <= _TOLERANCE for a, b in zip(one, other, strict=True))
