"""The manifest of a dataset: bytes, checks and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter import Documents, build_manifest
from shardwriter.format import (
    Count,
    FormatError,
    Manifest,
    ShardEntry,
    TokenizerEntry,
)

Write = Callable[..., tuple[bytes, bytes, ShardEntry]]


def test_the_page_shows_the_bytes_of_the_manifest(
    page: str, write: Write, tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """The manifest in docs/data-format.md is that of the worked example."""
    entry = write(worked_example, tokenizer, sample_tokens=5)[2]
    (shown,) = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    manifest = build_manifest(
        [entry],
        tokenizer=tokenizer,
        fingerprint="9f2c",
        languages={"en": Count(2, 5), "fr": Count(1, 4)},
        run={"config": "ccnet.yaml"},
    )
    assert shown.encode() == manifest.dumps()


sizes = st.integers(0, 2**60)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def labels(entries: list[ShardEntry]) -> st.SearchStrategy[dict[str, Count]]:
    """Generate counts that add up to those of the shards, or none."""
    num_docs = sum(entry.num_docs for entry in entries)
    num_tokens = sum(entry.num_tokens for entry in entries)
    parts = st.tuples(st.integers(0, num_docs), st.integers(0, num_tokens))
    split = parts.map(
        lambda part: {
            "fr": Count(*part),
            "en": Count(num_docs - part[0], num_tokens - part[1]),
        }
    )
    return split | st.just(dict[str, Count]())


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Generate manifests that do not contradict themselves."""
    entries = [
        ShardEntry(
            shard=shard,
            shard_bytes=draw(sizes),
            sha256="0f" * 32,
            index_bytes=draw(sizes),
            index_sha256="f0" * 32,
            num_samples=draw(sizes),
            num_docs=draw(sizes),
            num_tokens=draw(sizes),
        )
        for shard in range(draw(st.integers(0, 3)))
    ]
    vocab_size = draw(st.integers(1, 2**32))
    tokenizer = TokenizerEntry(
        draw(st.text()), "ab" * 32, vocab_size, draw(st.integers(0, vocab_size - 1))
    )
    run = draw(st.dictionaries(st.text(), json_values, max_size=3))
    return build_manifest(
        draw(st.permutations(entries)),
        tokenizer=tokenizer,
        fingerprint=draw(st.text()),
        languages=draw(labels(entries)),
        run=run,
    )


@given(manifests())
def test_a_manifest_survives_a_round_trip(manifest: Manifest) -> None:
    """`loads` and `dumps` are inverse, and there is one form of the bytes."""
    data = manifest.dumps()
    copy = Manifest.loads(data)
    assert copy == manifest
    assert copy.dumps() == data
    assert copy.digest == manifest.digest
    assert data.endswith(b"}\n")
    assert data.isascii()


def change(value: dict[str, Any], path: str, new: object) -> dict[str, Any]:
    """Replace one value in a JSON object, or remove it if `new` is Ellipsis."""
    *parents, last = path.split("/")
    place: Any = value
    for key in parents:
        place = place[int(key) if isinstance(place, list) else key]
    if new is ...:
        del place[last]
    else:
        place[last] = new
    return value


@pytest.mark.parametrize(
    ("path", "new", "message"),
    [
        (
            "format",
            "mosaic",
            r"m: format: found 'mosaic', wanted 'corpusmill-shards'; give the manifest of a dataset",
        ),
        (
            "version",
            1,
            r"m: version: found 1, wanted 2; read it with the release that wrote it",
        ),
        ("version", True, "m: version: found True, wanted 2"),
        ("totals", ..., r"m: found keys missing \['totals'\] and unknown \[\]"),
        ("surprise", 1, r"unknown \['surprise'\]"),
        (
            "token_dtype",
            "uint32",
            r"m: token_dtype: found 'uint32', wanted 'uint16' for 50 ids",
        ),
        ("shards/1/num_docs", ..., r"m: shards\[1\]: found keys missing \['num_docs'\]"),
        (
            "shards/1/num_docs",
            -1,
            r"m: shards\[1\]\.num_docs: found -1, wanted a number of at least 0",
        ),
        ("shards/1/num_docs", "5", r"m: shards\[1\]\.num_docs: found '5', wanted a number"),
        (
            "shards/1/sha256",
            "xyz",
            r"m: shards\[1\]\.sha256: found 'xyz', wanted 64 hexadecimal digits",
        ),
        (
            "shards/1/file",
            "/tmp/a.tar",
            r"m: shards\[1\]\.file: found '/tmp/a.tar', wanted 'shard-000001.tar'",
        ),
        (
            "totals/languages/en",
            3,
            r"m: totals\.languages\['en'\]: found 3, wanted a JSON object",
        ),
        (
            "tokenizer/end_of_document",
            50,
            r"m: tokenizer: found .*'end_of_document' is 50, must be in 0\.\.49",
        ),
        (
            "tokenizer/special_ids/<pad>",
            "1",
            r"m: tokenizer\.special_ids\.<pad>: found '1', wanted a number",
        ),
    ],
)
def test_each_fault_of_a_manifest_has_an_error(
    dataset: Path, path: str, new: object, message: str
) -> None:
    """The error names the key, what was found and what was wanted."""
    value = change(
        Manifest.loads((dataset / "manifest.json").read_bytes()).to_json(), path, new
    )
    with pytest.raises(FormatError, match=message):
        Manifest.from_json(value, "m")


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[1]", b'"corpusmill-shards"', b"[" * 100_000, b"{}"]
)
def test_other_files_are_not_manifests(data: bytes) -> None:
    """Bytes that are not JSON, and other JSON, raise FormatError."""
    with pytest.raises(FormatError, match="manifest"):
        Manifest.loads(data)


def test_an_edited_manifest_is_refused(dataset: Path) -> None:
    """The digest finds a change even if nothing contradicts it."""
    data = (dataset / "manifest.json").read_bytes()
    with pytest.raises(
        FormatError, match=r"digest of the file: found .* restore manifest\.json"
    ):
        Manifest.loads(data.replace(b"f00d", b"beef"))


def test_each_contradiction_of_a_manifest_is_reported(dataset: Path) -> None:
    """Each count that does not add up has its own error."""
    value = Manifest.loads((dataset / "manifest.json").read_bytes()).to_json()
    change(value, "totals/num_tokens", 112)
    change(value, "totals/languages/en", {"num_docs": 7, "num_tokens": 51})
    messages = [str(fault) for fault in Manifest.from_json(value, "m").find_faults("m")]
    assert len(messages) == 2
    assert "m: totals.num_tokens: found 112, wanted 111" in messages[0]
    added_up = "m: totals.languages, documents and tokens added up: found [11, 111], wanted [10, 111]"
    assert added_up in messages[1]
