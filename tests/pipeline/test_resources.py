"""What tasks ask for: read from the config, refused before work begins where no machine has it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from config_files.reader import ConfigError
from pipeline.config import EngineConfig, load
from pipeline.errors import RunAborted
from pipeline.execution.engine import check
from pipeline.execution.resources import request_of, requests_of, unmet
from pipeline.execution.task import Handover
from pipeline.planning.plan import make_plan

GB = 2**30


def engine(**sections: object) -> EngineConfig:
    return EngineConfig.model_validate(sections)


def test_a_stage_asks_for_what_its_phase_does_where_it_says_nothing() -> None:
    """And a phase for what the engine does; what is said nearer to the work counts."""
    config = engine(
        memory_mb=3_000,
        phases={
            "annotate": {
                "num_cpus": 2,
                "custom": {"disk": 1},
                "stages": {"classifiers": {"num_gpus": 0.5}},
            }
        },
    )
    assert request_of(config, "extract").amounts == {"CPU": 1, "memory": 3_000 * 2**20}
    assert request_of(config, "annotate").amounts == {"CPU": 2, "memory": 3_000 * 2**20, "disk": 1}
    stage = request_of(config, "annotate", "classifiers")
    assert stage.of == "annotate.classifiers"
    assert stage.amounts == {"CPU": 2, "GPU": 0.5, "memory": 3_000 * 2**20, "disk": 1}
    assert request_of(config, "annotate", "language").is_like(request_of(config, "annotate"))


def test_what_one_machine_must_have_no_two_have_together() -> None:
    """The fault names who asks, for what, and what the nearest machine has of what it lacks."""
    config = engine(
        phases={"annotate": {"num_cpus": 3, "memory_mb": 4096}, "extract": {"num_gpus": 1}}
    )
    machines = [{"CPU": 2.0, "memory": 8.0 * GB}, {"CPU": 8.0, "memory": 4.5 * GB}]
    requests = [request_of(config, phase) for phase in ("annotate", "extract", "tokenize")]
    assert unmet(requests, machines) == [
        "extract asks for CPU 1, GPU 1, memory 2,000 MB; the nearest has only GPU 0",
    ]
    assert unmet(requests[:1], machines[:1]) == [
        "annotate asks for CPU 3, memory 4,096 MB; the nearest has only CPU 2",
    ]
    assert unmet(requests[:1], []) == [
        "annotate asks for CPU 3, memory 4,096 MB; there is no machine"
    ]


def test_stages_that_are_off_ask_for_nothing() -> None:
    """A config may keep what a stage would take."""
    own = (
        "engine.phases={annotate: {stages: {classifiers: {num_gpus: 1}, language: {num_cpus: 2}}}}"
    )
    asked = [request.of for request in requests_of(load("ccnet.yaml", [own]))]
    assert "annotate.language" in asked
    assert "annotate.classifiers" not in asked


@pytest.mark.parametrize(
    ("phases", "fault"),
    [
        ("{anotate: {num_cpus: 2}}", "engine.phases.anotate is no phase; did you mean annotate?"),
        (
            "{annotate: {stages: {classifier: {num_gpus: 1}}}}",
            "engine.phases.annotate.stages.classifier is no stage of annotate; did you mean classifiers?",
        ),
        (
            "{extract: {stages: {warc: {}}}}",
            "stages.warc is no stage of extract; known here: length, unicode, url",
        ),
        (
            "{paragraph_dedup: {stages: {length: {}}}}",
            "engine.phases.paragraph_dedup.stages.length is no stage of paragraph_dedup; it is a global phase without stages",
        ),
        (
            "{annotate: {num_cpu: 2}}",
            "engine.phases.annotate.num_cpu is no known key; did you mean num_cpus?",
        ),
    ],
)
def test_names_that_are_none_are_refused_with_the_nearest(phases: str, fault: str) -> None:
    """Before anything is made ready."""
    with pytest.raises(ConfigError) as caught:
        load("ccnet.yaml", [f"engine.phases={phases}"])
    assert fault in str(caught.value)


def test_resources_leave_fingerprints_alone(tmp_path: Path) -> None:
    """A run goes on in the same folders when its tasks are given more."""
    given = ["input={files: [" + str(Path(__file__)) + "]}", f"run_dir={tmp_path}"]
    plain = make_plan(load("ccnet.yaml", given))
    other = make_plan(load("ccnet.yaml", [*given, "engine.phases={annotate: {memory_mb: 9000}}"]))
    assert plain.phase("extract").fingerprint is not None
    assert [phase.fingerprint for phase in plain.phases] == [
        phase.fingerprint for phase in other.phases
    ]


# ---- a unit that goes on in another task ----

SCHEMA = pa.schema([pa.field("text", pa.string()), pa.field("mark", pa.string())])


def split(name: str, num_rows: int) -> pa.Table:
    marks = [
        json.dumps({"open": name}),
        *[None] * num_rows,
        json.dumps({"close": name, "report": {}}),
    ]
    return pa.table(
        {"text": [f"row {i}" for i in range(num_rows + 2)], "mark": marks}, schema=SCHEMA
    )


@pytest.mark.parametrize("batch_bytes", [1, 40, 10**6])
def test_a_unit_goes_on_in_batches_of_the_same_rows(batch_bytes: int) -> None:
    """In their order, none twice, none left out."""
    whole = split("a", 20)
    batches = list(Handover("language", lambda _: 1, 3, batch_bytes)(whole))
    assert pa.concat_tables(batches).equals(whole)
    assert (len(batches) == 1) == (batch_bytes >= whole.nbytes)


def test_a_unit_whose_second_task_dies_too_often_is_given_up() -> None:
    """Its rows go no further; its closing row says why. Deaths are counted by unit and stage."""
    asked: list[str] = []

    def attempt(name: str) -> int:
        asked.append(name)
        return 4

    opening, closing = Handover("language", attempt, 3, 10**6)(split("a", 20))
    assert asked == ["a.language"]
    assert opening.column("mark").to_pylist() == ['{"open": "a"}']
    (mark,) = closing.column("mark").to_pylist()
    assert "died 3 times" in json.loads(mark)["failed"]


@pytest.mark.parametrize("pieces", [split("a", 3).slice(1), split("a", 3).slice(0, 4)])
def test_a_unit_in_pieces_is_not_taken(pieces: pa.Table) -> None:
    """Rather than that rows go astray in silence."""
    with pytest.raises(AssertionError, match="a unit came in pieces"):
        list(Handover("language", lambda _: 1, 3, 10**6)(pieces))
    with pytest.raises(AssertionError, match="two units came as one"):
        list(
            Handover("language", lambda _: 1, 3, 10**6)(
                pa.concat_tables([split("a", 1), split("a", 1)])
            )
        )


# ---- on a cluster ----


def test_a_clusters_run_lies_where_all_machines_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative folder would be another one on each machine; it is refused before anything is made ready."""
    relative, absolute = (
        load("ccnet.yaml", [f"run_dir={run_dir}"]) for run_dir in ("runs/x", "/shared/runs/x")
    )
    check(relative)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check(absolute)
    check(load("ccnet.yaml", ["run_dir=runs/x", "engine.kind=inline"]))
    with pytest.raises(
        RunAborted, match=r"run_dir is 'runs/x'; on a cluster \(RAY_ADDRESS is set\)"
    ):
        check(relative)
