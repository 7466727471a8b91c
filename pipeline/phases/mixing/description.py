"""What a dataset repeats, for its manifest and for reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.config import RunConfig
from pipeline.phases.mixing.settings import make_mix_settings
from stages.counters import Counters
from stages.mixing.mix import label_bins


def describe_mix(
    config: RunConfig, selected: Mapping[str, int], tokenized: Mapping[str, int]
) -> dict[str, Any]:
    """Return what the dataset repeats, as JSON.

    Args:
        config: the run's config, with `select.mix`.
        selected: the counters of select.
        tokenized: the counters of tokenize.
    """
    mix = config.select.mix
    assert mix is not None
    bins: list[dict[str, Any]] = []
    labels = label_bins(make_mix_settings(config, Counters()))
    for label, each in zip(labels, mix.bins, strict=True):
        bins.append(
            {
                "percentiles": label,
                "copies_of_each": each.num_copies,
                "num_docs": selected.get(f"bin_documents.{label}", 0),
                "num_copies": selected.get(f"bin_copies.{label}", 0),
                "num_tokens": tokenized.get(f"quality_bin_tokens.{label}", 0),
            }
        )
    return {
        "by": mix.by,
        "topics": list(mix.topics),
        "bins": bins,
        "budget": mix.budget.model_dump(mode="json") if mix.budget else None,
        "doc_id": "doc_id of the document + copy * 2**60, with copy 0, 1, 2, ...",
        "num_distinct_docs": tokenized.get("documents_kept", 0),
        "num_distinct_tokens": tokenized.get("tokens", 0),
    }
