"""The `compiled` decorator and numba's cache on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from numba import config

from stages.kernels import compilation
from stages.kernels.compilation import compiled


def test_function_without_a_source_file_is_compiled() -> None:
    """A function that numba cannot cache is compiled all the same."""
    namespace: dict[str, Any] = {}
    exec("def double(number):\n    return 2 * number", namespace)  # noqa: S102 - no source file
    assert compiled(namespace["double"])(21) == 42


SOURCE = "def double(number):\n    return 2 * number\n"


def load(folder: Path, source: str = SOURCE) -> Any:
    """Write a kernel into a new folder, and return it compiled."""
    folder.mkdir()
    path = folder / "kernel.py"
    path.write_text(source, encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(compile(source, str(path), "exec"), namespace)  # noqa: S102
    return compiled(namespace["double"])


def test_equal_sources_share_machine_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of two jobs, which lie in different folders; a change of any kernel compiles again."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    first = load(tmp_path / "first")
    assert (first(21), first.stats.cache_hits.total()) == (42, 0)
    second = load(tmp_path / "second")
    assert (second(21), second.stats.cache_hits.total()) == (42, 1)
    other = load(tmp_path / "other", SOURCE.replace("2", "3"))
    assert (other(21), other.stats.cache_hits.total()) == (63, 0)
    monkeypatch.setattr(compilation, "_digest_kernels", lambda: b"edited")
    edited = load(tmp_path / "edited")
    assert (edited(21), edited.stats.cache_hits.total()) == (42, 0)


def test_old_machine_code_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of source files that have changed since."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    load(tmp_path / "first")(21)
    (old,) = (tmp_path / "cache" / "kernels").iterdir()
    load(tmp_path / "second", SOURCE.replace("2", "3"))(21)
    assert old.exists()
    os.utime(old, (0, time.time() - compilation.MAX_AGE_S - 60))
    load(tmp_path / "third", SOURCE.replace("2", "4"))(21)
    assert not old.exists()
