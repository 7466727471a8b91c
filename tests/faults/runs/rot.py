"""The rot matrix: each kind of stored file x each kind of damage, for a run that is finished.

`notice_while_reading` deletes the phases after the damaged file and runs again. `notice_by_verify`
lets `verify --deep` find the damage in a finished run. In both cases the file must be named, and
the run must end with the bytes of an undisturbed run.
"""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.execution.engine import OutputDamaged, run
from pipeline.phases import registry
from pipeline.planning.plan import make_plan
from pipeline.reporting.verify_run import find_damage, find_shard_damage, note_damage
from pipeline.runs.run_folder import RunFolder
from shardwriter.verification.dataset import verify_folder
from tests.faults._damage import cut, delete, empty, flip_bit, zero_block
from tests.faults.attack import Attack, get_shared_folder
from tests.faults.runs.small_run import (
    NUM_DOCUMENTS,
    PHASES,
    check_outputs,
    get_reference_run,
    get_tree,
    make_config,
)
from tests.pipeline.sample_crawl.invented import make_crawl

# Phase and pattern of every kind of file that phases write. The largest file of a kind is damaged.
READ_FILES = (
    ("extract", "*.documents.parquet"),
    ("extract", "*.hashes.arrow"),
    ("extract", "places_of_distinct_hashes.bin"),
    ("exact_hashes", "*.contents.arrow"),
    ("exact_dedup", "exact_dedup.arrow"),
    ("paragraph_dedup", "*.repeated.arrow"),
    ("substring_hashes", "*.windows.arrow"),
    ("substring_dedup", "*.repeated.arrow"),
    ("annotate", "*.documents.parquet"),
    ("annotate", "*.bands.arrow"),
    ("fuzzy_candidates", "*.candidates.arrow"),
    ("fuzzy_candidates", "*.wanted.arrow"),
    ("fuzzy_ngrams", "*.sets.arrow"),
    ("fuzzy_clusters", "*.forest.arrow"),
    ("fuzzy_merge", "*.clusters.arrow"),
    ("fuzzy_members", "*.wanted.arrow"),
    ("fuzzy_member_ngrams", "*.sets.arrow"),
    ("fuzzy_dedup", "near_duplicates.arrow"),
    ("select", "*.decisions.parquet"),
    ("tokenize", "*.tokens.bin"),
    ("tokenize", "*.documents.arrow"),
    *((phase, "done/0*.json") for phase in ("extract", "annotate", "tokenize")),
    *((phase, "phase.json") for phase in PHASES),
)
OTHER_FILES = (
    ("extract", "*.decisions.parquet"),
    ("extract", "*.quarantine.jsonl"),
    ("exact_dedup", "*.found.arrow"),
    ("annotate", "*.decisions.parquet"),
    ("annotate", "*.ngrams.bin"),
    ("fuzzy_dedup", "*.dropped.arrow"),
    ("tokenize", "*.decisions.parquet"),
    ("write_shards", "*.tar"),
    ("write_shards", "*.idx"),
    ("write_shards", "manifest.json"),
    ("write_shards", "done/shard-*.json"),
)
ALL_FILES = READ_FILES + OTHER_FILES


def swap(path: Path, seed: int) -> None:
    """Replace the file by the one of the same kind of another run."""
    del seed
    folder = path.parent if path.parent.name != "done" else path.parent.parent
    phase = folder.name.split("-", maxsplit=1)[0]
    pattern = next(p for name, p in ALL_FILES if name == phase and path.match(p))
    path.write_bytes(find_file(get_other_run(), phase, pattern).read_bytes())


DAMAGES: dict[str, Callable[[Path, int], None]] = {
    "flipped bit": flip_bit,
    "zeroed block": zero_block,
    "cut": cut,
    "emptied": empty,
    "deleted": delete,
    "swapped with another run's": swap,
}


@functools.cache
def get_other_run() -> Path:
    """Return the folder of a run on another crawl."""
    folder = get_shared_folder() / "other"
    crawl = make_crawl(folder / "crawl", NUM_DOCUMENTS, documents_per_file=40, seed=2)
    config = make_config(
        folder / "run", get_tree(), input={"files": [str(path) for path in crawl.files]}
    )
    list(run(make_plan(config)))
    return folder / "run"


