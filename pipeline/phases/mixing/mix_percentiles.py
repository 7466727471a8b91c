"""The phase mix_percentiles: count the scores of the documents that all other rules of select keep.

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
from pipeline.phases.filter_phase import FILTERS, FilterPhase
from pipeline.phases.mixing.settings import list_topics
from pipeline.phases.percentiles import Percentiles
from pipeline.phases.phase import TaskCost
from pipeline.phases.signal_percentiles import SignalPercentiles
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter, read_row_groups
from stages.counters import Counters
from stages.filters.percentiles import name_languages
from stages.mixing.mix import count_groups
from stages.transform.tokenize import Tokenize

# The sample that is tokenized for a budget: the first kept documents of some input splits, evenly
# spaced. A preview tokenizes it again, which should take seconds.
SAMPLE_SPLITS = 64
SAMPLE_DOCUMENTS = 256


class MixPercentiles(FilterPhase):
    """Count scores and characters of the documents that all rules but `mix` keep."""

    name = "mix_percentiles"
    section = "select"
    version = 1
    parents = (Annotate, FuzzyDedup, SignalPercentiles, Percentiles)
    unused_settings = frozenset({"mix"})  # those that it uses are in fingerprint_inputs
    cost = TaskCost(grows_with="scored")

    @classmethod
    def is_enabled(cls, config: RunConfig) -> bool:
        """Return whether the run has quality bins or a budget."""
        return config.select.mix is not None

    @classmethod
    def was_off(cls, recorded: Mapping[str, Any]) -> bool:
        """Return whether a run with this stored config has neither."""
        return (recorded.get(cls.section) or {}).get("mix") is None

    @classmethod
    def list_model_references(cls, config: RunConfig) -> list[str]:
        """Return also the tokenizer, if there is a budget."""
        references = super().list_model_references(config)
        if _has_budget(config):
            references += Tokenize.required_files(config.tokenize)
        return references

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return the versions of the filters, the score, its topics, and the tokenizer."""
        del num_files
        mix = config.select.mix
        if mix is None:
            return {}
        has_budget = _has_budget(config)
        return {
            "filters": [[stage.name, stage.version] for stage in FILTERS],
            "mix": [mix.by, list(mix.topics)],
            "tokenize": config.tokenize.model_dump() if has_budget else None,
            "tokenize_version": Tokenize.version if has_budget else None,
        }

    def count_scores(self) -> Counters:
        """Return the scores that percentiles has counted."""
        if not Percentiles.is_enabled(self.config):
            return Counters()
        return Percentiles(self.plan).counters()

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer that counts the scores. The task has no files."""
        return _Counter(output, task_id, self)

    def is_sampled(self, task_id: str) -> bool:
        """Return whether documents of a split are tokenized, to estimate the tokens of all."""
        if not _has_budget(self.config):
            return False
        step = math.ceil(len(self.plan.splits) / SAMPLE_SPLITS)
        return self.split_number(task_id) % step == 0

    def count_tokens(self, task_id: str, sample: pa.Table) -> pa.Table:
        """Return the documents of a sample that have tokens, with their number.

        Args:
            task_id: of their split.
            sample: doc_id, language and num_chars, in input order.
        """
        specs = self.plan.phase("tokenize").stages
        spec = next(spec for spec in specs if spec.stage is Tokenize)
        file_name = Annotate.documents.file_name(task_id)
        source = self.plan.folder(Annotate.name).open(file_name)
        texts = _read_texts(source, sample.column("doc_id"))
        documents = sample.append_column("text", texts)
        return _tokenize(spec, self.model_digests, documents)


def _has_budget(config: RunConfig) -> bool:
    return config.select.mix is not None and config.select.mix.budget is not None


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


def _tokenize(spec: StageSpec, digests: Mapping[str, str], documents: pa.Table) -> pa.Table:
    """Return the documents that the tokenizer keeps, with `num_tokens`."""
    kept = spec.opened(digests).apply(documents).kept
    return kept.drop_columns(["text", "tokens"])


class _Counter(SplitWriter):
    """Counts the scores and characters of documents by group, and the tokens of a sample."""

    def __init__(self, output: PendingOutput, task_id: str, phase: MixPercentiles) -> None:
        super().__init__(output, task_id)
        self._phase = phase
        self._num_left = SAMPLE_DOCUMENTS if phase.is_sampled(task_id) else 0
        self._sample: list[pa.Table] = []

    def add_dropped(self, batch: pa.Table, dropped: pa.Table) -> None:
        """Count the documents. `select` writes the decisions on them."""
        del batch
        self.counters.add("documents", dropped.num_rows)

    def write_kept(self, batch: pa.Table) -> None:
        config = self._phase.config
        assert config.select.mix is not None
        count_groups(self.counters, config.select.mix.by, list_topics(config), batch)
        sample = batch.select(["doc_id", "language", "num_chars"])
        sample = sample.slice(0, self._num_left)
        self._num_left -= sample.num_rows
        if sample.num_rows:
            self._sample.append(sample)

    def close(self) -> None:
        """Count the tokens of the sample, by language. Write no file."""
        if not self._sample:
            return
        sample = pa.concat_tables(self._sample)
        counted = self._phase.count_tokens(self.task_id, sample)
        languages = name_languages(counted)
        groups = counted.set_column(1, "language", languages).group_by(
            "language", use_threads=False
        )
        for row in groups.aggregate(
            [("num_chars", "sum"), ("num_tokens", "sum")]
        ).to_pylist():
            self.counters.add(f"sampled_chars.{row['language']}", row["num_chars_sum"])
            self.counters.add(f"sampled_tokens.{row['language']}", row["num_tokens_sum"])
