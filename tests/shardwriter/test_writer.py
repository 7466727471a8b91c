"""Shards as they are written, and as other programs read them."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter import Documents, write_shard
from shardwriter.format import ShardEntry, ShardIndex, TokenizerEntry

Write = Callable[..., tuple[bytes, bytes, ShardEntry]]


@st.composite
def shards(draw: st.DrawFn) -> tuple[Documents, TokenizerEntry, int]:
    """Generate documents, a tokenizer that fits them, and a size of samples."""
    vocab_size = draw(st.sampled_from([2, 300, 2**16, 2**16 + 1, 2**32]))
    end = draw(st.integers(0, vocab_size - 1))
    texts = draw(
        st.lists(st.lists(st.integers(0, vocab_size - 1), max_size=12), max_size=12)
    )
    doc_ids = draw(
        st.lists(
            st.integers(0, 2**64 - 1), min_size=len(texts), max_size=len(texts), unique=True
        )
    )
    metadata = [
        {"doc_id": doc_id, "title": draw(st.text(max_size=3))} for doc_id in doc_ids
    ]
    documents = Documents(
        tokens=np.array([token for text in texts for token in [*text, end]], np.int64),
        doc_num_tokens=np.array([len(text) + 1 for text in texts], np.int32),
        doc_ids=np.array(doc_ids, np.uint64),
        metadata=metadata if draw(st.booleans()) else None,
    )
    return (
        documents,
        TokenizerEntry("any", "0" * 64, vocab_size, end),
        draw(st.integers(1, 40)),
    )


def read_with_tarfile(tar: bytes) -> list[tuple[str, bytes, tarfile.TarInfo]]:
    """Return name, content and header of every member."""
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        return [
            (member.name, archive.extractfile(member).read(), member) for member in archive
        ]  # type: ignore[union-attr]


@given(shards())
@settings(max_examples=60)
def test_tarfile_and_index_agree(
    write: Write, shard: tuple[Documents, TokenizerEntry, int]
) -> None:
    """Tarfile and numpy read what was written, and the index points to it."""
    documents, tokenizer, sample_tokens = shard
    tar, raw_index, entry = write(
        documents, tokenizer, shard=3, sample_tokens=sample_tokens
    )
    index = ShardIndex.from_bytes(raw_index, "index")
    members = read_with_tarfile(tar)
    arrays = {
        name: np.load(io.BytesIO(data))
        for name, data, _ in members
        if name.endswith(".npy")
    }
    blocks = [array for name, array in arrays.items() if name.endswith("tokens.npy")]
    starts = [array for name, array in arrays.items() if name.endswith("docs.npy")]

    assert [t for block in blocks for t in block.tolist()] == documents.tokens.tolist()
    assert all(block.dtype == tokenizer.token_dtype for block in blocks)
    doc_lengths = [
        np.diff([*s.tolist(), len(b)]).tolist() for s, b in zip(starts, blocks, strict=True)
    ]
    assert list(chain.from_iterable(doc_lengths)) == documents.doc_num_tokens.tolist()
    for sample, block in enumerate(blocks):
        start, stop = index.sample_starts[sample : sample + 2]
        offset = index.sample_offsets[sample]
        indexed = tar[offset : offset + (stop - start) * index.token_dtype.itemsize]
        assert indexed == block.tobytes()
        assert index.sample_crcs[sample] == zlib.crc32(indexed)
        assert offset % 128 == 0
    assert index.doc_starts.tolist() == [0, *np.cumsum(documents.doc_num_tokens).tolist()]
    assert index.doc_ids.tolist() == documents.doc_ids.tolist()
    assert (entry.num_samples, entry.num_docs, entry.num_tokens) == (
        len(blocks),
        len(documents.doc_ids),
        len(documents.tokens),
    )
    if documents.metadata is not None:
        lists = [json.loads(data) for name, data, _ in members if name.endswith(".json")]
        assert list(chain.from_iterable(lists)) == documents.metadata


@given(shards())
def test_samples_hold_as_many_whole_documents_as_fit(
    write: Write, shard: tuple[Documents, TokenizerEntry, int]
) -> None:
    """Only a sample with a single document may exceed `sample_tokens`."""
    documents, tokenizer, sample_tokens = shard
    index = ShardIndex.from_bytes(
        write(documents, tokenizer, sample_tokens=sample_tokens)[1], "index"
    )
    doc_starts = index.doc_starts.tolist()
    firsts = [doc_starts.index(start) for start in index.sample_starts.tolist()]
    for first, last in pairwise(firsts):
        assert last > first
        assert last == first + 1 or doc_starts[last] - doc_starts[first] <= sample_tokens
        if last < len(doc_starts) - 1:
            assert doc_starts[last + 1] - doc_starts[first] > sample_tokens


@given(shards())
@settings(max_examples=20)
def test_equal_documents_give_equal_bytes(
    write: Write, shard: tuple[Documents, TokenizerEntry, int]
) -> None:
    """Tar, index and entry are the same, for any integer dtype of the tokens."""
    documents, tokenizer, sample_tokens = shard
    other = replace(documents, tokens=documents.tokens.astype(np.uint32))
    first = write(documents, tokenizer, sample_tokens=sample_tokens)
    assert first == write(other, tokenizer, sample_tokens=sample_tokens)


def test_headers_are_plain_ustar(
    write: Write, tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """Every header describes a regular file without owner and with time 0."""
    tar, _, _ = write(
        replace(worked_example, metadata=[{}] * 3), tokenizer, sample_tokens=5
    )
    members = read_with_tarfile(tar)
    assert [name for name, _, _ in members] == [
        f"000000-{sample:05d}.{member}"
        for sample in range(2)
        for member in ("docs.npy", "json", "tokens.npy")
    ]
    for _, _, header in members:
        assert (header.mode, header.uid, header.gid, header.mtime) == (0o644, 0, 0, 0)
        assert (header.uname, header.gname, header.type, header.pax_headers) == (
            "",
            "",
            tarfile.REGTYPE,
            {},
        )
        assert tar[header.offset : header.offset + 265][257:] == b"ustar\x0000"


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command here")
def test_the_tar_command_lists_a_shard_without_warnings(
    write: Write, tokenizer: TokenizerEntry, worked_example: Documents, tmp_path: Path
) -> None:
    """The system's tar reads a shard and prints no warning."""
    (tmp_path / "shard.tar").write_bytes(write(worked_example, tokenizer)[0])
    listing = subprocess.run(
        ["tar", "tf", tmp_path / "shard.tar"], capture_output=True, check=True, text=True
    )
    assert listing.stdout.split() == ["000000-00000.docs.npy", "000000-00000.tokens.npy"]
    assert listing.stderr == ""


