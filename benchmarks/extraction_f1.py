r"""Compare the quality and speed of text extraction with other extractors, on two gold sets.

    python -m venv peers && peers/bin/pip install resiliparse justext==3.0.2 "pydantic>=2.12" pyarrow numpy \
        trafilatura readability-lxml boilerpy3 goose3 newspaper4k inscriptis
    git clone https://github.com/scrapinghub/article-extraction-benchmark articles
    git clone https://github.com/Murrough-Foley/web-content-extraction-benchmark wcxb
    peers/bin/python benchmarks/extraction_f1.py --articles articles --wcxb wcxb/test [--save]

The gold sets are not part of this repository: 181 articles of 2019, annotated by hand (scrapinghub, MIT); and 511 pages
of 2026, half of them articles, the others of six kinds (WCXB's test split, CC BY 4.0; drafted by a model, reviewed by
people; its author also writes rs-trafilatura, which is not compared). Its development split is `--wcxb wcxb/dev`.

The measure is precision, recall and F1 of the multiset of words (`\w+`, lower case) per page, as in WCXB's evaluate.py:
the mean with a 95 % interval (bootstrap over pages), and the median. `shingle_f1` is the measure of the articles'
evaluate.py: the harmonic mean of mean precision and mean recall of word 4-grams. The extractors take turns page by page,
in a rotating order. MB of HTML per CPU second are over all pages. Our extractor receives bytes, the others decoded
text, which saves them the detection of the charset. Extractors that are not installed are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # so that the file runs from another environment

from benchmarks.result_file import save  # noqa: E402 - after the path is set
from stages.html.extraction import HtmlSettings, Unusable, extract  # noqa: E402
from stages.html.justext import JustextSettings  # noqa: E402

LIBRARIES = [
    "resiliparse",
    "justext",
    "lxml",
    "trafilatura",
    "readability-lxml",
    "boilerpy3",
    "goose3",
    "newspaper4k",
]
LIBRARIES += ["inscriptis"]
# A function (page as bytes, decoded page) -> text.
Extractor = Callable[[bytes, str], str]


class GoldPage(NamedTuple):
    """A page and its content according to the annotators."""

    kind: str
    html: bytes
    text: str


class Score(NamedTuple):
    """Precision, recall and F1 of the words or word n-grams of one page."""

    precision: float
    recall: float
    f1: float


def articles(folder: Path) -> Iterator[GoldPage]:
    """Read a checkout of scrapinghub/article-extraction-benchmark."""
    for name, gold in json.loads(
        (folder / "ground-truth.json").read_text(encoding="utf-8")
    ).items():
        yield GoldPage(
            "article",
            gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes()),
            gold["articleBody"],
        )


def wcxb(folder: Path) -> Iterator[GoldPage]:
    """Read one part (dev or test) of the Web Content eXtraction Benchmark."""
    for path in sorted((folder / "ground-truth").glob("*.json")):
        gold = json.loads(path.read_text(encoding="utf-8"))
        kind = gold["_internal"]["page_type"]["primary"]
        html = gzip.decompress((folder / "html" / f"{path.stem}.html.gz").read_bytes())
        yield GoldPage(
            "collection" if kind == "category" else kind,
            html,
            gold["ground_truth"]["main_content"] or "",
        )


def ours(settings: HtmlSettings) -> Extractor:
    def run(body: bytes, _: str) -> str:
        page = extract(body, "text/html; charset=utf-8", settings)
        return "" if isinstance(page, Unusable) else page.text

    return run


def entrants() -> dict[str, Extractor]:
    """Return our extractors, and the other extractors that are installed."""
    found: dict[str, Extractor] = {
        "plain": ours(HtmlSettings()),
        "main content": ours(HtmlSettings(main_content=True)),
        "justext (ours)": ours(HtmlSettings(justext=JustextSettings())),
    }
    return found | {
        name: make() for name, (module, make) in _PEERS.items() if find_spec(module)
    }


def _justext() -> Extractor:
    import justext

    stop_words = justext.get_stoplist("English")
    return lambda _, html: "\n".join(
        p.text for p in justext.justext(html, stop_words) if not p.is_boilerplate
    )


def _trafilatura() -> Extractor:
    import trafilatura

    return lambda _, html: trafilatura.extract(html) or ""


def _trafilatura_precise() -> Extractor:
    import trafilatura

    return lambda _, html: (
        trafilatura.extract(html, favor_precision=True, include_comments=False) or ""
    )


def _readability() -> Extractor:
    import lxml.html
    from readability import Document

    return lambda _, html: "\n".join(
        lxml.html.fromstring(Document(html).summary()).itertext()
    )


def _boilerpy3() -> Extractor:
    from boilerpy3.extractors import ArticleExtractor

    extractor = ArticleExtractor(raise_on_failure=False)
    return lambda _, html: extractor.get_content(html)


def _goose3() -> Extractor:
    from goose3 import Goose

    goose = Goose({"enable_image_fetching": False})
    return lambda _, html: goose.extract(raw_html=html).cleaned_text


def _newspaper() -> Extractor:
    import newspaper

    def run(_: bytes, html: str) -> str:
        article = newspaper.Article(
            "https://example.org/", language="en", fetch_images=False
        )
        article.download(input_html=html)
        article.parse()
        return article.text

    return run


def _inscriptis() -> Extractor:
    import inscriptis

    return lambda _, html: inscriptis.get_text(html)


_PEERS: Mapping[str, tuple[str, Callable[[], Extractor]]] = {
    "jusText": ("justext", _justext),
    "trafilatura": ("trafilatura", _trafilatura),
    "trafilatura, precise": ("trafilatura", _trafilatura_precise),  # as FineWeb
    "readability-lxml": ("readability", _readability),
    "boilerpy3": ("boilerpy3", _boilerpy3),
    "goose3": ("goose3", _goose3),
    "newspaper4k": ("newspaper", _newspaper),
    "inscriptis": ("inscriptis", _inscriptis),
}


def score(text: str, gold: str) -> Score:
    """Compare the words of `text` with those of `gold`.

    >>> score("Home Flour and water", "flour and water")
    Score(precision=0.75, recall=1.0, f1=0.8571428571428571)
    """
    return _score(_count_ngrams(text.lower(), 1), _count_ngrams(gold.lower(), 1))


def shingle_f1(texts: Sequence[str], golds: Sequence[str]) -> float:
    """Return the measure of the articles' evaluate.py. A text without words counts neither for precision nor for recall."""
    pairs = [
        (_count_ngrams(text, 4), _count_ngrams(gold, 4))
        for text, gold in zip(texts, golds, strict=True)
    ]
    precision = statistics.fmean(
        [_score(*pair).precision for pair in pairs if pair[0]] or [0.0]
    )
    recall = statistics.fmean([_score(*pair).recall for pair in pairs if pair[1]] or [0.0])
    return 2 * precision * recall / (precision + recall or 1)


