"""Retracted documents are masked. Nothing else of a dataset changes for its readers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader import Mixture, TokenDataset, TokenLoader
from loader.export import read_documents
from loader.reading.dataset import Dataset as OpenDataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.retraction.tombstones import Tombstones
from loader.state import ResumeMismatch
from loader.storage import ReadSettings
from shardwriter.format import (
    MANIFEST_FILE,
    RETRACTIONS_FILE,
    FormatError,
    Manifest,
    RetractionLog,
)
from tests.loader.conftest import END, Dataset, Make

T = 32
IGNORED = -100

Place = tuple[int, int]  # shard, and number of the document in it


def retract(folder: Path, dataset: Dataset, places: Sequence[Place]) -> RetractionLog:
    """Append a retraction of documents to the log of a copy of a dataset."""
    path = folder / RETRACTIONS_FILE
    if path.exists():
        log = RetractionLog.loads(path.read_bytes())
    else:
        log = RetractionLog(Manifest.loads((folder / MANIFEST_FILE).read_bytes()).digest)
    rows = [
        [shard, shard << 32 | doc, starts[doc], starts[doc + 1] - starts[doc]]
        for shard, doc in places
        for starts in [dataset.doc_starts[shard]]
    ]
    log, content = log.append(
        np.array(rows, np.uint64).reshape(-1, 4),
        recorded_at="2026-11-22T21:40:07Z",
        reason="takedown",
        requested_by="the author",
        request_sha256="0" * 64,
    )
    (folder / log.entries[-1].tombstones).write_bytes(content)
    path.write_bytes(log.dumps())
    return log


def copy(dataset: Dataset, folder: Path) -> Path:
    """Return a copy of a dataset without retractions, in a folder that may exist."""
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(dataset.folder, folder))


def open_loader(source: Any, **given: Any) -> TokenLoader:
    """Return a loader of two epochs on one rank."""
    usual = {"seq_len": T, "global_batch_rows": 6, "seed": 2, "rank": 0, "world_size": 1}
    return TokenLoader(source, **{**usual, **given})


def read_all(
    loader: TokenLoader, num_batches: int | None = None
) -> dict[str, torch.Tensor]:
    """Return all batches of a loader as one."""
    batches = (
        list(loader) if num_batches is None else [next(loader) for _ in range(num_batches)]
    )
    return {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}


def mark_tokens(dataset: Dataset, places: Sequence[Place]) -> dict[int, np.ndarray]:
    """Return shard -> bool of each token, whether it is retracted, computed token by token."""
    marks = {
        shard: np.zeros(len(tokens), bool) for shard, tokens in enumerate(dataset.tokens)
    }
    for shard, doc in places:
        starts = dataset.doc_starts[shard]
        marks[shard][starts[doc] : starts[doc + 1]] = True
    return marks


def list_places(dataset: Dataset) -> list[Place]:
    """Return all documents of a dataset."""
    return [
        (shard, doc)
        for shard, starts in enumerate(dataset.doc_starts)
        for doc in range(len(starts) - 1)
    ]


def draw_places(dataset: Dataset) -> st.SearchStrategy[list[Place]]:
    """Return a strategy for some documents of a dataset, with repetitions."""
    return st.lists(st.sampled_from(list_places(dataset)), max_size=40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=5)
@given(st.data())
def test_exactly_the_retracted_tokens_are_masked(
    larger: Dataset, tmp_path: Path, data: st.DataObject
) -> None:
    """Rows, their order and the boundaries of documents stay; so do all other tokens."""
    places = data.draw(draw_places(larger))
    folder = copy(larger, tmp_path / "copy")
    retract(folder, larger, places)
    documents = ["position_ids", "document_ids"]
    before = read_all(open_loader(larger.folder, epochs=2, documents=documents))
    after = read_all(open_loader(folder, epochs=2, documents=documents))
    stored = read_all(open_loader(folder, epochs=2, tokens="stored"))
    marks = mark_tokens(larger, places)
    stream = open_loader(larger.folder)._stream
    positions = np.arange(len(before["input_ids"]), dtype=np.int64)
    _, shards, rows = stream.locate(positions)
    is_retracted = torch.tensor(
        np.array(
            [
                marks[shard][row * T : row * T + T + 1]
                for shard, row in zip(shards.tolist(), rows.tolist(), strict=True)
            ]
        )
    )
    for name in documents:
        assert torch.equal(before[name], after[name])
    wanted_ids = before["input_ids"].masked_fill(is_retracted[:, :-1], END)
    wanted_labels = before["labels"].masked_fill(is_retracted[:, 1:], IGNORED)
    assert torch.equal(after["input_ids"], wanted_ids)
    assert torch.equal(after["labels"], wanted_labels)
    if places:
        assert torch.equal(stored["is_retracted"], is_retracted)
    else:
        assert "is_retracted" not in stored
    dataset = TokenDataset(folder, seq_len=T, seed=2, epochs=2)
    items = dataset.__getitems__(list(range(len(dataset))))
    assert torch.equal(torch.stack([item["input_ids"] for item in items]), wanted_ids)
    assert torch.equal(torch.stack([item["labels"] for item in items]), wanted_labels)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4)
@given(st.data())
def test_retracting_in_parts_or_twice_is_the_same(
    larger: Dataset, tmp_path: Path, data: st.DataObject
) -> None:
    """Readers mask the union of all retractions."""
    parts = data.draw(st.lists(draw_places(larger), min_size=1, max_size=3))
    together = copy(larger, tmp_path / "together")
    retract(together, larger, sorted({place for part in parts for place in part}))
    apart = copy(larger, tmp_path / "apart")
    for part in [*parts, parts[0]]:
        retract(apart, larger, part)
    first, second = (read_all(open_loader(f, epochs=1)) for f in (together, apart))
    for name in first:
        assert torch.equal(first[name], second[name])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4)
@given(
    num_steps=st.integers(0, 8),
    world_size=st.sampled_from([1, 2, 3, 6]),
    num_retractions=st.integers(1, 3),
)
def test_states_from_before_a_retraction_stay_valid(
    larger: Dataset, tmp_path: Path, num_steps: int, world_size: int, num_retractions: int
) -> None:
    """On any number of ranks, the rows after the state are those that would have come."""
    folder = copy(larger, tmp_path / "copy")
    loader = open_loader(folder)
    if num_steps:
        read_all(loader, num_steps)
    state = json.loads(json.dumps(loader.state_dict()))
    for k in range(num_retractions):
        retract(folder, larger, [(0, k), (3, k)])
    whole = read_all(open_loader(folder), num_steps + 4)
    ranks: list[dict[str, torch.Tensor]] = []
    for rank in range(world_size):
        resumed = open_loader(folder, rank=rank, world_size=world_size)
        resumed.load_state_dict(state)
        ranks.append(read_all(resumed, 4))
    rows_per_rank = 6 // world_size
    for step in range(4):
        rows = slice(step * rows_per_rank, (step + 1) * rows_per_rank)
        found = torch.cat([rank["labels"][rows] for rank in ranks])
        start = (num_steps + step) * 6
        assert torch.equal(found, whole["labels"][start : start + 6])


def test_a_state_does_not_fit_a_copy_without_the_retraction(
    larger: Dataset, tmp_path: Path
) -> None:
    """Training must not read retracted documents again because of an old copy."""
    folder = copy(larger, tmp_path / "copy")
    retract(folder, larger, [(0, 1)])
    state = open_loader(folder).state_dict()
    with pytest.raises(ResumeMismatch, match=r"copy its retractions\.json too"):
        open_loader(larger.folder).load_state_dict(state)
    open_loader(larger.folder, allow_mismatch=True).load_state_dict(state)


def test_a_mixture_masks_the_documents_of_each_source(
    larger: Dataset, tmp_path: Path, make: Make
) -> None:
    """A retraction in one source concerns no other source, and keeps the mixture's state."""
    other = make([[40] * 30], seed=9)
    folder = copy(larger, tmp_path / "copy")
    weights = {"web": 0.5, "code": 0.5}
    before = open_loader(Mixture({"web": folder, "code": other.folder}, weights))
    state = before.state_dict()
    unmasked = read_all(before, 8)
    places = list_places(larger)
    retract(folder, larger, places)
    after = open_loader(Mixture({"web": folder, "code": other.folder}, weights))
    after.load_state_dict(state)
    masked = read_all(after, 8)
    is_web = (masked["labels"] == IGNORED).all(1)
    sources, _, _ = after._stream.locate(np.arange(48))
    assert is_web.tolist() == (sources == 0).tolist()
    assert (masked["input_ids"][is_web] == END).all()
    assert torch.equal(masked["labels"][~is_web], unmasked["labels"][~is_web])


