"""Measures the lines that fuzzing reaches: `python -m tests.faults.fuzz._coverage FILE`.

Runs the first try of each fuzzing attack and writes package -> [lines reached, lines] as JSON.
Lines outside of functions, which every import reaches, are included.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import coverage

# Folders that the attacks are aimed at.
PACKAGES = (
    "stages/warc",
    "stages/html",
    "stages/filters",
    "shardwriter/format",
    "loader",
    "config_files",
    "pipeline/config",
    "pipeline/runs",
    "storage",
)


def main(target: Path) -> None:
    """Measure, and write the result to a file."""
    repository = Path(__file__).parents[3]
    sources = [str(repository / package) for package in PACKAGES]
    measurement = coverage.Coverage(data_file=None, source=sources)
    measurement.start()
    attempt_first_tries()
    measurement.stop()
    lines: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted(repository.rglob("*.py")):
        name = path.relative_to(repository).as_posix()
        package = next((p for p in PACKAGES if name.startswith(f"{p}/")), None)
        if package is not None:
            _, statements, _, missing, _ = measurement.analysis2(str(path))
            lines[package][0] += len(statements) - len(missing)
            lines[package][1] += len(statements)
    target.write_text(json.dumps(lines), encoding="utf-8")


def attempt_first_tries() -> None:
    """Run the first try of each fuzzing attack; a broken promise is not this module's concern."""
    from tests.faults.attack import find_modules, load_attacks
    from tests.faults.runner import attempt_here

    for module in find_modules():
        for attack in load_attacks(module):
            if attack.name.startswith("fuzz:"):
                attempt_here(attack, 0)


if __name__ == "__main__":
    logging.basicConfig(handlers=[logging.NullHandler()])  # attacks cause many warnings
    with tempfile.TemporaryDirectory() as _folder:
        tempfile.tempdir = _folder
        main(Path(sys.argv[1]))