def _score(found: Counter[tuple[str, ...]], wanted: Counter[tuple[str, ...]]) -> Score:
    if not wanted or not found:
        same = float(not wanted and not found)
        return Score(same, same, same)
    shared = (found & wanted).total()
    precision, recall = shared / found.total(), shared / wanted.total()
    return Score(
        precision, recall, 2 * precision * recall / (precision + recall) if shared else 0.0
    )


def _count_ngrams(text: str, ngram_words: int) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+", text)
    return Counter(
        zip(*(words[first:] for first in range(min(ngram_words, len(words)))), strict=False)
    )


def summarize(scores: Sequence[Score]) -> dict[str, Any]:
    """Return means, the median, and the interval of F1 with 95 % of 1,000 resamples of the pages."""
    rng = random.Random(0)
    values = [each.f1 for each in scores]
    means = sorted(
        statistics.fmean(rng.choices(values, k=len(values))) for _ in range(1000)
    )
    return {
        "f1": round(statistics.fmean(values), 3),
        "f1_95": [round(means[25], 3), round(means[974], 3)],
        "f1_median": round(statistics.median(values), 3),
        "precision": round(statistics.fmean(each.precision for each in scores), 3),
        "recall": round(statistics.fmean(each.recall for each in scores), 3),
    }


def measure(
    pages: Sequence[GoldPage], extractors: Mapping[str, Extractor]
) -> dict[str, Any]:
    """Run every extractor on every page, in turns."""
    names = list(extractors)
    seconds, errors = dict.fromkeys(names, 0.0), Counter[str]()
    texts: dict[str, list[str]] = {name: [] for name in names}
    for extractor in extractors.values():
        # loads stop words, models and patterns before the measurement
        _timed(extractor, pages[0], "")
    for number, page in enumerate(pages):
        decoded = page.html.decode("utf-8", "replace")
        for name in names[number % len(names) :] + names[: number % len(names)]:
            text, took = _timed(extractors[name], page, decoded)
            seconds[name] += took
            errors[name] += text is None
            texts[name].append(text or "")
    megabytes = sum(len(page.html) for page in pages) / 1e6
    kinds, golds = [page.kind for page in pages], [page.text for page in pages]
    figures: dict[str, dict[str, Any]] = {}
    for name in names:
        scores = [score(text, gold) for text, gold in zip(texts[name], golds, strict=True)]
        by_kind = {
            kind: [s.f1 for s, its in zip(scores, kinds, strict=True) if its == kind]
            for kind in set(kinds)
        }
        figures[name] = {
            **summarize(scores),
            "shingle_f1": round(shingle_f1(texts[name], golds), 3),
            "f1_by_kind": {
                kind: round(statistics.fmean(values), 3)
                for kind, values in sorted(by_kind.items())
            },
            "errors": errors[name],
            "mb_per_cpu_s": round(megabytes / seconds[name], 2),
        }
    return {
        "pages": len(pages),
        "megabytes": round(megabytes, 1),
        "kinds": Counter(kinds),
        "extractors": figures,
    }


