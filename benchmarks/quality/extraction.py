r"""Compare the quality and speed of text extraction with trafilatura and resiliparse.

    python -m benchmarks.quality.extraction --gold FOLDER [--save]

FOLDER holds clones of the gold sets (`gold_pages.py`). Sets that are absent are left out. The first
run installs the peers into a separate environment, which takes a minute.

Half of each set is held out. The measures are in `text_scores.py`. `lost` counts pages with more than
500 characters of text that give fewer than 100, `half lost` those with less than half of the wanted strings
that are in all text. `ingredients` is the mean share of their words that is found. The extractors take turns page by page, in a
rotating order, in one process. MB of HTML per second are of user time. Our extractor receives bytes,
the others decoded text, which saves them the detection of the charset.
"""

from __future__ import annotations

import logging
import resource
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.frame import finish, make_parser, print_table
from benchmarks.quality.gold_pages import (
    SETS,
    GoldPage,
    digest_annotations,
    read_ingredients,
)
from benchmarks.quality.peer_environment import run_with_peers
from benchmarks.quality.text_scores import count_half_lost, score_ingredients, summarize
from stages.html.extraction import HtmlSettings, Unusable, extract
from stages.html.justext import JustextSettings

LIBRARIES = ("resiliparse", "justext", "lxml", "trafilatura")
PEERS = Path(__file__).with_name("extraction-peers.txt")

# A page is lost if it has more characters of text than the first and gives fewer than the second.
MIN_TEXT_CHARS = 500
MIN_FOUND_CHARS = 100

_TICK_S = 0.001  # user time grows in ticks: a few small pages may take none

# A function (page as bytes, decoded page) -> text.
Extractor = Callable[[bytes, str], str]


def make_extractors() -> dict[str, Extractor]:
    """Return our extractors, and the other extractors that are installed."""
    found: dict[str, Extractor] = {
        "text": _make_ours(HtmlSettings()),
        "main content": _make_ours(HtmlSettings(main_content=True)),
        "engine resiliparse": _make_ours(
            HtmlSettings(main_content=True, engine="resiliparse")
        ),
        "justext": _make_ours(HtmlSettings(justext=JustextSettings())),
        "resiliparse": _make_resiliparse(),
    }
    if find_spec("trafilatura"):
        found["engine trafilatura"] = _make_ours(
            HtmlSettings(main_content=True, engine="trafilatura")
        )
        found["trafilatura"] = _make_trafilatura({})
        # as FineWeb
        found["trafilatura, precise"] = _make_trafilatura({"favor_precision": True})
    return found


def _make_ours(settings: HtmlSettings) -> Extractor:
    def extract_ours(body: bytes, _: str) -> str:
        page = extract(body, "text/html; charset=utf-8", settings)
        return "" if isinstance(page, Unusable) else page.text

    return extract_ours


def _make_resiliparse() -> Extractor:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    return lambda _, html: extract_plain_text(HTMLTree.parse(html), main_content=True)


def _make_trafilatura(options: Mapping[str, bool]) -> Extractor:
    import trafilatura

    # The options of trafilatura's own evaluation (tests/eval_common.py).
    return lambda _, html: (
        trafilatura.extract(html, include_comments=False, include_tables=True, **options)
        or ""
    )


def measure(
    pages: Sequence[GoldPage], extractors: Mapping[str, Extractor]
) -> dict[str, Any]:
    """Run every extractor on every page, in turns, and return the figures of both halves."""
    names = list(extractors)
    seconds, errors = dict.fromkeys(names, 0.0), Counter[str]()
    texts: dict[str, list[str]] = {name: [] for name in names}
    for extractor in extractors.values():  # loads stop words, kernels and patterns
        _run_timed(extractor, pages[0])
    for number, page in enumerate(pages):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            text, took_s = _run_timed(extractors[name], page)
            seconds[name] += took_s
            errors[name] += text is None
            texts[name].append(text or "")
    megabytes = sum(len(page.html) for page in pages) / 1e6
    figures: dict[str, Any] = {}
    for name in names:
        figures[name] = {
            **_summarize_halves(texts[name], pages),
            "lost": _count_lost(texts[name], texts["text"]),
            "half_lost": count_half_lost(texts[name], texts["text"], pages),
            "ingredients": _score_ingredients(texts[name], pages),
            "errors": errors[name],
            "mb_per_user_s": round(megabytes / max(seconds[name], _TICK_S), 2),
        }
    return {
        "pages": len(pages),
        "megabytes": round(megabytes, 1),
        "kinds": Counter(page.kind for page in pages),
        "extractors": figures,
    }


