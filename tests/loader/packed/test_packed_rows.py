"""Packed rows: every token once, on any number of ranks, resumed at any step."""

from __future__ import annotations

import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loader import Mixture, TokenDataset, TokenLoader
from loader.lookup import DocumentFinder
from loader.row_stream import open_row_stream
from loader.state import ResumeMismatch
from loader.storage import ReadSettings
from shardwriter.format import read_index
from tests.loader import resume_law
from tests.loader.conftest import END, Dataset, Make
from tests.loader.packed.conftest import (
    IGNORED,
    list_pieces,
    pack,
    split_row,
)
from tests.loader.resume_law import (
    Interruption,
    T,
    check_resume,
    flatten,
    interruptions,
    read_steps,
)
from tests.loader.retraction.test_tombstones import draw_places, retract
from tests.servers import FileServer


def open_loader(source: Any, **given: Any) -> TokenLoader:
    """Return a loader of packed rows."""
    return resume_law.open_loader(source, **{"packing": True, **given})


@pytest.mark.parametrize("seq_len", [7, T, 64])
def test_an_epoch_has_every_token_once(packed: Dataset, seq_len: int) -> None:
    """Each document is whole in a row, or cut as it must be; nothing is left out."""
    loader = open_loader(
        packed.folder, seq_len=seq_len, interleave_depth=1, tokens="stored"
    )
    found: Counter[bytes] = Counter()
    num_tokens = 0
    for batch in loader:
        ignored = batch["is_ignored"].numpy()
        for row, is_ignored in zip(batch["tokens"].numpy(), ignored, strict=True):
            pieces = split_row(row, is_ignored)
            found.update(piece.tobytes() for piece in pieces)
            num_tokens += sum(len(piece) for piece in pieces)
    documents = list_pieces(packed, seq_len)
    assert found == Counter(piece for pieces in documents for piece in pieces)
    num_repeated = found.total() - len(documents)
    assert num_tokens - num_repeated == sum(len(tokens) for tokens in packed.tokens)


def test_padding_and_repeated_tokens_are_no_labels(packed: Dataset) -> None:
    """All other labels are the next tokens; padding is a document beside the others."""
    order = {"interleave_depth": 1, "documents": ["position_ids", "document_ids"]}
    continued = {piece for pieces in list_pieces(packed, T) for piece in pieces[1:]}
    stored = open_loader(packed.folder, tokens="stored", **order)
    for wide, narrow in zip(open_loader(packed.folder, **order), stored, strict=True):
        tokens, ignored = narrow["tokens"].to(torch.int64), narrow["is_ignored"]
        assert torch.equal(wide["input_ids"], tokens[:, :-1])
        assert torch.equal(
            wide["labels"], tokens[:, 1:].masked_fill(ignored[:, 1:], IGNORED)
        )
        for row, is_ignored, documents, positions in zip(
            tokens.numpy(),
            ignored.numpy(),
            wide["document_ids"].numpy(),
            wide["position_ids"].numpy(),
            strict=True,
        ):
            pieces = split_row(row, is_ignored)
            lengths = [len(piece) for piece in pieces]
            lengths.append(T + 1 - sum(lengths))
            wanted = np.repeat(np.arange(len(lengths)), lengths)
            assert documents.tolist() == wanted[:T].tolist()
            numbers = np.concatenate([np.arange(length) for length in lengths])
            assert positions.tolist() == numbers[:T].tolist()
            starts = np.cumsum([0, *lengths])
            is_padding = np.arange(T + 1) >= starts[-2]
            is_repeated = np.zeros(T + 1, bool)
            for piece, start in zip(pieces, starts.tolist(), strict=False):
                is_repeated[start] = start > 0 and piece.tobytes() in continued
            assert (is_ignored == is_padding | is_repeated).all()
            assert (row[is_padding] == END).all()


