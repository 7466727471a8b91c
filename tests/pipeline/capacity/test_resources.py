"""Resources of tasks: read from the config, and refused if no machine has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from config_files.reader import ConfigError
from pipeline.capacity.resources import (
    Request,
    count_slots,
    find_unmet,
    list_requests,
    make_request,
)
from pipeline.config import EngineConfig, load
from pipeline.errors import RunAborted
from pipeline.execution.engine import check_run_dir
from pipeline.planning.plan import make_plan

GB = 2**30


def engine(**sections: object) -> EngineConfig:
    return EngineConfig.model_validate(sections)


def test_a_phase_requests_the_defaults_of_the_engine() -> None:
    """Keys in the phase's own section replace them one by one."""
    config = engine(
        memory_mb=3_000,
        phases={
            "annotate": {"num_cpus": 2, "custom": {"disk": 1}},
            "select": {"num_gpus": 0.5},
        },
    )
    assert make_request(config, "extract").amounts == {"CPU": 1, "memory": 3_000 * 2**20}
    assert make_request(config, "annotate").amounts == {
        "CPU": 2,
        "memory": 3_000 * 2**20,
        "disk": 1,
    }
    assert make_request(config, "select").remote_args()["num_gpus"] == 0.5


def test_a_request_must_fit_on_one_machine() -> None:
    """The error has the phase, its request and the resources of the nearest machine."""
    config = engine(
        phases={"annotate": {"num_cpus": 3, "memory_mb": 4096}, "extract": {"num_gpus": 1}}
    )
    machines = [{"CPU": 2.0, "memory": 8.0 * GB}, {"CPU": 8.0, "memory": 4.5 * GB}]
    requests = [
        make_request(config, phase) for phase in ("annotate", "extract", "tokenize")
    ]
    assert find_unmet(requests, machines) == [
        "extract requests CPU 1, GPU 1, memory 2,000 MB; the nearest machine has GPU 0",
    ]
    assert find_unmet(requests[:1], machines[:1]) == [
        "annotate requests CPU 3, memory 4,096 MB; the nearest machine has CPU 2",
    ]
    assert find_unmet(requests[:1], []) == [
        "annotate requests CPU 3, memory 4,096 MB; there is no machine"
    ]


def test_phases_that_are_off_request_nothing() -> None:
    """Their resources may stay in the config."""
    resources = "engine.phases={fuzzy_dedup: {num_gpus: 1}, annotate: {num_cpus: 2}}"
    config = load("ccnet.yaml", [resources, "fuzzy_dedup=null"])
    requests = {request.phase: request for request in list_requests(config)}
    assert requests["annotate"].num_cpus == 2
    assert "fuzzy_dedup" not in requests


@pytest.mark.parametrize(
    ("phases", "fault"),
    [
        (
            "{anotate: {num_cpus: 2}}",
            "engine.phases.anotate is no phase; did you mean annotate?",
        ),
        (
            "{annotate: {stages: {classifiers: {num_gpus: 1}}}}",
            "engine.phases.annotate.stages is no known key",
        ),
        (
            "{annotate: {num_cpu: 2}}",
            "engine.phases.annotate.num_cpu is no known key; did you mean num_cpus?",
        ),
    ],
)
def test_unknown_phases_and_resources_are_refused(phases: str, fault: str) -> None:
    """The error suggests the nearest name, before models are prepared."""
    with pytest.raises(ConfigError) as caught:
        load("ccnet.yaml", [f"engine.phases={phases}"])
    assert fault in str(caught.value)


def test_resources_do_not_change_fingerprints(tmp_path: Path) -> None:
    """A run can continue in the same folders with other resources."""
    given = ["input={files: [" + str(Path(__file__)) + "]}", f"run_dir={tmp_path}"]
    plain = make_plan(load("ccnet.yaml", given))
    other = make_plan(
        load("ccnet.yaml", [*given, "engine.phases={annotate: {memory_mb: 9000}}"])
    )
    assert plain.phase("extract").fingerprint is not None
    assert [phase.fingerprint for phase in plain.phases] == [
        phase.fingerprint for phase in other.phases
    ]


# ---- on a cluster ----


def test_a_run_on_a_cluster_needs_an_absolute_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A relative folder would differ between machines."""
    relative, absolute = (
        load("ccnet.yaml", [f"run_dir={run_dir}"])
        for run_dir in ("runs/x", "/shared/runs/x")
    )
    check_run_dir(relative)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_run_dir(absolute)
    check_run_dir(load("ccnet.yaml", ["run_dir=runs/x", "engine.kind=inline"]))
    with pytest.raises(
        RunAborted, match=r"run_dir is 'runs/x'; on a cluster \(RAY_ADDRESS is set\)"
    ):
        check_run_dir(relative)


def test_slots_are_counted_per_machine() -> None:
    """Each machine runs whole tasks: the scarcest resource limits them, and a missing one allows none."""
    request = Request("annotate", 2.0, 1.0, 1000, {"fast_disk": 1.0})
    memory = 2500.0 * 2**20
    machine = {"CPU": 9.0, "GPU": 3.0, "memory": memory, "fast_disk": 8.0}
    assert count_slots(request, [machine]) == 2
    assert count_slots(request, [machine, {**machine, "GPU": 1.0}]) == 3
    assert count_slots(request, [machine, {"CPU": 64.0, "memory": memory}]) == 2
    assert count_slots(request, []) == 0
