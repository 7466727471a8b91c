"""Start and end of Ray: privacy of its session, file modes of outputs, failures of its start."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from pipeline.errors import RunAborted
from pipeline.execution.engine import run
from pipeline.execution.on_ray.engine import RayEngine, name_operator
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from storage.local import read_umask
from tests.pipeline.conftest import Small


def test_operators_are_named_after_the_phase_and_its_stages(small: Small) -> None:
    """Ray's plan, metrics and dashboard show these names."""
    plan = small.plan()
    assert name_operator(Annotate(plan)) == "annotate[paragraphs > length > language]"
    assert name_operator(ParagraphDedup(plan)) == "paragraph_dedup"


def test_a_ray_that_does_not_start_is_tried_twice_and_reported(
    small: Small, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    """The error has the cause, the log and the alternative.

    Umask and SIGTERM handler are restored.
    """
    import ray

    started: list[dict[str, Any]] = []

    def fail(**settings: Any) -> None:
        started.append(settings)
        assert read_umask() == 0o077
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", fail)

    def on_terminate(*_: object) -> None:
        """The handler of the command line."""

    before = signal.signal(signal.SIGTERM, on_terminate)
    try:
        message = (
            r"^Ray did not start on this machine in 2 attempts \(RuntimeError: The current node "
            r"timed out during startup\); its logs are in \S+/logs; `--engine inline` runs without Ray$"
        )
        with pytest.raises(RunAborted, match=message):
            list(run(small.plan(engine={"kind": "ray"})))
        assert len(started) == 2
        assert read_umask() == umask
        assert signal.getsignal(signal.SIGTERM) is on_terminate
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_start_that_works_is_enough(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may need more than one attempt."""
    import ray

    attempts: list[int] = []

    def start(**_: Any) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise TimeoutError("busy")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"memory": 300.0 * 2**20})
    engine = RayEngine(small.plan(engine={"kind": "ray"}).config.engine)
    engine.start()
    assert len(attempts) == 2
    assert engine.config.memory_mb == 300


def test_a_request_that_this_machine_cannot_serve_stops_the_run_at_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Ray would wait for a CPU without a message when a late phase starts.

    tests/e2e/test_resources.py is the same with a real Ray.
    """
    import ray

    machine = {"CPU": 1.0, "memory": 3000.0 * 2**20}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: machine)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": machine}])
    plan = small.plan(engine={"kind": "ray", "phases": {"tokenize": {"num_cpus": 64}}})
    with pytest.raises(RunAborted, match="nothing was started") as caught:
        list(run(plan))
    line = "  tokenize requests CPU 64, memory 2,000 MB; the nearest machine has CPU 1"
    assert line in str(caught.value).splitlines()
    assert not plan.folder("extract").list_done()
