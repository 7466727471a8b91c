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

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.runs.phase_folder import RUN_FILE, PhaseFolder, parse_location
from stages.dedup.minhash import MinHash, MinHashSettings, bands
from stages.dedup.paragraphs import ParagraphHashes


@dataclass(frozen=True)
class PreviousRun:
    """What a later run has to know of an earlier one, as its run.json had it."""

    run_dir: str
    config: Mapping[str, Any]
    folders: Mapping[str, str]  # phase -> name of its folder
    splits: Sequence[str]
    stages: Mapping[
        str, Mapping[str, int]
    ]  # phase -> stage -> version; empty in runs that did not record them

    def folder(self, phase: str) -> PhaseFolder:
        """Where the phase's outputs lie."""
        return PhaseFolder(parse_location(self.run_dir) / self.folders[phase])

    def to_json(self) -> dict[str, Any]:
        """For a later run's run.json, from which `EarlierRun(**found)` makes it again."""
        return asdict(self)


@dataclass(frozen=True)
class PreviousSplit:
    """A unit of an earlier run."""

    run: PreviousRun
    key: str
    index: int  # in its own run

    def open(self, phase: str, name: str) -> pa.NativeFile:
        """A finished output of a phase there."""
        return self.run.folder(phase).open(name)


def splits_of_runs(runs: Sequence[PreviousRun]) -> Iterator[PreviousSplit]:
    """All units of several runs, in order."""
    return (PreviousSplit(run, key, index) for run in runs for index, key in enumerate(run.splits))


def owner(
    doc_id: int, num_splits: int, runs: Sequence[PreviousRun]
) -> tuple[PreviousRun, int] | None:
    """The earlier run that a document lies in, and its number there; None if it is one of the run's own units."""
    index = (doc_id >> 32) - num_splits
    if index < 0:
        return None
    split = list(splits_of_runs(runs))[index]
    return split.run, split.index << 32 | doc_id & 0xFFFF_FFFF


def find(config: RunConfig) -> tuple[PreviousRun, ...]:
    """The runs that `previous_runs` names, in its order.

    Raises:
        ConfigError: with every fault there is.
    """
    runs, faults, seen = (
        list[PreviousRun](),
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
            found = json.loads((parse_location(name) / RUN_FILE).read_bytes())
        except FileNotFoundError:
            faults.append(f"previous_runs: {name}: no run here ({RUN_FILE} is missing)")
            continue
        runs.append(
            PreviousRun(
                name, found["config"], found["folders"], found["splits"], found.get("stages", {})
            )
        )
        faults += [f"previous_runs: {name}: {fault}" for fault in _faults(config, runs[-1])]
    if faults:
        raise ConfigError(faults)
    return tuple(runs)


def _resolved(run_dir: str) -> str:
    """The same for two names of one folder."""
    found = parse_location(run_dir)
    return str(found.resolve() if isinstance(found, Path) else found)


def shares(config: RunConfig, phase: str, run: PreviousRun) -> Any:
    """What a phase of ours takes from an earlier run, as its fingerprint has it; None where it takes nothing.

    The names of units stand for what lies in extract's folder, which outlives a change of the input.
    """
    read = {
        "exact_dedup": ("exact_dedup",) if config.exact_dedup is not None else (),
        "paragraph_dedup": ("extract",) if config.paragraph_dedup.keep != "keep_all" else (),
        "fuzzy_dedup": ("annotate", "fuzzy_dedup") if config.fuzzy_dedup is not None else (),
    }.get(phase, ())
    return [[run.folders[name] for name in read], list(run.splits)] if read else None


def _faults(config: RunConfig, run: PreviousRun) -> Iterator[str]:
    """What keeps our deduplication from reading a run."""
    if config.exact_dedup is not None:
        theirs = run.config.get("exact_dedup")
        if theirs is None or theirs["by"] != config.exact_dedup.by:
            yield f"its copies are {_shown(theirs)}, ours {_shown(config.exact_dedup.model_dump())}; make them alike"
        else:
            yield from _unfinished(run, "exact_dedup")
    if config.exact_dedup is not None or config.paragraph_dedup.keep != "keep_all":
        yield from _unfinished(run, "extract")
        yield from _other_version(run, "extract", ParagraphHashes.name, ParagraphHashes.version)
    if config.fuzzy_dedup is not None:
        assert config.annotate.minhash is not None
        theirs = run.config["annotate"].get("minhash")
        if theirs is None:
            yield "its annotate.minhash is null: it has no signatures; run it again with annotate.minhash: {...}"
            return
        yield from _unfinished(run, "annotate")
        yield from _unfinished(run, "fuzzy_dedup")
        yield from _other_version(run, "annotate", MinHash.name, MinHash.version)
        yield from _other_bands(config.annotate.minhash, MinHashSettings.model_validate(theirs))


def _unfinished(run: PreviousRun, phase: str) -> Iterator[str]:
    if phase not in run.folders or not run.folder(phase).complete():
        yield f"its {phase} is not finished; run it to its end first"


def _other_version(run: PreviousRun, phase: str, stage: str, ours: int) -> Iterator[str]:
    if (theirs := run.stages.get(phase, {}).get(stage)) != ours:
        found = "did not record its version" if theirs is None else f"is version {theirs}"
        yield f"its stage {stage} {found}, ours is {ours}; run it again: what is still good is used again"


def _other_bands(ours: MinHashSettings, theirs: MinHashSettings) -> Iterator[str]:
    for name in ("num_permutations", "ngram_words", "seed"):
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