@given(shards())
# importing webdataset takes most of the first example
@settings(max_examples=15, deadline=None)
def test_webdataset_reads_a_shard(
    write: Write,
    tmp_path_factory: pytest.TempPathFactory,
    shard: tuple[Documents, TokenizerEntry, int],
) -> None:
    """Webdataset groups the members into samples and decodes them."""
    documents, tokenizer, sample_tokens = shard
    path = tmp_path_factory.mktemp("shard") / "shard-000000.tar"
    tar, raw_index, _ = write(documents, tokenizer, sample_tokens=sample_tokens)
    path.write_bytes(tar)
    with warnings.catch_warnings():
        # webdataset is a third party's code: its imports and defaults may be deprecated before its authors know
        warnings.simplefilter("ignore")
        import webdataset as wds

        # empty_check raises on a shard without samples, which is valid here
        samples: list[dict[str, Any]] = list(
            wds.WebDataset(str(path), shardshuffle=False, empty_check=False).decode()  # type: ignore[no-untyped-call]
        )
    index = ShardIndex.from_bytes(raw_index, "index")
    assert [sample["__key__"] for sample in samples] == [
        f"000000-{k:05d}" for k in range(index.num_samples)
    ]
    assert [len(sample["tokens.npy"]) for sample in samples] == np.diff(
        index.sample_starts
    ).tolist()
    assert [
        token for sample in samples for token in sample["tokens.npy"].tolist()
    ] == documents.tokens.tolist()
    if documents.metadata is not None:
        assert [each for sample in samples for each in sample["json"]] == documents.metadata


