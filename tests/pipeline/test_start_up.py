"""Less work at the start of a run."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys

from pipeline.start_up import postpone_garbage_collection

# Run in a new process: other tests have imported these packages.
_PROGRAM = """
import sys
from pipeline.start_up import skip_pandas

skip_pandas()
import pyarrow as pa

table = pa.table({"name": ["a", None]})
assert "pandas" not in sys.modules
import pandas as pd

assert table.to_pandas().name.tolist()[0] == "a"
assert pa.array(pd.Series([1.0, float("nan")])).null_count == 1
"""


def test_pandas_is_imported_on_demand_only() -> None:
    """Arrays do not import it; conversions to data frames still do."""
    subprocess.run([sys.executable, "-c", _PROGRAM], check=True)


def test_garbage_is_collected_again_after_the_start() -> None:
    """It is not collected in the block, and afterwards also if the block fails."""
    is_enabled: list[bool] = []
    with contextlib.suppress(ValueError), postpone_garbage_collection():
        is_enabled.append(gc.isenabled())
        raise ValueError("wrong config")
    is_enabled.append(gc.isenabled())
    gc.unfreeze()
    assert is_enabled == [False, True]
