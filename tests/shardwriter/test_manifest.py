"""Joining shards, and finding whatever is wrong with a dataset."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwriter import Documents, build_manifest, verify, write_shard
from shardwriter.format import (
    MANIFEST_FILE,
    Manifest,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    Totals,
)
from shardwriter.verification import doc_ids

Write = Callable[..., tuple[bytes, bytes, ShardEntry]]


def findings(dataset: Path) -> list[str]:
    """What verify says, one line each."""
    return [str(finding) for finding in verify(dataset)]


def manifest_of(dataset: Path) -> Manifest:
    """The manifest in a folder."""
    return Manifest.loads((dataset / MANIFEST_FILE).read_bytes())


def rewrite(dataset: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Replace a file's content."""
    (dataset / name).write_bytes(change((dataset / name).read_bytes()))


def certify(dataset: Path, index: ShardIndex | None = None) -> None:
    """Give shard 0 the manifest that a writer of wrong bytes would have given it: digests right, contents not."""
    from hashlib import sha256

    if index is not None:
        (dataset / "shard-000000.idx").write_bytes(index.to_bytes())
    manifest = manifest_of(dataset)
    tar, idx = ((dataset / name).read_bytes() for name in ("shard-000000.tar", "shard-000000.idx"))
    entry = replace(
        manifest.shards[0],
        shard_bytes=len(tar),
        sha256=sha256(tar).hexdigest(),
        index_bytes=len(idx),
        index_sha256=sha256(idx).hexdigest(),
    )
    shards = (entry, *manifest.shards[1:])
    (dataset / MANIFEST_FILE).write_bytes(
        replace(manifest, shards=shards, totals=Totals.from_shards(shards)).dumps()
    )


def index_of(dataset: Path) -> ShardIndex:
    """The index of shard 0."""
    return ShardIndex.from_bytes((dataset / "shard-000000.idx").read_bytes(), "shard-000000.idx")


# ----------------------------------------------------------------------------------------------------------------- join


def test_join_orders_and_adds_up(dataset: Path, tokenizer: TokenizerEntry) -> None:
    """Shards may be told of in any order; totals are their sums."""
    shards = manifest_of(dataset).shards
    manifest = build_manifest(reversed(shards), tokenizer=tokenizer, fingerprint="f")
    assert manifest.shards == shards
    assert manifest.totals.num_tokens == sum(entry.num_tokens for entry in shards) == 111
    assert (
        sum(count.num_docs for count in manifest.totals.languages.values())
        == manifest.totals.num_docs
        == 10
    )


def test_join_of_nothing(tokenizer: TokenizerEntry) -> None:
    """A run that kept nothing has a manifest all the same."""
    assert (
        Manifest.loads(
            build_manifest([], tokenizer=tokenizer, fingerprint="f").dumps()
        ).totals.num_tokens
        == 0
    )


def test_join_refuses_gaps_and_doubles(dataset: Path, tokenizer: TokenizerEntry) -> None:
    """A missing shard and one given twice are both named."""
    first, second = manifest_of(dataset).shards
    with pytest.raises(ValueError, match=r"\[0, 2\] missing, \[1\] given twice"):
        build_manifest(
            [second, second, replace(second, shard=3)], tokenizer=tokenizer, fingerprint="f"
        )
    with pytest.raises(
        ValueError, match=r"shards\[0\]\.languages.*: found \[5, 55\], wanted \[6, 55\]"
    ):
        build_manifest([replace(first, num_docs=6), second], tokenizer=tokenizer, fingerprint="f")


# --------------------------------------------------------------------------------------------------------------- verify


def test_whole_dataset_has_no_findings(dataset: Path) -> None:
    """A dataset as written is whole, wherever it is moved, asked by folder or by manifest."""
    moved = shutil.move(dataset, dataset.parent / "moved")
    assert findings(moved) == findings(Path(moved) / MANIFEST_FILE) == []


def test_empty_shard_is_whole(tmp_path: Path, write: Write, tokenizer: TokenizerEntry) -> None:
    """A shard without documents verifies."""
    nothing = Documents(np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.uint64))
    tar, index, entry = write(nothing, tokenizer)
    (tmp_path / entry.file).write_bytes(tar)
    (tmp_path / entry.index_file).write_bytes(index)
    (tmp_path / MANIFEST_FILE).write_bytes(
        build_manifest([entry], tokenizer=tokenizer, fingerprint="f").dumps()
    )
    assert findings(tmp_path) == []


