"""What a run repeats: documents, copies and tokens by quality bin, and the budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.config import RunConfig
from pipeline.phases.mix_percentiles import describe_mix
from stages.counters import Counters
from stages.mixing.budget import TokenRates

COPIED_CHARS = "copied_chars."


@dataclass(frozen=True)
class BinCounts:
    """What is kept of one quality bin.

    Attributes:
        percentiles: where it begins and ends, such as "90-100".
        copies_of_each: of every document, as the config says.
        num_copies: of all documents.
        num_tokens: of all copies; 0 before the phase tokenize has finished.
    """

    percentiles: str
    copies_of_each: float
    num_docs: int
    num_copies: int
    num_tokens: int


@dataclass(frozen=True)
class MixReport:
    """What a run repeats.

    Attributes:
        by: the score that ranks documents.
        num_tokens: of the dataset, with all copies.
        budget_tokens: the budget; None: no limit.
        estimated_tokens: of the documents that select has kept; 0 without a budget.
    """

    by: str
    bins: tuple[BinCounts, ...]
    num_tokens: int
    budget_tokens: int | None
    estimated_tokens: int


def make_mix_report(
    config: RunConfig, counts: Mapping[str, Mapping[str, int]]
) -> MixReport | None:
    """Return what a run repeats; None without `select.mix`.

    Args:
        config: the run's config.
        counts: phase -> its counters; empty for a phase that is not complete.
    """
    mix = config.select.mix
    if mix is None:
        return None
    tokenized = counts["tokenize"]
    found = describe_mix(config, counts["select"], tokenized)["bins"]
    bins = tuple(BinCounts(**each) for each in found)
    estimated = sum(_estimate_tokens(counts["mix_percentiles"], counts["select"]))
    return MixReport(
        by=mix.by,
        bins=bins,
        num_tokens=sum(each.num_tokens for each in bins),
        budget_tokens=mix.budget.num_tokens if mix.budget else None,
        estimated_tokens=round(estimated),
    )


def _estimate_tokens(
    sampled: Mapping[str, int], selected: Mapping[str, int]
) -> Iterator[float]:
    rates = TokenRates(Counters.from_json({"counts": sampled, "histograms": {}}))
    for name, num_chars in selected.items():
        if name.startswith(COPIED_CHARS):
            yield rates.estimate(name.removeprefix(COPIED_CHARS), num_chars)


def make_mix_title(mix: MixReport) -> str:
    """Return the title of the bins: the score, and how far the result is from the budget."""
    title = f"Kept, by quality bin of {mix.by}"
    if mix.budget_tokens is None:
        return title
    title += f": budget {mix.budget_tokens:,} tokens, estimated {mix.estimated_tokens:,}"
    if not mix.num_tokens:
        return title
    difference = mix.num_tokens / mix.budget_tokens - 1
    return f"{title}, written {mix.num_tokens:,} ({difference:+.2%} of the budget)"
