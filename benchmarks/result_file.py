"""One result as a small JSON file, with all that is needed to judge it: machine, commit, command, versions.

    path = save("engine_overhead", {"cpu_ratio": 1.04})

writes benchmarks/results/2026-11-21-engine_overhead.json. Figures are to be compared within one such file only.
"""

from __future__ import annotations

import json
import os
import platform
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
    name: str, figures: dict[str, Any], folder: Path = FOLDER, libraries: Iterable[str] = LIBRARIES
) -> Path:
    """Write a benchmark's figures; the path of the file. A later result of the same day replaces the earlier one.

    `libraries` are those whose versions matter; null stands for one that is not installed.
    """
    now = datetime.now(UTC)
    result = {
        "benchmark": name,
        "date": now.isoformat(timespec="seconds"),
        "command": command(),
        "commit": commit(),
        "machine": machine(),
        "versions": {
            "python": platform.python_version(),
            **{library: _version(library) for library in libraries},
        },
        "figures": figures,
    }
    path = folder / f"{now:%Y-%m-%d}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def machine() -> dict[str, Any]:
    """CPU model, cores, memory."""
    cpu = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": cpu[0].partition(": ")[2] if cpu else platform.machine(),
        "num_cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
    }


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:  # the loader's peers have an environment of their own
        return None


def commit() -> str | None:
    """The commit that is checked out, with a `+` where files have changed since; None outside of a checkout."""
    head = _git("rev-parse", "HEAD")
    return (
        None
        if head is None
        else head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    )


def _git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


def command() -> str:
    """What was typed, as far as Python knows: `python -m benchmarks.<name> ...`."""
    main = sys.modules["__main__"].__spec__
    arguments = sys.argv[1:] if main else sys.argv
    return " ".join(["python", *(["-m", main.name] if main else []), *arguments])