@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000000.idx", "manifest.json"])
def test_missing_file(dataset: Path, name: str) -> None:
    """A file that is gone is named."""
    (dataset / name).unlink()
    (finding,) = verify(dataset)
    assert (finding.where, finding.found) == (name, "no readable file (No such file or directory)")


def test_truncated_tar(dataset: Path) -> None:
    """A tar cut off in its second sample has the wrong size and digest, breaks off at a byte, and lacks two samples."""
    rewrite(dataset, "shard-000000.tar", lambda data: data[:3_684])
    lines = findings(dataset)
    assert "shard-000000.tar: found 3684 bytes, wanted " in lines[0]
    assert "shard-000000.tar: found sha256 " in lines[1]
    assert (
        "shard-000000.tar, byte 3072: found type b'0', 132 bytes, wanted a regular file that ends inside the tar"
        in lines[2]
    )
    assert (
        "shard-000000.tar: num_samples: found 1 in the tar, wanted 3 as in the manifest" in lines[3]
    )
    assert "num_docs: found 2 in the tar, wanted 5" in lines[4]
    assert "num_tokens: found 14 in the tar, wanted 55" in lines[5]


def test_tar_cut_between_members(dataset: Path) -> None:
    """A tar that ends without its end is found though every member is whole."""
    rewrite(dataset, "shard-000000.tar", lambda data: data[:-1024])
    assert any("no tar header (empty header)" in line for line in findings(dataset))


def test_zeros_in_the_middle_are_no_end(dataset: Path) -> None:
    """Zeros over a member, which many readers take for the end of the archive, are not passed over."""
    rewrite(dataset, "shard-000000.tar", lambda data: data[:3072] + bytes(2048) + data[5120:])
    lines = findings(dataset)
    assert any("byte 3072: found the end of the archive, but " in line for line in lines)
    assert any("num_samples: found 1 in the tar, wanted 3" in line for line in lines)


def test_flipped_bit_in_tokens(dataset: Path) -> None:
    """A bit flipped in a sample's tokens is found by digest, and by the sample's own crc32 at its byte."""
    offset = int(index_of(dataset).sample_offsets[1])
    rewrite(
        dataset,
        "shard-000000.tar",
        lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :],
    )
    sha256, crc = findings(dataset)
    assert "shard-000000.tar: found sha256 " in sha256
    assert f"shard-000000.tar, sample 000000-00001, byte {offset}: found tokens with crc32 " in crc
    assert crc.endswith(
        "copy the file again from where it was written, or delete the shard and run the pipeline again"
    )


def test_swapped_indexes(dataset: Path) -> None:
    """Indexes of each other's shards are recognised as such."""
    first, second = dataset / "shard-000000.idx", dataset / "shard-000001.idx"
    first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    lines = findings(dataset)
    assert "shard-000000.idx: found the index of shard 1, wanted that of shard 0" in "\n".join(
        lines
    )
    assert "shard-000001.idx: found the index of shard 0, wanted that of shard 1" in "\n".join(
        lines
    )
    assert len(lines) == 4


def test_unnamed_shard(dataset: Path) -> None:
    """A shard that the manifest does not name is reported, since plain readers would take it in."""
    shutil.copy(dataset / "shard-000001.tar", dataset / "shard-000002.tar")
    (line,) = findings(dataset)
    assert line.startswith("shard-000002.tar: found a file that the manifest does not name")


def test_edited_counts(dataset: Path) -> None:
    """Counts edited in the manifest are found against the digest, the sums, the index and the tar."""
    rewrite(
        dataset,
        MANIFEST_FILE,
        lambda data: data.replace(b'"num_samples": 3', b'"num_samples": 4', 1),
    )
    text = "\n".join(findings(dataset))
    assert "manifest.json: totals.num_samples: found 6, wanted 7" in text
    assert "manifest.json: digest of the file" in text
    assert (
        "shard-000000.idx: num_samples: found 3 in the index, wanted 4 as in the manifest" in text
    )
    assert "shard-000000.tar: num_samples: found 3 in the tar, wanted 4 as in the manifest" in text


def test_unreadable_index_leaves_the_tar_checked(dataset: Path) -> None:
    """Without its index a tar is still walked and recounted."""
    rewrite(dataset, "shard-000000.idx", lambda data: b"not an index" + data)
    rewrite(dataset, "shard-000000.tar", lambda data: data[:-2048])
    text = "\n".join(findings(dataset))
    assert "shard-000000.idx, byte 0: found b'not an i', wanted the magic" in text
    assert "shard-000000.tar: num_samples: found 2 in the tar" in text


