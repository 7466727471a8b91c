"""Verification of a dataset: every fault is found, and none raises."""

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


def list_findings(dataset: Path) -> list[str]:
    """Return the list_findings of verify, one line each."""
    return [str(finding) for finding in verify(dataset)]


def load_manifest(dataset: Path) -> Manifest:
    """Return the manifest in a folder."""
    return Manifest.loads((dataset / MANIFEST_FILE).read_bytes())


def rewrite(dataset: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Replace the content of a file."""
    (dataset / name).write_bytes(change((dataset / name).read_bytes()))


def write_matching_manifest(dataset: Path, index: ShardIndex | None = None) -> None:
    """Give shard 0 a manifest entry with matching checksums, for wrong content."""
    from hashlib import sha256

    if index is not None:
        (dataset / "shard-000000.idx").write_bytes(index.to_bytes())
    manifest = load_manifest(dataset)
    tar, idx = (
        (dataset / name).read_bytes() for name in ("shard-000000.tar", "shard-000000.idx")
    )
    entry = replace(
        manifest.shards[0],
        shard_bytes=len(tar),
        sha256=sha256(tar).hexdigest(),
        index_bytes=len(idx),
        index_sha256=sha256(idx).hexdigest(),
    )
    shards = (entry, *manifest.shards[1:])
    (dataset / MANIFEST_FILE).write_bytes(
        replace(manifest, shards=shards, totals=Totals.from_shards(shards, {}, {})).dumps()
    )


def load_index(dataset: Path) -> ShardIndex:
    """Return the index of shard 0."""
    return ShardIndex.from_bytes(
        (dataset / "shard-000000.idx").read_bytes(), "shard-000000.idx"
    )


def test_a_correct_dataset_has_no_findings(dataset: Path) -> None:
    """It can be moved, and given by its folder or by its manifest."""
    moved = shutil.move(dataset, dataset.parent / "moved")
    assert list_findings(moved) == list_findings(Path(moved) / MANIFEST_FILE) == []


def test_a_shard_without_documents_has_no_findings(
    tmp_path: Path, write: Write, tokenizer: TokenizerEntry
) -> None:
    """A shard may be empty."""
    nothing = Documents(
        np.zeros(0, np.uint16), np.zeros(0, np.int64), np.zeros(0, np.uint64)
    )
    tar, index, entry = write(nothing, tokenizer)
    (tmp_path / entry.file).write_bytes(tar)
    (tmp_path / entry.index_file).write_bytes(index)
    (tmp_path / MANIFEST_FILE).write_bytes(
        build_manifest([entry], tokenizer=tokenizer, fingerprint="f").dumps()
    )
    assert list_findings(tmp_path) == []


@pytest.mark.parametrize("name", ["shard-000001.tar", "shard-000000.idx", "manifest.json"])
def test_a_missing_file_is_found(dataset: Path, name: str) -> None:
    """The finding names the file."""
    (dataset / name).unlink()
    (finding,) = verify(dataset)
    assert (finding.where, finding.found) == (
        name,
        "no readable file (No such file or directory)",
    )


def test_a_truncated_tar_is_found(dataset: Path) -> None:
    """Size, digest, the incomplete member and the missing samples are reported."""
    rewrite(dataset, "shard-000000.tar", lambda data: data[:3_684])
    lines = list_findings(dataset)
    assert "shard-000000.tar: found 3684 bytes, wanted " in lines[0]
    assert "shard-000000.tar: found sha256 " in lines[1]
    assert (
        "shard-000000.tar, byte 3072: found type b'0', 132 bytes, wanted a regular file that ends inside the tar"
        in lines[2]
    )
    assert (
        "shard-000000.tar: num_samples: found 1 in the tar, wanted 3 as in the manifest"
        in lines[3]
    )
    assert "num_docs: found 2 in the tar, wanted 5" in lines[4]
    assert "num_tokens: found 14 in the tar, wanted 55" in lines[5]


def test_a_tar_without_its_end_is_found(dataset: Path) -> None:
    """The archive must end with two blocks of zeros."""
    rewrite(dataset, "shard-000000.tar", lambda data: data[:-1024])
    assert any("no tar header (empty header)" in line for line in list_findings(dataset))


def test_zeros_in_the_middle_of_a_tar_are_found(dataset: Path) -> None:
    """Many readers take them for the end of the archive."""
    rewrite(
        dataset, "shard-000000.tar", lambda data: data[:3072] + bytes(2048) + data[5120:]
    )
    lines = list_findings(dataset)
    assert any("byte 3072: found the end of the archive, but " in line for line in lines)
    assert any("num_samples: found 1 in the tar, wanted 3" in line for line in lines)


def test_a_flipped_bit_in_tokens_is_found(dataset: Path) -> None:
    """The digest of the file and the crc32 of the sample find it."""
    offset = int(load_index(dataset).sample_offsets[1])
    rewrite(
        dataset,
        "shard-000000.tar",
        lambda data: data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :],
    )
    sha256, crc = list_findings(dataset)
    assert "shard-000000.tar: found sha256 " in sha256
    assert (
        f"shard-000000.tar, sample 000000-00001, byte {offset}: found tokens with crc32 "
        in crc
    )
    assert crc.endswith(
        "copy the file again from where it was written, or delete the shard and run the pipeline again"
    )


def test_swapped_indexes_are_found(dataset: Path) -> None:
    """Each index contains the number of its shard."""
    first, second = dataset / "shard-000000.idx", dataset / "shard-000001.idx"
    first_bytes, second_bytes = first.read_bytes(), second.read_bytes()
    first.write_bytes(second_bytes)
    second.write_bytes(first_bytes)
    lines = list_findings(dataset)
    assert (
        "shard-000000.idx: found the index of shard 1, wanted that of shard 0"
        in "\n".join(lines)
    )
    assert (
        "shard-000001.idx: found the index of shard 0, wanted that of shard 1"
        in "\n".join(lines)
    )
    assert len(lines) == 4


def test_a_shard_that_the_manifest_does_not_name_is_found(dataset: Path) -> None:
    """Readers that take all shards in the folder would read it."""
    shutil.copy(dataset / "shard-000001.tar", dataset / "shard-000002.tar")
    (line,) = list_findings(dataset)
    assert line.startswith("shard-000002.tar: found a file that the manifest does not name")


def test_edited_counts_are_found(dataset: Path) -> None:
    """They contradict the digest, the sums, the index and the tar."""
    rewrite(
        dataset,
        MANIFEST_FILE,
        lambda data: data.replace(b'"num_samples": 3', b'"num_samples": 4', 1),
    )
    text = "\n".join(list_findings(dataset))
    assert "manifest.json: totals.num_samples: found 6, wanted 7" in text
    assert "manifest.json: digest of the file" in text
    assert (
        "shard-000000.idx: num_samples: found 3 in the index, wanted 4 as in the manifest"
        in text
    )
    assert (
        "shard-000000.tar: num_samples: found 3 in the tar, wanted 4 as in the manifest"
        in text
    )


def test_a_tar_is_checked_without_its_index(dataset: Path) -> None:
    """An unreadable index does not stop the check of the tar."""
    rewrite(dataset, "shard-000000.idx", lambda data: b"not an index" + data)
    rewrite(dataset, "shard-000000.tar", lambda data: data[:-2048])
    text = "\n".join(list_findings(dataset))
    assert "shard-000000.idx, byte 0: found b'not an i', wanted the magic" in text
    assert "shard-000000.tar: num_samples: found 2 in the tar" in text


def test_a_wrong_offset_in_the_index_is_found(dataset: Path) -> None:
    """It is found although all checksums match."""
    index = load_index(dataset)
    write_matching_manifest(
        dataset, replace(index, sample_offsets=index.sample_offsets + np.array([0, 64, 0]))
    )
    (line,) = list_findings(dataset)
    assert line.startswith(
        f"shard-000000.tar, sample 000000-00001, byte {index.sample_offsets[1]}: found tokens, wanted"
    )


def test_wrong_starts_in_the_index_are_found(dataset: Path) -> None:
    """Samples must start with a document, and starts must rise."""
    index = load_index(dataset)
    write_matching_manifest(
        dataset, replace(index, sample_starts=index.sample_starts + np.array([0, 1, 0, 0]))
    )
    assert any(
        "sample_starts[1]: found token 15, inside a document" in line
        for line in list_findings(dataset)
    )
    write_matching_manifest(
        dataset, replace(index, doc_starts=index.doc_starts[[0, 2, 1, 3, 4, 5]])
    )
    assert any(
        "doc_starts[2]: found 5, wanted 0 first, then rising" in line
        for line in list_findings(dataset)
    )


def test_a_document_without_its_end_is_found(dataset: Path) -> None:
    """It is found although all checksums match."""
    index = load_index(dataset)
    last = int(index.sample_offsets[0]) + 2 * 13
    rewrite(
        dataset, "shard-000000.tar", lambda data: data[:last] + b"\x09" + data[last + 1 :]
    )
    write_matching_manifest(dataset)
    assert any(
        "token 13: found 9, wanted end_of_document = 0, the last of document 1" in f
        for f in list_findings(dataset)
    )


def test_a_token_outside_the_vocabulary_is_found(dataset: Path) -> None:
    """It is found although all checksums match."""
    first = int(load_index(dataset).sample_offsets[0])
    rewrite(
        dataset,
        "shard-000000.tar",
        lambda data: data[:first] + b"\xff\x00" + data[first + 2 :],
    )
    write_matching_manifest(dataset)
    assert any(
        "token 0: found 255, wanted below vocab_size = 50" in line
        for line in list_findings(dataset)
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
        (
            b"'descr': '<u4'",
            b"'descr': '<i4'",
            'found 136 bytes that begin with b"\\x93NUMPY',
        ),
    ],
)
def test_damaged_members_are_found(
    dataset: Path, old: bytes, new: bytes, message: str
) -> None:
    """Invalid JSON, tar headers and arrays are reported with their byte."""
    rewrite(dataset, "shard-000000.tar", lambda data: data.replace(old, new, 1))
    assert any(message in line for line in list_findings(dataset))


def test_metadata_must_have_one_object_per_document(
    dataset: Path,
    write: Write,
    random_documents: Callable[..., Documents],
    tokenizer: TokenizerEntry,
) -> None:
    """Another list is reported."""
    documents = replace(
        random_documents([5, 9, 30, 4, 7]), metadata=[b"{},{}", *[b"{}"] * 4]
    )
    tar, index, _ = write(documents, tokenizer, sample_tokens=16)
    (dataset / "shard-000000.tar").write_bytes(tar)
    (dataset / "shard-000000.idx").write_bytes(index)
    write_matching_manifest(dataset)
    (line,) = list_findings(dataset)
    assert "found a list of 3, wanted a JSON list of 2 objects, one per document" in line


def test_document_starts_outside_of_the_sample_are_found(dataset: Path) -> None:
    """They are found although all checksums match."""
    starts = 512 + 128
    rewrite(
        dataset,
        "shard-000000.tar",
        lambda data: data[: starts + 4] + b"\x0e" + data[starts + 5 :],
    )
    write_matching_manifest(dataset)
    lines = list_findings(dataset)
    assert any(
        "sample 000000-00000: found document starts [0, 14]... in 14 tokens" in line
        for line in lines
    )
    assert any(
        "found documents that start at [0, 14]..., wanted [0, 5]... as in the index" in line
        for line in lines
    )


def test_an_index_of_another_tar_is_found(dataset: Path) -> None:
    """It is found although all checksums match."""
    index = load_index(dataset)
    starts, offsets = index.sample_starts[[0, 1, 3]], index.sample_offsets[:2]
    write_matching_manifest(
        dataset,
        replace(
            index,
            sample_starts=starts,
            sample_offsets=offsets,
            sample_crcs=index.sample_crcs[:2],
        ),
    )
    text = "\n".join(list_findings(dataset))
    assert (
        "shard-000000.idx: num_samples: found 2 in the index, wanted 3 as in the manifest"
        in text
    )
    assert "found sample 2, wanted 2 samples as in the index" in text
    assert "found 30 tokens, wanted 41 as in the index" in text
    write_matching_manifest(dataset, replace(index, token_dtype=np.dtype("<u4")))
    assert list_findings(dataset)[0].startswith(
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
def test_members_with_other_names_or_order_are_found(
    dataset: Path, names: list[str], found: str
) -> None:
    """A valid tar with other members is not a shard."""
    with tarfile.open(
        dataset / "shard-000000.tar", "w", format=tarfile.USTAR_FORMAT
    ) as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    write_matching_manifest(dataset)
    assert any(
        f"shard-000000.tar, sample 000000-00000: found {found}" in line
        for line in list_findings(dataset)
    )


@pytest.mark.parametrize("doc_ids_in_memory", [2**26, 3])
def test_repeated_doc_ids_are_found(
    dataset: Path,
    random_documents: Callable[..., Documents],
    tokenizer: TokenizerEntry,
    monkeypatch: pytest.MonkeyPatch,
    doc_ids_in_memory: int,
) -> None:
    """A document in two shards is found in one pass and in several passes."""
    monkeypatch.setattr(doc_ids, "DOC_IDS_IN_MEMORY", doc_ids_in_memory)
    # 103 and 104 are in shard 1 already
    documents = random_documents([5, 9, 30, 4, 7], first_doc_id=103)
    with (
        (dataset / "shard-000000.tar").open("wb") as tar,
        (dataset / "shard-000000.idx").open("wb") as index,
    ):
        entry = write_shard(
            tar, index, shard=0, tokenizer=tokenizer, documents=documents, sample_tokens=16
        )
    shards = entry, load_manifest(dataset).shards[1]
    (dataset / MANIFEST_FILE).write_bytes(
        build_manifest(shards, tokenizer=tokenizer, fingerprint="f").dumps()
    )
    (line,) = list_findings(dataset)
    assert line.startswith(
        "shard-000001.idx: found 2 doc_ids that shard-000000.idx has already, 103 among them"
    )


def cut(data: bytes, at: int, noise: bytes) -> bytes:
    """Remove the end."""
    del noise
    return data[:at]


def flip(data: bytes, at: int, noise: bytes) -> bytes:
    """Flip one bit."""
    return data[:at] + bytes([data[at] ^ (1 << noise[0] % 8)]) + data[at + 1 :]


def overwrite(data: bytes, at: int, noise: bytes) -> bytes:
    """Overwrite a part."""
    return data[:at] + noise + data[at + len(noise) :]


def insert(data: bytes, at: int, noise: bytes) -> bytes:
    """Insert bytes."""
    return data[:at] + noise + data[at:]


@given(
    name=st.sampled_from(
        ["shard-000000.tar", "shard-000001.tar", "shard-000001.idx", "manifest.json"]
    ),
    damage=st.sampled_from([cut, flip, overwrite, insert]),
    share=st.floats(0, 1, exclude_max=True),
    noise=st.binary(min_size=1, max_size=40) | st.just(bytes(512)) | st.just(b"\xff" * 8),
)
# restored after each example
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_found_and_does_not_raise(
    dataset: Path,
    name: str,
    damage: Callable[[bytes, int, bytes], bytes],
    share: float,
    noise: bytes,
) -> None:
    """Verify has findings exactly if the bytes of a file changed."""
    whole = (dataset / name).read_bytes()
    damaged = damage(whole, int(share * len(whole)), noise)
    (dataset / name).write_bytes(damaged)
    try:
        assert bool(verify(dataset)) == (damaged != whole)
    finally:
        (dataset / name).write_bytes(whole)
