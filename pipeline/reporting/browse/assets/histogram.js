// Shows a histogram as the server has drawn it. Each bin says its numbers when it is pointed at.

import { count, element, formatNumber } from "./dom.js";

// From the bottom up.
const SIDES = [
  ["kept", "kept"],
  ["newly_kept", "newly kept"],
  ["newly_dropped", "newly dropped"],
  ["dropped", "dropped"],
];

export function showHistogram(histogram, edges) {
  const { view_box: viewBox, label, paths, texts, edges: places } = histogram.drawing;
  const bins = edges.slice(1).map((_, bin) => {
    const description = describeBin(histogram, edges, bin);
    if (!description) return null;
    const [x, end] = [places[bin], places[bin + 1]];
    const shape = { class: "bin", x, y: 0, width: end - x, height: "100%" };
    return svg("rect", shape, svg("title", {}, description));
  });
  return element(
    "figure",
    { class: "histogram" },
    element(
      "figcaption",
      {},
      element("b", {}, histogram.language ?? "all languages"),
      ` ${count(histogram.num_docs, "documents")}`,
    ),
    svg(
      "svg",
      { viewBox, role: "img", "aria-label": label },
      paths.map(([name, d]) => svg("path", { class: name, d })),
      texts.map((text) =>
        svg("text", { class: "tick", x: text.x, y: text.y, "text-anchor": text.anchor }, text.label),
      ),
      bins,
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

function describeBin(histogram, edges, bin) {
  const parts = SIDES.filter(([side]) => histogram[side][bin]).map(
    ([side, label]) => `${formatNumber(histogram[side][bin])} ${label}`,
  );
  if (!parts.length) return null;
  return `${formatNumber(edges[bin])} to ${formatNumber(edges[bin + 1])}: ${parts.join(", ")}`;
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children.flat(Infinity).filter(Boolean));
  return node;
}
