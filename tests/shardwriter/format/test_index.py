"""The index of a shard: bytes, checks and errors."""

from __future__ import annotations

import ast
import pickle
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter import Documents
from shardwriter.format import (
    INDEX_HEADER,
    FormatError,
    ShardCorrupt,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    read_index,
    token_dtype,
)
from tests.conftest import REPOSITORY

Write = Callable[..., tuple[bytes, bytes, ShardEntry]]


@pytest.fixture(scope="session")
def index(write: Write, tokenizer: TokenizerEntry, worked_example: Documents) -> bytes:
    """Return the index of the worked example in docs/data-format.md."""
    return write(worked_example, tokenizer, sample_tokens=5)[1]


def test_the_page_shows_the_bytes_of_the_index(page: str, index: bytes) -> None:
    """The worked example of docs/data-format.md is the index that the writer makes."""
    (dump,) = re.findall(r"```hex\n(.*?)```", page, flags=re.DOTALL)
    assert (
        bytes.fromhex("".join(line[6:].partition("|")[0] for line in dump.splitlines()))
        == index
    )


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(1, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32")]
)
def test_tokens_are_as_narrow_as_the_vocabulary_allows(vocab_size: int, name: str) -> None:
    """uint16 holds ids up to 65,535, and so a vocabulary of exactly 65,536."""
    assert token_dtype(vocab_size).name == name


def test_read_index_maps_the_file(index: bytes, tmp_path: Path) -> None:
    """The mapped index equals the one in memory and is read-only."""
    (tmp_path / "shard-000000.idx").write_bytes(index)
    mapped = read_index(tmp_path / "shard-000000.idx")
    assert mapped.sample_starts.tolist() == [0, 5, 9]
    assert mapped.doc_starts.tolist() == [0, 3, 5, 9]
    assert mapped.doc_ids.tolist() == [7, 5, 9]
    assert not mapped.doc_ids.flags.writeable
    assert mapped.to_bytes() == index


def replace_header(index: bytes, **changes: int) -> bytes:
    """Replace fields of the header of an index, and correct its checksum."""
    names = (
        "magic",
        "version",
        "shard",
        "shard_bytes",
        "num_samples",
        "num_docs",
        "num_tokens",
        "token_bytes",
    )
    fields = dict(zip(names, INDEX_HEADER.unpack_from(index), strict=False)) | changes
    covered = INDEX_HEADER.pack(*fields.values(), 0)[:-4]
    payload = index[INDEX_HEADER.size :]
    return covered + struct.pack("<I", zlib.crc32(covered + payload)) + payload


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (
            lambda b: b[:0],
            ShardCorrupt,
            "x.idx: found 0 bytes, wanted a header of 64 bytes; copy the file again",
        ),
        (
            lambda b: b[:-1],
            ShardCorrupt,
            "x.idx: found 167 bytes, wanted 168 bytes for 2 samples and 3 documents",
        ),
        (lambda b: b + b"\0", ShardCorrupt, "x.idx: found 169 bytes"),
        (
            lambda b: b"\x1f\x8b" + b[2:],
            FormatError,
            "byte 0: found .*wanted the magic .*give the .idx file of a shard",
        ),
        (
            lambda b: replace_header(b, version=1),
            FormatError,
            "byte 8: found 1, wanted 2; read it with the release",
        ),
        (
            lambda b: replace_header(b, token_bytes=8),
            FormatError,
            "byte 48: found 8 bytes per token, wanted 2 or 4",
        ),
        (
            lambda b: replace_header(b, num_tokens=8),
            ShardCorrupt,
            "last of sample_starts: found 9, wanted num_tokens = 8",
        ),
        (
            lambda b: b[:100] + b"\xff" + b[101:],
            ShardCorrupt,
            "byte 60: found crc32 [0-9a-f]{8}, wanted [0-9a-f]{8}; ",
        ),
    ],
)
def test_each_fault_of_an_index_has_an_error(
    index: bytes,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    error: type[FormatError],
    message: str,
) -> None:
    """The error names the place, what was found, what was wanted, and the remedy."""
    (tmp_path / "x.idx").write_bytes(damage(index))
    with pytest.raises(FormatError, match=message) as caught:
        read_index(tmp_path / "x.idx")
    assert caught.type is error


@given(st.data())
def test_any_flipped_bit_of_an_index_is_refused(index: bytes, data: st.DataObject) -> None:
    """No single bit of an index can change without an error."""
    bit = data.draw(st.integers(0, 8 * len(index) - 1))
    damaged = bytearray(index)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError):
        ShardIndex.from_bytes(bytes(damaged), "index")


def test_errors_survive_pickling() -> None:
    """An error from a worker process keeps its type and message."""
    error = ShardCorrupt("a.tar, byte 5", "3", "4", "copy it again")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (
        ShardCorrupt,
        "a.tar, byte 5: found 3, wanted 4; copy it again",
    )


def test_the_format_package_imports_only_numpy() -> None:
    """Readers need the standard library and numpy only."""
    names: set[str] = set()
    for path in sorted((REPOSITORY / "shardwriter" / "format").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
    foreign = {name for name in names if not name.startswith("shardwriter.format.")}
    assert {name.partition(".")[0] for name in foreign} - {*sys.stdlib_module_names} == {
        "numpy"
    }
