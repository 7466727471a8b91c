"""Loops of bare library calls that compute the same as a step."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.runs.split_output import ROWS_PER_GROUP, choose_parquet_settings
from shardwriter.format import TOKENS_MEMBER


def remove_lines(texts: list[str], duplicates: list[list[int]]) -> pa.Array:
    """Return the texts without their duplicate lines."""
    kept: list[str] = []
    for text, gone in zip(texts, map(set, duplicates), strict=True):
        kept.append(
            "\n".join(line for i, line in enumerate(text.split("\n")) if i not in gone)
        )
    return pa.array(kept, pa.large_string())


def predict(model: Any, lines: list[str], k: int) -> list[Any]:
    """Predict one text at a time, as `model.predict` does, without building an array of the result."""
    return [model.f.predict(line + "\n", k, 0.0, "strict") for line in lines]


def score(pieces: Any, model: Any, lines: list[str]) -> list[float]:
    """Return the log10 probability of each line, tokenized into pieces."""
    return [model.score(" ".join(pieces.encode(line, out_type=str))) for line in lines]


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write Parquet with the settings of the pipeline."""
    settings = choose_parquet_settings(table.schema)
    pq.write_table(table, path, row_group_size=ROWS_PER_GROUP, **settings)


def write_tar(samples: list[np.ndarray[Any, Any]], path: Path) -> str:
    """Write one tar member per array with the standard library, and return the SHA-256 of the file."""
    with tarfile.open(path, "w") as tar:
        for i, sample in enumerate(samples):
            content = io.BytesIO()
            np.save(content, sample)
            member = tarfile.TarInfo(f"{i:09d}.{TOKENS_MEMBER}")
            member.size = content.tell()
            content.seek(0)
            tar.addfile(member, content)
    return _sha256(path)


def write_tokens(tokens: np.ndarray[Any, Any], path: Path) -> str:
    """Write the tokens to a file and return its SHA-256."""
    tokens.astype(np.uint16).tofile(path)
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
