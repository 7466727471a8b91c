"""Documents can be blanked in a shard; every other byte stays."""

from __future__ import annotations

import io
import json
import zlib

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwriter import Documents, write_shard
from shardwriter.format import ShardIndex, TokenizerEntry
from shardwriter.rewrite import blank_documents, count_tokens_left
from shardwriter.verification.tar_reader import read_samples

END = 0
TOKENIZER = TokenizerEntry("tiny", "ab" * 32, vocab_size=500, end_of_document=END)


def write(lengths: list[int], has_metadata: bool) -> tuple[bytes, ShardIndex]:
    """Return a shard of documents with these numbers of tokens, and its index."""
    tokens = np.random.default_rng(3).integers(1, 500, sum(lengths))
    tokens[np.cumsum(lengths) - 1] = END
    about = [{"url": f"https://example.org/{'x' * n}", "n": n} for n in lengths]
    documents = Documents(
        tokens,
        np.array(lengths),
        np.arange(len(lengths), dtype=np.uint64) + np.uint64(7 << 32),
        metadata=about if has_metadata else None,
    )
    tar, index = io.BytesIO(), io.BytesIO()
    settings = {"shard": 2, "tokenizer": TOKENIZER, "sample_tokens": 12}
    write_shard(tar, index, documents=documents, **settings)
    return tar.getvalue(), ShardIndex.from_bytes(index.getvalue(), "index")


@settings(max_examples=60)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=12), st.booleans(), st.data())
def test_exactly_the_documents_are_blanked(
    lengths: list[int], has_metadata: bool, data: st.DataObject
) -> None:
    """Their tokens become the end-of-document id, and their metadata blanks of the same size."""
    content, index = write(lengths, has_metadata)
    chosen = data.draw(st.sets(st.integers(0, len(lengths) - 1)))
    docs = np.array(sorted(chosen), np.int64)
    tar = io.BytesIO(content)
    crcs = blank_documents(tar, index, docs, END)
    assert count_tokens_left(tar, index, docs, END) == 0
    assert len(tar.getvalue()) == len(content)
    wanted = np.zeros(sum(lengths), bool)
    for doc in chosen:
        wanted[index.doc_starts[doc] : index.doc_starts[doc + 1]] = True
    doc = 0
    for sample, members in enumerate(read_samples(tar, "tar")):
        start, stop = index.sample_starts[sample : sample + 2]
        raw = members[-1].content[128:]
        old = np.frombuffer(
            content, index.token_dtype, stop - start, index.sample_offsets[sample]
        )
        expected = np.where(wanted[start:stop], END, old).astype(index.token_dtype)
        assert raw == expected.tobytes()
        assert crcs.get(sample, index.sample_crcs[sample]) == zlib.crc32(raw)
        if has_metadata:
            for value in json.loads(members[1].content):
                if doc in chosen:
                    assert "url" not in value
                else:
                    assert value["n"] == lengths[doc]
                doc += 1
    again = io.BytesIO(tar.getvalue())
    assert blank_documents(again, index, docs, END) == crcs
    assert again.getvalue() == tar.getvalue()
    blank_documents(again, index, docs[:0], END)
    assert again.getvalue() == tar.getvalue()


def test_tokens_that_are_left_are_counted() -> None:
    """The check of a rewritten shard can fail."""
    content, index = write([5, 9], has_metadata=True)
    assert count_tokens_left(io.BytesIO(content), index, np.array([0, 1]), END) == 12
