"""The state of a loader in a checkpoint: the position in a row stream, and which stream it is.

The state is a small JSON object. It is the same on every rank, except for `skipped_rows` if damaged
rows were skipped. It can be loaded on any number of ranks and with any global batch.

    state = LoaderState.from_dict(loader.state_dict())
    state.position                                     # rows read so far, over all ranks and epochs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self, TypeVar

from shardwriter.format import RETRACTIONS_FILE, FormatError

_T = TypeVar("_T")

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
    "packings",
)

OVERRIDE = "allow_mismatch=True"

# The largest integer that every JSON reader represents exactly.
_MAX_INTEGER = 2**53 - 1
# A step leaves fewer rows than it has ranks. This is more ranks than any cluster has, and
# limits the memory for the first step after a damaged state.
_MAX_CARRIED_ROWS = 2**17 - 1

# Field -> smallest and largest value.
_RANGES = {
    "seq_len": (1, _MAX_INTEGER),
    "seed": (0, 2**63 - 1),
    "window_rows": (1, 2**63 - 1),
    "global_batch_rows": (1, _MAX_INTEGER),
    "position": (0, _MAX_INTEGER),
    "carried_rows": (0, _MAX_CARRIED_ROWS),
    "skipped_rows": (0, _MAX_INTEGER),
    "order_version": (1, _MAX_INTEGER),
    "version": (1, _MAX_INTEGER),
}

_REMEDY = "load what `state_dict` of a loader returned"

_SHA256 = re.compile("[0-9a-f]{64}")
_MAX_SHOWN_CHARS = 80


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
        return f"the state does not fit this loader: {'; '.join(differences)}. {self._find_remedy()}"

    def _find_remedy(self) -> str:
        if self.differences.keys() == {"sources"}:
            return (
                f"If this is a copy of the same dataset, documents were retracted from the other "
                f"copy before the state was saved: copy its {RETRACTIONS_FILE} too. If it is "
                f"another dataset, {OVERRIDE} continues at the same position"
            )
        return (
            f"Create the loader with the values of the state, or with {OVERRIDE} to continue at the "
            f"same position of the other stream"
        )


@dataclass(frozen=True)
class LoaderState:
    """Position in a row stream, with the values that identify the stream.

    sources:           digest of each source: of its manifest, or after its last retraction
    interleave_depths: of each source
    weights:           of a mixture: [first position, [weight of each source]] for each segment that
                       has taken effect; empty for a single dataset
    global_batch_rows: when the state was saved; another value is allowed when it is loaded
    position:          rows read so far, over all ranks and epochs
    carried_rows:      rows that an uneven step left to the next one (see order/rank_batches.py)
    skipped_rows:      damaged rows that the saving rank skipped so far
    packings:          digest of the packing of each source; empty for plain rows
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
    packings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return numbers, strings and lists, which JSON, DCP and torchdata preserve."""
        value = asdict(self)
        value["sources"] = list(self.sources)
        value["interleave_depths"] = list(self.interleave_depths)
        value["weights"] = [[first, list(weights)] for first, weights in self.weights]
        value["packings"] = list(self.packings)
        if not self.packings:
            # A state of plain rows is the same as before rows could be packed.
            del value["packings"]
        return value

    @classmethod
    def from_dict(cls, value: Any) -> Self:
        """Return the state that `to_dict` returned `value` for.

        Raises:
            ResumeMismatch: the state has another version.
            FormatError: a key is missing or unknown, or a value has another type or is out of range.
        """
        if not isinstance(value, Mapping):
            raise _make_error("value", value, "a mapping")
        version = value.get("version", STATE_VERSION)
        if version != STATE_VERSION:
            raise ResumeMismatch({"version": (version, STATE_VERSION)})
        names = {field.name for field in fields(cls)}
        if "packings" not in value:
            names.remove("packings")
        # Refuse unknown keys too: a state of another program must not resume at a random position.
        if set(value) != names:
            missing = sorted(names - value.keys())
            unknown = sorted(value.keys() - names, key=repr)
            found = f"missing keys {missing}, unknown keys {unknown}"
            raise FormatError("loader state", found, f"the keys {sorted(names)}", _REMEDY)
        read = {name: _read_integer(name, value[name], *_RANGES[name]) for name in _RANGES}
        # A step leaves fewer rows than it has ranks, and has at least one row for each of them.
        _read_integer(
            "carried_rows", read["carried_rows"], 0, read["global_batch_rows"] - 1
        )
        return cls(
            sources=_read_digests("sources", value["sources"]),
            interleave_depths=_read_depths("interleave_depths", value["interleave_depths"]),
            weights=_read_weights("weights", value["weights"]),
            packings=_read_digests("packings", value.get("packings", ())),
            **read,
        )

    def check_same_stream(
        self, current: LoaderState, lineages: Sequence[Sequence[str]] = ()
    ) -> None:
        """Raise ResumeMismatch if `current` is the state of another stream.

        Args:
            current: a state of the stream.
            lineages: digests that each source has had, up to its last retraction. The order of
                rows is the same under all of them.
        """
        saved, wanted = self._describe_past(), current._describe_past()
        used_lineages = current._pick_used(lineages)
        differences: dict[str, tuple[Any, Any]] = {}
        for name in _IDENTITY_FIELDS:
            if name == "sources" and _are_earlier(saved[name], used_lineages):
                continue
            if saved[name] != wanted[name]:
                differences[name] = (saved[name], wanted[name])
        if differences:
            raise ResumeMismatch(differences)

    def _describe_past(self) -> dict[str, Any]:
        """Return the values of the identity fields, for the sources that have given rows.

        A source whose weight has been 0 so far has no influence on the order. So a source can be
        added to a mixture, and a single dataset can become a mixture.
        """
        past = {name: getattr(self, name) for name in _IDENTITY_FIELDS}
        for name in ("sources", "interleave_depths", "packings"):
            past[name] = self._pick_used(past[name])
        weights = tuple((first, self._pick_used(row)) for first, row in self.weights)
        # The rows of a single source are in its own order, with any weight.
        past["weights"] = () if len(past["sources"]) == 1 else weights
        return past

    def _pick_used(self, values: Sequence[_T]) -> tuple[_T, ...]:
        """Return the values of the sources that have had a weight above 0."""
        num_sources = len(self.sources)
        is_used = [not self.weights] * num_sources
        for _, weights in self.weights:
            if len(weights) != num_sources:  # a damaged state, which fits no stream
                return tuple(values)
            is_used = [
                used or weight > 0 for used, weight in zip(is_used, weights, strict=True)
            ]
        if len(values) != num_sources:
            return tuple(values)
        return tuple(value for value, used in zip(values, is_used, strict=True) if used)


def _are_earlier(digests: Sequence[str], lineages: Sequence[Sequence[str]]) -> bool:
    """Whether each source has had the digest with which a state was saved."""
    if not digests or len(digests) != len(lineages):
        return False
    return all(digest in lineage for digest, lineage in zip(digests, lineages, strict=True))


def _read_integer(name: str, value: Any, least: int = 0, most: int = _MAX_INTEGER) -> int:
    # `type(...) is`, because bool is a subclass of int.
    if type(value) is not int or not least <= value <= most:
        raise _make_error(name, value, f"an integer from {least} to {most}")
    return value


def _read_list(name: str, value: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise _make_error(name, value, "a list")
    return value


def _read_digests(name: str, value: Any) -> tuple[str, ...]:
    for k, digest in enumerate(_read_list(name, value)):
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise _make_error(f"{name}[{k}]", digest, "64 hexadecimal digits")
    return tuple(value)


def _read_depths(name: str, value: Any) -> tuple[int, ...]:
    for k, depth in enumerate(_read_list(name, value)):
        _read_integer(f"{name}[{k}]", depth, 1)
    return tuple(value)


def _read_weights(name: str, value: Any) -> tuple[tuple[int, tuple[float, ...]], ...]:
    segments: list[tuple[int, tuple[float, ...]]] = []
    for k, segment in enumerate(_read_list(name, value)):
        place = f"{name}[{k}]"
        if len(_read_list(place, segment)) != 2:
            raise _make_error(place, segment, "a first position and a list of weights")
        first_position = _read_integer(f"{place}[0]", segment[0])
        for weight in _read_list(f"{place}[1]", segment[1]):
            if type(weight) not in (int, float) or not 0 <= weight <= sys.float_info.max:
                raise _make_error(f"{place}[1]", weight, "a finite number of at least 0")
        segments.append((first_position, tuple(map(float, segment[1]))))
    return tuple(segments)


def _make_error(place: str, value: Any, wanted: str) -> FormatError:
    found = repr(value)[:_MAX_SHOWN_CHARS]
    return FormatError(f"loader state: {place}", found, wanted, _REMEDY)