def find_file(run_dir: Path, phase: str, pattern: str) -> Path:
    """Return the largest file of a kind."""
    (folder,) = run_dir.glob(f"{phase}-*")
    return max(folder.glob(pattern), key=lambda path: path.stat().st_size)


def copy_and_damage(
    damage: Callable[[Path, int], None], kind: tuple[str, str], seed: int, folder: Path
) -> tuple[Path, Path]:
    """Return a copy of the undisturbed run, and its damaged file."""
    run_dir = folder / "run"
    shutil.copytree(str(get_reference_run().run_dir), run_dir, symlinks=True)
    path = find_file(run_dir, *kind)
    before = path.read_bytes()
    damage(path, seed)
    # Two runs may have equal small files, such as one for decisions without any.
    if damage is not swap and path.exists() and path.read_bytes() == before:
        raise AssertionError(f"{damage.__name__} has not changed {path}")
    return run_dir, path


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of the pipeline."""
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, logger = Handler(logging.WARNING), logging.getLogger("pipeline")
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def run_again(run_dir: Path) -> list[str]:
    """Run the config again and compare all outputs; return what was said about damaged files."""
    with collect_warnings() as messages:
        events = list(run(make_plan(make_config(run_dir))))
    check_outputs(run_dir)
    return messages + [event.fault for event in events if isinstance(event, OutputDamaged)]


def is_fault(run_dir: Path, path: Path, damage: Callable[[Path, int], None]) -> bool:
    """Whether the damage must be named."""
    if damage is swap:
        intact = Path(str(get_reference_run().run_dir)) / path.relative_to(run_dir)
        if path.read_bytes() == intact.read_bytes():
            return False
    if path.name != "phase.json":
        return True
    # Without its summary, a phase is unfinished, which is no fault. A folder that outlives a
    # change of the input has the same name in both runs, and its summary names the input.
    is_of_other_input = damage is swap and (get_other_run() / path.parent.name).exists()
    return damage is not delete and not is_of_other_input


def check_named(path: Path, messages: list[str]) -> None:
    """Raise AssertionError if no message names the file."""
    assert any(str(path) in message for message in messages), f"{path} is not in {messages}"


def notice_while_reading(
    damage: Callable[[Path, int], None], seed: int, folder: Path
) -> None:
    """Damage a file that later phases read, delete these phases, and run again."""
    kind = READ_FILES[seed % len(READ_FILES)]
    run_dir, path = copy_and_damage(damage, kind, seed, folder)
    has_fault = is_fault(run_dir, path, damage)
    names = registry.list_phase_names()
    for later in names[names.index(kind[0]) + 1 :]:
        for phase_folder in run_dir.glob(f"{later}-*"):
            shutil.rmtree(phase_folder)
    messages = run_again(run_dir)
    if has_fault:
        check_named(path, messages)


def notice_by_verify(damage: Callable[[Path, int], None], seed: int, folder: Path) -> None:
    """Damage any file of a finished run; verify the run, and run again."""
    run_dir, path = copy_and_damage(damage, ALL_FILES[seed % len(ALL_FILES)], seed, folder)
    found = RunFolder.open(run_dir)
    with collect_warnings() as messages:
        damages = list(find_damage(found))
        damages += find_shard_damage(found, verify_folder(found.dataset))
    note_damage(found, damages)
    if is_fault(run_dir, path, damage):
        check_named(path, messages + [each.describe() for each in damages])
    run_again(run_dir)
    assert not list(find_damage(RunFolder.open(run_dir)))
    assert not verify_folder(RunFolder.open(run_dir).dataset)


ATTACKS = tuple(
    attack
    for name, damage in DAMAGES.items()
    for attack in (
        Attack(
            f"rot: {name}, noticed while reading",
            "A damaged file is named and made again in the run that reads it.",
            num_tries=len(READ_FILES),
            num_small_tries=1,
            attempt=functools.partial(notice_while_reading, damage),
        ),
        Attack(
            f"rot: {name}, noticed by verify --deep",
            "verify names a damaged file, and the next run makes it again.",
            num_tries=len(ALL_FILES),
            num_small_tries=1,
            attempt=functools.partial(notice_by_verify, damage),
        ),
    )
)
