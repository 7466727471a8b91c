"""Sources that are added to a mixture, or removed from it, while a run reads it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader import LoaderState, Mixture, TokenLoader
from loader.order.mixture import MixtureOrder
from loader.state import ResumeMismatch
from tests.loader.conftest import Dataset, Make

T = 16
WEIGHT = st.floats(0.1, 5)


@settings(max_examples=15, deadline=None)
@given(
    weights=st.lists(WEIGHT, min_size=1, max_size=3),
    later=st.lists(st.floats(0, 5), min_size=4, max_size=4),
    place=st.integers(0, 3),
    change=st.integers(1, 150_000),
    seed=st.integers(0, 9),
)
def test_a_source_that_is_added_changes_no_earlier_row(
    weights: list[float], later: list[float], place: int, change: int, seed: int
) -> None:
    """At any place in the list of sources, and with any weights from then on."""
    place = min(place, len(weights))
    before = (*weights[:place], 0.0, *weights[place:])
    after = (*later[: len(before) - 1], 1.0)
    old = MixtureOrder({0: tuple(weights)}, seed)
    new = MixtureOrder({0: before, change: after}, seed)
    positions = np.unique(np.linspace(0, change - 1, 3000).astype(np.int64))
    old_sources, old_rows = old.locate(positions)
    new_sources, new_rows = new.locate(positions)
    assert (new_rows == old_rows).all()
    assert (new_sources == old_sources + (old_sources >= place)).all()
    # From there on, each source continues without a gap.
    sources, rows = new.locate(np.arange(change, change + 500))
    for source, first in enumerate(new.count_rows_before(change).tolist()):
        found = rows[sources == source]
        assert sorted(found.tolist()) == list(range(first, first + len(found)))


def make_state(position: int, weights: list[tuple[int, tuple[float, ...]]]) -> LoaderState:
    """Return a state of a mixture of as many sources as there are weights."""
    num_sources = len(weights[0][1])
    return LoaderState(
        sources=tuple(f"{source:064x}" for source in range(num_sources)),
        seq_len=T,
        seed=0,
        interleave_depths=tuple(range(1, num_sources + 1)),
        window_rows=4,
        global_batch_rows=4,
        position=position,
        weights=tuple(weights),
    )


@given(
    weights=st.lists(WEIGHT, min_size=2, max_size=4),
    added=st.lists(WEIGHT, min_size=1, max_size=2),
    change=st.integers(1, 100),
    position=st.integers(0, 100),
)
def test_a_state_fits_exactly_if_its_rows_are_unchanged(
    weights: list[float], added: list[float], change: int, position: int
) -> None:
    """New sources may have weights from the state's position on, and not before."""
    saved = make_state(position, [(0, tuple(weights))])
    segments = [(0, (*weights, *[0.0] * len(added))), (change, (*weights, *added))]
    current = make_state(position, [s for s in segments if s[0] == 0 or s[0] < position])
    if change >= position:
        saved.check_same_stream(current)
        current.check_same_stream(saved)
    else:
        with pytest.raises(ResumeMismatch, match="weights is"):
            saved.check_same_stream(current)
    other = replace(current, sources=(f"{9:064x}", *current.sources[1:]))
    with pytest.raises(ResumeMismatch, match="sources is"):
        saved.check_same_stream(other)


@given(
    lengths=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    num_sources=st.integers(0, 3),
)
def test_a_damaged_state_fits_no_stream(lengths: list[int], num_sources: int) -> None:
    """Its lists have other lengths than it has sources."""
    whole = make_state(9, [(0, (1.0, 1.0))])
    weights = tuple((k, (1.0,) * length) for k, length in enumerate(lengths))
    damaged = replace(whole, sources=whole.sources[:1] * num_sources, weights=weights)
    with pytest.raises(ResumeMismatch):
        damaged.check_same_stream(whole)
    with pytest.raises(ResumeMismatch):
        whole.check_same_stream(damaged)


def read(loader: TokenLoader, num_steps: int) -> list[list[int]]:
    """Return the rows of some steps."""
    return [row for _ in range(num_steps) for row in next(loader)["input_ids"].tolist()]


@pytest.fixture
def folders(dataset: Dataset, larger: Dataset, make: Make) -> dict[str, Path]:
    """Three datasets that can be mixed."""
    third = make([[50] * 12], seed=4)
    return {"a": dataset.folder, "b": larger.folder, "c": third.folder}


def open_loader(source: Any, **given: Any) -> TokenLoader:
    """Return a loader of one rank."""
    usual: dict[str, Any] = {"seq_len": T, "seed": 3, "rank": 0, "world_size": 1}
    return TokenLoader(source, **{**usual, "global_batch_rows": 12, **given})


def test_a_run_continues_with_a_source_more_and_then_with_one_less(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """On other numbers of ranks. The shards of the removed source are not needed any more."""
    two = {name: folders[name] for name in "ab"}
    weights = {"a": 0.7, "b": 0.3}
    first = open_loader(Mixture(two, weights))
    rows = read(first, 4)
    removed = tmp_path / "b"
    shutil.copytree(folders["b"], removed)
    schedule = {60: {"a": 1, "b": 1, "c": 2}, 120: {"a": 1, "c": 3}}
    grown = Mixture({**folders, "b": removed}, weights, schedule)
    ranks = [open_loader(grown, rank=rank, world_size=3) for rank in range(3)]
    for loader in ranks:
        loader.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for _ in range(6):
        for loader in ranks:
            rows += read(loader, 1)
    for file in removed.glob("shard-*"):
        file.unlink()
    last = open_loader(grown)
    last.load_state_dict(ranks[0].state_dict())
    rows += read(last, 5)
    assert rows == read(open_loader(Mixture(folders, weights, schedule)), 15)
    late = open_loader(Mixture(folders, weights, {40: {"a": 1, "b": 1, "c": 2}}))
    with pytest.raises(ResumeMismatch, match="weights is"):
        late.load_state_dict(first.state_dict() | {"position": 48})
    with pytest.raises(ResumeMismatch, match="weights is"):
        open_loader(Mixture(two, {"a": 0.6, "b": 0.4})).load_state_dict(first.state_dict())


def test_a_run_on_one_dataset_continues_as_a_mixture(folders: dict[str, Path]) -> None:
    """A mixture of one source has the rows of the source, in its order."""
    alone = open_loader(folders["b"])
    rows = read(alone, 3)
    both = Mixture(
        {"new": folders["a"], "old": folders["b"]},
        {"old": 1},
        {36: {"old": 1, "new": 1}},
    )
    mixed = open_loader(both)
    mixed.load_state_dict(alone.state_dict())
    assert rows + read(mixed, 3) == read(open_loader(both), 6)
    with pytest.raises(ResumeMismatch, match="sources is"):
        mixed.load_state_dict(open_loader(folders["c"]).state_dict())
    with pytest.raises(ResumeMismatch, match=r"sources is .* in the state"):
        alone.load_state_dict(mixed.state_dict())
