"""The earlier runs that a run is deduplicated against: where they lie, and that they can be compared with it.

Promises: what `find` returns holds, finished and made by the same rules, all that this run's deduplication reads of it;
else a ConfigError says, before anything runs, what is missing and where the two differ. Nothing is written there.
Leaves to others: reading it (phases/exact_dedup.py, paragraph_dedup.py, fuzzy_dedup.py); docs/incremental.md says what
counts as what.

Two runs number their documents alike. So in a run that was deduplicated against others the i-th unit of theirs, in the
order in which they are named, has the number `number of its own units + i`: that is how the ledger's `representative`
says that a document lies in another run, and `owner` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.runs.phase_folder import parse_location
from pipeline.runs.run_folder import RunFolder, RunNotFound
from stages.dedup.minhash import MinHash, MinHashSettings, bands
from stages.dedup.paragraphs import ParagraphHashes


@dataclass(frozen=True)
class PreviousSplit:
    """A unit of an earlier run."""

    run: RunFolder
    key: str
    index: int  # in its own run

    def open(self, phase: str, name: str) -> pa.NativeFile:
        """A finished output of a phase there."""
        return self.run.folder(phase).open(name)


def splits_of_runs(runs: Sequence[RunFolder]) -> Iterator[PreviousSplit]:
    """All units of several runs, in order."""
    return (PreviousSplit(run, split.key, split.index) for run in runs for split in run.splits)


def owner(doc_id: int, num_splits: int, runs: Sequence[RunFolder]) -> tuple[RunFolder, int] | None:
    """The earlier run that a document lies in, and its number there; None if it is one of the run's own units."""
    index = (doc_id >> 32) - num_splits
    if index < 0:
        return None
    split = list(splits_of_runs(runs))[index]
    return split.run, split.index << 32 | doc_id & 0xFFFF_FFFF


def find(config: RunConfig) -> tuple[RunFolder, ...]:
    """The runs that `previous_runs` names, in its order.

    Raises:
        ConfigError: with every fault there is.
    """
    runs, faults, seen = (
        list[RunFolder](),
        list[str](),
        {_resolved(config.run_dir): "the run itself"},
    )
    for name in config.previous_runs:
        where = _resolved(name)
        if where in seen:
            faults.append(f"previous_runs: {name} is {seen[where]}; name other runs, each once")
            continue
        seen[where] = f"named twice, the first time as {name}"
        try:
            runs.append(RunFolder.open(name))
        except RunNotFound as error:
            faults.append(f"previous_runs: {error}")
            continue
        except ConfigError as error:
            faults += [f"previous_runs: {fault}" for fault in error.faults]
            continue
        faults += [f"previous_runs: {name}: {fault}" for fault in _faults(config, runs[-1])]
    if faults:
        raise ConfigError(faults)
    return tuple(runs)


def _resolved(run_dir: str) -> str:
    """The same for two names of one folder."""
    found = parse_location(run_dir)
    return str(found.resolve() if isinstance(found, Path) else found)


def shares(config: RunConfig, phase: str, run: RunFolder) -> Any:
    """What a phase of ours takes from an earlier run, as its fingerprint has it; None where it takes nothing.

    The names of units stand for what lies in extract's folder, which outlives a change of the input.
    """
    read = {
        "exact_dedup": ("exact_dedup",) if config.exact_dedup is not None else (),
        "paragraph_dedup": ("extract",) if config.paragraph_dedup.keep != "keep_all" else (),
        "fuzzy_dedup": ("annotate", "fuzzy_dedup") if config.fuzzy_dedup is not None else (),
    }.get(phase, ())
    return (
        [[run.folders[name] for name in read], [split.key for split in run.splits]]
        if read
        else None
    )


def _faults(config: RunConfig, run: RunFolder) -> Iterator[str]:
    """What keeps our deduplication from reading a run."""
    if config.exact_dedup is not None:
        theirs = run.config.exact_dedup
        if theirs is None or theirs.by != config.exact_dedup.by:
            shown = _shown(None if theirs is None else theirs.model_dump())
            yield f"its copies are {shown}, ours {_shown(config.exact_dedup.model_dump())}; make them alike"
        else:
            yield from _unfinished(run, "exact_dedup")
    if config.exact_dedup is not None or config.paragraph_dedup.keep != "keep_all":
        yield from _unfinished(run, "extract")
        yield from _other_version(run, "extract", ParagraphHashes.name, ParagraphHashes.version)
    if config.fuzzy_dedup is not None:
        assert config.annotate.minhash is not None
        theirs = run.config.annotate.minhash
        if theirs is None:
            yield "its annotate.minhash is null: it has no signatures; run it again with annotate.minhash: {...}"
            return
        yield from _unfinished(run, "annotate")
        yield from _unfinished(run, "fuzzy_dedup")
        yield from _other_version(run, "annotate", MinHash.name, MinHash.version)
        yield from _other_bands(config.annotate.minhash, theirs)


def _unfinished(run: RunFolder, phase: str) -> Iterator[str]:
    if not run.has_finished(phase):
        yield f"its {phase} is not finished; run it to its end first"


def _other_version(run: RunFolder, phase: str, stage: str, ours: int) -> Iterator[str]:
    if (theirs := run.stage_versions.get(phase, {}).get(stage)) != ours:
        found = "did not record its version" if theirs is None else f"is version {theirs}"
        yield f"its stage {stage} {found}, ours is {ours}; run it again: what is still good is used again"


def _other_bands(ours: MinHashSettings, theirs: MinHashSettings) -> Iterator[str]:
    for name in ("num_permutations", "ngram_words"):
        if (here := getattr(ours, name)) != (there := getattr(theirs, name)):
            yield f"its annotate.minhash.{name} is {there}, ours {here}: their signatures cannot be compared"
    if bands(ours) != bands(theirs):
        yield (
            f"its annotate.minhash.threshold is {theirs.threshold} (bands and rows {bands(theirs)}), ours "
            f"{ours.threshold} ({bands(ours)}): bands of other rows are never equal"
        )
    if ours.verify and ours.verify != theirs.verify:
        yield (
            f"its annotate.minhash.verify is {_shown(theirs.verify)}, ours {_shown(ours.verify)}: it has not stored "
            f"what there is to verify by"
        )


def _shown(value: Mapping[str, Any] | bool | str | None) -> str:
    """As YAML has it."""
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
