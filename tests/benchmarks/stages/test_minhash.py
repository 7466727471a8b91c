"""The comparison with rensa checks our signatures, and goes on where rensa cannot be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.frame import read_documents
from benchmarks.stages import minhash


def test_rensa_that_cannot_be_installed_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are measured, and all signatures are datasketch's."""
    requirements = tmp_path / "rensa.txt"
    requirements.write_text("./missing-1.0-py3-none-any.whl\n")
    monkeypatch.setattr(minhash, "REQUIREMENTS", requirements)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    figures = minhash.compare(read_documents(None, 0.02), rounds=1)
    assert figures["different_signatures"] == 0
    assert minhash.OURS in figures["entrants"]
    assert not any("rensa" in name for name in figures["entrants"])
    assert "missing-1.0" in figures["failed"]
