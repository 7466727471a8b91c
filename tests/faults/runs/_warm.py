"""Imported by the process that drivers are forked from: does once what each would do again.

A driver otherwise spends 5 s of CPU on imports, on loading compiled kernels and on character
tables. The run stops before `tokenize`: the tokenizer starts threads, which do not survive a fork.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from pipeline.execution.engine import PhaseFinished, run
from pipeline.planning.plan import make_plan
from tests.faults.runs.small_run import make_config, make_tree

with tempfile.TemporaryDirectory(prefix="faults-warm-") as _name:
    _plan = make_plan(make_config(Path(_name) / "run", make_tree(Path(_name))))
    with contextlib.closing(run(_plan)) as _events:  # pyright: ignore[reportArgumentType]
        for _event in _events:
            if isinstance(_event, PhaseFinished) and _event.phase == "select":
                break
