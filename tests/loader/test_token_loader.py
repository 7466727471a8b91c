"""TokenLoader: each row once, on any number of ranks, resumed at any step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import LoaderState, Mixture, TokenLoader
from loader.batches.batch_builder import IGNORED_LABEL
from loader.state import ResumeMismatch
from loader.storage import ReadFailed, ReadSettings
from shardwriter.format import FormatError, read_index
from tests.loader.conftest import Dataset, Make
from tests.loader.resume_law import (
    Interruption,
    T,
    check_resume,
    flatten,
    interruptions,
    open_loader,
    open_ranks,
    read_steps,
)
from tests.processes import run_python


def list_rows(batch: dict[str, Any]) -> list[bytes]:
    """Return the rows of a batch, each with its last label, as int64 bytes."""
    rows = torch.cat([batch["input_ids"], batch["labels"][:, -1:]], dim=1)
    assert torch.equal(rows[:, 1:], batch["labels"])
    return [row.numpy().tobytes() for row in rows]


def read_global_batches(
    loaders: list[TokenLoader], num: int | None = None
) -> list[list[bytes]]:
    """Return the rows of each step over all ranks, each with its last label."""
    return read_steps(loaders, num, list_rows=list_rows)


def test_an_epoch_has_every_row_once(dataset: Dataset) -> None:
    """With interleave depth 1 no row is left over: each row of the shards comes once."""
    found = flatten(read_global_batches([open_loader(dataset.folder, interleave_depth=1)]))
    assert len(found) == len(set(found))
    assert set(found) == dataset.rows(T)


@settings(max_examples=60, deadline=None)
@given(
    interruption=interruptions(),
    interleave_depth=st.integers(1, 6),
    window_rows=st.integers(1, 9),
    seq_len=st.sampled_from([7, 16, 32]),
    epochs=st.integers(1, 3),
)
def test_resume_on_other_ranks_keeps_the_row_order(
    dataset: Dataset, interruption: Interruption, **order: int
) -> None:
    """A run that stops at any step and continues with other ranks and another batch reads the
    rows of one rank, in the same order.
    """
    check_resume(dataset.folder, interruption, **order)


def test_two_then_five_then_three_ranks_read_each_row_once(larger: Dataset) -> None:
    """Ranks 2 -> 5 -> 3: each row of the epoch comes once, in the same global batches."""
    whole = read_global_batches(open_ranks(larger.folder, 1, global_batch_rows=30))
    found: list[list[bytes]] = []
    state: dict[str, Any] | None = None
    for ranks, num in ((2, 7), (5, 6), (3, None)):
        loaders = open_ranks(larger.folder, ranks, global_batch_rows=30)
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        found += read_global_batches(loaders, num)
        state = loaders[0].state_dict()
    assert found == whole
    assert len(set(flatten(found))) == len(flatten(found))


def test_resume_at_every_step_gives_the_same_batches(dataset: Dataset) -> None:
    """A state of any step gives the same later batches, regardless of reading ahead, also in
    the second epoch.
    """
    reference = open_loader(dataset.folder, epochs=2)
    states, batches = [reference.state_dict()], []
    for batch in reference:
        batches.append(list_rows(batch))
        states.append(reference.state_dict())
    resumed = open_loader(dataset.folder, epochs=2, prefetch_chunks=2)
    for step, state in enumerate(states):
        resumed.load_state_dict(state)
        assert [list_rows(batch) for batch in resumed] == batches[step:]
        assert resumed.state_dict() == states[-1]


RESUME = """
import json, sys
from loader import TokenLoader
loader = TokenLoader(sys.argv[1], seq_len=32, global_batch_rows=4, interleave_depth=3, seed=5, epochs=1)
loader.load_state_dict(json.loads(sys.argv[2]))
print(json.dumps([batch["input_ids"].tolist() for batch in loader]))
"""


def test_a_new_process_continues_from_a_state(dataset: Dataset) -> None:
    """The state is all that a new process needs."""
    here = open_loader(dataset.folder)
    for _ in range(3):
        next(here)
    out = run_python(
        "-c", RESUME, str(dataset.folder), json.dumps(here.state_dict()), check=True
    )
    assert json.loads(out.stdout) == [batch["input_ids"].tolist() for batch in here]


def test_a_run_folder_stands_for_its_dataset(dataset: Dataset, tmp_path: Path) -> None:
    """Rows and states are those of the dataset itself; a folder without one is named."""
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(ReadFailed, match=r"run/manifest\.json"):
        TokenLoader(run, seq_len=T, global_batch_rows=4)
    (run / "dataset").symlink_to(dataset.folder)
    first, second = open_loader(dataset.folder), open_loader(run)
    assert list_rows(next(first)) == list_rows(next(second))
    second.load_state_dict(first.state_dict())


def test_a_state_of_another_stream_is_refused(dataset: Dataset, larger: Dataset) -> None:
    """The error shows each value that differs and the flag that overrides the check."""
    saved = open_loader(larger.folder)
    next(saved)
    other = open_loader(dataset.folder, seed=6, interleave_depth=2)
    with pytest.raises(ResumeMismatch) as caught:
        other.load_state_dict(saved.state_dict())
    message = str(caught.value)
    assert "seed is 5 in the state, 6 here" in message
    assert "interleave_depths is (3,) in the state, (2,) here" in message
    assert saved.state.sources[0] in message
    assert "allow_mismatch=True" in message
    forced = open_loader(dataset.folder, seed=6, interleave_depth=2, allow_mismatch=True)
    forced.load_state_dict(saved.state_dict())
    assert forced.state.position == saved.state.position


def test_a_state_is_small_and_checked(dataset: Dataset) -> None:
    """It survives JSON; other objects and other versions are refused."""
    state = open_loader(dataset.folder).state_dict()
    assert LoaderState.from_dict(json.loads(json.dumps(state))).to_dict() == state
    assert len(json.dumps(state)) < 400
    with pytest.raises(FormatError, match=r"loader state: found missing keys .*'position'"):
        LoaderState.from_dict({"epoch": 3})
    with pytest.raises(ResumeMismatch, match="version is 99 in the state, 2 here"):
        LoaderState.from_dict({**state, "version": 99})


def test_stored_tokens_are_the_same_rows(dataset: Dataset) -> None:
    """Stored tokens contain input_ids and labels."""
    for stored, wide in zip(
        open_loader(dataset.folder, tokens="stored"),
        open_loader(dataset.folder),
        strict=True,
    ):
        assert stored["tokens"].dtype == torch.uint16
        assert [
            row.numpy().tobytes() for row in stored["tokens"].to(torch.int64)
        ] == list_rows(wide)


def test_tokens_of_a_large_vocabulary_are_uint32(make: Make) -> None:
    """A vocabulary of more than 65,536 ids needs four bytes per token."""
    made = make([[40] * 10], vocab_size=200_000)
    assert set(
        flatten(read_global_batches([open_loader(made.folder, interleave_depth=1)]))
    ) == made.rows(T)
    assert next(open_loader(made.folder, tokens="stored"))["tokens"].dtype == torch.uint32


def test_document_entries_belong_to_the_rows(dataset: Dataset) -> None:
    """position_ids, document_ids and cu_seqlens describe the rows of the batch."""
    loader = open_loader(
        dataset.folder,
        interleave_depth=1,
        documents=["position_ids", "document_ids", "cu_seqlens"],
    )
    for batch in loader:
        # in these datasets, only documents' last tokens are 0
        ends = batch["input_ids"] == 0
        documents = torch.cumsum(ends, dim=1) - ends.to(torch.int64)
        assert torch.equal(batch["document_ids"].to(torch.int64), documents)
        starts = batch["cu_seqlens"].tolist()
        assert (
            batch["position_ids"] == 0
        ).flatten().nonzero().flatten().tolist() == starts[:-1]
        assert starts[-1] == batch["input_ids"].numel()
        assert batch["max_seqlen"] == np.diff(starts).max()


def test_the_last_step_is_smaller_or_skipped(dataset: Dataset) -> None:
    """`stats` counts the rows that are in no step."""
    kept, dropped = (
        open_loader(dataset.folder, interleave_depth=1, global_batch_rows=9),
        open_loader(
            dataset.folder, interleave_depth=1, global_batch_rows=9, drop_last=True
        ),
    )
    sizes = (
        [len(batch["input_ids"]) for batch in kept],
        [len(batch["input_ids"]) for batch in dropped],
    )
    num_rows = len(dataset.rows(T))
    assert sizes[0] == [9] * (num_rows // 9) + [num_rows % 9]
    assert sizes[1] == [9] * (num_rows // 9)
    assert kept.stats()["rows_left"] == 0
    assert dropped.stats()["rows_left"] == num_rows % 9


def test_an_endless_stream_continues_over_epochs(dataset: Dataset) -> None:
    """Without `epochs`, a step may contain the end of one epoch and the start of the next."""
    num_rows = len(dataset.rows(T))
    loader = open_loader(
        dataset.folder, epochs=None, interleave_depth=1, global_batch_rows=7
    )
    found = flatten(list_rows(next(loader)) for _ in range(-(-3 * num_rows // 7)))
    for epoch in range(3):
        assert set(found[epoch * num_rows : (epoch + 1) * num_rows]) == dataset.rows(T)
    assert found[:num_rows] != found[num_rows : 2 * num_rows]
    assert loader.stats()["epochs"][""] == pytest.approx(len(found) / num_rows)


def test_a_mixture_keeps_shares_and_resumes(dataset: Dataset, larger: Dataset) -> None:
    """Later weights may change on resume; a change of earlier weights is refused."""

    def mixed(
        rank: int = 0, world_size: int = 1, late: float = 0.5, early: float = 0.75
    ) -> TokenLoader:
        mixture = Mixture(
            {"small": dataset.folder, "large": larger.folder},
            {"small": 1 - early, "large": early},
            {400: {"small": late, "large": 1 - late}},
        )
        place = {"rank": rank, "world_size": world_size, "interleave_depth": 2}
        return TokenLoader(mixture, seq_len=T, global_batch_rows=12, **place)

    alone = mixed()
    batches = [list_rows(next(alone)) for _ in range(40)]
    small, large = dataset.rows(T), larger.rows(T)
    found = flatten(batches)
    assert all((row in small) != (row in large) for row in found)
    assert sum(row in large for row in found[:396]) == pytest.approx(0.75 * 396, abs=40)
    first = [mixed(rank, 2) for rank in range(2)]
    assert read_global_batches(first, 10) == batches[:10]
    # what is still to come may change
    second = [mixed(rank, 3, late=0.9) for rank in range(3)]
    for loader in second:
        loader.load_state_dict(first[0].state_dict())
    assert read_global_batches(second, 20) == batches[10:30]
    assert set(second[0].stats()["epochs"]) == {"small", "large"}
    with pytest.raises(ResumeMismatch, match="weights is"):
        mixed(early=0.5).load_state_dict(first[0].state_dict())


def test_an_error_while_reading_ahead_is_raised_at_its_batch(make: Make) -> None:
    """Batches before the missing shard come first. When it is back, the stream continues."""
    made = make([[40] * 20, [40] * 20])
    order = {"interleave_depth": 1, "window_rows": 4, "global_batch_rows": 1}
    expected = flatten(read_global_batches([open_loader(made.folder, **order)]))
    # Threads read ahead at any speed: the shard of the later rows is missing before they start.
    loader = open_loader(made.folder, **order, prefetch_chunks=3)
    later = 1 if expected[0] in Dataset(made.folder, made.tokens[:1], []).rows(T) else 0
    shard = made.folder / f"shard-{later:06d}.tar"
    hidden = shard.rename(shard.with_suffix(".hidden"))
    found: list[bytes] = []
    with pytest.raises(OSError, match=f"{shard.name}: there is no such file"):
        found.extend(row for batch in loader for row in list_rows(batch))
    assert found
    assert found == expected[: len(found)]
    hidden.rename(shard)
    found += flatten(list_rows(batch) for batch in loader)
    assert found == expected


def test_damaged_rows_are_skipped_and_counted(make: Make) -> None:
    """With skip_and_count, labels of damaged rows are ignored, and all other rows come."""
    made = make([[40] * 29], sample_tokens=128)
    path = made.folder / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    intact = flatten(read_global_batches([open_loader(made.folder, interleave_depth=1)]))
    data[int(read_index(path.with_suffix(".idx")).sample_offsets[1]) + 9] ^= 1
    path.write_bytes(data)
    loaders = open_ranks(
        made.folder,
        2,
        interleave_depth=1,
        settings=ReadSettings(on_corrupt="skip_and_count"),
    )
    ignored, kept = 0, []
    for pair in zip(*loaders, strict=True):
        for batch in pair:
            is_ignored = (batch["labels"] == IGNORED_LABEL).all(dim=1)
            ignored += int(is_ignored.sum())
            whole = {name: value[~is_ignored] for name, value in batch.items()}
            kept += list_rows(whole)
    assert ignored > 0
    assert kept == [row for row in intact if row in set(kept)]
    assert len(kept) + ignored == len(intact)
    assert sum(loader.state.skipped_rows for loader in loaders) == ignored
    assert sum(loader.stats()["skipped_rows"] for loader in loaders) == ignored
    stored = open_loader(
        made.folder,
        interleave_depth=1,
        tokens="stored",
        settings=ReadSettings(on_corrupt="skip_and_count"),
    )
    assert sum(int((~batch["is_whole"]).sum()) for batch in stored) == ignored


def test_stats_count_returned_rows(dataset: Dataset) -> None:
    """Rows that were read ahead do not count."""
    loader = open_loader(dataset.folder)
    for _ in range(3):
        next(loader)
    stats = loader.stats()
    assert (stats["batches"], stats["rows"], stats["tokens"]) == (3, 12, 12 * T)
    assert stats["tokens_per_s"] > 0
    assert 0 <= stats["wait_share"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"seq_len": 10_000},
            r"5 shards, the longest with 450 tokens, but a row of seq_len=10000 needs 10001",
        ),
        (
            {"interleave_depth": 1000},
            r"interleave_depth is 1000, but the dataset has \d+ rows",
        ),
        (
            {"world_size": 64, "global_batch_rows": 64},
            r"the stream has \d+ rows for 64 ranks",
        ),
        ({"tokens": "int32"}, "tokens is 'int32', must be 'int64' or 'stored'"),
        ({"documents": ["mask"]}, r"documents has \['mask'\]"),
        ({"epochs": 0}, "epochs is 0"),
        ({"seq_len": 0}, "seq_len is 0"),
    ],
)
def test_unusable_arguments_are_refused_before_the_first_batch(
    dataset: Dataset, arguments: dict[str, Any], message: str
) -> None:
    """The error shows the numbers that do not fit."""
    with pytest.raises(ValueError, match=message):
        open_loader(dataset.folder, **arguments)


def test_a_dataset_without_shards_is_refused(make: Make) -> None:
    """The error says that there are no shards."""
    with pytest.raises(ValueError, match=r"no shards, but a row of seq_len=32"):
        open_loader(make([]).folder)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gets_the_same_batches(dataset: Dataset) -> None:
    """Rows that are copied and widened on the device equal those of the CPU."""
    on_gpu = open_loader(
        dataset.folder, device="cuda", prefetch_chunks=2, documents=["document_ids"]
    )
    for there, here in zip(
        on_gpu, open_loader(dataset.folder, documents=["document_ids"]), strict=True
    ):
        for name, value in here.items():
            assert torch.equal(there[name].cpu(), value)


def test_a_dataset_can_be_given_in_several_ways(dataset: Dataset) -> None:
    """A folder, its manifest, a string and a file:// address give the same dataset."""
    places: list[str | Path] = [
        dataset.folder,
        str(dataset.folder),
        dataset.folder / "manifest.json",
    ]
    digests = {
        TokenLoader(place, seq_len=T, global_batch_rows=1).state.sources
        for place in [*places, f"file://{dataset.folder}"]
    }
    assert len(digests) == 1


@pytest.mark.parametrize("prefetch_chunks", [0, 2])
def test_a_loader_opened_before_a_fork_reads_or_raises(
    larger: Dataset, prefetch_chunks: int
) -> None:
    """The new process does not have the threads that read ahead, and must not wait for them."""
    code = f"""
import os, sys
from loader import TokenLoader
loader = TokenLoader(
    {str(larger.folder)!r}, seq_len=32, global_batch_rows=6, rank=0, world_size=1,
    prefetch_chunks={prefetch_chunks},
)
next(loader)
if os.fork() == 0:
    try:
        list(zip(loader, range(40)))
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""
    done = run_python("-W", "ignore", "-c", code, check=True, timeout=120)
    assert ("opened before os.fork()" in done.stdout) == (prefetch_chunks > 0)
