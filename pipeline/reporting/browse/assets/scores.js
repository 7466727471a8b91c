// Histograms of the stored scores with the limits of select, and what other limits would keep.

import { ask, Outdated } from "./api.js";
import {
  badge,
  count,
  crawled,
  element,
  formatLimit,
  formatNumber,
  formatShare,
  makeTable,
  replaceChildren,
} from "./dom.js";
import { makeLegend, showHistogram } from "./histogram.js";
import { makeLimits } from "./limits.js";

export async function showScores(view, { run, parameters }) {
  const { limits, is_outdated: isOutdated } = await ask("limits");
  const changes = new Map();
  for (const entry of parameters.getAll("set")) {
    const [key, value] = entry.split("=");
    changes.set(key, value === "null" ? null : Number(value));
  }
  const score = element(
    "select",
    { "data-search": true, onchange: () => update() },
    run.scores.map((name) => element("option", { value: name }, name)),
  );
  score.value = parameters.get("score") ?? limits[0]?.score ?? run.scores[0];
  const sliders = element("div", {});
  const reset = element("button", { type: "button", onclick: resetLimits }, "Reset limits");
  const summary = element("div", { class: "effect" });
  const results = element("div", {});
  replaceChildren(
    view,
    isOutdated && element("p", { class: "error" }, OUTDATED),
    summary,
    element(
      "div",
      { class: "search" },
      element("section", { class: "sliders", "aria-label": "Limits" }, sliders, reset),
      element(
        "section",
        {},
        element("label", { class: "inline" }, element("span", {}, "Histogram of "), score),
        results,
      ),
    ),
  );
  let isBusy = false;
  let isAgain = false;
  showSliders();
  await update();

  function showSliders() {
    replaceChildren(
      sliders,
      limits.length
        ? makeLimits(limits, changes, showLimit)
        : element("p", {}, "This run has no section of select with a limit of a score."),
    );
  }

  // Moving a slider shows the score that it limits.
  function showLimit(limit) {
    score.value = limit.score;
    update();
  }

  function resetLimits() {
    changes.clear();
    showSliders();
    update();
  }

  // One question at a time: while it is answered, only the last position of a slider counts.
  async function update() {
    isAgain = isBusy;
    if (isBusy) return;
    isBusy = true;
    do {
      isAgain = false;
      await showAnswer();
    } while (isAgain);
    isBusy = false;
    reset.disabled = changes.size === 0;
  }

  async function showAnswer() {
    const asked = makeParameters();
    history.replaceState(null, "", `#/scores?${asked}`);
    try {
      const answer = await ask("effect", asked);
      if (!results.isConnected) return;
      showSummary(summary, run, answer);
      showEffect(results, answer);
    } catch (error) {
      if (error instanceof Outdated) return;
      const message = element("p", { class: "error", role: "alert" }, error.message);
      replaceChildren(summary, message);
    }
  }

  function makeParameters() {
    const asked = new URLSearchParams({ score: score.value });
    for (const [key, value] of changes) asked.append("set", `${key}=${value}`);
    return asked;
  }
}

const OUTDATED =
  "This version of corpusmill decides otherwise than the version that made the run. " +
  "The numbers below are those of this version, before and after.";

function showSummary(summary, run, answer) {
  const isChanged = answer.overrides.length > 0;
  replaceChildren(
    summary,
    summarize(answer, isChanged),
    isChanged && showCommand(run, answer.overrides),
  );
}

function showEffect(results, answer) {
  const isChanged = answer.overrides.length > 0;
  replaceChildren(
    results,
    makeLegend(),
    element(
      "div",
      { class: "histograms" },
      answer.histograms.histograms.map((one) => showHistogram(one, answer.histograms.edges)),
    ),
    isChanged && showExamples("Newly kept", answer.newly_kept, answer.examples_kept),
    isChanged && showExamples("Newly dropped", answer.newly_dropped, answer.examples_dropped),
    element(
      "div",
      { class: "tables" },
      showTable("language", listLanguages(answer), isChanged, 1),
      showTable("reason", answer.reasons, isChanged, 0),
    ),
  );
}

function summarize(answer, isChanged) {
  const { before, after, num_scored: numScored } = answer;
  const kept = `${formatNumber(after.num_docs)} of ${formatNumber(numScored)} documents kept`;
  const share = formatShare(after.num_docs, numScored);
  const documents = `${sign(after.num_docs - before.num_docs)} documents`;
  const changes = `${documents}, ${sign(after.num_chars - before.num_chars)} characters`;
  return [
    element("p", { class: "summary", role: "status" }, `${kept} (${share})`),
    isChanged && element("p", {}, changes),
  ];
}

// Documents scored, kept before and kept after, of each language.
function listLanguages({ scored, languages }) {
  const rows = {};
  for (const [language, number] of Object.entries(scored)) {
    const kept = languages[language]?.map((amount) => amount.num_docs) ?? [0, 0];
    rows[language] = [number, ...kept];
  }
  return rows;
}

function sign(number) {
  return number > 0 ? `+${formatNumber(number)}` : formatNumber(number);
}

function showCommand(run, overrides) {
  const words = overrides.map((override) => `--set '${override}'`).join(" ");
  return element(
    "p",
    {},
    element("code", {}, `python -m pipeline preview ${run.run_dir} ${words}`),
  );
}

function showExamples(title, { num_docs: numDocs }, examples) {
  if (!numDocs) return null;
  return element(
    "section",
    {},
    element("h2", {}, `${title}: ${count(numDocs, "documents")}`),
    element("ol", { class: "documents" }, examples.map(showExample)),
  );
}

function showExample(found) {
  return element(
    "li",
    {},
    element(
      "h3",
      {},
      element("a", { href: `#/document/${found.doc_id}` }, crawled(found.title || found.url)),
    ),
    element(
      "p",
      { class: "facts" },
      badge(found.reason, false),
      element("span", {}, crawled(formatLimit(found))),
      element("span", {}, found.language),
    ),
    element("p", { class: "excerpt" }, crawled(found.text)),
  );
}

// Rows of [..., before, after]; `numOthers` numbers come first.
function showTable(name, rows, isChanged, numOthers) {
  const names = [name, ...(numOthers ? ["scored"] : []), numOthers ? "kept" : "dropped"];
  if (isChanged) names.push("before", "change");
  const columns = names.map((label, place) => [label, { class: place ? "number" : null }]);
  const shown = Object.entries(rows).map(([label, numbers]) => {
    const [before, after] = numbers.slice(numOthers);
    const cells = [...numbers.slice(0, numOthers), after].map(formatNumber);
    if (isChanged) cells.push(formatNumber(before), sign(after - before));
    return [label, ...cells];
  });
  return makeTable(`By ${name}`, columns, shown);
}
