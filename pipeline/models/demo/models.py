"""Recipes of the models that are trained on this machine for the demo.

A recipe has a fingerprint of everything that decides the bytes of its model; the cache keeps one
model per fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pipeline.models.cache import Asset, Trained, find_known_digest, obtain
from pipeline.models.classifier_training import ReferenceSettings, train_reference
from pipeline.models.corpus import list_versions
from pipeline.models.demo import texts as demo_texts
from pipeline.models.kenlm_build import KENLM_TOOLS, kenlm_tools
from pipeline.models.lm_training import LmSettings, list_lm_versions, train_lm
from pipeline.models.published import CC_BY_SA_4, PUBLISHED
from pipeline.runs.done_records import to_json
from stages.filters import classifiers, perplexity

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DemoLm:
    """A language model of Wikipedia summaries. No page of the sample crawl is made of them."""

    language: str
    vocab_size: int | None = None
    order: int = 5
    structure: Literal["probing", "trie"] = "probing"

    def fingerprint(self) -> str:
        """Return a digest of texts, settings, normalization and versions."""
        return _digest(
            {
                "recipe": ["demo-lm", dataclasses.asdict(self), demo_texts.VERSION],
                "texts": find_known_digest(self._texts),
                "normalisation": perplexity.Perplexity.version,
                "versions": list_lm_versions(),
            }
        )

    def make(self, folder: Path, *, offline: bool) -> None:
        """Train into `folder`. Takes about ten seconds."""
        obtain(self._texts, offline=offline)
        train_lm(
            _read_summaries(self.language, "lm"),
            self.language,
            folder,
            LmSettings(self.vocab_size, self.order, self.structure),
            kenlm=kenlm_tools(offline=offline),
        )

    @property
    def _texts(self) -> Asset:
        return PUBLISHED[f"wiki-summaries-{self.language}"]


@dataclass(frozen=True)
class DemoReference:
    """A classifier of Wikipedia summaries against crawl-like text."""

    language: str
    num_epochs: int = (
        20  # with so little text, 5 gave Spanish a precision of 0.53, 20 gave 0.79
    )
    dimension: int = 16  # enough for two classes, and a model of 2 MB instead of 10
    seed: int = 0  # of the crawl-like texts

    def fingerprint(self) -> str:
        """Return a digest of texts, settings, the format of the lines, and versions."""
        return _digest(
            {
                "recipe": ["demo-reference", dataclasses.asdict(self), demo_texts.VERSION],
                "texts": list(map(find_known_digest, self._texts)),
                "lines": classifiers.Classifiers.version,
                "versions": list_versions("fasttext"),
            }
        )

    def make(self, folder: Path, *, offline: bool) -> None:
        """Train into `folder`. Takes a few seconds."""
        for asset in self._texts:
            obtain(asset, offline=offline)
        positive = list(_read_summaries(self.language, "reference"))
        negative = demo_texts.crawl_like(self.language, len(positive), self.seed)
        log.info("%s: training a classifier", self.language)
        train_reference(
            positive,
            negative,
            folder,
            ReferenceSettings(num_epochs=self.num_epochs, dimension=self.dimension),
        )

    @property
    def _texts(self) -> tuple[Asset, Asset]:
        return PUBLISHED[f"wiki-summaries-{self.language}"], PUBLISHED["eld-sentences"]


def _read_summaries(language: str, part: demo_texts.Part) -> Iterator[str]:
    """Yield the texts of one part, without titles."""
    for _, text in demo_texts.summaries(language, part):
        yield text


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(value)).hexdigest()


def _make_lm_asset(language: str) -> Asset:
    return Asset(
        name=f"demo-lm-{language}",
        kind="lm",
        version="1",
        origin=Trained(DemoLm(language)),
        licence=f"{CC_BY_SA_4} (its texts)",
        sha256=None,
        description=f"Small language model for {language}, trained here on Wikipedia summaries "
        "in seconds",
    )


def _make_classifier_asset(language: str) -> Asset:
    return Asset(
        name=f"demo-reference-{language}",
        kind="reference-classifier",
        version="1",
        origin=Trained(DemoReference(language)),
        licence=f"{CC_BY_SA_4} (its texts)",
        sha256=None,
        description=f"Small reference classifier for {language}, trained here on summaries and "
        "crawl-like text",
    )


_ASSETS = (
    *map(_make_lm_asset, demo_texts.LANGUAGES),
    *map(_make_classifier_asset, demo_texts.LANGUAGES),
    KENLM_TOOLS,
)

# Name -> asset that is made on this machine.
TRAINED: Mapping[str, Asset] = MappingProxyType({asset.name: asset for asset in _ASSETS})

# Names of the models that are trained on little text, for the sample crawl.
DEMO_NAMES = frozenset(TRAINED) - {KENLM_TOOLS.name}
