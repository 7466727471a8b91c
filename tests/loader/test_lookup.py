"""Documents of a step, and steps of a document: look-ups that agree with what the loader reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loader import TokenLoader
from loader.lookup import DocumentFinder
from loader.order.mixture import Mixture
from loader.row_stream import Source, open_row_stream
from loader.storage import ReadSettings
from tests.loader.conftest import Dataset, Make
from tests.loader.retraction.test_tombstones import copy, retract
from tests.loader.test_cli import run_cli

SEQ_LEN = 16
BATCH_ROWS = 6


def open_finder(source: Source | Mixture, seed: int = 3) -> DocumentFinder:
    """Return the finder of a dataset or mixture."""
    settings = ReadSettings()
    stream = open_row_stream(source, seq_len=SEQ_LEN, seed=seed, settings=settings)
    return DocumentFinder(stream, settings)


def read_part(dataset: Dataset, shard: int, row: int) -> list[int]:
    """Return the input tokens of a row."""
    return dataset.tokens[shard][row * SEQ_LEN : (row + 1) * SEQ_LEN].tolist()


@pytest.mark.parametrize("step", [0, 5, 40])
def test_the_documents_of_a_step_make_up_its_batch(dataset: Dataset, step: int) -> None:
    """Also after several epochs. The tokens of the parts are those that the loader returns."""
    loader = TokenLoader(
        dataset.folder,
        seq_len=SEQ_LEN,
        global_batch_rows=BATCH_ROWS,
        seed=3,
        rank=0,
        world_size=1,
        tokens="stored",
    )
    for _ in range(step):
        next(loader)
    batch = np.asarray(next(loader)["tokens"])[:, :SEQ_LEN].astype(np.int64)
    positions = np.arange(step * BATCH_ROWS, (step + 1) * BATCH_ROWS)
    rows: dict[int, list[int]] = {int(position): [] for position in positions}
    for part in open_finder(dataset.folder).list_parts(positions):
        assert part.metadata is not None
        assert part.metadata["doc_id"] == part.doc_id
        doc = part.doc_id & 0xFFFFFFFF
        start = int(dataset.doc_starts[part.shard][doc]) + part.first_token
        tokens = dataset.tokens[part.shard][start : start + part.num_tokens]
        rows[part.position] += tokens.tolist()
    assert list(rows.values()) == batch.tolist()


def test_the_positions_of_each_document_are_the_rows_that_hold_it(dataset: Dataset) -> None:
    """In every epoch, both look-ups agree for all documents and rows."""
    finder = open_finder(dataset.folder)
    stream = open_row_stream(
        dataset.folder, seq_len=SEQ_LEN, seed=3, settings=ReadSettings()
    )
    epoch_rows = stream.sources[0].order.epoch_rows
    for epoch in range(2):
        positions = np.arange(epoch * epoch_rows, (epoch + 1) * epoch_rows)
        expected: dict[int, list[int]] = {}
        for part in finder.list_parts(positions):
            expected.setdefault(part.doc_id, []).append(part.position)
        for doc_id, found in expected.items():
            assert finder.list_positions(0, doc_id, epoch) == found


def test_rows_of_a_mixture_name_their_source(make: Make) -> None:
    """Each part is of the dataset that the mixture's order names."""
    folders = {
        name: make([[40, 30], [50]], name=name, seed=n).folder
        for n, name in enumerate(("web", "code"))
    }
    mixture = Mixture(folders, {"web": 0.5, "code": 0.5})
    parts = list(open_finder(mixture).list_parts(np.arange(12)))
    assert {part.source for part in parts} == {0, 1}


def test_a_dataset_without_metadata_has_ids_only(make: Make) -> None:
    """The documents are named by their ids."""
    made = make([[40, 30]], metadata=False)
    parts = list(open_finder(made.folder).list_parts(np.arange(2)))
    assert [part.metadata for part in parts] == [None] * len(parts)


def test_which_prints_documents_and_steps(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first batch is step 1. The steps of a document that a step has read include this step."""
    order: list[str | Path] = ["--seq-len", "16", "--global-batch-rows", "6", "--seed", "3"]
    ranks: list[str | Path] = ["--world-size", "3"]
    batches = TokenLoader(
        dataset.folder, seq_len=16, global_batch_rows=6, seed=3, rank=0, world_size=1
    )
    stream = open_row_stream(dataset.folder, seq_len=16, seed=3, settings=ReadSettings())
    finder = DocumentFinder(stream, ReadSettings())
    next(batches)
    start = batches.state_dict()["position"]
    second = [part.doc_id for part in finder.list_parts(np.arange(start, start + 6))]
    assert run_cli("which", dataset.folder, *order, *ranks, "--step", "2") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split("document ")[1].split(",")[0]) for line in lines] == second
    assert lines[0].startswith("rank 0, row 0: document ")
    assert "https://example.org/" in lines[0]
    assert lines[-1].startswith("rank 2, row 1: document ")
    doc_id = lines[-1].split("document ")[1].split(",")[0]
    assert run_cli("which", dataset.folder, *order, *ranks, "--doc-id", doc_id) == 0
    assert "epoch 0, step 2, rank 2, row 1" in capsys.readouterr().out.splitlines()


def test_retracted_documents_are_marked(
    dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the steps that read them, and where their steps are listed."""
    folder = copy(dataset, tmp_path / "copy")
    retract(folder, dataset, [(0, 1)])
    settings = ReadSettings()
    stream = open_row_stream(folder, seq_len=SEQ_LEN, seed=3, settings=settings)
    positions = np.arange(stream.sources[0].order.epoch_rows)
    parts = list(DocumentFinder(stream, settings).list_parts(positions))
    assert {part.doc_id for part in parts if part.is_retracted} == {1}
    assert all(part.is_retracted for part in parts if part.doc_id == 1)
    assert run_cli("which", folder, "--seq-len", "16", "--doc-id", "1") == 0
    first_line = "document 1 is retracted: these steps read masked tokens"
    assert capsys.readouterr().out.splitlines()[0] == first_line
    assert run_cli("which", folder, "--seq-len", "16", "--doc-id", "0") == 0
    assert "retracted" not in capsys.readouterr().out


def test_which_refuses_unknown_documents_and_unclear_questions(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each."""
    assert run_cli("which", dataset.folder, "--seq-len", "16", "--doc-id", "77") == 1
    assert "has no document 77" in capsys.readouterr().err
    assert run_cli("which", dataset.folder, "--seq-len", "16") == 2
    assert "give either --step or --doc-id" in capsys.readouterr().err
