"""The comparison of what two commits write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.stages.table.earlier_commit import PHASES, digest_outputs, list_differences


def digest_files(folder: Path, scores: list[float], **settings: Any) -> dict[str, str]:
    """Return the digests of a run that wrote a table and a file of tokens."""
    for phase in PHASES:
        (folder / phase).mkdir(parents=True)
    table = pa.table({"doc_id": [1, 2], "score": scores})
    pq.write_table(table, folder / "annotate" / "000000.documents.parquet", **settings)
    (folder / "tokenize" / "000000.tokens.bin").write_bytes(b"tokens")
    plan: Any = SimpleNamespace(
        folder=lambda phase: SimpleNamespace(path=lambda name: folder / phase / name)
    )
    return digest_outputs(plan)


def test_equal_values_in_other_encodings_are_the_same_output(tmp_path: Path) -> None:
    """Compression and row groups do not count; one other value of a column does."""
    first = digest_files(tmp_path / "a", [0.5, 1.5], compression="zstd")
    same = digest_files(tmp_path / "b", [0.5, 1.5], row_group_size=1)
    other = digest_files(tmp_path / "c", [0.5, 2.5])
    assert len(first) == 3
    assert list_differences(first, same) == []
    assert list_differences(first, other) == ["annotate/documents.parquet:score"]
