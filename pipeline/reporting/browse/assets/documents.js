// The search for documents, and what it has found.

import { ask } from "./api.js";
import {
  badge,
  count,
  crawled,
  element,
  formatLimit,
  formatNumber,
  replaceChildren,
} from "./dom.js";

const PAGE = 20;

export async function showDocuments(view, { run, parameters, isNew }) {
  if (isNew || !view.querySelector(".results")) {
    const results = element("section", { class: "results", "aria-label": "Documents" });
    replaceChildren(
      view,
      element("div", { class: "search" }, makeForm(run, parameters), results),
    );
  } else {
    fillForm(view.querySelector("form"), parameters);
  }
  const results = view.querySelector(".results");
  results.setAttribute("aria-busy", "true");
  const answer = await ask("documents", withDefaults(parameters));
  results.removeAttribute("aria-busy");
  showResults(results, run, parameters, answer);
}

function withDefaults(parameters) {
  const all = new URLSearchParams(parameters);
  all.set("num_docs", PAGE);
  return all;
}

// ---- the form ----

function makeForm(run, parameters) {
  const scores = parameters.getAll("score");
  const form = element(
    "form",
    { class: "filters", role: "search", onsubmit: submit, autocomplete: "off" },
    field("URL contains", input("url", { "data-search": true })),
    field("Text contains", input("text")),
    element(
      "details",
      { open: !matchMedia("(max-width: 45rem)").matches },
      element("summary", {}, "More filters"),
      listFilters(run, scores),
    ),
    element("button", { type: "submit" }, "Search"),
  );
  fillForm(form, parameters);
  return form;
}

function listFilters(run, scores) {
  return [
    field("Domain", input("domain", { placeholder: "example.org" })),
    field("Decision", select("decision", listDecisions(run))),
    field("Language", select("language", listLanguages(run))),
    element(
      "fieldset",
      {},
      element("legend", {}, "Scores"),
      element(
        "div",
        { class: "ranges" },
        (scores.length ? scores : [""]).map((text) => makeRange(run, text)),
      ),
      element(
        "button",
        { type: "button", class: "quiet", onclick: (event) => addRange(event, run) },
        "Add a score",
      ),
    ),
    field("Order", select("order", listOrders(run))),
  ];
}

function field(label, control) {
  return element("label", {}, element("span", {}, label), control);
}

function input(name, attributes = {}) {
  return element("input", { name, type: "search", spellcheck: "false", ...attributes });
}

function select(name, options) {
  return element(
    "select",
    { name },
    options.map(([value, label]) => element("option", { value }, label)),
  );
}

function listDecisions(run) {
  const numDropped = Object.entries(run.decisions)
    .filter(([name]) => name.includes("."))
    .reduce((sum, [, number]) => sum + number, 0);
  const named = Object.entries(run.decisions).map(([name, number]) => [
    name,
    `${name} (${formatNumber(number)})`,
  ]);
  const dropped = ["dropped", `dropped, for any reason (${formatNumber(numDropped)})`];
  return [["", "any"], dropped, ...named];
}

function listLanguages(run) {
  const named = Object.entries(run.languages).map(([name, number]) => [
    name,
    `${name} (${formatNumber(number)})`,
  ]);
  return [["", "any"], ...named];
}

function listOrders(run) {
  const scores = run.scores.flatMap((name) => [
    [name, `${name}, lowest first`],
    [`-${name}`, `${name}, highest first`],
  ]);
  return [["", "random"], ["input", "input"], ...scores];
}

// A range of a score is written "perplexity=100:300".
function makeRange(run, text) {
  const [name, limits = ""] = text.split("=");
  const [low = "", high = ""] = limits.split(":");
  const number = (label, value) =>
    element("input", { "aria-label": label, type: "number", step: "any", value });
  const names = element(
    "select",
    { "aria-label": "Score" },
    element("option", { value: "" }, "any score"),
    run.scores.map((score) => element("option", { value: score }, score)),
  );
  names.value = name;
  return element(
    "div",
    { class: "range" },
    names,
    element("span", {}, number("Lowest", low), "to", number("Highest", high)),
  );
}

