"""The columns of a large manifest are made once per node; a small one is read by each process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from loader.reading.manifest_columns import ManifestColumns, read_manifest_columns
from loader.storage import ReadSettings
from shardwriter import build_manifest
from shardwriter.format import FormatError, Manifest
from tests.loader.conftest import Dataset
from tests.loader.forging import ZEROS
from tests.servers import FileServer

NUM_SHARDS = 12_000
DIGEST_RANGE = (14, 78)


@pytest.fixture(scope="module")
def manifest(dataset: Dataset) -> Manifest:
    """A manifest of more than 4 MiB, whose shards differ; none of them exists."""
    small = Manifest.loads((dataset.folder / "manifest.json").read_bytes())
    shards = [
        replace(
            small.shards[0],
            shard=number,
            num_tokens=number,
            index_sha256=f"{number:064x}",
        )
        for number in range(NUM_SHARDS)
    ]
    return build_manifest(shards, tokenizer=small.tokenizer, fingerprint="f00d")


@pytest.fixture
def folder(manifest: Manifest, tmp_path: Path) -> Path:
    """The folder of that manifest."""
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(manifest.dumps())
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> ReadSettings:
    """Settings with an empty cache."""
    return ReadSettings(cache_dir=tmp_path / "cache")


def list_blocks(settings: ReadSettings) -> list[Path]:
    """Return the files of columns in the cache."""
    assert settings.cache_dir is not None
    return sorted(settings.cache_dir.glob("*columns*"))


def check(columns: ManifestColumns, manifest: Manifest) -> None:
    """Fail unless the columns are those of the manifest."""
    assert columns.digest == manifest.digest
    assert columns.tokenizer == manifest.tokenizer
    assert columns.totals["num_tokens"] == manifest.totals.num_tokens
    for name in ("shard_bytes", "num_samples", "num_docs", "num_tokens"):
        expected = [getattr(entry, name) for entry in manifest.shards]
        assert getattr(columns, name).tolist() == expected
    digests = [entry.index_sha256 for entry in manifest.shards]
    assert [row.tobytes().hex() for row in columns.index_sha256] == digests


def test_the_processes_of_a_node_fetch_a_large_manifest_once(
    folder: Path, manifest: Manifest, settings: ReadSettings
) -> None:
    """In parts, at the same time. Later processes fetch only its digest."""
    pytest.importorskip("obstore")
    size = (folder / "manifest.json").stat().st_size
    with FileServer(folder) as server, ThreadPoolExecutor(8) as threads:

        def read(_: int) -> ManifestColumns:
            return read_manifest_columns(server.url, settings)

        for columns in threads.map(read, range(8)):
            check(columns, manifest)
        ranges = [part for path, *part in server.ranges if path == "manifest.json"]
        digests = [part for part in ranges if tuple(part) == DIGEST_RANGE]
        parts = sorted(part for part in ranges if tuple(part) != DIGEST_RANGE)
        assert len(digests) == 8
        assert len(parts) > 1
        assert [part[0] for part in parts] == [0, *(part[1] for part in parts[:-1])]
        assert parts[-1][1] == size
        server.ranges.clear()
        check(read(0), manifest)
        assert [part for path, *part in server.ranges if path == "manifest.json"] == [
            [*DIGEST_RANGE]
        ]


def test_the_columns_in_the_cache_are_mapped(
    folder: Path, manifest: Manifest, settings: ReadSettings
) -> None:
    """They take 64 bytes per shard and no memory of the process; their time is that of the last use."""
    check(read_manifest_columns(folder, settings), manifest)
    (block,) = list_blocks(settings)
    assert block.stat().st_size < 64 * NUM_SHARDS + 2000
    os.utime(block, (0, 0))
    columns = read_manifest_columns(folder, settings)
    check(columns, manifest)
    assert block.stat().st_mtime > 0
    assert not columns.num_tokens.flags.owndata
    assert not columns.num_tokens.flags.writeable


def flip(data: bytes) -> bytes:
    """Change one bit."""
    return data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]


@pytest.mark.parametrize(
    "damage",
    [flip, lambda data: data[:-1], lambda data: data[:20], lambda _: b"", lambda data: data * 2],
    ids=["flipped bit", "cut", "cut in the checksum", "empty", "longer"],
)  # fmt: skip
def test_damaged_columns_are_made_again(
    folder: Path,
    manifest: Manifest,
    settings: ReadSettings,
    damage: Callable[[bytes], bytes],
) -> None:
    """They are never used."""
    read_manifest_columns(folder, settings)
    (block,) = list_blocks(settings)
    whole = block.read_bytes()
    block.write_bytes(damage(whole))
    check(read_manifest_columns(folder, settings), manifest)
    assert block.read_bytes() == whole


def test_the_columns_of_another_dataset_are_made_again(
    folder: Path, manifest: Manifest, settings: ReadSettings
) -> None:
    """Even if the file is whole, and was only given the name of this dataset's columns."""
    read_manifest_columns(folder, settings)
    (block,) = list_blocks(settings)
    other = replace(manifest, fingerprint="beef")
    (folder / "manifest.json").write_bytes(other.dumps())
    check(read_manifest_columns(folder, settings), other)
    (other_block,) = set(list_blocks(settings)) - {block}
    other_block.replace(block)
    (folder / "manifest.json").write_bytes(manifest.dumps())
    check(read_manifest_columns(folder, settings), manifest)


def test_a_local_dataset_needs_no_cache(
    folder: Path, manifest: Manifest, tmp_path: Path
) -> None:
    """A file in place of its folder changes nothing."""
    (tmp_path / "file").write_bytes(b"")
    settings = ReadSettings(cache_dir=tmp_path / "file")
    check(read_manifest_columns(folder, settings), manifest)


def test_a_small_manifest_is_not_cached(dataset: Dataset, settings: ReadSettings) -> None:
    """Parsing it is as fast."""
    read_manifest_columns(dataset.folder, settings)
    assert list_blocks(settings) == []


def test_a_damaged_large_manifest_is_refused(folder: Path, settings: ReadSettings) -> None:
    """Nothing is cached."""
    path = folder / "manifest.json"
    path.write_bytes(flip(path.read_bytes()))
    with pytest.raises(FormatError, match=r"manifest.json: "):
        read_manifest_columns(folder, settings)
    assert list_blocks(settings) == []


def test_a_manifest_of_another_layout_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    """Its values and its digest are right, but readers rely on the layout of the file."""
    content = (dataset.folder / "manifest.json").read_bytes()
    digest = json.loads(content)["digest"].encode()
    unsigned = content.replace(b"\n   ", b"\n    ").replace(digest, ZEROS.encode(), 1)
    other_digest = hashlib.sha256(unsigned).hexdigest().encode()
    path = tmp_path / "manifest.json"
    path.write_bytes(unsigned.replace(ZEROS.encode(), other_digest, 1))
    with pytest.raises(FormatError, match="a manifest with another layout"):
        read_manifest_columns(path, ReadSettings())
