// Shows the view that the address names: #/documents?language=en, #/document/17, #/scores.

import { ask, Outdated } from "./api.js";
import { element, replaceChildren } from "./dom.js";
import { showDocument } from "./document.js";
import { showDocuments } from "./documents.js";
import { showDomains } from "./domains.js";
import { showScores } from "./scores.js";

const TABS = [
  ["documents", "Documents"],
  ["scores", "Scores"],
  ["domains", "Domains"],
];

const VIEWS = {
  documents: showDocuments,
  document: showDocument,
  domains: showDomains,
  scores: showScores,
};

const view = document.getElementById("view");
let run;
let shown = "";

async function show() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, rest] = (path || "documents").split("/");
  const showView = VIEWS[name] ?? showDocuments;
  showTabs(name);
  const isNew = shown !== `${name}/${rest}`;
  shown = `${name}/${rest}`;
  // An error of the last view says nothing about this one.
  view.querySelector("[role=alert]")?.remove();
  try {
    run ??= await ask("run");
    document.getElementById("run").textContent = run.run_dir;
    await showView(view, { run, rest, isNew, parameters: new URLSearchParams(query) });
  } catch (error) {
    if (error instanceof Outdated) return;
    replaceChildren(view, element("p", { class: "error", role: "alert" }, error.message));
  }
  if (isNew && rest) {
    view.focus();
    scrollTo(0, 0);
  }
}

function showTabs(current) {
  const active = current === "document" ? "documents" : current;
  const links = TABS.map(([name, label]) =>
    element(
      "a",
      { href: `#/${name}`, "aria-current": name === active ? "page" : null },
      label,
    ),
  );
  replaceChildren(document.getElementById("tabs"), links);
}

function focusSearch(event) {
  const isTyping = event.target.closest("input, select, textarea");
  if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey) return;
  const search = view.querySelector("[data-search]");
  if (!search) return;
  event.preventDefault();
  search.focus();
  search.select();
}

// The skip link has a fragment too, which is no address of a view.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  view.focus();
});
addEventListener("hashchange", show);
addEventListener("keydown", focusSearch);
show();
