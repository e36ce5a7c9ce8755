// Draws the figures of launch/charts.py in the colours of the page. A classic script: reports carry it inline.
"use strict";

const chartColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "gray";

function colouredTrace(trace) {
  const colour = chartColour(trace.meta);
  const coloured = { ...trace };
  if (trace.line || trace.mode === "lines") coloured.line = { ...trace.line, color: colour };
  if (trace.type === "bar" || trace.mode === "markers") coloured.marker = { ...trace.marker, color: colour };
  if (trace.error_x) coloured.error_x = { ...trace.error_x, color: colour };
  if (trace.fill) coloured.fillcolor = chartColour("area");
  return coloured;
}

function colouredLayout(layout) {
  const axis = (given) => ({
    gridcolor: chartColour("grid"), zerolinecolor: chartColour("grid"), linecolor: chartColour("line"),
    tickfont: { size: 11 }, fixedrange: true, ...given,
    ...(given && given.title ? { title: { ...given.title, standoff: 4, font: { size: 11 } } } : {}),
  });
  const shapes = (layout.shapes || []).map((shape) => shape.type === "line"
    ? { ...shape, line: { color: chartColour(shape.name), dash: "dash", width: 2 } }
    : { ...shape, fillcolor: chartColour(shape.name) });
  return {
    ...layout, shapes, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "inherit", size: 12, color: chartColour("soft") },
    hoverlabel: { bgcolor: chartColour("card"), bordercolor: chartColour("line"), font: { color: chartColour("ink") } },
  };
}

function drawChart(place, figure) {
  place.figure = figure;
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", figure.layout.meta);
  return Plotly.react(place, figure.data.map(colouredTrace), colouredLayout(figure.layout), { displayModeBar: false, responsive: true });
}

// Figures that are in the page itself, and all of them again when the colours change.
for (const script of document.querySelectorAll("script.figure")) {
  const place = document.createElement("div");
  place.className = "chart";
  script.after(place);
  drawChart(place, JSON.parse(script.textContent));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const place of document.querySelectorAll(".chart")) if (place.figure) drawChart(place, place.figure);
});