def test_the_bytes_of_a_shard_are_pinned(
    write: Write, tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """The bytes of a fixed shard change only with a new version of the format."""
    with_metadata = replace(
        worked_example,
        metadata=[{"url": "https://example.org/é"}, {"n": 1.5}, b'{"raw":true}'],
    )
    tar, index, entry = write(with_metadata, tokenizer, shard=3, sample_tokens=5)
    assert entry.sha256 == hashlib.sha256(tar).hexdigest()
    assert entry.index_sha256 == hashlib.sha256(index).hexdigest()
    assert (
        entry.sha256 == "1d3762592776de38097e7a58470032e18c6f1d3766de21707e021b63f02f71f2"
    )
    assert (
        entry.index_sha256
        == "8ebcf020c01876131ebf5e38c0c4109f043509537c40edf8306189c404441a3f"
    )


def test_sample_tokens_of_1_gives_one_sample_per_document(
    write: Write, tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """No other setting is needed for this."""
    assert write(worked_example, tokenizer, sample_tokens=1)[2].num_samples == 3


def test_a_shard_without_documents_is_valid(
    write: Write, tokenizer: TokenizerEntry
) -> None:
    """It is a tar without members, with an index of zero samples."""
    nothing = Documents(
        np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.uint64)
    )
    tar, raw_index, entry = write(nothing, tokenizer)
    index = ShardIndex.from_bytes(raw_index, "index")
    assert read_with_tarfile(tar) == []
    assert (index.num_samples, index.num_docs, index.num_tokens) == (0, 0, 0)
    assert (entry.num_samples, entry.num_docs, entry.num_tokens) == (0, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tokens": np.array([11, 50, 0, 21, 0, 31, 32, 33, 0])},
            r"shard 0, document 0 \(doc_id 7\): token 1 is 50, ",
        ),
        (
            {"tokens": np.array([11, 12, 0, 21, 0, 31, 32, -1, 0])},
            r"document 2 \(doc_id 9\): token 2 is -1, .* 0\.\.49",
        ),
        (
            {"tokens": np.array([11, 12, 0, 21, 9, 31, 32, 33, 0])},
            r"document 1 .*last token is 9, .*end-of-document id 0",
        ),
        (
            {"metadata": [{}, {"score": float("nan")}, {}]},
            r"document 1 \(doc_id 5\): metadata that are not JSON",
        ),
        (
            {"metadata": [{}, {}, {"date": object()}]},
            r"document 2 \(doc_id 9\): metadata that are not JSON",
        ),
        (
            {"metadata": [{"title": "\ud800"}, {}, {}]},
            r"document 0 \(doc_id 7\): metadata that are not JSON",
        ),
    ],
)
def test_unusable_tokens_and_metadata_are_refused(
    write: Write,
    tokenizer: TokenizerEntry,
    worked_example: Documents,
    change: dict[str, Any],
    message: str,
) -> None:
    """The error names the document."""
    with pytest.raises(ValueError, match=message):
        write(replace(worked_example, **change), tokenizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"tokens": np.zeros(9)},
            "tokens is a 1-D array of float64, must be a 1-D array of integers",
        ),
        ({"tokens": np.zeros((3, 3), int)}, "tokens is a 2-D array"),
        ({"doc_num_tokens": np.array([3, 2, 5])}, "adds up to 10, but there are 9 tokens"),
        (
            {"doc_num_tokens": np.array([5, 0, 4])},
            r"document 1 \(doc_id 5\) has 0 tokens, must have at least",
        ),
        (
            {"doc_ids": np.array([7, 5, 9])},
            "doc_ids is a 1-D array of int64, must be a 1-D array of uint64",
        ),
        ({"doc_ids": np.array([7, 7, 9], np.uint64)}, "doc_id 7 occurs more than once"),
        ({"metadata": [{}]}, "metadata has 1 entries for 3 documents"),
    ],
)
def test_contradicting_columns_are_refused(
    worked_example: Documents, change: dict[str, Any], message: str
) -> None:
    """Columns of documents are checked when the object is created."""
    with pytest.raises((ValueError, TypeError), match=message):
        replace(worked_example, **change)


def test_a_member_over_8_gib_is_refused(write: Write) -> None:
    """A document that is too long for a tar member is refused before its tokens are read."""
    num_tokens = 2**31
    huge = Documents(
        np.broadcast_to(np.uint32(0), num_tokens),
        np.array([num_tokens]),
        np.array([1], np.uint64),
    )
    with pytest.raises(
        ValueError,
        match=r"000000-00000\.tokens\.npy would have 8589934720 bytes, .* at most 8589934591",
    ):
        write(huge, TokenizerEntry("wide", "0" * 64, 2**20, 0))


def test_settings_out_of_range_are_refused(
    write: Write, tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """Shard numbers must be at least 0, and samples must have a token."""
    with pytest.raises(ValueError, match="sample_tokens is 0"):
        write(worked_example, tokenizer, sample_tokens=0)


def test_a_partial_write_is_an_error(
    tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """An unbuffered file may write a part of the data without raising an error."""

    class Stingy(io.BytesIO):
        def write(self, data: Any, /) -> int:
            return super().write(bytes(data)[:100])

    with pytest.raises(
        OSError, match="took 100 of 512 bytes after 0 bytes; open the file buffered"
    ):
        write_shard(
            Stingy(), io.BytesIO(), shard=0, tokenizer=tokenizer, documents=worked_example
        )
