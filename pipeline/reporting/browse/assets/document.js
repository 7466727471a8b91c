// One document: its decisions with all rules, its lines, its scores and its duplicates.

import { ask, Outdated } from "./api.js";
import {
  badge,
  count,
  crawled,
  element,
  formatLimit,
  formatNumber,
  makeTable,
  replaceChildren,
} from "./dom.js";

const MARKS = {
  duplicate: "removed: duplicate line",
  rule: "removed by a line rule",
  span: "removed: all of its words are in an earlier document",
};

export async function showDocument(view, { rest }) {
  const found = await ask("document", new URLSearchParams({ doc_id: rest }));
  replaceChildren(
    view,
    element(
      "article",
      { class: "document" },
      element("h1", {}, crawled(found.source.title || found.url)),
      element("p", { class: "url" }, crawled(found.url, { dir: "ltr" })),
      element("p", { class: "facts" }, badge(found.decision, found.is_kept), listFacts(found)),
      element("h2", {}, "Text"),
      describeLines(found),
      describeSpans(found),
      found.cluster && describeCluster(found),
      element("h2", {}, "Decisions"),
      found.decisions.map(describeDecision),
      found.location && describeLocation(found.location),
      listScores(found.scores),
    ),
  );
}

function listFacts({ doc_id, source }) {
  const facts = [
    `document ${doc_id}`,
    source.language,
    source.date,
    source.place,
  ];
  return facts.filter(Boolean).map((fact) => element("span", {}, crawled(fact)));
}

function describeDecision(decided) {
  const isKept = decided.decision === "kept";
  return element(
    "section",
    { class: "phase" },
    element(
      "h3",
      {},
      `${decided.phase} `,
      decided.decision && badge(decided.decision, isKept),
      decided.bucket && element("span", { class: "note" }, ` bucket ${decided.bucket}`),
    ),
    !isKept && formatLimit(decided) && element("p", {}, crawled(formatLimit(decided))),
    decided.representative &&
      element("p", {}, "Kept in its place: ", describeOther(decided.representative)),
    decided.error && element("p", { class: "error" }, decided.error),
    decided.rules.length > 0 && listRules(decided.rules),
  );
}

function listRules(rules) {
  const number = { class: "number" };
  const rows = rules.map((rule) => {
    const verdict = rule.is_broken ? "breaks" : "passes";
    const numbers = [formatNumber(rule.value), formatNumber(rule.limit)];
    const row = [verdict, rule.reason, ...numbers, crawled(rule.detail)];
    return Object.assign(row, { attributes: { class: rule.is_broken ? "broken" : null } });
  });
  return makeTable("Rules", ["", "rule", ["value", number], ["limit", number], ""], rows);
}

function describeOther(other) {
  const text = [
    `document ${other.doc_id}`,
    other.run_dir && ` of ${other.run_dir}`,
    other.url && ": ",
    other.url && crawled(other.url, { dir: "ltr" }),
    other.decision && ` (${other.decision})`,
  ];
  // Documents of previous runs are in another run folder.
  if (other.run_dir) return element("span", {}, text.filter(Boolean));
  return element("a", { href: `#/document/${other.doc_id}` }, text.filter(Boolean));
}

function describeLocation(location) {
  return element(
    "p",
    {},
    `Stored in ${location.shard}, document ${formatNumber(location.row)}, `,
    `sample ${location.sample}: ${count(location.num_tokens, "tokens")} `,
    `from token ${formatNumber(location.token_start)} of the shard.`,
  );
}

function describeLines({ lines, num_lines }) {
  if (!num_lines) {
    return element("p", {}, "No text is stored, because the document was dropped at once.");
  }
  const numRemoved = lines.filter((line) => line.mark !== "kept").length;
  const rows = lines.flatMap((line) => [
    element("div", { class: `line ${line.mark}` }, describeLine(line)),
    element("div", { class: "line left" }, line.mark === "kept" && showText(line)),
  ]);
  return [
    element(
      "p",
      {},
      `${count(num_lines, "lines")}, ${formatNumber(numRemoved)} removed`,
      lines.length < num_lines && `; the first ${formatNumber(lines.length)} are shown`,
      ".",
    ),
    element(
      "div",
      { class: "lines" },
      element("h3", {}, "As extracted"),
      element("h3", {}, "What is left"),
      rows,
    ),
  ];
}

