"""Fuzzing of whole runs: the accounts of all phases balance for any input."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

from hypothesis import strategies as st

from pipeline.execution.engine import run
from pipeline.planning.plan import make_plan
from pipeline.reporting.report.summary import make_report
from pipeline.runs.run_folder import RunFolder
from tests.faults.attack import Attack
from tests.faults.fuzz.mutations import mutated_bytes, try_inputs
from tests.faults.runs.small_run import get_tree, make_config

RUNS_PER_TRY = 4

# Of a file of the crawl: about 15 of its pages.
MAX_BASE_BYTES = 60_000


def fuzz_runs(seed: int, folder: Path) -> int:
    """Run all phases on mutated crawl files; documents read = kept + dropped."""
    bases = [
        Path(name).read_bytes()[:MAX_BASE_BYTES] for name in get_tree()["input"]["files"]
    ]
    numbers = itertools.count()

    def check(contents: list[bytes]) -> None:
        place = folder / str(next(numbers))
        place.mkdir()
        files: list[str] = []
        for index, content in enumerate(contents):
            path = place / f"{index}.warc.wet.gz"
            path.write_bytes(content)
            files.append(str(path))
        share = {"max_quarantined_share": 1.0}
        plan = make_plan(make_config(place / "run", input={"files": files, **share}))
        list(run(plan))
        report = make_report(
            RunFolder.open(plan.run_dir)
        )  # raises if documents are missing
        num_dropped = sum(report.reasons.values())
        assert report.num_docs_read == report.steps[-1].num_docs + num_dropped
        shutil.rmtree(place)

    check(
        bases[:1]
    )  # compiles the kernels, which would count as the time of the first input
    inputs = st.lists(mutated_bytes(bases), min_size=1, max_size=2)
    return try_inputs(inputs, check, seed, RUNS_PER_TRY)


ATTACKS = (
    Attack(
        "fuzz: whole runs",
        "A run on any input ends, and documents read = kept + dropped in every phase.",
        20,
        1,
        fuzz_runs,
        timeout_s=900.0,
    ),
)
