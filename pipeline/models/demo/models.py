"""The models that are trained on this machine for the demo.

The cache keeps one model for each value of everything that decides its bytes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline.models.cache import Asset, Entry, Trained, obtain
from pipeline.models.classifier_training import ReferenceSettings, train_reference
from pipeline.models.corpus import list_versions
from pipeline.models.demo import texts as demo_texts
from pipeline.models.kenlm_build import KENLM_TOOLS, kenlm_tools
from pipeline.models.lm_training import describe_settings, list_lm_versions, train_lm
from pipeline.models.published import CC_BY_SA_4, PUBLISHED
from stages.filters import classifiers, perplexity

log = logging.getLogger(__name__)

# With so little text, 5 epochs gave Spanish a precision of 0.53, 20 gave 0.79. 16 dimensions are
# enough for two classes, and give a model of 2 MB instead of 10.
_REFERENCE = ReferenceSettings(num_epochs=20, dimension=16)

_CRAWL_LIKE_SEED = 0


def _identify_lm(language: str) -> dict[str, Any]:
    """Return what decides the bytes: texts, settings, normalization and versions."""
    return {
        "recipe": ["demo-lm", language, describe_settings(), demo_texts.VERSION],
        "texts": Entry(_find_summaries(language)).find_known_digest(),
        "normalisation": perplexity.Perplexity.version,
        "versions": list_lm_versions(),
    }


def _train_lm(language: str, folder: Path, offline: bool) -> None:
    """Train on Wikipedia summaries, about ten seconds. No page of the sample crawl is made of them."""
    obtain(_find_summaries(language), offline=offline)
    texts = _read_summaries(language, "lm")
    train_lm(texts, language, folder, kenlm=kenlm_tools(offline=offline))


def _identify_reference(language: str) -> dict[str, Any]:
    """Return what decides the bytes: texts, settings, the format of the lines, and versions."""
    settings = dataclasses.asdict(_REFERENCE)
    assets = (_find_summaries(language), PUBLISHED["eld-sentences"])
    return {
        "recipe": ["demo-reference", language, settings, demo_texts.VERSION],
        "texts": [Entry(asset).find_known_digest() for asset in assets],
        "lines": classifiers.Classifiers.version,
        "versions": list_versions("fasttext"),
    }


def _train_reference(language: str, folder: Path, offline: bool) -> None:
    """Train on Wikipedia summaries against crawl-like text, a few seconds."""
    for asset in (_find_summaries(language), PUBLISHED["eld-sentences"]):
        obtain(asset, offline=offline)
    positive = list(_read_summaries(language, "reference"))
    negative = demo_texts.crawl_like(language, len(positive), _CRAWL_LIKE_SEED)
    log.info("%s: training a classifier", language)
    train_reference(positive, negative, folder, _REFERENCE)


def _find_summaries(language: str) -> Asset:
    return PUBLISHED[f"wiki-summaries-{language}"]


def _read_summaries(language: str, part: demo_texts.Part) -> Iterator[str]:
    """Yield the texts of one part, without titles."""
    for _, text in demo_texts.summaries(language, part):
        yield text


def _make_lm_asset(language: str) -> Asset:
    return Asset(
        name=f"demo-lm-{language}",
        kind="lm",
        version="1",
        source=Trained(partial(_identify_lm, language), partial(_train_lm, language)),
        licence=f"{CC_BY_SA_4} (its texts)",
        description=f"Small language model for {language}, trained here on Wikipedia summaries "
        "in seconds",
    )


def _make_classifier_asset(language: str) -> Asset:
    return Asset(
        name=f"demo-reference-{language}",
        kind="reference-classifier",
        version="1",
        source=Trained(
            partial(_identify_reference, language), partial(_train_reference, language)
        ),
        licence=f"{CC_BY_SA_4} (its texts)",
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