@settings(max_examples=8, deadline=None)
@given(
    interruption=interruptions(),
    interleave_depth=st.integers(1, 6),
    window_rows=st.integers(1, 9),
    seq_len=st.sampled_from([T, 64]),
)
def test_resume_on_other_ranks_keeps_the_row_order(
    packed: Dataset, interruption: Interruption, **order: int
) -> None:
    """A run that stops at any step and continues with other ranks and another batch reads the
    rows of one rank, in the same order.
    """
    check_resume(packed.folder, interruption, packing=True, **order)


def test_a_mixture_of_packed_datasets_resumes_with_another_batch(
    packed: Dataset, make: Make
) -> None:
    """Its rows are those of the sources, in the order of one rank."""
    other = make([[40, 3, 90, 11] * 20], name="other", seed=9)
    elsewhere = pack(other.folder, out=other.folder.parent / "elsewhere.rows")
    mixture = Mixture({"a": packed.folder, "b": other.folder}, {"a": 3, "b": 1})
    order: dict[str, Any] = {"epochs": None, "packing": {"a": True, "b": elsewhere}}
    alone = flatten(read_steps([open_loader(mixture, **order)], 30))
    rows = {
        row
        for source, packing in ((packed.folder, True), (other.folder, elsewhere))
        for row in flatten(
            read_steps([open_loader(source, packing=packing, interleave_depth=1)])
        )
    }
    assert set(alone) <= rows
    first = open_loader(mixture, **order)
    before = flatten(read_steps([first], 7))
    ranks = [
        open_loader(mixture, rank=rank, world_size=3, global_batch_rows=6, **order)
        for rank in range(3)
    ]
    for loader in ranks:
        loader.load_state_dict(first.state_dict())
    assert before + flatten(read_steps(ranks, 15)) == alone[: 7 * 4 + 15 * 6]
    with pytest.raises(ValueError, match=r"packing is given for \['a'\], but the sources"):
        open_loader(mixture, epochs=None, packing={"a": True})
    with pytest.raises(ValueError, match="for 2 sources; give packing=True, or a mapping"):
        open_loader(mixture, epochs=None, packing=elsewhere)


def test_a_state_of_plain_rows_or_of_another_packing_is_refused(
    packed: Dataset, tmp_path: Path
) -> None:
    """The error shows the digests of the packings."""
    state = open_loader(packed.folder).state_dict()
    assert "packings" not in open_loader(packed.folder, packing=None).state_dict()
    with pytest.raises(ResumeMismatch, match=r"packings is \('[0-9a-f]{64}',\) in the"):
        open_loader(packed.folder, packing=None).load_state_dict(state)
    other = pack(packed.folder, out=tmp_path / "other.rows", window_tokens=300)
    with pytest.raises(ResumeMismatch, match="packings is"):
        open_loader(packed.folder, packing=other).load_state_dict(state)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=3)
@given(st.data())
def test_exactly_the_retracted_tokens_are_masked(
    packed: Dataset, tmp_path: Path, data: st.DataObject
) -> None:
    """Rows, their order and the boundaries of documents stay; so do all other tokens."""
    places = data.draw(draw_places(packed))
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(packed.folder, folder)
    retract(folder, packed, places)
    retracted = {
        value
        for shard, doc in places
        for starts in [packed.doc_starts[shard]]
        for value in packed.tokens[shard][starts[doc] : starts[doc + 1] - 1].tolist()
    }
    order: dict[str, Any] = {
        "tokens": "stored",
        "documents": ["document_ids"],
        "global_batch_rows": 60,
    }
    before, after = (open_loader(place, **order) for place in (packed.folder, folder))
    num_masked = 0
    others = _values_of_others(packed, places)
    for plain, masked in zip(before, after, strict=True):
        assert torch.equal(plain["document_ids"], masked["document_ids"])
        is_new = masked["is_ignored"] & ~plain["is_ignored"]
        assert not (plain["is_ignored"] & ~masked["is_ignored"]).any()
        differs = plain["tokens"] != masked["tokens"]
        assert not (masked["tokens"][differs].to(torch.int64) != END).any()
        values = plain["tokens"][is_new].to(torch.int64)
        assert set(values.tolist()) <= retracted | {END}
        num_masked += int(is_new.sum())
        whole = {value for value in masked["tokens"].flatten().tolist() if value != END}
        assert not whole & (retracted - others)
    assert bool(num_masked) == bool(places)


