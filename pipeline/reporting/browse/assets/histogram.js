// Draws a histogram with the lines of limits, as SVG.

import { count, element, formatNumber } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 140;
const ROW = 11; // height of the label of a line
const TOP = 26; // of the bars; the labels of two lines are above
const BOTTOM = 18; // for the labels of the axis

// From the bottom up.
const SIDES = [
  ["kept", "kept"],
  ["newly_kept", "newly kept"],
  ["newly_dropped", "newly dropped"],
  ["dropped", "dropped"],
];

export function drawHistogram(histogram, { edges, is_log: isLog }) {
  const scale = makeScale(edges, isLog);
  const name = histogram.language ?? "all languages";
  return element(
    "figure",
    { class: "histogram" },
    element(
      "figcaption",
      {},
      element("b", {}, name),
      ` ${count(histogram.num_docs, "documents")}`,
    ),
    svg(
      "svg",
      {
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        role: "img",
        "aria-label": describe(name, histogram),
      },
      drawBars(histogram, edges, scale),
      svg("path", { class: "axis", d: `M0 ${HEIGHT - BOTTOM}H${WIDTH}` }),
      drawTicks(edges, isLog, scale),
      histogram.lines.map((line, place) => drawLine(line, place % 2, scale)),
    ),
  );
}

export function makeLegend() {
  return element(
    "p",
    { class: "legend" },
    SIDES.map(([side, label]) =>
      element(
        "span",
        {},
        svg(
          "svg",
          { viewBox: "0 0 10 10", "aria-hidden": "true" },
          svg("rect", { class: side, width: 10, height: 10 }),
        ),
        label,
      ),
    ),
  );
}

function describe(name, histogram) {
  const limits = histogram.lines.map(
    (line) => `${line.label} ${formatNumber(line.value)}`,
  );
  return [`${name}: ${count(histogram.num_docs, "documents")}`, ...limits].join(", ");
}

function makeScale(edges, isLog) {
  const transform = isLog ? Math.log : (value) => value;
  const [low, high] = [transform(edges[0]), transform(edges.at(-1))];
  return (value) => {
    const share = (transform(value) - low) / (high - low);
    return Math.max(0, Math.min(1, share)) * WIDTH;
  };
}

function drawBars(histogram, edges, scale) {
  const numBins = edges.length - 1;
  const totals = Array.from({ length: numBins }, (_, bin) =>
    SIDES.reduce((sum, [side]) => sum + histogram[side][bin], 0),
  );
  const unit = (HEIGHT - TOP - BOTTOM) / Math.max(1, ...totals);
  return totals.flatMap((total, bin) => {
    if (!total) return [];
    const x = scale(edges[bin]);
    const width = scale(edges[bin + 1]) - x;
    let bottom = HEIGHT - BOTTOM;
    const bars = SIDES.filter(([side]) => histogram[side][bin]).map(([side]) => {
      const height = histogram[side][bin] * unit;
      bottom -= height;
      return svg("rect", { class: side, x, y: bottom, width, height });
    });
    return svg("g", {}, svg("title", {}, describeBin(histogram, edges, bin)), bars);
  });
}

function describeBin(histogram, edges, bin) {
  const parts = SIDES.filter(([side]) => histogram[side][bin]).map(
    ([side, label]) => `${formatNumber(histogram[side][bin])} ${label}`,
  );
  return `${formatNumber(edges[bin])} to ${formatNumber(edges[bin + 1])}: ${parts.join(", ")}`;
}

function drawTicks(edges, isLog, scale) {
  const [low, high] = [edges[0], edges.at(-1)];
  const middle = isLog ? Math.sqrt(low * high) : (low + high) / 2;
  const anchors = ["start", "middle", "end"];
  return [low, middle, high].map((value, place) =>
    svg(
      "text",
      { class: "tick", x: scale(value), y: HEIGHT - 4, "text-anchor": anchors[place] },
      formatNumber(Number(value.toPrecision(3))),
    ),
  );
}

// Labels of neighbours are in two rows, so that they do not overlap.
function drawLine(line, row, scale) {
  const bottom = 9 + row * ROW;
  const x = scale(line.value);
  const anchor = x > WIDTH / 2 ? "end" : "start";
  const isMoved = line.before != null && line.before !== line.value;
  const path = (at, name) =>
    svg("path", { class: name, d: `M${at} ${bottom + 2}V${HEIGHT - BOTTOM}` });
  return svg(
    "g",
    {},
    isMoved && path(scale(line.before), "limit before"),
    path(x, "limit"),
    svg(
      "text",
      { class: "tick", x, y: bottom, "text-anchor": anchor },
      `${line.label} ${formatNumber(line.value)}`,
    ),
  );
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.flat(Infinity).filter(Boolean));
  return node;
}
