// Makes elements. Text of the crawl becomes text nodes only: nothing here parses markup.

export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value != null) node.setAttribute(key, value);
  }
  node.append(...present(children));
  return node;
}

export function replaceChildren(node, ...children) {
  node.replaceChildren(...present(children));
}

function present(children) {
  return children.flat(Infinity).filter((child) => child != null && child !== false);
}

// Text of the crawl. `bdi` keeps its writing direction, and its overrides, to itself.
export function crawled(text, attributes = {}) {
  return element("bdi", { dir: "auto", ...attributes }, text ?? "");
}

const integers = new Intl.NumberFormat("en");
const decimals = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export function formatNumber(value) {
  if (value == null) return "–";
  return Number.isInteger(value) ? integers.format(value) : decimals.format(value);
}

export function formatShare(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)} %` : "–";
}

// "documents", 1 -> "1 document"
export function count(number, plural) {
  const noun = number === 1 ? plural.replace(/s$/, "") : plural;
  return `${formatNumber(number)} ${noun}`;
}

// A table that is wider than the window is scrolled, by the keyboard too. A column is a head, or
// [head, attributes]; the attributes of a row are in its property `attributes`.
export function makeTable(label, columns, rows) {
  const heads = columns.map((column) => (Array.isArray(column) ? column : [column, {}]));
  const head = heads.map(([content, attributes]) =>
    element("th", { scope: "col", ...attributes }, content),
  );
  const body = rows.map((row) => {
    const cells = row.map((cell, place) => element("td", { class: heads[place][1].class }, cell));
    return element("tr", row.attributes ?? {}, cells);
  });
  return element(
    "div",
    { class: "scrolled", tabindex: "0", role: "region", "aria-label": label },
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, head)),
      element("tbody", {}, body),
    ),
  );
}

export function badge(decision, isKept) {
  return element("span", { class: `badge ${isKept ? "kept" : "dropped"}` }, decision);
}

export function formatLimit({ value, limit, detail }) {
  const parts = [];
  if (value != null) parts.push(`value ${formatNumber(value)}`);
  if (limit != null) parts.push(`limit ${formatNumber(limit)}`);
  if (detail != null) parts.push(detail);
  return parts.join(", ");
}
