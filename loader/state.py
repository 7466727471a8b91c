"""The state of a loader in a checkpoint: the position in a row stream, and which stream it is.

The state is a small JSON object. It is the same on every rank, except for `skipped_rows` if damaged
rows were skipped. It can be loaded on any number of ranks and with any global batch.

    state = LoaderState.from_dict(loader.state_dict())
    state.position                                     # rows read so far, over all ranks and epochs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

# Raise this when a state of the previous version would be read wrongly.
STATE_VERSION = 2

# The fields that identify a stream. A state with other values belongs to another stream.
_IDENTITY_FIELDS = (
    "version",
    "order_version",
    "sources",
    "seq_len",
    "seed",
    "interleave_depths",
    "window_rows",
    "weights",
)

OVERRIDE = "allow_mismatch=True"


class ResumeMismatch(ValueError):
    """The state belongs to another row stream.

    Attributes:
        differences: field -> (value in the state, value in this loader).
    """

    def __init__(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        super().__init__(differences)
        self.differences = dict(differences)

    def __str__(self) -> str:
        differences: list[str] = []
        for name, (saved, current) in self.differences.items():
            differences.append(f"{name} is {saved!r} in the state, {current!r} here")
        return (
            f"the state does not fit this loader: {'; '.join(differences)}. Create the loader with "
            f"the values of the state, or with {OVERRIDE} to continue at the same position of the "
            f"other stream"
        )


@dataclass(frozen=True)
class LoaderState:
    """Position in a row stream, with the values that identify the stream.

    sources:           digest of the manifest of each source
    interleave_depths: of each source
    weights:           of a mixture: [first position, [weight of each source]] for each segment that
                       has taken effect; empty for a single dataset
    global_batch_rows: when the state was saved; another value is allowed when it is loaded
    position:          rows read so far, over all ranks and epochs
    carried_rows:      rows that an uneven step left to the next one (see order/rank_batches.py)
    skipped_rows:      damaged rows that the saving rank skipped so far
    """

    sources: tuple[str, ...]
    seq_len: int
    seed: int
    interleave_depths: tuple[int, ...]
    window_rows: int
    global_batch_rows: int
    position: int = 0
    carried_rows: int = 0
    skipped_rows: int = 0
    weights: tuple[tuple[int, tuple[float, ...]], ...] = ()
    order_version: int = 1
    version: int = STATE_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, strings and lists, which JSON, DCP and torchdata preserve."""
        value = asdict(self)
        value["sources"] = list(self.sources)
        value["interleave_depths"] = list(self.interleave_depths)
        value["weights"] = [[first, list(weights)] for first, weights in self.weights]
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Return the state that `to_dict` returned `value` for.

        Raises:
            ResumeMismatch: the state has another version.
            ValueError: the keys are not those of a state.
        """
        version = value.get("version", STATE_VERSION)
        if version != STATE_VERSION:
            raise ResumeMismatch({"version": (version, STATE_VERSION)})
        names = {field.name for field in fields(cls)}
        # Refuse unknown keys too: a state of another program must not resume at a random position.
        if set(value) != names:
            missing, unknown = sorted(names - value.keys()), sorted(value.keys() - names)
            raise ValueError(
                f"not the state of a loader: missing keys {missing}, unknown keys {unknown}"
            )
        weights: list[tuple[int, tuple[float, ...]]] = []
        for first_position, segment_weights in value["weights"]:
            weights.append((int(first_position), tuple(map(float, segment_weights))))
        tuples: dict[str, Any] = {
            "sources": tuple(value["sources"]),
            "interleave_depths": tuple(value["interleave_depths"]),
            "weights": tuple(weights),
        }
        return cls(**{**value, **tuples})

    def check_same_stream(self, current: LoaderState) -> None:
        """Raise ResumeMismatch if `current` is the state of another stream."""
        differences: dict[str, tuple[Any, Any]] = {}
        for name in _IDENTITY_FIELDS:
            saved_value, current_value = getattr(self, name), getattr(current, name)
            if saved_value != current_value:
                differences[name] = (saved_value, current_value)
        if differences:
            raise ResumeMismatch(differences)
