// Marks over a picture of a screen, where an action pointed: a ring; for a drag a line from a square to the ring.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

// places: pixels x, y, x, y, ... of a screen of width x height. "" where there is none.
function marksOf(places, width, height) {
  if (!places || places.length < 2 || !width || !height) return "";
  const points = [];
  for (let index = 0; index + 1 < places.length; index += 2) points.push([places[index], places[index + 1]]);
  const shape = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const radius = Math.max(width, height) * 0.018, [x, y] = points[points.length - 1];
  // The box of a thumbnail may have another shape than the screen: the picture covers it, and so do the marks.
  const drawn = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "xMidYMid slice", class: "marks", role: "img", "aria-label": `pointed at ${placesText(places)}` });
  for (const layer of ["around", "mark"]) {
    if (points.length > 1) {
      const [left, top] = points[0];
      drawn.append(shape("polyline", { points: points.map((point) => point.join(",")).join(" "), class: layer }),
        shape("rect", { x: left - radius * 0.7, y: top - radius * 0.7, width: radius * 1.4, height: radius * 1.4, class: layer }));
    }
    drawn.append(shape("circle", { cx: x, cy: y, r: radius, class: layer }));
  }
  drawn.append(shape("circle", { cx: x, cy: y, r: radius * 0.2, class: "dot" }));
  return drawn;
}

// "412, 230", or "10, 20 → 400, 300" for a drag.
function placesText(places) {
  const points = [];
  for (let index = 0; index + 1 < (places || []).length; index += 2) points.push(`${places[index]}, ${places[index + 1]}`);
  return points.join(" → ");
}
