"""The log of a run, on a disk; in a bucket: test_object_storage.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.runs.event_log import LOG, events, keep


@pytest.mark.parametrize("half", ["", '{"time": 1, "event": "Wo', "no JSON at all"])
def test_what_a_killed_driver_had_half_written_is_left_out(tmp_path: Path, half: str) -> None:
    """Neither who reads it, nor the next driver, which adds to the same file, stumbles over half a line."""
    with keep(tmp_path) as add:
        add({"event": "first"})
    with (tmp_path / LOG).open("a") as log:
        log.write(half)
    assert [event["event"] for event in events(tmp_path)] == ["first"]
    with keep(tmp_path) as add:
        add({"event": "second"})
    assert [event["event"] for event in events(tmp_path)] == ["first", "second"]
