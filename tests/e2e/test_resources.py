"""Tasks that no machine can run are refused before any task runs."""

from __future__ import annotations

import pytest

from pipeline.errors import RunAborted
from pipeline.runs.run_folder import RunFolder
from tests.e2e.conftest import Chain

pytestmark = [pytest.mark.models, pytest.mark.ray]


def test_what_no_machine_has_is_told_before_any_work(chain: Chain) -> None:
    """Of a late phase, too: Ray would wait for it without a word when all before it is done."""
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
    assert not found.folder("extract").done()
