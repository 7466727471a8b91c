// The limits of select as sliders.

import { element, formatNumber } from "./dom.js";

// The step of a slider is 1, 2 or 5 times a power of ten, and about this part of its range.
const NUM_STEPS = 200;

// `changes` is a Map of key -> value, a number or null for "off". It is kept up to date.
export function makeLimits(limits, changes, onChange) {
  const groups = new Map();
  for (const limit of limits) {
    groups.set(limit.score, [...(groups.get(limit.score) ?? []), limit]);
  }
  return [...groups].map(([score, ofScore]) =>
    element(
      "fieldset",
      { class: "limits" },
      element("legend", {}, score),
      ofScore.map((limit) => makeLimit(limit, changes, onChange)),
    ),
  );
}

function makeLimit(limit, changes, onChange) {
  const name = limit.key.replace(/^select\./, "");
  let value = changes.has(limit.key) ? changes.get(limit.key) : limit.value;
  const slider = makeSlider(limit, name, value);
  const isOn = element("input", {
    type: "checkbox",
    "aria-label": `${name} is on`,
    checked: value !== null,
    onchange: () => change(isOn.checked ? Number(slider.value) : null),
  });
  slider.addEventListener("input", () => change(Number(slider.value)));
  const output = element("output", {});
  const row = element(
    "div",
    { class: "limit" },
    element(
      "span",
      { class: "name" },
      limit.is_optional && isOn,
      element("span", {}, shorten(limit)),
      output,
    ),
    slider,
  );
  show();
  return row;

  function change(next) {
    value = next;
    if (value === limit.value) changes.delete(limit.key);
    else changes.set(limit.key, value);
    show();
    onChange(limit);
  }

  function show() {
    slider.disabled = value === null;
    output.textContent = value === null ? "off" : formatNumber(value);
    row.classList.toggle("changed", value !== limit.value);
  }
}

function makeSlider(limit, name, value) {
  const [low, high] = limit.bounds;
  const step = limit.is_whole && high - low < NUM_STEPS ? 1 : findStep(high - low);
  const slider = element("input", {
    type: "range",
    min: toNumber(Math.floor(low / step) * step),
    max: toNumber(Math.ceil(high / step) * step),
    step,
    "aria-label": name,
  });
  // Where a limit that is off begins: it drops next to nothing there.
  slider.value = value ?? (/keep_top$|max/.test(limit.key) ? high : low);
  return slider;
}

// Percentiles are the ends of two buckets. Other limits have the names of their keys.
const NAMES = {
  "percentiles.0": "head: percentiles below",
  "percentiles.1": "middle: percentiles below",
};

function shorten(limit) {
  const name = limit.key.replace(/^select\.(classifiers\.[^.]+|[^.]+)\./, "");
  return NAMES[name] ?? name;
}

function findStep(range) {
  const power = 10 ** Math.floor(Math.log10(range / NUM_STEPS));
  const factor = [1, 2, 5, 10].find((times) => times * power * NUM_STEPS >= range);
  return toNumber(factor * power);
}

// 0.1 + 0.2 is 0.30000000000000004, which no input accepts as a multiple of its step.
function toNumber(value) {
  return Number(value.toPrecision(12));
}
