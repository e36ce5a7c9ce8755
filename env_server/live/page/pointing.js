// What lies under the pointer, for outlines and tool tips only: what a click means is decided on the other side
// (env_server/live/pointing.py has the same rule).

function covers(e, x, y) {
  const left = e.x - Math.floor(e.width / 2), top = e.y - Math.floor(e.height / 2);
  return left <= x && x < left + e.width && top <= y && y < top + e.height;
}

function inside(inner, outer) {
  return Math.abs(inner.x - outer.x) <= (outer.width - inner.width + 1) / 2 &&
    Math.abs(inner.y - outer.y) <= (outer.height - inner.height + 1) / 2;
}

export function elementAt(elements, x, y) {
  let found = null;
  for (const element of elements) {
    if (covers(element, x, y) && (found === null || inside(element, found))) found = element;
  }
  return found;
}