def _summarize_halves(texts: Sequence[str], pages: Sequence[GoldPage]) -> dict[str, Any]:
    figures: dict[str, Any] = {"all": summarize(texts, pages)}
    for half, is_held_out in (("tune", False), ("held_out", True)):
        numbers: list[int] = []
        for number, page in enumerate(pages):
            if page.is_held_out == is_held_out:
                numbers.append(number)
        if numbers:
            its_texts = [texts[number] for number in numbers]
            its_pages = [pages[number] for number in numbers]
            figures[half] = summarize(its_texts, its_pages)
    return figures


def _score_ingredients(texts: Sequence[str], pages: Sequence[GoldPage]) -> float | None:
    """Return the mean over all ingredients of the recipes; None if there are no recipes."""
    total, num_ingredients = 0.0, 0
    for text, page in zip(texts, pages, strict=True):
        if ingredients := read_ingredients(page.html):
            total += score_ingredients(text, ingredients) * len(ingredients)
            num_ingredients += len(ingredients)
    return round(total / num_ingredients, 3) if num_ingredients else None


def _count_lost(texts: Sequence[str], all_texts: Sequence[str]) -> int:
    num_lost = 0
    for text, all_text in zip(texts, all_texts, strict=True):
        is_long = len(all_text.strip()) > MIN_TEXT_CHARS
        num_lost += is_long and len(text.strip()) < MIN_FOUND_CHARS
    return num_lost


def _run_timed(extractor: Extractor, page: GoldPage) -> tuple[str | None, float]:
    """Return the text (None if the extractor raises) and the seconds of user time."""
    decoded = page.html.decode("utf-8", "replace")
    began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    try:
        text = extractor(page.html, decoded)
    except Exception:  # noqa: BLE001 - each extractor has other errors; they are counted
        text = None
    return text, resource.getrusage(resource.RUSAGE_SELF).ru_utime - began


def print_figures(name: str, figures: Mapping[str, Any]) -> None:
    """Print the figures of one set."""
    print(f"\n{name}: {figures['pages']} pages, {figures['megabytes']} MB of HTML")
    rows: list[tuple[object, ...]] = []
    for extractor, its in figures["extractors"].items():
        halves = [its.get(half, {}).get("f1") for half in ("tune", "held_out")]
        scores = [its["all"][name] for name in ("f1", "precision", "recall")]
        rest = [its[name] for name in ("lost", "half_lost", "ingredients", "errors")]
        rows.append((extractor, *scores, *halves, *rest, its["mb_per_user_s"]))
    names = ("F1", "prec.", "recall", "tune", "held out", "lost", "half", "ingr.", "errors")
    print_table(("", *names, "MB/s"), rows)


def main() -> None:
    """Measure all extractors on the sets that are there, print the tables, and save them."""
    parser = make_parser(__doc__)
    parser.add_argument("--gold", type=Path, required=True, help="folder with the clones")
    parser.add_argument("--every", type=int, default=1, help="take every nth page")
    parser.add_argument("--without-peers", action="store_true", help="ours only")
    parser.add_argument("--only", nargs="+", help="names of extractors, by default all")
    args = parser.parse_args()
    folders = {name: args.gold / name for name in SETS if (args.gold / name).is_dir()}
    if not folders:
        parser.error(f"{args.gold} has none of the folders {', '.join(SETS)}; see --help")
    if not args.without_peers and run_with_peers(__spec__.name, PEERS):
        return
    # It logs every page that it cannot read.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    for name, folder in folders.items():
        pages = list(SETS[name](folder))[:: args.every]
        extractors = make_extractors()
        if args.only:  # all text is needed to count lost pages
            extractors = {each: extractors[each] for each in ("text", *args.only)}
        figures = measure(pages, extractors)
        figures["annotations_sha256"] = digest_annotations(folder)
        print_figures(name, figures)
        finish(args, f"extraction_{name}", figures, LIBRARIES)


if __name__ == "__main__":
    main()
