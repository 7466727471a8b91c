"""A new phase needs one class, one line in the registry and one section of the config."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import Field

from config_files.reader import read
from pipeline.capacity.calibration import read_calibration
from pipeline.capacity.costs import (
    AMOUNTS,
    COSTS,
    MERGED,
    PhaseCost,
    Read,
    find_cost,
)
from pipeline.capacity.estimate import estimate
from pipeline.capacity.fit import fit
from pipeline.capacity.model import Cluster
from pipeline.config import RunConfig
from pipeline.config.run import PHASES_WITHOUT_SECTION
from pipeline.execution.engine import PhaseFinished, run
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.phase import SplitPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.planning.plan import make_plan
from pipeline.reporting.plan_table import print_plan
from pipeline.reporting.report import make_report
from pipeline.reporting.status import read_status
from pipeline.runs import run_folder
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import DECISIONS, RowGroups, SplitWriter, read_row_groups
from stages.contract import DOC_ID, Outcome, Settings, Stage, keep_all
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small

# ---- What a contributor writes: a stage with its settings ...


class ShoutSettings(Settings):
    """Settings of `Shout`."""

    mark: str = "!"


class Shout(Stage[ShoutSettings]):
    """Write the title in capitals."""

    name = "shout"
    version = 1
    needs = pa.schema([pa.field("title", pa.string())])
    adds = pa.schema([pa.field("shouted", pa.string())])
    reasons: ClassVar[Mapping[str, str]] = {}

    def apply(self, batch: pa.Table) -> Outcome:
        titles = pc.utf8_upper(pc.fill_null(batch.column("title"), ""))
        shouted = pc.binary_join_element_wise(titles, self.settings.mark, "")
        return keep_all(batch, {"shouted": shouted})


# ---- ... a phase in one file ...

SHOUTED = pa.schema([DOC_ID, pa.field("shouted", pa.string())])


class ShoutTitles(SplitPhase):
    """Store the title of every kept document in capitals."""

    name = "shout_titles"
    version = 1
    parents = (Annotate, Select)
    stages = (Shout,)
    schema = pa.schema([DOC_ID, pa.field("title", pa.string())])

    titles = Artifact("titles.parquet", SHOUTED)
    decisions = Artifact("decisions.parquet", DECISIONS)

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        del writer
        with self.plan.folder(Select.name).open(
            Select.decisions.file_name(task_id)
        ) as file:
            decisions = pq.read_table(file, columns=["doc_id", "decision"])
        kept = decisions.filter(pc.equal(decisions.column("decision"), "kept")).column(
            "doc_id"
        )
        documents = self.plan.folder(Annotate.name).open(
            Annotate.documents.file_name(task_id)
        )
        for table in read_row_groups(documents, self.schema.names):
            yield table.filter(
                pc.is_in(table.column("doc_id"), value_set=kept.combine_chunks())
            )

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        return _TitleWriter(output, task_id)


class _TitleWriter(SplitWriter):
    def __init__(self, output: PendingOutput, task_id: str) -> None:
        super().__init__(output, task_id)
        self._rows = RowGroups(output.path(ShoutTitles.titles.file_name(task_id)))
        self._rows.start(SHOUTED)

    def write_kept(self, batch: pa.Table) -> None:
        self._rows.add(batch.select(SHOUTED.names))

    def close(self) -> None:
        super().close()
        self._rows.close()


# ---- ... and a section of the config.


class ShoutTitlesConfig(Settings):
    """The section of `shout_titles`."""

    shout: ShoutSettings = Field(default=ShoutSettings(), description="How.")


class ConfigWithShout(RunConfig):
    """The config with one more section."""

    shout_titles: ShoutTitlesConfig | None = Field(default=None, description="Titles.")


@pytest.fixture
def shouting(small: Small, monkeypatch: pytest.MonkeyPatch) -> Small:
    """The small run with the new phase in the registry."""
    before_tokenize = registry.list_phase_names().index("tokenize")
    phases = list(registry.PHASES)
    phases.insert(before_tokenize, ShoutTitles)
    monkeypatch.setattr(registry, "PHASES", tuple(phases))
    monkeypatch.setattr(run_folder, "RunConfig", ConfigWithShout)  # reads run.json
    reads = (Read(Annotate.documents), Read(Select.decisions))
    monkeypatch.setitem(COSTS, ShoutTitles.name, PhaseCost("kept", reads=reads))
    return Small(small.folder, {**small.tree, "shout_titles": {"shout": {"mark": "?"}}})


def make_config(shouting: Small, **changes: Any) -> ConfigWithShout:
    """Return the config of the run with these values of its sections."""
    tree = {**shouting.tree, **changes, "run_dir": str(shouting.folder / "run")}
    shouting.path.write_text(yaml.safe_dump(tree))
    return read(ConfigWithShout, str(shouting.path))


def changed_phases(before: RunPlan, after: RunPlan) -> list[str]:
    """Return the phases whose fingerprints differ."""
    pairs = zip(before.phases, after.phases, strict=True)
    return [one.name for one, other in pairs if one.fingerprint != other.fingerprint]


def test_a_new_phase_runs_in_its_place_and_stores_its_artifacts(shouting: Small) -> None:
    """It runs after its parents and before the next phase, and resumes as the others do."""
    plan = make_plan(make_config(shouting))
    finished = [event.phase for event in run(plan) if isinstance(event, PhaseFinished)]
    assert finished == [each.name for each in registry.list_enabled(plan.config)]
    assert finished.index("shout_titles") == finished.index("select") + 1
    folder, split = plan.folder("shout_titles"), plan.splits[0].key
    titles = pq.read_table(folder.path(ShoutTitles.titles.file_name(split)))
    assert titles.schema.equals(SHOUTED)
    assert titles.num_rows
    assert all(title.endswith("?") for title in titles.column("shouted").to_pylist())
    again = [event for event in run(plan) if isinstance(event, PhaseFinished)]
    assert all(event.was_complete for event in again)


def test_fingerprints_of_a_new_phase_follow_its_own_config_and_its_parents(
    shouting: Small,
) -> None:
    """Its settings rerun only this phase; a threshold of select reruns it too."""
    before = make_plan(make_config(shouting))
    louder = make_plan(make_config(shouting, shout_titles={"shout": {"mark": "!!"}}))
    assert changed_phases(before, louder) == ["shout_titles"]
    stricter = make_plan(make_config(shouting, select={"language": {"min_score": 0.9}}))
    assert "shout_titles" in changed_phases(before, stricter)
    off = make_plan(make_config(shouting, shout_titles=None))
    assert changed_phases(before, off) == ["shout_titles"]


def test_plan_report_and_status_show_a_new_phase(shouting: Small) -> None:
    """The table of the plan, the status and the report have a row for it."""
    plan = make_plan(make_config(shouting))
    console = SafeConsole(width=200, record=True)
    print_plan(plan, console)
    row = next(
        line for line in console.export_text().splitlines() if "shout_titles" in line
    )
    assert row.split()[1] == "shout"
    list(run(plan))
    found = RunFolder.open(plan.run_dir)
    status = read_status(found, now=time.time())
    (phase,) = (phase for phase in status.phases if phase.name == "shout_titles")
    assert (phase.state, phase.num_tasks, phase.num_done) == ("done", 1, 1)
    report = make_report(found)
    assert "shout_titles: shout" in report.seconds
    assert (
        report.steps[-1].num_docs
        == found.folder("tokenize").summary()["counters"]["counts"]["documents"]
    )


def test_a_phase_that_is_off_has_no_tasks(shouting: Small) -> None:
    """The run skips it, and the status shows it as off."""
    plan = make_plan(make_config(shouting, shout_titles=None))
    list(run(plan))
    assert plan.folder("shout_titles").list_done() == frozenset()
    status = read_status(RunFolder.open(plan.run_dir), now=time.time())
    assert {phase.name: phase.state for phase in status.phases}["shout_titles"] == "off"


def test_the_cost_estimate_covers_a_new_phase(shouting: Small) -> None:
    """It warns without measured rates. With them it estimates bytes and seconds."""
    config, cluster = make_config(shouting), Cluster(1, 4, 16)
    shipped = estimate(config, read_calibration(), cluster, num_files=4)
    assert any("shout_titles.shout" in warning for warning in shipped.warnings)
    plan = make_plan(config)
    list(run(plan))
    found = RunFolder.open(plan.run_dir)
    size = float(sum(split.num_bytes for split in plan.splits))
    cost = estimate(config, fit([found]), cluster, num_files=1, input_bytes=size)
    (phase,) = (phase for phase in cost.phases if phase.name == "shout_titles")
    record = found.folder("shout_titles").record(plan.splits[0].key)
    written = sum(output["bytes"] for output in record["outputs"].values())
    assert phase.bytes_written == pytest.approx(written)
    assert phase.bytes_read > 0
    assert set(phase.cpu_s) >= {"read", "shout", "write"}
    assert json.dumps(cost.to_json())


def test_every_phase_is_declared_completely() -> None:
    """Names are unique.

    A phase reads outputs of its parents. Amounts of costs are counted.
    """
    names = registry.list_phase_names()
    assert len(set(names)) == len(names)
    assert set(COSTS) == set(names)
    for phase in registry.PHASES:
        parents = {parent.name for parent in phase.parents}
        cost = find_cost(phase)
        # A phase that merges what its tasks wrote reads its files too.
        assert {read.artifact.phase for read in cost.reads} <= {*parents, phase.name}
        assert {read.cut_by for read in cost.reads} <= {*names, None, MERGED}
        used = {cost.grows_with, *cost.holds, *cost.steps.values()}
        used |= {cost.exchanges or cost.grows_with}
        used |= {cost.artifact_amount(artifact) for artifact in phase.artifacts()}
        assert used <= AMOUNTS.keys()
        assert phase.section in RunConfig.model_fields
        has_section = phase.name in RunConfig.model_fields
        assert has_section != (phase.name in PHASES_WITHOUT_SECTION)
        suffixes = [artifact.suffix for artifact in phase.artifacts()]
        assert len(set(suffixes)) == len(suffixes)
