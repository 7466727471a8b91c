"""Imported by the process that drivers are forked from: does once what each would do again.

A driver otherwise spends 5 s of CPU on imports, on loading compiled kernels and on character
tables. The run stops before `tokenize`: the tokenizer starts threads, which do not survive a fork.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from pipeline.planning.plan import make_plan
from tests.faults.runs.small_run import make_config, make_tree
from tests.pipeline.conftest import run_until

with tempfile.TemporaryDirectory(prefix="faults-warm-") as _name:
    _plan = make_plan(make_config(Path(_name) / "run", make_tree(Path(_name))))
    list(run_until(_plan, "select"))