function addRange(event, run) {
  const ranges = event.target.parentElement.querySelector(".ranges");
  ranges.append(makeRange(run, ""));
  ranges.lastChild.querySelector("select").focus();
}

function fillForm(form, parameters) {
  for (const control of form.querySelectorAll("[name]")) {
    control.value = parameters.get(control.name) ?? "";
  }
}

function submit(event) {
  event.preventDefault();
  const parameters = new URLSearchParams();
  for (const control of event.target.querySelectorAll("[name]")) {
    if (control.value) parameters.set(control.name, control.value);
  }
  for (const row of event.target.querySelectorAll(".range")) {
    const name = row.querySelector("select").value;
    const [low, high] = [...row.querySelectorAll("input")].map((number) => number.value);
    if (name && (low || high)) parameters.append("score", `${name}=${low}:${high}`);
  }
  go(parameters);
}

function go(parameters) {
  location.hash = `#/documents?${parameters}`;
}

function link(parameters, changes, label, attributes = {}) {
  const changed = new URLSearchParams(parameters);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) changed.delete(name);
    else changed.set(name, value);
  }
  return element("a", { href: `#/documents?${changed}`, ...attributes }, label);
}

// ---- the results ----

function showResults(results, run, parameters, answer) {
  const documents = answer.documents.map((found) => describe(found));
  replaceChildren(
    results,
    summarize(run, parameters, answer),
    element("p", { class: "chips" }, listChips(parameters, answer)),
    documents.length
      ? element("ol", { class: "documents" }, documents)
      : element("p", {}, "No document was found."),
    element("nav", { class: "pager", "aria-label": "Pages" }, listPages(parameters, answer)),
  );
}

function summarize(run, parameters, answer) {
  let text = `${count(answer.num_found, "documents")} of ${formatNumber(run.num_docs)}`;
  if (parameters.get("text")) {
    text += `; the texts of ${formatNumber(answer.num_searched)} were searched`;
    text += answer.next_row === null ? ", which are all" : " so far";
  }
  return element("p", { class: "summary", role: "status" }, text);
}

function listChips(parameters, answer) {
  const without = { offset: null, first_row: null };
  return Object.entries(answer.decisions).map(([name, number]) =>
    link(
      parameters,
      { ...without, decision: name },
      [name, " ", element("b", {}, formatNumber(number))],
      { class: `badge ${name === "kept" ? "kept" : "dropped"}` },
    ),
  );
}

function describe(found) {
  const limit = formatLimit(found);
  return element(
    "li",
    {},
    element(
      "h3",
      {},
      element("a", { href: `#/document/${found.doc_id}` }, crawled(found.title || found.url)),
    ),
    element("p", { class: "url" }, crawled(found.url, { dir: "ltr" })),
    element(
      "p",
      { class: "facts" },
      badge(found.decision, found.is_kept),
      limit && element("span", {}, limit),
      element("span", {}, found.language),
      Object.entries(found.scores)
        .filter(([name]) => !/^(original_)?num_/.test(name))
        .slice(0, 4)
        .map(([name, value]) => element("span", {}, `${name} ${formatNumber(value)}`)),
    ),
    found.excerpt == null
      ? element("p", { class: "excerpt none" }, "No text is stored.")
      : element("p", { class: "excerpt" }, crawled(found.excerpt)),
  );
}

function listPages(parameters, answer) {
  if (parameters.get("text")) {
    if (answer.next_row === null) return [];
    return [link(parameters, { first_row: answer.next_row }, "Search on", { class: "button" })];
  }
  const offset = Number(parameters.get("offset") ?? 0);
  const last = Math.min(offset + PAGE, answer.num_found);
  const seed = Number(parameters.get("seed") ?? 0);
  const isRandom = !parameters.get("order");
  return [
    offset > 0 && link(parameters, { offset: Math.max(0, offset - PAGE) }, "Previous"),
    answer.num_found > 0 &&
      element("span", {}, `${formatNumber(offset + 1)} to ${formatNumber(last)}`),
    last < answer.num_found && link(parameters, { offset: last }, "Next"),
    isRandom &&
      answer.num_found > PAGE &&
      link(parameters, { offset: null, seed: seed + 1 }, "Other random documents"),
  ];
}
