"""The `compiled` decorator and numba's cache on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from stages.kernels import compilation
from stages.kernels.compilation import compiled


def test_function_without_a_source_file_is_compiled() -> None:
    """A function that numba cannot cache is compiled all the same."""
    namespace: dict[str, Any] = {}
    exec("def double(number):\n    return 2 * number", namespace)  # noqa: S102 - no source file
    assert compiled(namespace["double"])(21) == 42


@pytest.mark.parametrize(("age_s", "is_kept"), [(-3600, True), (3600, False)])
def test_cache_index_older_than_a_kernel_source_is_deleted(
    tmp_path: Path, age_s: int, is_kept: bool
) -> None:
    """Machine code made before the last change of any kernel file is not used again."""
    source = tmp_path / "kernel.py"
    source.write_text("def double(number):\n    return 2 * number\n", encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), namespace)  # noqa: S102
    index = tmp_path / "__pycache__" / "kernel.double-1.py311.nbi"
    index.parent.mkdir()
    index.touch()
    newest_s = max(
        path.stat().st_mtime for path in Path(compilation.__file__).parent.rglob("*.py")
    )
    os.utime(index, (time.time(), newest_s - age_s))

    compiled(namespace["double"])

    assert index.exists() == is_kept
