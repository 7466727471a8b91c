"""Damaged, exchanged and forged files: the right rows, or an error that says what is wrong."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader import TokenLoader
from loader.storage import ReadSettings
from shardwriter.format import FormatError, ShardCorrupt, read_index
from tests.loader.conftest import Dataset, write_dataset
from tests.loader.forging import (
    forge_array,
    forge_index,
    forge_manifest,
    sign_manifest,
)
from tests.servers import FileServer

T = 32


def open_loader(source: Path | str, **given: Any) -> TokenLoader:
    """Return a loader of one rank."""
    arguments = {"seq_len": T, "global_batch_rows": 4, "rank": 0, "world_size": 1}
    return TokenLoader(
        source, **{**arguments, "tokens": "stored", "prefetch_chunks": 0, **given}
    )


def read_rows(source: Path | str, num_batches: int = 40, **given: Any) -> list[bytes]:
    """Return the tokens of the first batches."""
    loader = open_loader(source, epochs=1, **given)
    rows = [
        batch["tokens"].numpy().tobytes()
        for batch, _ in zip(loader, range(num_batches), strict=False)
    ]
    loader.close()
    return rows


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two shards of a few hundred tokens."""
    lengths = [[30, 1, 90, 7, 40, 64], [50] * 9]
    return write_dataset(tmp_path_factory.mktemp("original"), lengths)


@pytest.fixture
def folder(original: Dataset, tmp_path: Path) -> Path:
    """A copy of the dataset to damage."""
    return shutil.copytree(original.folder, tmp_path / "dataset")


# ---- exchanged files ----