def _values_of_others(dataset: Dataset, places: list[tuple[int, int]]) -> set[int]:
    """Return the token ids of the documents that are not retracted."""
    values: set[int] = set()
    for shard, (tokens, starts) in enumerate(
        zip(dataset.tokens, dataset.doc_starts, strict=True)
    ):
        for doc in range(len(starts) - 1):
            if (shard, doc) not in places:
                values.update(tokens[starts[doc] : starts[doc + 1]].tolist())
    return values


def test_the_items_of_a_dataset_are_the_rows_of_the_loader(packed: Dataset) -> None:
    """Also after pickling, as for the worker processes of DataLoader."""
    dataset = TokenDataset(
        packed.folder, seq_len=T, seed=5, interleave_depth=3, packing=True
    )
    dataset = pickle.loads(pickle.dumps(dataset))
    items = [
        torch.cat([item["input_ids"], item["labels"]]).numpy().tobytes()
        for item in dataset.__getitems__(list(range(len(dataset))))
    ]
    assert items == flatten(read_steps([open_loader(packed.folder)]))


def test_rows_with_a_damaged_sample_are_skipped_and_counted(
    packed: Dataset, tmp_path: Path
) -> None:
    """They keep their position, and none of their tokens is a label."""
    folder = shutil.copytree(packed.folder, tmp_path / "copy")
    path = folder / "shard-000002.tar"
    data = bytearray(path.read_bytes())
    index = read_index(folder / "shard-000002.idx")
    data[int(index.sample_offsets[3]) + 1] ^= 1
    path.write_bytes(data)
    given = ReadSettings(on_corrupt="skip_and_count")
    whole = flatten(read_steps([open_loader(packed.folder)]))
    loader = open_loader(folder, settings=given)
    found = flatten(read_steps([loader]))
    differing = [(a, b) for a, b in zip(whole, found, strict=True) if a != b]
    assert len(differing) == loader.stats()["skipped_rows"] > 0
    blank = np.concatenate([np.full(T, END), np.full(T, IGNORED)]).tobytes()
    assert {row for _, row in differing} == {blank}


def test_a_remote_dataset_has_the_rows_of_the_local_one(
    packed: Dataset, tmp_path: Path
) -> None:
    """Over http, in small blocks; sections of the packing come from the cache."""
    pytest.importorskip("obstore")
    server = FileServer(packed.folder)
    given = ReadSettings(cache_dir=tmp_path / "cache", block_bytes=1024)
    try:
        loader = open_loader(server.url, settings=given)
        found = flatten(read_steps([loader]))
        loader.close()
    finally:
        server.close()
    assert found == flatten(read_steps([open_loader(packed.folder)]))


def test_documents_and_rows_are_looked_up_in_both_directions(packed: Dataset) -> None:
    """The parts of a step make up its batch, and the positions of a document are its rows."""
    stream = open_row_stream(
        packed.folder, seq_len=T, seed=5, settings=ReadSettings(), packing=True
    )
    finder = DocumentFinder(stream, ReadSettings())
    order = {"interleave_depth": None, "global_batch_rows": 90, "tokens": "stored"}
    batch = next(open_loader(packed.folder, **order))
    rows: list[list[int]] = [[] for _ in range(90)]
    positions: dict[int, list[int]] = {}
    for part in finder.list_parts(np.arange(90)):
        doc = part.doc_id & 0xFFFFFFFF
        start = int(packed.doc_starts[part.shard][doc]) + part.first_token
        tokens = packed.tokens[part.shard][start : start + part.num_tokens]
        rows[part.position] += tokens.tolist()
        positions.setdefault(part.doc_id, []).append(part.position)
    for row, inputs in zip(rows, batch["tokens"].tolist(), strict=True):
        assert row == inputs[: len(row)]
        assert set(inputs[len(row) : T]) <= {END}
    for doc_id, found in list(positions.items())[:20]:
        assert set(found) <= set(finder.list_positions(0, doc_id, epoch=0))
    finder.close()
