"""Pages whose main content was marked by people: three public sets, read from clones.

    git clone https://github.com/scrapinghub/article-extraction-benchmark articles
    git clone https://github.com/adbar/trafilatura trafilatura
    git clone https://github.com/Murrough-Foley/web-content-extraction-benchmark wcxb

| set | pages | what is marked |
|-|-|-|
| articles | 181 of 2019, English | the whole text of the article (MIT) |
| trafilatura | 990, half of them German | up to 6 strings that belong to the text, and up to 6 that do not |
| wcxb | 2,008 of 2026, seven kinds | the whole text, drafted by a model and reviewed (CC BY 4.0) |

None of them is part of this repository. The result file has the digest of the annotations.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class GoldPage(NamedTuple):
    """A page and its content according to the annotators: `text`, or the two tuples."""

    name: str
    kind: str
    html: bytes
    text: str = ""
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()
    url: str = ""

    @property
    def is_held_out(self) -> bool:
        """Whether nobody may look at this page to improve the extractor.

        Half of each set is held out, by a hash of the page's name.
        """
        return hashlib.sha256(self.name.encode()).digest()[0] % 2 == 1


def read_articles(folder: Path) -> Iterator[GoldPage]:
    """Read a clone of scrapinghub/article-extraction-benchmark."""
    truth = json.loads((folder / "ground-truth.json").read_bytes())
    for name, gold in truth.items():
        html = gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes())
        yield GoldPage(name, "article", html, gold["articleBody"], url=gold["url"])


def read_trafilatura(folder: Path) -> Iterator[GoldPage]:
    """Read the pages of trafilatura's own evaluation from a clone of adbar/trafilatura."""
    truth = json.loads((folder / "tests" / "evaldata.json").read_bytes())
    for url, gold in sorted(truth.items()):
        path = folder / "tests" / "cache" / gold["file"]
        if not path.is_file():
            path = folder / "tests" / "eval" / gold["file"]
        wanted, unwanted = tuple(gold["with"]), tuple(gold["without"])
        yield GoldPage(url, "page", path.read_bytes(), "", wanted, unwanted, url)


def read_wcxb(folder: Path) -> Iterator[GoldPage]:
    """Read both parts of the Web Content eXtraction Benchmark."""
    for path in sorted(folder.glob("*/ground-truth/*.json")):
        gold = json.loads(path.read_bytes())
        kind = gold["_internal"]["page_type"]["primary"]
        html = (path.parent.parent / "html" / f"{path.stem}.html.gz").read_bytes()
        yield GoldPage(
            path.stem,
            "collection" if kind == "category" else kind,
            gzip.decompress(html),
            gold["ground_truth"].get("main_content") or "",
            url=gold.get("url") or f"https://wcxb.example/{path.stem}",
        )


_JSON_LD = re.compile(
    rb"<script[^>]*ld\+json[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE
)


def read_ingredients(html: bytes) -> tuple[str, ...]:
    """Return the ingredients that a page of a recipe states in JSON-LD (schema.org/Recipe)."""
    for script in _JSON_LD.findall(html):
        try:
            found: list[Any] = [json.loads(script, strict=False)]
        except ValueError:
            continue
        for value in found:  # grows
            if isinstance(value, dict):
                ingredients = value.get("recipeIngredient")
                if isinstance(ingredients, list) and ingredients:
                    return tuple(map(str, ingredients))
                found.extend(value.values())
            elif isinstance(value, list):
                found.extend(value)
    return ()


SETS: Mapping[str, Callable[[Path], Iterator[GoldPage]]] = {
    "articles": read_articles,
    "trafilatura": read_trafilatura,
    "wcxb": read_wcxb,
}


def digest_annotations(folder: Path) -> str:
    """Return the SHA-256 of the files with the annotations of a set, in order of their names."""
    digest = hashlib.sha256()
    names = ("ground-truth.json", "tests/evaldata.json", "*/ground-truth/*.json")
    for pattern in names:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()