def test_wrong_offset_in_a_well_formed_index(dataset: Path) -> None:
    """An index that was written wrong, with every digest right, is found against the tar."""
    index = index_of(dataset)
    certify(dataset, replace(index, sample_offsets=index.sample_offsets + np.array([0, 64, 0])))
    (line,) = findings(dataset)
    assert line.startswith(
        f"shard-000000.tar, sample 000000-00001, byte {index.sample_offsets[1]}: found tokens, wanted"
    )


def test_index_that_cuts_documents(dataset: Path) -> None:
    """Samples that begin inside a document, and starts that do not rise, are found in the index itself."""
    index = index_of(dataset)
    certify(dataset, replace(index, sample_starts=index.sample_starts + np.array([0, 1, 0, 0])))
    assert any(
        "sample_starts[1]: found token 15, inside a document" in line for line in findings(dataset)
    )
    certify(dataset, replace(index, doc_starts=index.doc_starts[[0, 2, 1, 3, 4, 5]]))
    assert any(
        "doc_starts[2]: found 5, wanted 0 first, then rising" in line for line in findings(dataset)
    )


def test_document_without_its_end(dataset: Path) -> None:
    """A document whose last token is not the end of a document is found, though every digest is right."""
    index = index_of(dataset)
    last = int(index.sample_offsets[0]) + 2 * 13
    rewrite(dataset, "shard-000000.tar", lambda data: data[:last] + b"\x09" + data[last + 1 :])
    certify(dataset)
    assert any(
        "token 13: found 9, wanted end_of_document = 0, the last of document 1" in f
        for f in findings(dataset)
    )


def test_token_outside_the_vocabulary(dataset: Path) -> None:
    """An id that the tokenizer does not have is found, though every digest is right."""
    first = int(index_of(dataset).sample_offsets[0])
    rewrite(
        dataset, "shard-000000.tar", lambda data: data[:first] + b"\xff\x00" + data[first + 2 :]
    )
    certify(dataset)
    assert any(
        "token 0: found 255, wanted below vocab_size = 50" in line for line in findings(dataset)
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b'"doc_id":0',
            b'"doc_id":!',
            r"byte 1536 (000000-00000.json): found no JSON (Expecting value",
        ),
        (b'{"doc_id":0,', b' "doc_id",  ', r"byte 1536 (000000-00000.json): found no JSON"),
        (
            b"000000-00000.json",
            b"000000-00000.jsox",
            "found no tar header (bad checksum), wanted a member or the end",
        ),
        (b"'descr': '<u4'", b"'descr': '<i4'", 'found 136 bytes that begin with b"\\x93NUMPY'),
    ],
)
def test_broken_members(dataset: Path, old: bytes, new: bytes, message: str) -> None:
    """Metadata that are not JSON, broken tar headers and arrays of another type are named with their byte."""
    rewrite(dataset, "shard-000000.tar", lambda data: data.replace(old, new, 1))
    assert any(message in line for line in findings(dataset))


def test_metadata_of_other_documents(
    dataset: Path,
    write: Write,
    random_documents: Callable[..., Documents],
    tokenizer: TokenizerEntry,
) -> None:
    """A list of metadata that is not one object per document is found."""
    documents = replace(random_documents([5, 9, 30, 4, 7]), metadata=[b"{},{}", *[b"{}"] * 4])
    tar, index, _ = write(documents, tokenizer, sample_tokens=16)
    (dataset / "shard-000000.tar").write_bytes(tar)
    (dataset / "shard-000000.idx").write_bytes(index)
    certify(dataset)
    (line,) = findings(dataset)
    assert "found a list of 3, wanted a JSON list of 2 objects, one per document" in line


def test_document_starts_that_do_not_rise(dataset: Path) -> None:
    """Document starts outside their sample are found, though every digest is right."""
    starts = 512 + 128
    rewrite(
        dataset, "shard-000000.tar", lambda data: data[: starts + 4] + b"\x0e" + data[starts + 5 :]
    )
    certify(dataset)
    lines = findings(dataset)
    assert any(
        "sample 000000-00000: found document starts [0, 14]... in 14 tokens" in line
        for line in lines
    )
    assert any(
        "found documents that start at [0, 14]..., wanted [0, 5]... as in the index" in line
        for line in lines
    )


