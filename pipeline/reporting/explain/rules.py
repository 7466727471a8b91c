"""Evaluate the rules of a phase again on what is stored of one document."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from config_files.reader import ConfigError
from pipeline.errors import TaskFailed
from pipeline.models.registry import AssetError
from pipeline.phases.annotate import COPY_BY, Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.filter_phase import REPRESENTATIVE
from pipeline.phases.select import Select
from pipeline.phases.stage_spec import StageSpec
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.explain.trace import RuleCheck, RuleReport
from pipeline.reporting.queries import open_output
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_matching_rows
from stages.contract import RuleResult, evaluate_all_rules
from stages.filters.perplexity import PerplexityFilter
from stages.filters.score import QUALITY_SCORE, Score, ScorePart


def check_rules(
    run: RunFolder, doc_id: int, phase: str, representative: int | None = None
) -> RuleReport:
    """Evaluate every rule of a phase, including those after the one that decided.

    Args:
        run: the run.
        doc_id: a document that the phase, or the one before `select`, has stored.
        phase: extract, annotate or select.
        representative: the document that is kept in place of this one, if select found one.
    """
    try:
        stages = _list_stages(run, phase)
        rows = _read_document(run, doc_id, phase, representative)
        with evaluate_all_rules() as results:
            for spec in stages:
                rows = spec.opened().apply(rows).kept
    except (AssetError, ConfigError, OSError, TaskFailed, ValueError) as error:
        return RuleReport(error=str(error))
    checks = tuple(_read_check(result) for result in results)
    score = None
    if QUALITY_SCORE.name in rows.column_names:
        score = rows.column(QUALITY_SCORE.name)[0].as_py()
    bucket_ends: tuple[float, float] | None = None
    parts: tuple[ScorePart, ...] = ()
    for stage in (spec.opened() for spec in stages):
        if isinstance(stage, PerplexityFilter):
            ends = stage.cutoffs.get(rows.column("language")[0].as_py())
            bucket_ends = (ends[0], ends[1]) if ends else None
        elif isinstance(stage, Score):
            parts = tuple(stage.explain(rows))
    return RuleReport(checks, bucket_ends, parts, score)


def _list_stages(run: RunFolder, phase: str) -> list[StageSpec]:
    """Return the stages whose rules can be evaluated on the stored columns."""
    plan = load_plan(run)
    if phase == Select.name:
        specs = Select(plan).stage_specs()
    else:
        # Stages that add columns, or load a model, have run before the document was stored.
        specs = [
            spec
            for spec in plan.phase(phase).stages
            if not spec.stage.adds.names and not spec.stage.required_files(spec.settings)
        ]
    return [spec for spec in specs if spec.stage.reasons]


def _read_document(
    run: RunFolder, doc_id: int, phase: str, representative: int | None
) -> pa.Table:
    """Read the stored document, with the columns that `select` gets from fuzzy_dedup."""
    artifact = Extract.documents if phase == Extract.name else Annotate.documents
    source = open_output(run, artifact, run.splits[doc_id >> 32].key)
    rows = read_matching_rows(source, "doc_id", doc_id)
    rows = rows.append_column(
        REPRESENTATIVE, pa.array([representative], REPRESENTATIVE.type)
    )
    # exact copies are not stored
    return rows.append_column(COPY_BY, pa.nulls(1, COPY_BY.type))


def _read_check(result: RuleResult) -> RuleCheck:
    return RuleCheck(
        reason=result.reason,
        is_broken=_read_first(result.is_broken),
        value=_read_first(result.value),
        limit=_read_first(result.limit),
        detail=_read_first(result.detail),
    )


def _read_first(values: Any) -> Any:
    """Return the first value of a column; other values are returned unchanged."""
    return values[0].as_py() if isinstance(values, pa.Array | pa.ChunkedArray) else values
