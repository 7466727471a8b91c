"""The index and the manifest: what they say, what they refuse, and what the documentation says of them."""

from __future__ import annotations

import ast
import pickle
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwriter import Documents, build_manifest
from shardwriter.format import (
    INDEX_HEADER,
    Count,
    FormatError,
    Manifest,
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
    """The index of the worked example in docs/data-format.md."""
    return write(worked_example, tokenizer, sample_tokens=5)[1]


@pytest.fixture(scope="session")
def page() -> str:
    """The documentation of the format."""
    return (Path(__file__).parents[2] / "docs" / "data-format.md").read_text(encoding="utf-8")


def test_documentation_shows_the_index_byte_for_byte(page: str, index: bytes) -> None:
    """The worked example of the documentation is the index that the writer makes of those documents."""
    (dump,) = re.findall(r"```hex\n(.*?)```", page, flags=re.DOTALL)
    assert bytes.fromhex("".join(line[6:].partition("|")[0] for line in dump.splitlines())) == index


def test_documentation_shows_the_manifest_byte_for_byte(
    page: str, write: Write, tokenizer: TokenizerEntry, worked_example: Documents
) -> None:
    """The manifest in the documentation is the one that belongs to that shard."""
    entry = write(worked_example, tokenizer, sample_tokens=5)[2]
    (shown,) = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    manifest = build_manifest(
        [entry], tokenizer=tokenizer, fingerprint="9f2c", run={"config": "ccnet.yaml"}
    )
    assert shown.encode() == manifest.dumps()


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(1, "uint16"), (2**16, "uint16"), (2**16 + 1, "uint32")]
)
def test_tokens_are_as_narrow_as_the_vocabulary_allows(vocab_size: int, name: str) -> None:
    """uint16 holds ids up to 65,535, so a vocabulary of exactly 65,536."""
    assert token_dtype(vocab_size).name == name


def test_read_index_maps_the_file(index: bytes, tmp_path: Path) -> None:
    """An index read from disk equals the one read from memory, and cannot be written to."""
    (tmp_path / "shard-000000.idx").write_bytes(index)
    mapped = read_index(tmp_path / "shard-000000.idx")
    assert mapped.sample_starts.tolist() == [0, 5, 9]
    assert mapped.doc_starts.tolist() == [0, 3, 5, 9]
    assert mapped.doc_ids.tolist() == [7, 5, 9]
    assert not mapped.doc_ids.flags.writeable
    assert mapped.to_bytes() == index


