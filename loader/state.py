"""What a checkpoint holds of the loader: where the stream stands, and which stream it is.

Promises: a state is a small JSON object, the same on every rank as long as no damaged row was skipped; it fits any
number of ranks and any global batch. One that belongs to another stream is refused with each value that differs, what
this loader has in its place, and the one flag that overrides.
Leaves to others: storing it (torch's DCP, torchdata, json).

    state = LoaderState.from_dict(loader.state_dict())
    state.position                                     # rows dealt out so far, over all ranks and epochs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

STATE_VERSION = 1
"""Rises when a state of the version before would be read wrongly."""

_IDENTITY = (
    "version",
    "order_version",
    "sources",
    "seq_len",
    "seed",
    "lanes",
    "window_rows",
    "weights",
)
OVERRIDE = "allow_mismatch=True"


class ResumeMismatch(ValueError):
    """The state belongs to another stream. `differences`: name -> (in the state, in this loader)."""

    def __init__(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        super().__init__(differences)
        self.differences = dict(differences)

    def __str__(self) -> str:
        lines = [
            f"{name} is {saved!r} in the state, {here!r} here"
            for name, (saved, here) in self.differences.items()
        ]
        return (
            f"the state does not fit this loader: {'; '.join(lines)}. Build the loader as the state says, or give it "
            f"{OVERRIDE} to go on at the same position of this other stream"
        )


@dataclass(frozen=True)
class LoaderState:
    """Where a stream of rows stands.

    sources:           digest of each manifest
    lanes:             of each source
    weights:           of a mixture: [first position, [weight of each source]] as far as they took effect; else empty
    global_batch_rows: when it was saved; may be another when it is loaded
    position:          rows dealt out so far, over all ranks and epochs
    carried_rows:      rows that an uneven step left to the next (`deal`)
    skipped_rows:      damaged rows that the saving rank blanked out so far
    """

    sources: tuple[str, ...]
    seq_len: int
    seed: int
    lanes: tuple[int, ...]
    window_rows: int
    global_batch_rows: int
    position: int = 0
    carried_rows: int = 0
    skipped_rows: int = 0
    weights: tuple[tuple[int, tuple[float, ...]], ...] = ()
    order_version: int = 1
    version: int = STATE_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Numbers, strings and lists only: what json, DCP and torchdata keep as they are."""
        value = asdict(self)
        value["sources"], value["lanes"] = list(self.sources), list(self.lanes)
        value["weights"] = [[first, list(weights)] for first, weights in self.weights]
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`; raises ResumeMismatch for another version, ValueError for what is no state."""
        if value.get("version", STATE_VERSION) != STATE_VERSION:
            raise ResumeMismatch({"version": (value["version"], STATE_VERSION)})
        wanted = {field.name for field in fields(cls)}
        if set(value) != wanted:
            missing, unknown = sorted(wanted - value.keys()), sorted(value.keys() - wanted)
            raise ValueError(f"no state of a loader: keys missing {missing}, unknown {unknown}")
        weights = tuple(
            (int(first), tuple(map(float, weights))) for first, weights in value["weights"]
        )
        tuples: dict[str, Any] = {
            "sources": tuple(value["sources"]),
            "lanes": tuple(value["lanes"]),
            "weights": weights,
        }
        return cls(**{**value, **tuples})

    def refuse_other_stream(self, here: LoaderState) -> None:
        """Raise ResumeMismatch where this state is not one of the stream that `here` is a state of."""
        pairs = {name: (getattr(self, name), getattr(here, name)) for name in _IDENTITY}
        differences = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if differences:
            raise ResumeMismatch(differences)
