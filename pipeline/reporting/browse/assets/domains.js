// The table of domains: documents read, kept, and lost to which reasons.

import { ask } from "./api.js";
import {
  count,
  crawled,
  element,
  formatNumber,
  formatShare,
  makeTable,
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
    makeTable("Domains", makeHead(parameters), answer.domains.map(makeRow)),
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
  const heads = COLUMNS.map(([key, label]) => {
    const direction = key === "name" ? "ascending" : "descending";
    const attributes = {
      class: key === "name" ? null : "number",
      "aria-sort": key === order ? direction : null,
    };
    return [link(parameters, { order: key, offset: 0 }, label), attributes];
  });
  return [...heads, "Lost mostly to"];
}

function makeRow(domain) {
  const { num_docs: numDocs, num_kept: numKept } = domain;
  const meter = element("meter", {
    min: 0,
    max: numDocs,
    value: numKept,
    title: `${formatShare(numKept, numDocs)} kept`,
  });
  const reasons = domain.reasons.map((lost) => describe(domain, lost));
  return [
    documentsOf(domain, {}, crawled(domain.name || "(no domain)")),
    formatNumber(numDocs),
    [documentsOf(domain, { decision: "kept" }, formatNumber(numKept)), meter],
    documentsOf(domain, { decision: "dropped" }, formatNumber(numDocs - numKept)),
    element("div", { class: "reasons" }, reasons),
  ];
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
