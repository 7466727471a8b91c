"""KenLM's programs: errors name what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.models.download import AssetError
from pipeline.models.kenlm_build import build_tools, kenlm_tools


def test_missing_compiler_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package to install; nothing is fetched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(AssetError, match=r"needs a C\+\+ compiler.*CORPUSMILL_KENLM_BIN"):
        build_tools(tmp_path, offline=True)


def test_tools_in_the_environment_must_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in CORPUSMILL_KENLM_BIN is used, or refused with its path."""
    monkeypatch.setenv("CORPUSMILL_KENLM_BIN", str(tmp_path))
    with pytest.raises(
        AssetError, match=r"lmplz does not exist or cannot be run; CORPUSMILL_KENLM_BIN"
    ):
        kenlm_tools()
    for name in ("lmplz", "build_binary"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    assert kenlm_tools() == (tmp_path / "lmplz", tmp_path / "build_binary")
