// The table of domains: documents read, kept, and lost to which reasons.

import { ask } from "./api.js";
import {
  count,
  crawled,
  element,
  formatNumber,
  formatShare,
  replaceChildren,
} from "./dom.js";

const PAGE = 50;

const COLUMNS = [
  ["name", "Domain"],
  ["num_docs", "Read"],
  ["num_kept", "Kept"],
  ["num_lost", "Lost"],
];

export async function showDomains(view, { run, parameters, isNew }) {
  if (isNew || !view.querySelector(".domains")) replaceChildren(view, makeFrame());
  const search = view.querySelector("[data-search]");
  if (document.activeElement !== search) search.value = parameters.get("name") ?? "";
  const answer = await ask("domains", parameters);
  replaceChildren(view.querySelector(".domains"), showTable(run, parameters, answer));
}

function makeFrame() {
  const search = element("input", {
    type: "search",
    "data-search": true,
    spellcheck: "false",
    oninput: (event) => {
      const name = event.target.value.trim();
      const address = name ? `#/domains?${new URLSearchParams({ name })}` : "#/domains";
      location.replace(address);
    },
  });
  return [
    element("h1", {}, "Domains"),
    element("label", { class: "inline" }, element("span", {}, "Name contains "), search),
    element("div", { class: "domains" }),
  ];
}

function showTable(run, parameters, answer) {
  const offset = Number(parameters.get("offset") ?? 0);
  const last = offset + answer.domains.length;
  return [
    element("p", { role: "status" }, count(answer.num_domains, "domains")),
    element(
      "div",
      { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Domains" },
      element(
        "table",
        {},
        makeHead(parameters),
        element("tbody", {}, answer.domains.map(makeRow)),
      ),
    ),
    element(
      "nav",
      { class: "pager", "aria-label": "Pages" },
      offset > 0 && link(parameters, { offset: Math.max(0, offset - PAGE) }, "Previous"),
      answer.domains.length > 0 &&
        element("span", {}, `${formatNumber(offset + 1)} to ${formatNumber(last)}`),
      last < answer.num_domains && link(parameters, { offset: last }, "Next"),
    ),
  ];
}

function makeHead(parameters) {
  const order = parameters.get("order") ?? "num_docs";
  const cells = COLUMNS.map(([key, label]) =>
    element(
      "th",
      {
        scope: "col",
        class: key === "name" ? null : "number",
        "aria-sort": key === order ? (key === "name" ? "ascending" : "descending") : null,
      },
      link(parameters, { order: key, offset: 0 }, label),
    ),
  );
  const reasons = element("th", { scope: "col" }, "Lost mostly to");
  return element("thead", {}, element("tr", {}, cells, reasons));
}

function makeRow(domain) {
  const numLost = domain.num_docs - domain.num_kept;
  return element(
    "tr",
    {},
    element("td", {}, documentsOf(domain, {}, crawled(domain.name || "(no domain)"))),
    element("td", { class: "number" }, formatNumber(domain.num_docs)),
    element(
      "td",
      { class: "number" },
      documentsOf(domain, { decision: "kept" }, formatNumber(domain.num_kept)),
      element("meter", {
        min: 0,
        max: domain.num_docs,
        value: domain.num_kept,
        title: `${formatShare(domain.num_kept, domain.num_docs)} kept`,
      }),
    ),
    element(
      "td",
      { class: "number" },
      documentsOf(domain, { decision: "dropped" }, formatNumber(numLost)),
    ),
    element(
      "td",
      {},
      element("div", { class: "reasons" }, domain.reasons.map((lost) => describe(domain, lost))),
    ),
  );
}

function describe(domain, { reason, num_docs }) {
  return documentsOf(domain, { decision: reason }, `${reason} ${formatNumber(num_docs)}`);
}

function documentsOf(domain, search, label) {
  if (!domain.name) return element("span", {}, label);
  const parameters = new URLSearchParams({ domain: domain.name, ...search });
  return element("a", { href: `#/documents?${parameters}` }, label);
}

function link(parameters, changes, label) {
  const changed = new URLSearchParams(parameters);
  for (const [name, value] of Object.entries(changes)) changed.set(name, value);
  return element("a", { href: `#/domains?${changed}` }, label);
}