def _timed(extractor: Extractor, page: GoldPage, decoded: str) -> tuple[str | None, float]:
    """Return the text (None if the extractor raises) and the CPU seconds."""
    began = time.process_time()
    try:
        text = extractor(page.html, decoded)
    except Exception:  # noqa: BLE001 - each extractor has other errors; they are counted
        text = None
    return text, time.process_time() - began


def main() -> None:
    """Measure all extractors on the given sets, print the tables, and save the figures with `--save`."""
    logging.disable()  # some extractors log every page that they cannot read
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--articles", type=Path, help="the folder of article-extraction-benchmark"
    )
    parser.add_argument("--wcxb", type=Path, help="the folder of one split of WCXB")
    parser.add_argument(
        "--pages", type=int, help="number of pages per set, evenly spread; default: all"
    )
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        metavar="EXTRACTOR",
        help="extractors to leave out",
    )
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    sets = {name: list(read(folder)) for name, read, folder in _given(args)}
    if not sets:
        parser.error("give --articles, --wcxb or both: see --help for their sources")
    extractors = {
        name: each for name, each in entrants().items() if name not in args.without
    }
    figures = {
        name: measure(
            pages[:: round(len(pages) / min(len(pages), args.pages or len(pages)))],
            extractors,
        )
        for name, pages in sets.items()
    }
    for name, found in figures.items():
        print(f"\n{name}: {found['pages']} pages, {found['megabytes']} MB of HTML")
        print(
            f"{'':22} {'F1':>6} {'95 %':>14} {'median':>7} {'prec.':>6} {'recall':>6} {'shingle':>8} {'MB/s':>7} errors"
        )
        for extractor, its in sorted(
            found["extractors"].items(), key=lambda item: -item[1]["f1"]
        ):
            low, high = its["f1_95"]
            print(
                f"{extractor:22} {its['f1']:6.3f} {low:6.3f} - {high:5.3f} {its['f1_median']:7.3f} "
                f"{its['precision']:6.3f} {its['recall']:6.3f} {its['shingle_f1']:8.3f} {its['mb_per_cpu_s']:7.2f} "
                f"{its['errors']}"
            )
    if args.save:
        print(save("extraction_f1", figures, libraries=LIBRARIES))


def _given(
    args: argparse.Namespace,
) -> Iterator[tuple[str, Callable[[Path], Iterator[GoldPage]], Path]]:
    for name, read in (("articles", articles), ("wcxb", wcxb)):
        if (folder := getattr(args, name)) is not None:
            yield name, read, folder


if __name__ == "__main__":
    main()