// Spans within a line that is left are not marked there, because only their words are stored.
function describeSpans({ repeated, num_repeated: numRepeated }) {
  if (!numRepeated) return null;
  const spans = repeated.map((span) =>
    element(
      "li",
      {},
      crawled(span.text),
      element(
        "span",
        { class: "note" },
        ` ${count(span.num_words, "words")}`,
        span.first && [", first in ", describeOther(span.first)],
      ),
    ),
  );
  return [
    element("h2", {}, "Repeated spans"),
    element(
      "p",
      {},
      `substring_dedup found ${count(numRepeated, "spans")} of words that an earlier document has. `,
      "If its action is cut, they are not in the dataset; the lines above show them.",
    ),
    element("ol", { class: "cluster" }, spans),
  ];
}

function describeLine(line) {
  if (line.mark === "kept") return showText(line);
  return [
    element("del", {}, showText(line)),
    element(
      "span",
      { class: "note" },
      MARKS[line.mark],
      line.also_in && [", also in ", describeOther(line.also_in)],
    ),
  ];
}

function showText(line) {
  return [crawled(line.text), line.is_cut && element("span", { class: "note" }, " … cut")];
}

function listScores(scores) {
  const names = Object.keys(scores);
  if (!names.length) return null;
  return [
    element("h2", {}, "Scores"),
    element(
      "dl",
      { class: "scores" },
      names.map((name) =>
        element(
          "div",
          {},
          element("dt", {}, name),
          element("dd", {}, formatNumber(scores[name])),
        ),
      ),
    ),
  ];
}

// Shows, when it is opened, the words in which a document and its representative differ.
function makeDifferences(representative, docId) {
  const shown = element("div", { class: "differences" });
  return element(
    "details",
    { ontoggle: show },
    element("summary", {}, "Differences from the representative"),
    shown,
  );

  async function show(event) {
    if (!event.target.open || shown.childNodes.length) return;
    const asked = new URLSearchParams({ first: representative, second: docId });
    try {
      const answer = await ask("differences", asked);
      replaceChildren(
        shown,
        answer.segments.map(showSegment),
        answer.is_cut && element("p", { class: "note" }, "Only the beginnings are compared."),
      );
    } catch (error) {
      if (error instanceof Outdated) return;
      replaceChildren(shown, element("p", { class: "error", role: "alert" }, error.message));
    }
  }
}

const SEGMENTS = { both: "span", first: "del", second: "ins" };

// Words before and after a difference; what is between is left out.
const CONTEXT_CHARS = 200;

function showSegment([side, text]) {
  const isLong = side === "both" && text.length > 3 * CONTEXT_CHARS;
  const parts = isLong
    ? [
        crawled(text.slice(0, CONTEXT_CHARS)),
        element("span", { class: "note" }, ` … ${count(text.length, "characters")} … `),
        crawled(text.slice(-CONTEXT_CHARS)),
      ]
    : crawled(text);
  return element(SEGMENTS[side], {}, parts);
}

function describeCluster({ doc_id, cluster }) {
  const items = cluster.documents.map((other) =>
    element(
      "li",
      {},
      element(
        "a",
        {
          href: `#/document/${other.doc_id}`,
          "aria-current": other.doc_id === doc_id ? "true" : null,
        },
        crawled(other.url, { dir: "ltr" }),
      ),
      " ",
      badge(other.decision, other.is_kept),
      other.doc_id === cluster.representative
        ? element("span", { class: "note" }, " representative")
        : makeDifferences(cluster.representative, other.doc_id),
    ),
  );
  return [
    element("h2", {}, "Duplicates"),
    element(
      "p",
      {},
      `${count(cluster.num_docs, "documents")} have the same representative`,
      items.length < cluster.num_docs && `; ${formatNumber(items.length)} are shown`,
      ".",
    ),
    element("ol", { class: "cluster" }, items),
  ];
}
