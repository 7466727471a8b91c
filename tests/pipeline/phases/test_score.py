"""The quality score of a run: stored for kept documents, explained, limited, and previewed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from pipeline.phases.select import Select
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.plan_table import print_plan
from pipeline.reporting.preview import preview
from pipeline.runs.run_folder import RunFolder
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import (
    format_report,
    read_decisions,
    read_sample_metadata,
    write_wet,
)

# From the worst to the best by the default signals that these runs store.
TEXTS = [
    "BUY SHOES",
    "SHOES of the shop\nSHOES of the shop\nSHOES of the shop",
    "the treaty was signed in the museum of the town, and all that we have is kept in a hall",
    (
        "the museum of the town has a treaty with a king, and that treaty is to be kept as people "
        "have known it, in a hall of the town"
    ),
]


@pytest.fixture
def scored(small: Small, tmp_path: Path) -> Small:
    """A config that stores signals, and four pages."""
    language = {**small.tree["annotate"]["language"], "labels": {"fr": "en"}}
    tree: Mapping[str, Any] = {
        **small.tree,
        "input": write_wet(tmp_path / "pages.warc.wet", TEXTS),
        "extract": {"length": {"min_chars": 1}},
        "annotate": {"language": language, "quality": {}},
    }
    return Small(small.folder, tree)


def select(**score: Any) -> dict[str, Any]:
    return {"language": None, "score": score}


def read_scores(run: RunFolder) -> dict[int, float]:
    """Return doc_id -> score of the kept documents."""
    folder = run.folder("select")
    path = folder.path(Select.scores.file_name(run.splits[0].key))
    rows = pq.read_table(path).to_pylist()
    return {row["doc_id"]: row["quality_score"] for row in rows}


def test_the_best_share_is_kept_and_every_score_is_explained(scored: Small) -> None:
    """Scores of kept documents are in the dataset; cut and parts are shown."""
    run, _ = scored.run(select=select(keep_top=0.5))
    decisions = read_decisions(run, "select")
    (cut,) = Select.read_cuts(run.folder("select"))
    assert (cut.setting, cut.num_scored) == ("select.score.keep_top: from", 4)
    assert [row["decision"] for row in decisions] == [
        "score.not_in_top",
        "score.not_in_top",
        "kept",
        "kept",
    ]
    scores = read_scores(run)
    assert list(scores) == [row["doc_id"] for row in decisions[2:]]
    assert list(scores.values()) == sorted(scores.values())
    written = [row["quality_score"] for row in read_sample_metadata(run).values()]
    assert sorted(written) == sorted(scores.values())
    assert "select.score.keep_top" in format_report(run)
    (trace,) = explain(run, str(decisions[0]["doc_id"]))
    parts = trace.rules["select"].score_parts
    assert sum(part.part for part in parts) == pytest.approx(decisions[0]["value"])
    lines = "\n".join(format_trace(trace))
    assert f"quality_score {decisions[0]['value']:.4f}" in lines
    assert "num_chars 9: percentile rank" in lines


def test_a_preview_with_other_weights_equals_a_run(scored: Small) -> None:
    """It counts the signals again, from a run without a score too."""
    before, _ = scored.run("before", select=select())
    off, _ = scored.run("off", select={"language": None})
    wanted = select(signals={"rps_lines_num_words_mean": -1}, keep_top=0.25)
    after, _ = scored.run("after", select=wanted)
    num_kept = len(read_scores(after))
    assert num_kept < len(read_scores(before))
    overrides = [f"select.score={wanted['score']}"]
    for run in (before, off):
        assert preview(run, overrides).after.num_docs == num_kept


def test_the_plan_names_the_signals(scored: Small) -> None:
    """By default, those of the nine that the run stores."""
    out = io.StringIO()
    print_plan(scored.plan(select=select()), SafeConsole(file=out, width=300))
    weights = (
        "num_chars +1, rps_doc_frac_unique_words -1, rps_lines_num_words_mean +1, num_stop_words +1, "
        "frac_chars_top_3gram -1, frac_chars_dupe_10grams -1, rps_lines_uppercase_letter_fraction_mean -1"
    )
    assert f"select.score: weights of percentile ranks: {weights}\n" in out.getvalue()


@pytest.mark.parametrize(
    ("score", "annotate", "fault"),
    [
        ({}, {"quality": None}, "set annotate.quality to {}, or name signals"),
        (
            {"signals": {"perplexty": -1}},
            {},
            "names perplexty, which annotate does not store; known here",
        ),
        ({"signals": {"num_char": 1}}, {}, "did you mean num_chars?"),
        ({"signals": {"num_chars": 0}}, {}, "signals.num_chars is 0"),
        ({"intercept": 1}, {}, "intercept is 1.0, and signals is null"),
        ({"keep_top": 0}, {}, "greater than 0"),
        ({"weights": {}}, {}, "weights"),
    ],
)
def test_a_wrong_score_is_refused(
    scored: Small, score: dict[str, Any], annotate: dict[str, Any], fault: str
) -> None:
    """The error names the key, and the nearest signal."""
    with pytest.raises(ConfigError) as caught:
        scored.config(select=select(**score), annotate=annotate)
    assert fault in str(caught.value)
