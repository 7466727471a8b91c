"""Loaders with small defaults, the rows of their steps, and the law that a resumed run obeys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from loader import Mixture, TokenLoader

T = 32


def open_loader(source: Path | str | Mixture, **given: Any) -> TokenLoader:
    """Return a loader of one rank and one epoch, with a small interleave depth."""
    usual: dict[str, Any] = {
        "seq_len": T,
        "global_batch_rows": 4,
        "rank": 0,
        "world_size": 1,
        "epochs": 1,
        "interleave_depth": 3,
        "seed": 5,
        "prefetch_chunks": 0,
    }
    return TokenLoader(source, **{**usual, **given})


def open_ranks(
    source: Path | str | Mixture, world_size: int, **given: Any
) -> list[TokenLoader]:
    """Return one loader for each rank."""
    return [
        open_loader(source, rank=rank, world_size=world_size, **given)
        for rank in range(world_size)
    ]


def list_inputs_and_labels(batch: dict[str, Any]) -> list[bytes]:
    """Return the inputs and labels of each row of a batch."""
    rows = torch.cat([batch["input_ids"], batch["labels"]], dim=1)
    return [row.numpy().tobytes() for row in rows]


def read_steps(
    loaders: list[TokenLoader],
    num: int | None = None,
    *,
    list_rows: Callable[[dict[str, Any]], list[bytes]] = list_inputs_and_labels,
) -> list[list[bytes]]:
    """Return the rows of each step over all ranks; all ranks must have equally many."""
    found: list[list[bytes]] = []
    while num is None or len(found) < num:
        batches = [next(loader, None) for loader in loaders]
        if None in batches:
            assert batches == [None] * len(loaders), "ranks ended at different steps"
            break
        parts = [list_rows(batch) for batch in batches if batch is not None]
        assert len({len(part) for part in parts}) == 1, (
            "ranks got different numbers of rows"
        )
        found.append([row for part in parts for row in part])
    return found


def flatten(steps: Iterable[Iterable[bytes]]) -> list[bytes]:
    """Return the rows of all steps, in order."""
    return [row for step in steps for row in step]


class Interruption(NamedTuple):
    """A run that is stopped and continued.

    batches:    global_batch_rows before and after
    worlds:     number of ranks before and after
    kill_after: steps of the first run
    """

    batches: tuple[int, int]
    worlds: tuple[int, int]
    kill_after: int


def interruptions() -> st.SearchStrategy[Interruption]:
    """Draw interruptions with up to 13 rows in a step and 5 ranks, each with a row."""
    pairs = st.integers(1, 5).flatmap(
        lambda world: st.tuples(st.just(world), st.integers(world, 13))
    )
    return st.builds(
        lambda first, second, kill_after: Interruption(
            (first[1], second[1]), (first[0], second[0]), kill_after
        ),
        pairs,
        pairs,
        st.integers(0, 30),
    )


def check_resume(
    source: Path | str | Mixture, interruption: Interruption, **order: Any
) -> None:
    """Check that an interrupted run reads the rows of one rank, in the same order.

    Args:
        source: a dataset or a mixture, with an end.
        interruption: where the run stops, and how it continues.
        order: the arguments of all loaders.
    """
    alone = flatten(read_steps([open_loader(source, **order, global_batch_rows=1)]))
    first, second = (
        open_ranks(source, world, **order, global_batch_rows=batch, uneven="carry")
        for world, batch in zip(interruption.worlds, interruption.batches, strict=True)
    )
    before = flatten(read_steps(first, interruption.kill_after))
    states = [loader.state_dict() for loader in first]
    assert all(state == states[0] for state in states)
    for loader in second:
        loader.load_state_dict(json.loads(json.dumps(states[0])))
    after = flatten(read_steps(second))
    assert before + after == alone[: len(before) + len(after)]
    assert len(alone) - len(before) - len(after) < max(interruption.worlds)
