"""The phase mix_percentiles: count the documents that all filters but `mix` keep, and tokenize a sample of them.

`select.mix` finds the percentile of every document in these counts, and the end of its budget of
tokens. The phase is off without that section.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.histograms import (
    HistogramPhase,
    HistogramWriter,
    Percentiles,
    SignalPercentiles,
)
from pipeline.phases.phase import plan_stages
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter, read_row_groups
from stages.counters import Counters
from stages.histograms import name_languages
from stages.mixing.mix import label_bins
from stages.transform.tokenize import Tokenize

# The sample that is tokenized for a budget: the first kept documents of some input splits, evenly
# spaced. A preview tokenizes it again, which should take seconds.
SAMPLE_SPLITS = 64
SAMPLE_DOCUMENTS = 256


class MixPercentiles(HistogramPhase):
    """Count scores and characters of the documents that all filters but `mix` keep."""

    name = "mix_percentiles"
    section = "select"
    version = 2
    counted = "kept"
    parents = (Annotate, FuzzyDedup, SignalPercentiles, Percentiles)

    @classmethod
    def plan_stages(cls, config: RunConfig) -> tuple[StageSpec, ...]:
        """Return the filters, and the tokenizer of the sample if there is a budget."""
        specs = super().plan_stages(config)
        return (*specs, *plan_stages(config, "tokenize", _list_tokenizers(config)))

    def stage_specs(self) -> tuple[StageSpec, ...]:
        """Return the filters."""
        return tuple(spec for spec in super().stage_specs() if spec.stage is not Tokenize)

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer that counts the documents, and samples some. The task has no files."""
        return _SamplingWriter(output, task_id, self)

    def is_sampled(self, task_id: str) -> bool:
        """Return whether documents of a split are tokenized, to estimate the tokens of all."""
        if not _has_budget(self.config):
            return False
        step = math.ceil(len(self.plan.splits) / SAMPLE_SPLITS)
        return self.split_number(task_id) % step == 0

    def count_tokens(self, task_id: str, sample: pa.Table) -> Counters:
        """Count the characters and tokens of a sample, by language.

        Args:
            task_id: of their split.
            sample: doc_id, language and num_chars, in input order.
        """
        counters = Counters()
        if not sample.num_rows:
            return counters
        specs = self.plan.phase(self.name).stages
        spec = next(spec for spec in specs if spec.stage is Tokenize)
        file_name = Annotate.documents.file_name(task_id)
        source = self.plan.folder(Annotate.name).open(file_name)
        texts = _read_texts(source, sample.column("doc_id"))
        documents = sample.select(["doc_id", "num_chars"]).append_column("text", texts)
        documents = documents.append_column("language", name_languages(sample))
        tokenized = spec.opened(self.model_digests).apply(documents).kept
        sums = [("num_chars", "sum"), ("num_tokens", "sum")]
        groups = tokenized.group_by("language", use_threads=False)
        for row in groups.aggregate(sums).to_pylist():
            counters.add(f"sampled_chars.{row['language']}", row["num_chars_sum"])
            counters.add(f"sampled_tokens.{row['language']}", row["num_tokens_sum"])
        return counters


def _has_budget(config: RunConfig) -> bool:
    return config.select.mix is not None and config.select.mix.budget is not None


def _list_tokenizers(config: RunConfig) -> list[type[Tokenize]]:
    return [Tokenize] if _has_budget(config) else []


def _read_texts(source: pa.NativeFile, doc_ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the texts of documents, which are in the order of the file, near its beginning."""
    found: list[pa.Table] = []
    num_found = 0
    for group in read_row_groups(source, ["doc_id", "text"]):
        is_wanted = pc.is_in(group.column("doc_id"), doc_ids.combine_chunks())
        found.append(group.filter(is_wanted))
        num_found += found[-1].num_rows
        if num_found == len(doc_ids):
            break
    return pa.concat_tables(found).column("text")


class _SamplingWriter(HistogramWriter):
    """Counts documents in histograms, and the tokens of a sample."""

    def __init__(self, output: PendingOutput, task_id: str, phase: MixPercentiles) -> None:
        super().__init__(output, task_id, phase.list_histograms(phase.config))
        self._phase = phase
        self._num_left = SAMPLE_DOCUMENTS if phase.is_sampled(task_id) else 0
        self._sample: list[pa.Table] = []

    def write_kept(self, batch: pa.Table) -> None:
        super().write_kept(batch)
        sample = batch.select(["doc_id", "language", "num_chars"])
        sample = sample.slice(0, self._num_left)
        self._num_left -= sample.num_rows
        if sample.num_rows:
            self._sample.append(sample)

    def close(self) -> None:
        """Count the tokens of the sample, by language. Write no file."""
        if self._sample:
            sample = pa.concat_tables(self._sample)
            self.counters += self._phase.count_tokens(self.task_id, sample)


def describe_mix(
    config: RunConfig, selected: Mapping[str, int], tokenized: Mapping[str, int]
) -> dict[str, Any]:
    """Return what the dataset repeats, as JSON, for its manifest and for reports.

    Args:
        config: the run's config, with `select.mix`.
        selected: the counters of select.
        tokenized: the counters of tokenize.
    """
    mix = config.select.mix
    assert mix is not None
    bins: list[dict[str, Any]] = []
    for label, each in zip(label_bins(mix), mix.bins, strict=True):
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
