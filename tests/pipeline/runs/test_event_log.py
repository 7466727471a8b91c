"""The event log of a run, on a disk and in a bucket."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from pipeline.runs import event_log
from pipeline.runs.event_log import LOG, LOG_PARTS, open_log, read_events
from storage import Store, open_store
from storage.errors import StorageError
from storage.object_store import ObjectStore
from tests.pipeline.runs.waiting import wait_for


def read_names(folder: Store) -> list[str]:
    return [event["event"] for event in read_events(folder)]


@pytest.mark.parametrize("half", ["", '{"time": 1, "event": "Wo', "no JSON at all"])
def test_a_partly_written_line_is_left_out(tmp_path: Path, half: str) -> None:
    """A reader skips the last line of a killed driver; the next driver removes it."""
    folder = open_store(tmp_path)
    with open_log(folder) as add_event:
        add_event({"event": "first"})
    with (tmp_path / LOG).open("a") as log:
        log.write(half)
    assert read_names(folder) == ["first"]
    with open_log(folder) as add_event:
        add_event({"event": "second"})
    assert read_names(folder) == ["first", "second"]


def test_the_log_in_a_bucket_can_be_read_while_its_driver_lives(
    bucket_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After FLUSH_S at the latest, in order, over several parts and several drivers."""
    monkeypatch.setattr(event_log, "FLUSH_S", 0.05)
    monkeypatch.setattr(event_log, "PART_BYTES", 300)
    for driver in range(2):
        with open_log(bucket_store) as add_event:
            for number in range(20):
                add_event({"event": f"{driver}-{number}"})
                # Wait for the flush, so that the number of parts does not depend on timing.
                num_expected = 20 * driver + number + 1
                wait_for(
                    lambda expected=num_expected: len(read_names(bucket_store)) == expected
                )
        time.sleep(1.0)  # drivers are ordered by the second in which they start
    names = [f"{driver}-{number}" for driver in range(2) for number in range(20)]
    assert read_names(bucket_store) == names
    assert len(bucket_store.child(LOG_PARTS).list_names()) > 4


@contextlib.contextmanager
def limit_file_size(num_bytes: int) -> Generator[None]:
    """Let writes beyond a size be cut, as on a disk that gets full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_an_event_for_which_there_is_no_space_is_not_written_in_part(
    tmp_path: Path,
) -> None:
    """The error names the log, and the next event is on a line by itself."""
    folder = open_store(tmp_path)
    with open_log(folder) as add_event:
        add_event({"event": "first"})
        with (
            limit_file_size((tmp_path / LOG).stat().st_size + 10),
            pytest.raises(StorageError, match=r"log\.jsonl: No space left on device; free"),
        ):
            add_event({"event": "second"})
        add_event({"event": "third"})
    assert read_names(folder) == ["first", "third"]