def with_header(index: bytes, **changes: int) -> bytes:
    """`index` with fields of its header replaced and the checksum made right again."""
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
            lambda b: with_header(b, version=2),
            FormatError,
            "byte 8: found 2, wanted 1; read it with the release",
        ),
        (
            lambda b: with_header(b, token_bytes=8),
            FormatError,
            "byte 48: found 8 bytes per token, wanted 2 or 4",
        ),
        (
            lambda b: with_header(b, num_tokens=8),
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
def test_index_errors_say_what_is_wrong(
    index: bytes,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    error: type[FormatError],
    message: str,
) -> None:
    """Each way in which an index can be wrong has an error that names place, finding, wish and cure."""
    (tmp_path / "x.idx").write_bytes(damage(index))
    with pytest.raises(FormatError, match=message) as caught:
        read_index(tmp_path / "x.idx")
    assert caught.type is error


@given(st.data())
def test_any_flipped_bit_of_an_index_is_refused(index: bytes, data: st.DataObject) -> None:
    """No single bit of an index can change unseen."""
    bit = data.draw(st.integers(0, 8 * len(index) - 1))
    damaged = bytearray(index)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(FormatError):
        ShardIndex.from_bytes(bytes(damaged), "index")


def test_errors_survive_pickling() -> None:
    """An error raised in a worker process arrives whole."""
    error = ShardCorrupt("a.tar, byte 5", "3", "4", "copy it again")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (
        ShardCorrupt,
        "a.tar, byte 5: found 3, wanted 4; copy it again",
    )


# ------------------------------------------------------------------------------------------------------------- manifest

sizes = st.integers(0, 2**60)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """A manifest that does not contradict itself."""
    entries: list[ShardEntry] = []
    for shard in range(draw(st.integers(0, 3))):
        languages = draw(
            st.dictionaries(
                st.text(max_size=3), st.builds(Count, sizes, sizes), min_size=1, max_size=3
            )
        )
        entries.append(
            ShardEntry(
                shard=shard,
                shard_bytes=draw(sizes),
                sha256="0f" * 32,
                index_bytes=draw(sizes),
                index_sha256="f0" * 32,
                num_samples=draw(sizes),
                num_docs=sum(count.num_docs for count in languages.values()),
                num_tokens=sum(count.num_tokens for count in languages.values()),
                languages=languages,
            )
        )
    vocab_size = draw(st.integers(1, 2**32))
    tokenizer = TokenizerEntry(
        draw(st.text()), "ab" * 32, vocab_size, draw(st.integers(0, vocab_size - 1))
    )
    run = draw(st.dictionaries(st.text(), json_values, max_size=3))
    return build_manifest(
        draw(st.permutations(entries)), tokenizer=tokenizer, fingerprint=draw(st.text()), run=run
    )


@given(manifests())
def test_manifest_round_trip(manifest: Manifest) -> None:
    """A manifest comes back from its bytes as it was, and has one way to be written."""
    data = manifest.dumps()
    copy = Manifest.loads(data)
    assert copy == manifest
    assert copy.dumps() == data
    assert copy.digest == manifest.digest
    assert data.endswith(b"}\n")
    assert data.isascii()


def change(value: dict[str, Any], path: str, new: object) -> dict[str, Any]:
    """`value` with one place in it replaced, or removed where `new` is Ellipsis."""
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
        ("version", 2, r"m: version: found 2, wanted 1; read it with the release that wrote it"),
        ("version", True, r"m\.version: found True, wanted a number"),
        ("totals", ..., r"m: found keys missing \['totals'\] and unknown \[\]"),
        ("surprise", 1, r"unknown \['surprise'\]"),
        ("token_dtype", "uint32", r"m: token_dtype: found 'uint32', wanted 'uint16' for 50 ids"),
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
            "shards/1/languages/en",
            3,
            r"m: shards\[1\]\.languages\['en'\]: found 3, wanted a JSON object",
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
def test_manifest_errors_say_what_is_wrong(
    dataset: Path, path: str, new: object, message: str
) -> None:
    """Each way in which a manifest can be wrong has an error that names the key, the finding and the wish."""
    value = change(Manifest.loads((dataset / "manifest.json").read_bytes()).to_json(), path, new)
    with pytest.raises(FormatError, match=message):
        Manifest.from_json(value, "m")


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"[1]", b'"corpusmill-shards"', b"[" * 100_000, b"{}"]
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    """Bytes that are not JSON, and JSON that is not a manifest, are refused as such."""
    with pytest.raises(FormatError, match="manifest"):
        Manifest.loads(data)


def test_edited_manifest_is_refused(dataset: Path) -> None:
    """A manifest that was edited, even where nothing contradicts it, no longer has its digest."""
    data = (dataset / "manifest.json").read_bytes()
    with pytest.raises(FormatError, match=r"digest of the file: found .* restore manifest\.json"):
        Manifest.loads(data.replace(b"f00d", b"beef"))


def test_manifest_names_contradictions(dataset: Path) -> None:
    """Counts that do not add up are named one by one."""
    value = Manifest.loads((dataset / "manifest.json").read_bytes()).to_json()
    change(value, "totals/num_docs", 11)
    change(value, "shards/0/languages/en", {"num_docs": 3, "num_tokens": 9})
    messages = [str(fault) for fault in Manifest.from_json(value, "m").find_faults("m")]
    assert len(messages) == 3
    assert "m: shards[0].languages, documents and tokens added up: found [6, " in messages[0]
    assert "m: totals.num_docs: found 11, wanted 10" in messages[1]
    assert "m: totals.languages" in messages[2]


def test_format_imports_nothing_but_numpy() -> None:
    """Readers pay for the standard library and numpy only."""
    names: set[str] = set()
    for path in sorted((REPOSITORY / "shardwriter" / "format").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                names.add(node.module or "")
            elif isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
    foreign = {name for name in names if not name.startswith("shardwriter.format.")}
    assert {name.partition(".")[0] for name in foreign} - {*sys.stdlib_module_names} == {"numpy"}
