"""Mutated bytes and JSON values, and the loop that tries them within limits of time and memory."""

from __future__ import annotations

import contextlib
import copy
import json
import resource
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from config_files.reader import ConfigError
from loader.state import ResumeMismatch
from pipeline.errors import PipelineError
from pipeline.runs.run_folder import RunNotFound
from shardwriter.format import FormatError
from storage import StorageError

# Errors with a message for the user. Every other error is a break.
EXPECTED_ERRORS = (
    ConfigError,
    FormatError,
    PipelineError,
    ResumeMismatch,
    RunNotFound,
    StorageError,
)

# Limits of one input. Inputs are at most about 100 kB.
MAX_CPU_S = 10.0
MAX_MEMORY_BYTES = 1 << 30

# Bytes that mean something to one of the parsers.
NOISE = (
    b"WARC/1.0\r\n",
    b"Content-Length: 99999999999\r\n",
    b"\r\n\r\n",
    b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
    b"filedesc://",
    b"<i a=1><i b=1>",
    b"</",
    b"<!--",
    b"\x1b[2J",
    b"\xff\xfe",
    b"\0",
    b"../",
    b"[[[[",
    b'{"',
    b"-1",
    b"NaN",
    b"1e999",
)

# Values that a reader of JSON must refuse or bear.
HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    -5,
    1.5,
    0,
    2**31,
    2**53,
    2**63,
    2**70,
    10**12,
    float("nan"),
    float("inf"),
    "",
    "../../etc/passwd",
    "/etc/passwd",
    "\x1b]52;c;x\x1b\\",
    "x" * 10_000,
    "\ud800",
    "a\x00b",
    "٣",
    [],
    {},
    [[]],
    [None],
    {"": None},
)
ANY_JSON = st.recursive(
    st.sampled_from(HOSTILE_VALUES) | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
# Readers that call themselves have a limit of depth.
DEEP_JSON = st.sampled_from([b"[" * depth for depth in (900, 990, 100_000)])

T = TypeVar("T")


@st.composite
def mutated_bytes(draw: st.DrawFn, bases: Sequence[bytes]) -> bytes:
    """Draw one of the bases with up to eight edits."""
    data = bytearray(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, len(data)))
        length = draw(st.sampled_from((0, 1, 2, 8, 100, 5_000)))
        kind = draw(st.sampled_from(("flip", "cut", "noise", "random", "repeat", "splice")))
        chunk = bytes(data[start : start + length])
        if kind == "flip" and start < len(data):
            data[start] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del data[start : start + length]
        elif kind == "noise":
            data[start : start + length] = draw(st.sampled_from(NOISE))
        elif kind == "random":
            data[start : start + length] = draw(st.binary(max_size=40))
        elif kind == "repeat":
            data[start:start] = chunk * draw(st.integers(1, 4))
        elif kind == "splice":
            other = draw(st.sampled_from(bases))
            data[start : start + length] = other[start : start + 2_000]
    return bytes(data)


@st.composite
def mutated_json(draw: st.DrawFn, bases: Sequence[Any]) -> Any:
    """Draw one of the values with up to three parts replaced, removed or added."""
    value = copy.deepcopy(draw(st.sampled_from(bases)))
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(value, dict | list) or not value:
            break
        _mutate_inside(draw, value)
    return value


def _mutate_inside(draw: st.DrawFn, value: dict[str, Any] | list[Any]) -> None:
    # Half of the steps go deeper, so that all levels are reached.
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(len(value))
    key = draw(st.sampled_from(keys))
    inner = value[key]
    if isinstance(inner, dict | list) and inner and draw(st.booleans()):
        _mutate_inside(draw, inner)
        return
    kind = draw(st.sampled_from(("replace", "remove", "add")))
    hostile = draw(ANY_JSON)
    if kind == "replace":
        value[key] = copy.deepcopy(hostile)  # a later edit may change it
    elif kind == "remove":
        del value[key]
    elif isinstance(value, dict):
        value[draw(st.text(max_size=5))] = copy.deepcopy(hostile)
    else:
        value.insert(key, copy.deepcopy(hostile))


@st.composite
def mutated_json_bytes(draw: st.DrawFn, bases: Sequence[Any]) -> bytes:
    """Draw JSON with hostile values, with mutated bytes, or of a great depth."""
    if draw(st.booleans()):
        return json.dumps(draw(mutated_json(bases))).encode()
    whole = [json.dumps(base).encode() for base in bases]
    return draw(mutated_bytes(whole) | st.binary(max_size=20) | DEEP_JSON)


def try_inputs(
    inputs: st.SearchStrategy[T], check: Callable[[T], object], seed: int, num_inputs: int
) -> int:
    """Draw inputs and call `check` with each. Return their number.

    Raises:
        Exception: an error of `check`, with the smallest input that Hypothesis found.
    """
    num_tried = 0

    @hypothesis.seed(seed)
    @settings(
        max_examples=num_inputs,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(inputs)
    def examine(value: T) -> None:
        nonlocal num_tried
        num_tried += 1
        start = time.process_time()
        with limit_memory(MAX_MEMORY_BYTES):
            check(value)
        cpu_s = time.process_time() - start
        assert cpu_s < MAX_CPU_S, f"took {cpu_s:.1f} s of CPU"

    examine()
    return num_tried


def allow_expected_errors(check: Callable[[T], object]) -> Callable[[T], None]:
    """Return a check that also accepts an error with a message for the user."""

    def examine(value: T) -> None:
        with contextlib.suppress(*EXPECTED_ERRORS):
            check(value)

    return examine


@contextlib.contextmanager
def limit_memory(num_bytes: int) -> Generator[None]:
    """Let this process allocate so much more memory; beyond it allocations fail."""
    used = 1024 * int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)