def test_index_of_fewer_samples_and_wider_tokens(dataset: Path) -> None:
    """An index that describes another tar than the one beside it is found, though every digest is right."""
    index = index_of(dataset)
    starts, offsets = index.sample_starts[[0, 1, 3]], index.sample_offsets[:2]
    certify(
        dataset,
        replace(
            index, sample_starts=starts, sample_offsets=offsets, sample_crcs=index.sample_crcs[:2]
        ),
    )
    text = "\n".join(findings(dataset))
    assert (
        "shard-000000.idx: num_samples: found 2 in the index, wanted 3 as in the manifest" in text
    )
    assert "found sample 2, wanted 2 samples as in the index" in text
    assert "found 30 tokens, wanted 41 as in the index" in text
    certify(dataset, replace(index, token_dtype=np.dtype("<u4")))
    assert findings(dataset)[0].startswith(
        "shard-000000.idx: found tokens of uint32, wanted uint16"
    )


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (
            ["000000-00000.tokens.npy", "000000-00000.docs.npy"],
            "the members ['000000-00000.tokens.npy']",
        ),
        (
            ["000001-00000.docs.npy", "000001-00000.tokens.npy"],
            "the members ['000001-00000.docs.npy', ",
        ),
    ],
)
def test_members_of_other_names_or_order(dataset: Path, names: list[str], found: str) -> None:
    """A tar of other members, well-formed as it may be, is not a shard of this format."""
    with tarfile.open(dataset / "shard-000000.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    certify(dataset)
    assert any(
        f"shard-000000.tar, sample 000000-00000: found {found}" in line
        for line in findings(dataset)
    )


@pytest.mark.parametrize("doc_ids_in_memory", [2**26, 3])
def test_doc_ids_occur_once_over_the_dataset(
    dataset: Path,
    random_documents: Callable[..., Documents],
    tokenizer: TokenizerEntry,
    monkeypatch: pytest.MonkeyPatch,
    doc_ids_in_memory: int,
) -> None:
    """A document in two shards is found, in one pass or in many."""
    monkeypatch.setattr(doc_ids, "DOC_IDS_IN_MEMORY", doc_ids_in_memory)
    documents = random_documents(
        [5, 9, 30, 4, 7], first_doc_id=103
    )  # 103 and 104 are in shard 1 already
    with (
        (dataset / "shard-000000.tar").open("wb") as tar,
        (dataset / "shard-000000.idx").open("wb") as index,
    ):
        entry = write_shard(
            tar, index, shard=0, tokenizer=tokenizer, documents=documents, sample_tokens=16
        )
    shards = entry, manifest_of(dataset).shards[1]
    (dataset / MANIFEST_FILE).write_bytes(
        build_manifest(shards, tokenizer=tokenizer, fingerprint="f").dumps()
    )
    (line,) = findings(dataset)
    assert line.startswith(
        "shard-000001.idx: found 2 doc_ids that shard-000000.idx has already, 103 among them"
    )


def cut(data: bytes, at: int, noise: bytes) -> bytes:
    """Lose the end."""
    del noise
    return data[:at]


def flip(data: bytes, at: int, noise: bytes) -> bytes:
    """Flip one bit."""
    return data[:at] + bytes([data[at] ^ (1 << noise[0] % 8)]) + data[at + 1 :]


def overwrite(data: bytes, at: int, noise: bytes) -> bytes:
    """Write something else over a part."""
    return data[:at] + noise + data[at + len(noise) :]


def insert(data: bytes, at: int, noise: bytes) -> bytes:
    """Push the rest back."""
    return data[:at] + noise + data[at:]


@given(
    name=st.sampled_from(
        ["shard-000000.tar", "shard-000001.tar", "shard-000001.idx", "manifest.json"]
    ),
    damage=st.sampled_from([cut, flip, overwrite, insert]),
    share=st.floats(0, 1, exclude_max=True),
    noise=st.binary(min_size=1, max_size=40) | st.just(bytes(512)) | st.just(b"\xff" * 8),
)
@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # restored after each example
def test_any_damage_is_found_and_none_is_fatal(
    dataset: Path,
    name: str,
    damage: Callable[[bytes, int, bytes], bytes],
    share: float,
    noise: bytes,
) -> None:
    """Whatever happens to a file, verify returns, and has findings exactly when bytes changed."""
    whole = (dataset / name).read_bytes()
    damaged = damage(whole, int(share * len(whole)), noise)
    (dataset / name).write_bytes(damaged)
    try:
        assert bool(verify(dataset)) == (damaged != whole)
    finally:
        (dataset / name).write_bytes(whole)
