"""Fuzzing of the files that the software reads back: records, logs, manifests, indexes, states."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

from loader import TokenLoader
from pipeline.config import load
from pipeline.runs.event_log import LOG, read_events
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from shardwriter.format import MANIFEST_FILE, Manifest, ShardIndex
from stages.counters import Counters
from storage import open_store
from storage.errors import DamagedFile
from tests.conftest import REPOSITORY
from tests.faults.attack import Attack, get_shared_folder
from tests.faults.fuzz.mutations import (
    allow_expected_errors,
    mutated_bytes,
    mutated_json,
    mutated_json_bytes,
    try_inputs,
)
from tests.loader.conftest import write_dataset
from tests.loader.forging import sign_index, sign_manifest
from training.config import load_config

INPUTS_PER_TRY = 50

RUN = {
    "config": {"run_dir": "runs/x", "select": {"language": None}},
    "folders": {"extract": "extract-0f3a000000000000"},
    "splits": ["000000-fde1136f", "000001-b9b41915"],
    "stages": {"extract": {"length": 1}},
    "previous_runs": [],
}
RECORD = {
    "task_id": "000000-fde1136f",
    "outputs": {"000000-fde1136f.hashes.arrow": {"bytes": 10, "sha256": "ab" * 32}},
    "counters": {"counts": {"documents": 3, "documents_kept": 2}, "histograms": {}},
}
SUMMARY = {"task_ids": 2, "of": "0f3a", "counters": RECORD["counters"]}
EVENTS = (
    {"time": 1.0, "event": "RunStarted"},
    {
        "time": 1.5,
        "event": "PhaseStarted",
        "phase": "extract",
        "num_tasks": 2,
        "num_done": 0,
    },
    {
        "time": 2.0,
        "event": "TaskFinished",
        "phase": "extract",
        "task_id": "000000-fde1136f",
        "seconds": {"read": 1.0},
        "cpu_seconds": {"read": 0.5},
        "failed": None,
        "peak_mb": 100.5,
        "worker": "host:1",
    },
    {"time": 3.0, "event": "PhaseFinished", "phase": "extract", "was_complete": False},
    {"time": 4.0, "event": "RunEnded", "why": ""},
)

YAML_NOISE = b"\na: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


# ---- files of a run ----


def fuzz_run_files(seed: int, folder: Path) -> int:
    """Open a run folder whose JSON files are damaged."""
    phase = "extract-0f3a000000000000"
    contents: dict[str, bytes] = {
        "run.json": json.dumps(RUN).encode(),
        f"{phase}/phase.json": json.dumps(SUMMARY).encode(),
        f"{phase}/done/000000-fde1136f.json": json.dumps(RECORD).encode(),
        LOG: b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS),
    }
    bases = {
        "run.json": mutated_json_bytes([RUN]),
        f"{phase}/phase.json": mutated_json_bytes([SUMMARY]),
        f"{phase}/done/000000-fde1136f.json": mutated_json_bytes([RECORD]),
        LOG: _mutated_log(),
    }
    (folder / phase / "done").mkdir(parents=True)

    def check(drawn: tuple[str, bytes]) -> None:
        name, content = drawn
        for other, whole in contents.items():
            (folder / other).write_bytes(content if other == name else whole)
        try:
            _read_run(folder)
        except DamagedFile as error:
            assert str(folder) in str(error)  # noqa: PT017 - not always raised
        if name == LOG:
            events = list(read_events(open_store(folder)))
            assert (events[0], events[-1]) == (EVENTS[0], EVENTS[-1])

    inputs = st.sampled_from(sorted(bases)).flatmap(
        lambda name: st.tuples(st.just(name), bases[name])
    )
    return try_inputs(inputs, allow_expected_errors(check), seed, INPUTS_PER_TRY)


@st.composite
def _mutated_log(draw: st.DrawFn) -> bytes:
    """Draw damaged lines between a whole first and a whole last line."""
    lines = [draw(mutated_json_bytes(EVENTS)) for _ in range(draw(st.integers(1, 3)))]
    lines.append(draw(st.sampled_from((b"", b"\r", b"\0"))))
    first, last = (json.dumps(event).encode() for event in (EVENTS[0], EVENTS[-1]))
    return b"\n".join([first, *lines, last, b""])


def _read_run(folder: Path) -> None:
    """Read all that `status` and `report` read of a run folder. Accepted values are in their ranges."""
    run = RunFolder.open(folder)
    for event in run.read_events():
        assert event["time"] >= 0
        assert sum(event.get("seconds", {}).values()) >= 0
    for phase, name in run.folders.items():
        assert "/" not in name
        phase_folder = run.folder(phase)
        for task_id in phase_folder.list_done():
            record = phase_folder.record(task_id)
            counters = Counters.from_json(record["counters"])
            assert all(number >= 0 for number in counters.counts.values())
            assert all(output["bytes"] >= 0 for output in record["outputs"].values())
        _read_summary(phase_folder)


def _read_summary(folder: PhaseFolder) -> None:
    """Read the summary of a phase, which is complete if it can be read."""
    is_complete = folder.is_complete()
    try:
        summary = folder.summary()
    except DamagedFile:
        assert not is_complete
        raise
    assert is_complete
    Counters.from_json(summary["counters"])
    assert summary["task_ids"] >= 0


# ---- files of a dataset ----


@functools.cache
def get_dataset() -> Path:
    """Return a dataset of three shards."""
    folder = get_shared_folder() / "fuzzed dataset"
    lengths = [[30, 1, 90, 7, 40, 64], [50] * 9, [11, 90, 5, 5, 61, 8, 80]]
    return write_dataset(folder, lengths).folder


def fuzz_manifests(seed: int, folder: Path) -> int:
    """Read manifests with hostile values and fitting digests, and with mutated bytes."""
    whole = (get_dataset() / MANIFEST_FILE).read_bytes()
    inputs = mutated_json([json.loads(whole)]).map(sign_manifest) | mutated_bytes([whole])
    check = allow_expected_errors(Manifest.loads)
    return try_inputs(inputs, check, seed, INPUTS_PER_TRY)


def fuzz_indexes(seed: int, folder: Path) -> int:
    """Read indexes with mutated bytes, half of them with fitting checksums."""
    bases = [path.read_bytes() for path in sorted(get_dataset().glob("*.idx"))]
    inputs = mutated_bytes(bases) | mutated_bytes(bases).map(sign_index)
    check = allow_expected_errors(lambda data: ShardIndex.from_bytes(data, "fuzzed.idx"))
    return try_inputs(inputs, check, seed, INPUTS_PER_TRY)


def fuzz_datasets(seed: int, folder: Path) -> int:
    """Train on a dataset of which one file is damaged, with fitting digests or without."""
    whole = {path.name: path.read_bytes() for path in get_dataset().iterdir()}
    manifest = json.loads(whole[MANIFEST_FILE])
    wanted = _read_epoch(get_dataset())
    names = sorted(whole)

    def draw_file(name: str) -> st.SearchStrategy[tuple[str, bytes]]:
        content = mutated_bytes([whole[name]])
        if name == MANIFEST_FILE:
            content = content | mutated_json([manifest]).map(sign_manifest)
        elif name.endswith(".idx"):
            content = content | content.map(sign_index)
        return st.tuples(st.just(name), content)

    numbers = itertools.count()

    def check(drawn: tuple[str, bytes]) -> None:
        # In another folder each time: the loader may keep files open.
        name, content = drawn
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{next(numbers)}-") as path:
            for other, data in whole.items():
                (Path(path) / other).write_bytes(content if other == name else data)
            assert _read_epoch(Path(path)) == wanted, f"other rows, {name} is damaged"

    inputs = st.sampled_from(names).flatmap(draw_file)
    return try_inputs(inputs, allow_expected_errors(check), seed, DATASETS_PER_TRY)


def _read_epoch(folder: Path) -> bytes:
    settings = {"seq_len": 32, "global_batch_rows": 4, "seed": 1, "epochs": 1}
    with contextlib.closing(TokenLoader(folder, tokens="stored", **settings)) as loader:
        return b"".join(np.asarray(batch["tokens"]).tobytes() for batch in loader)


def fuzz_loader_states(seed: int, folder: Path) -> int:
    """Resume from states with hostile values; an accepted one gives the next batch."""
    given = {"seq_len": 32, "global_batch_rows": 5, "seed": 1, "uneven": "carry"}
    make = partial(TokenLoader, get_dataset(), **given)
    states: list[dict[str, Any]] = []
    with contextlib.closing(make()) as loader:
        for _ in range(3):
            next(loader)
            states.append(loader.state_dict())

    def check(drawn: tuple[Any, bool]) -> None:
        state, allow_mismatch = drawn
        with contextlib.closing(make(allow_mismatch=allow_mismatch)) as loader:
            try:
                loader.load_state_dict(state)
                next(loader)
            except ValueError as error:  # of arguments that do not fit the dataset
                if not re.search("interleave_depth is|the stream has", str(error)):
                    raise

    inputs = st.tuples(mutated_json(states), st.booleans())
    return try_inputs(inputs, allow_expected_errors(check), seed, STATES_PER_TRY)


# ---- configs ----


def fuzz_configs(
    read: Callable[[str], object], pattern: str, seed: int, folder: Path
) -> int:
    """Read mutated YAML files of a program."""
    paths = sorted((REPOSITORY / "configs").glob(pattern))
    texts = [path.read_bytes() for path in paths]
    trees = [yaml.safe_load(text) for text in texts]
    path = folder / "fuzzed.yaml"

    def check(content: bytes) -> None:
        path.write_bytes(content)
        read(str(path))

    inputs = mutated_bytes([*texts, YAML_NOISE]) | mutated_json(trees).map(_dump_yaml)
    return try_inputs(inputs, allow_expected_errors(check), seed, CONFIGS_PER_TRY)


def _dump_yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree).encode("utf-8", "replace")


DATASETS_PER_TRY, STATES_PER_TRY, CONFIGS_PER_TRY = 25, 25, 25


def _make(
    name: str, promise: str, num_tries: int, attempt: Callable[[int, Path], int]
) -> Attack:
    return Attack(f"fuzz: {name}", promise, num_tries, 1, attempt, timeout_s=900.0)


REFUSED = "It is read, or refused by an error with a message for the user."
ATTACKS: Sequence[Attack] = (
    _make("files of a run", REFUSED, 60, fuzz_run_files),
    _make("manifests", REFUSED, 40, fuzz_manifests),
    _make("indexes", REFUSED, 40, fuzz_indexes),
    _make(
        "datasets",
        "The loader gives the rows of the whole dataset, or refuses the damaged one.",
        40,
        fuzz_datasets,
    ),
    _make("loader states", REFUSED, 40, fuzz_loader_states),
    _make(
        "configs of the pipeline", REFUSED, 20, partial(fuzz_configs, load, "[!t]*.yaml")
    ),
    _make(
        "configs of the trainer",
        REFUSED,
        20,
        partial(fuzz_configs, load_config, "train*.yaml"),
    ),
)