def test_exports_leave_retracted_documents_out(larger: Dataset, tmp_path: Path) -> None:
    """The other documents are exported as before."""
    folder = copy(larger, tmp_path / "copy")
    retract(folder, larger, [(0, 1), (0, 2), (2, 29)])

    def read(path: Path) -> dict[int, list[int]]:
        columns = read_manifest_columns(path, ReadSettings())
        reader = OpenDataset(columns, settings=ReadSettings())
        return {
            document.doc_id: document.tokens.tolist()
            for shard in range(columns.num_shards)
            for document in read_documents(reader, shard)
        }

    before, after = read(larger.folder), read(folder)
    assert before.keys() - after.keys() == {1, 2, 2 << 32 | 29}
    assert all(after[doc_id] == before[doc_id] for doc_id in after)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 18), st.integers(1, 4)), max_size=8
    ),
    st.integers(1, 12),
)
def test_ranges_are_marked_as_token_by_token(
    ranges: list[tuple[int, int, int]], num_tokens: int
) -> None:
    """Ranges may overlap, repeat each other and touch."""
    sizes = np.array([22, 22, 22])
    table = np.array([(shard, 0, first, n) for shard, first, n in ranges], np.uint64)
    tombstones = Tombstones.from_table(table.reshape(-1, 4), sizes)
    wanted = np.zeros((3, 22), bool)
    for shard, first, n in ranges:
        wanted[shard, first : first + n] = True
    shards, firsts = (a.ravel() for a in np.mgrid[0:3, 0 : 22 - num_tokens + 1])
    found = tombstones.find(shards, firsts, num_tokens)
    expected = np.array(
        [wanted[s, f : f + num_tokens] for s, f in zip(shards, firsts, strict=True)]
    )
    assert found.mark(*expected.shape).tolist() == expected.tolist()
    part = found.select(slice(1, 3))
    assert part.mark(2, num_tokens).tolist() == expected[1:3].tolist()
    assert (tombstones.starts[1:] > tombstones.stops[:-1]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: log["entries"][0].update(num_docs=2), "digest_after"),
        (lambda log: log["entries"].pop(0), "number"),
        (lambda log: log.update(manifest_digest="0" * 64), "digest_before"),
        (lambda log: log.update(version=2), "version: found 2, wanted 1"),
        (lambda log: log.update(entries=[]), None),
    ],
)
def test_a_changed_log_is_refused(
    larger: Dataset, tmp_path: Path, change: Any, message: str | None
) -> None:
    """Each entry is bound to those before it. Only the last ones can be cut off unseen."""
    folder = copy(larger, tmp_path / "copy")
    retract(folder, larger, [(0, 1)])
    retract(folder, larger, [(0, 2)])
    path = folder / RETRACTIONS_FILE
    log = json.loads(path.read_bytes())
    change(log)
    path.write_text(json.dumps(log))
    if message is None:
        open_loader(folder)
        return
    with pytest.raises(FormatError, match=message):
        open_loader(folder)


def test_tombstones_of_another_dataset_are_refused(
    larger: Dataset, tmp_path: Path, make: Make
) -> None:
    """A log beside another manifest, changed tombstones, and places outside a shard."""
    folder = copy(larger, tmp_path / "copy")
    log = retract(folder, larger, [(0, 1)])
    other = make([[40] * 30], seed=9).folder
    for name in (RETRACTIONS_FILE, log.entries[0].tombstones):
        shutil.copy(folder / name, other / name)
    with pytest.raises(FormatError, match="manifest_digest"):
        open_loader(other)
    path = folder / log.entries[0].tombstones
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(FormatError, match="sha256"):
        open_loader(folder)
    table = np.array([[0, 0, 10, 13]], np.uint64)
    with pytest.raises(FormatError, match="shard 0, tokens 10"):
        Tombstones.from_table(table, np.array([22]))
