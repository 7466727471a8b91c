"""Result files: the figures of a benchmark with machine, commit, command and library versions.

    path = save("engine_overhead", {"cpu_ratio": 1.04})

writes benchmarks/results/2026-11-21-engine_overhead.json. Compare figures within one file only.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDER = REPOSITORY / "benchmarks" / "results"
LIBRARIES = (
    "ray",
    "pyarrow",
    "numpy",
    "numba",
    "fastwarc",
    "fasttext",
    "sentencepiece",
    "kenlm",
    "tokenizers",
    "gigatoken",
)


def save(
    name: str,
    figures: dict[str, Any],
    folder: Path = FOLDER,
    libraries: Iterable[str] = LIBRARIES,
) -> Path:
    """Write the figures of a benchmark and return the path of the file.

    A later result of the same day replaces the first.

    Args:
        name: the benchmark.
        figures: JSON values.
        folder: where to write the file.
        libraries: packages whose versions are recorded; null is recorded for one that is not installed.
    """
    now = datetime.now(UTC)
    result = {
        "benchmark": name,
        "date": now.isoformat(timespec="seconds"),
        "command": format_command(),
        "commit": read_commit(),
        "machine": describe_machine(),
        "load": os.getloadavg()[0],
        "versions": {
            "python": platform.python_version(),
            **{library: _version(library) for library in libraries},
        },
        "figures": figures,
    }
    path = folder / f"{now:%Y-%m-%d}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return path


def describe_machine() -> dict[str, Any]:
    """Return CPU model, number of cores and memory."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(": ")[2]
            break
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu,
        "num_cpus": os.cpu_count(),
        "memory_gb": round(memory_bytes / 2**30, 1),
    }


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:  # other libraries are in separate environments
        return None


def read_commit() -> str | None:
    """Return the checked-out commit, with a `+` if tracked files have changed; None outside of a checkout."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    has_changes = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return f"{head}+" if has_changes else head


def _git(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def format_command() -> str:
    """Return the command line of this process, as far as Python has it: `python -m benchmarks.<name> ...`."""
    main = sys.modules["__main__"].__spec__
    arguments = sys.argv[1:] if main else sys.argv
    return " ".join(["python", *(["-m", main.name] if main else []), *arguments])
