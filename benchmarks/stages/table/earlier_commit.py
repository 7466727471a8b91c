"""The steps of an earlier commit, in a process that works on a copy of its files.

    with EarlierCommit("06a73b8", megabytes=12) as before:
        before.measure(0)       # CPU seconds of its first row
        before.digests          # of what its phases wrote

The process imports the modules of that commit, and this file by its path.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pipeline.planning.run_plan import RunPlan

REPOSITORY = Path(__file__).resolve().parents[3]
PHASES = ("extract", "paragraph_dedup", "annotate", "tokenize", "write_shards")


class EarlierCommit:
    """A process with the steps of an earlier commit on the same input.

    Attributes:
        steps: the step of each row of its table.
        digests: see `digest_outputs`.
    """

    def __init__(self, commit: str, megabytes: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="corpusmill-")
        self._tree = Path(self._folder.name) / "tree"
        _git("worktree", "add", "--detach", str(self._tree), commit)
        command = [sys.executable, "-P", __file__, str(megabytes), self._folder.name]
        environment = os.environ | {"PYTHONPATH": str(self._tree)}
        self._process = subprocess.Popen(
            command,
            cwd=self._tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.steps, self.digests = self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate()  # the end of its input ends it
        _git("worktree", "remove", "--force", str(self._tree))
        self._folder.cleanup()

    def measure(self, row: int) -> float:
        """Return the CPU seconds of a row of the table, as that commit computes it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{row}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                "the process of the earlier commit ended; see its error above"
            )
        return json.loads(line)


def _git(*arguments: str) -> None:
    subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL
    )


def digest_outputs(plan: RunPlan) -> dict[str, str]:
    """Return the SHA-256 of the values of each column, and of each other file, that phases wrote.

    Parquet and Arrow files of equal values can differ in their encoding.
    """
    digests: dict[str, str] = {}
    for phase in PHASES:
        folder = plan.folder(phase).path("any").parent
        for path in sorted(folder.iterdir()):
            name = f"{phase}/{path.name.partition('.')[2]}"
            if path.suffix in (".parquet", ".arrow"):
                digests |= _digest_columns(name, path)
            elif path.suffix in (".bin", ".tar", ".idx"):
                name = f"{phase}/{path.name}"
                digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def _digest_columns(name: str, path: Path) -> dict[str, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        table = pq.read_table(path)
    else:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
    digests: dict[str, str] = {}
    for column in table.column_names:
        values = repr(table.column(column).to_pylist()).encode()
        digests[f"{name}:{column}"] = hashlib.sha256(values).hexdigest()
    return digests


def list_differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the columns and files that both have, with other values."""
    return sorted(name for name in one.keys() & other.keys() if one[name] != other[name])


def main() -> None:
    """Run the demo, print the steps and digests, then the CPU seconds of each row asked for."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of the run must not mix with the answers
    try:
        from benchmarks.stages import stages_table
    except ModuleNotFoundError:  # its place in commits before 2026-11-23
        stages_table = importlib.import_module("benchmarks.stages_table")

    megabytes, folder = float(sys.argv[1]), Path(sys.argv[2])
    config = stages_table.load_demo_config(
        megabytes, folder / "run", "engine.kind=inline", num_files=1
    )
    plan = stages_table.make_plan(config)
    deque(stages_table.run(plan), maxlen=0)
    digests = digest_outputs(plan)
    rows = list(stages_table.create_rows(plan, folder))
    print(json.dumps([[row.step for row in rows], digests]), file=answers, flush=True)
    for line in sys.stdin:
        started = time.process_time()
        rows[int(line)].as_called()
        print(time.process_time() - started, file=answers, flush=True)


if __name__ == "__main__":
    main()