@pytest.fixture(params=["disk", "http"])
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The dataset on the disk, and behind a web server."""
    if request.param == "disk":
        yield str(folder)
        return
    server = FileServer(folder)
    yield server.url
    server.close()


@pytest.mark.parametrize(
    ("suffixes", "message"),
    [
        ((".tar", ".idx"), r"shard-000000.idx: sha256: found .*, wanted .* as in the manifest"),
        ((".idx",), r"shard-000000.idx: sha256: found .*, wanted .* as in the manifest"),
        ((".tar",), r"shard-000000.tar, sample 000000-0000\d, .*: found tokens with another crc32"),
    ],
)  # fmt: skip
def test_the_shard_of_another_dataset_is_refused(
    place: str, folder: Path, tmp_path: Path, suffixes: tuple[str, ...], message: str
) -> None:
    """Its sizes and counts are those of the manifest, and its own checksums fit."""
    pytest.importorskip("obstore")
    other = write_dataset(tmp_path / "other", [[30, 1, 90, 7, 40, 64], [50] * 9], seed=1)
    for suffix in suffixes:
        name = f"shard-000000{suffix}"
        assert (folder / name).stat().st_size == (other.folder / name).stat().st_size
        shutil.copyfile(other.folder / name, folder / name)
    with pytest.raises(ShardCorrupt, match=message):
        read_rows(place, settings=ReadSettings(cache_dir=tmp_path / "cache"))


def test_the_shard_of_another_dataset_is_skipped_and_counted(
    folder: Path, tmp_path: Path
) -> None:
    """With skip_and_count its rows are blank."""
    other = write_dataset(tmp_path / "other", [[30, 1, 90, 7, 40, 64], [50] * 9], seed=1)
    shutil.copyfile(other.folder / "shard-000000.idx", folder / "shard-000000.idx")
    loader = open_loader(
        folder, epochs=1, settings=ReadSettings(on_corrupt="skip_and_count")
    )
    num_whole = sum(int(batch["is_whole"].sum()) for batch in loader)
    assert num_whole == (9 * 50 - 1) // T  # the rows of the other shard
    assert loader.stats()["lost_shards"] == 1


# ---- manifests ----

BAD_MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "negative": (lambda m: m["shards"][0].update(num_tokens=-5), r"shards\[0\].num_tokens: found -5"),
    "fraction": (lambda m: m["shards"][0].update(num_tokens=1.5), r"shards\[0\].num_tokens: found 1.5"),
    "bool": (lambda m: m["shards"][0].update(num_tokens=True), r"shards\[0\].num_tokens: found True"),
    "text": (lambda m: m["shards"][1].update(num_docs="7"), r"shards\[1\].num_docs: found '7'"),
    "huge": (lambda m: m["shards"][0].update(num_tokens=2**70), r"manifest.json.*: found"),
    "totals": (lambda m: m["totals"].update(num_tokens=3), r"totals.num_tokens: found 3, wanted \d+"),
    "missing shard": (lambda m: m["shards"].pop(), r"totals.\w+: found \d+, wanted \d+"),
    "two of a kind": (lambda m: m["shards"][1].update(shard=0), r"shards\[1\].*: found"),
    "no digest": (lambda m: m["shards"][0].update(index_sha256="7"), r"shards\[0\].index_sha256: found '7'"),
    "no shards": (lambda m: m.update(shards=None), r"shards: found None"),
    "short entry": (lambda m: m["shards"].__setitem__(0, [None]), r"shards\[0\].*: found"),
    "path": (lambda m: m["shards"][0].update(shard=1, file="../../etc/passwd"), r"shards\[0\].file: found '../../etc"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_MANIFESTS)
def test_a_forged_manifest_is_refused(folder: Path, fault: str) -> None:
    """Its digest fits; the error names the key, the value and what is wanted."""
    change, message = BAD_MANIFESTS[fault]
    forge_manifest(folder, change)
    with pytest.raises(FormatError, match=message):
        read_rows(folder)


def test_a_manifest_that_is_a_list_is_refused(folder: Path) -> None:
    """Its digest fits, but it has no keys."""
    signed = sign_manifest({"a": 1})
    # As many bytes before the digest as in a manifest, and JSON of another type.
    (folder / "manifest.json").write_bytes(b"[" * 10**5)
    with pytest.raises(
        FormatError, match=r"manifest.json: found 100000 bytes that are not"
    ):
        read_rows(folder)
    (folder / "manifest.json").write_bytes(signed)
    with pytest.raises(FormatError, match=r"manifest.json: format: found None"):
        read_rows(folder)


# ---- indexes ----

BAD_ARRAYS: dict[str, tuple[str, int, int, str]] = {
    "negative offset": ("sample_offsets", 0, -4096, r"sample_offsets\[0\]: found -4096, wanted a multiple of 128"),
    "huge offset": ("sample_offsets", 1, 2**60, r"sample_offsets\[1\]: found 1152921504606846976, wanted a mult"),
    "largest offset": ("sample_offsets", 1, 2**63 - 128, r"sample_offsets\[1\]: found 9223372036854775680, wanted"),
    "overlap": ("sample_offsets", 1, 1664, r"sample_offsets\[1\]: found 1664, wanted .* behind the sample before"),
    "odd offset": ("sample_offsets", 0, 1665, r"sample_offsets\[0\]: found 1665, wanted a multiple of 128"),
    "first start": ("sample_starts", 0, 5, r"sample_starts\[0\]: found 5, wanted 0 first"),
    "falling starts": ("sample_starts", 1, -(2**63), r"sample_starts\[1\]: found -9223372036854775808, wanted 0"),
    "start in a document": ("sample_starts", 1, 13, r"sample_starts\[1\]: found token 13, inside a document"),
    "falling documents": ("doc_starts", 2, 2**62, r"doc_starts\[3\]: found \d+, wanted 0 first, then rising"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_ARRAYS)
def test_an_index_with_impossible_positions_is_refused(folder: Path, fault: str) -> None:
    """All its checksums fit; the error names array, element, value and what is wanted."""
    name, element, number, message = BAD_ARRAYS[fault]

    def change(array: np.ndarray) -> None:
        array[element] = number

    forge_array(folder, 0, name, change)
    with pytest.raises(FormatError, match=rf"shard-000000.idx: {message}"):
        read_rows(folder)


def test_more_tokens_than_bytes_are_refused(folder: Path) -> None:
    """Index and manifest agree on a count of tokens that the tar cannot hold."""
    index = read_index(folder / "shard-000000.idx")
    starts = {name: getattr(index, name).copy() for name in ("sample_starts", "doc_starts")}
    for array in starts.values():
        array[-1] = 10**15

    def claim(manifest: dict[str, Any]) -> None:
        entry, totals = manifest["shards"][0], manifest["totals"]
        totals["num_tokens"] += 10**15 - entry["num_tokens"]
        entry["num_tokens"] = 10**15

    forge_index(folder, 0, dataclasses.replace(index, **starts).to_bytes())
    forge_manifest(folder, claim)
    with pytest.raises(
        FormatError, match=r"num_tokens: found 10+ tokens of 2 bytes, wanted"
    ):
        read_rows(folder)


# ---- states ----

BAD_STATES: dict[str, tuple[dict[str, Any], str]] = {
    "position below 0": ({"position": -1}, "position: found -1, wanted an integer from 0"),
    "position of 10**18": ({"position": 10**18}, "position: found 1000000000000000000, wanted"),
    "fraction": ({"position": 1.5}, "position: found 1.5, wanted an integer"),
    "text": ({"position": "3"}, "position: found '3', wanted an integer"),
    "nan": ({"position": float("nan")}, "position: found nan, wanted an integer"),
    "bool": ({"seed": True}, "seed: found True, wanted an integer"),
    "no rows": ({"global_batch_rows": 0}, "global_batch_rows: found 0, wanted an integer from 1"),
    "carried": ({"carried_rows": 10**12}, r"carried_rows: found 1000000000000, wanted"),
    "more carried than a step": ({"carried_rows": 4}, "carried_rows: found 4, wanted an integer from 0 to 3"),
    "carried below 0": ({"carried_rows": -3}, "carried_rows: found -3"),
    "skipped below 0": ({"skipped_rows": -3}, "skipped_rows: found -3"),
    "sources": ({"sources": ["no digest"]}, r"sources\[0\]: found 'no digest', wanted 64 hexadecimal"),
    "sources as text": ({"sources": "ab" * 32}, "sources: found 'abab.*, wanted a list"),
    "depths": ({"interleave_depths": [10**30]}, r"interleave_depths\[0\]: found 10+, wanted"),
    "weights": ({"weights": [float("nan")]}, r"weights\[0\]: found nan, wanted a list"),
    "weight nan": ({"weights": [[0, [float("nan")]]]}, r"weights\[0\]\[1\]: found nan, wanted a finite"),
    "weight too large": ({"weights": [[0, [10**400]]]}, r"weights\[0\]\[1\]: found 10+, wanted a finite"),
    "unknown key": ({"evil": 1}, r"found missing keys \[\], unknown keys \['evil'\]"),
    "version": ({"version": 2.0}, "version: found 2.0, wanted an integer"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD_STATES)
def test_a_state_out_of_range_is_refused(original: Dataset, fault: str) -> None:
    """The error names the key, the value and the range; the loader stays usable."""
    changes, message = BAD_STATES[fault]
    loader = open_loader(original.folder)
    state = loader.state_dict()
    with pytest.raises(FormatError, match=f"loader state.*{message}"):
        loader.load_state_dict({**state, **changes})
    assert loader.state_dict() == state
    assert next(loader)["tokens"].shape == (4, T + 1)


@pytest.mark.parametrize("value", [None, [], "state", 7])
def test_a_state_of_another_type_is_refused(original: Dataset, value: Any) -> None:
    """The error says that a mapping is wanted."""
    with pytest.raises(
        FormatError, match=r"loader state: value: found .*, wanted a mapping"
    ):
        open_loader(original.folder).load_state_dict(value)


def test_a_position_behind_the_end_is_refused(original: Dataset) -> None:
    """A state of the second epoch does not fit a stream of one epoch; its end does."""
    longer, shorter = (open_loader(original.folder, epochs=epochs) for epochs in (2, 1))
    end = sum(len(batch["tokens"]) for batch in shorter)
    while longer.state.position <= end:
        next(longer)
    with pytest.raises(ValueError, match=rf"position \d+, but this stream ends at {end}"):
        shorter.load_state_dict(longer.state_dict())
    shorter.load_state_dict(shorter.state_dict())
    assert list(shorter) == []
