"""Tasks that no machine can run are refused before any task runs."""

from __future__ import annotations

import pytest

from pipeline.errors import RunAborted
from pipeline.runs.run_folder import RunFolder
from tests.e2e.conftest import Chain

# tests/pipeline/execution/on_ray/test_engine.py has the small form.
pytestmark = [pytest.mark.models, pytest.mark.ray, pytest.mark.heavy]


def test_a_request_that_no_machine_can_serve_stops_the_run_at_once(chain: Chain) -> None:
    """Otherwise Ray would wait for a CPU without a message when a late phase starts."""
    with pytest.raises(RunAborted, match=r"nothing was started") as caught:
        chain.run(
            "too-much",
            "engine.kind=ray",
            "engine.workers=1",
            "engine.phases={tokenize: {num_cpus: 64}}",
        )
    assert (
        "\n  tokenize requests CPU 64, memory 2,000 MB; the nearest machine has CPU 1\n"
        in str(caught.value)
    )
    found = RunFolder.open(chain.folder / "too-much")
    assert not found.folder("extract").list_done()
