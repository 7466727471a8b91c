"""The preview: it keeps the documents that a real run keeps, and writes nothing."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from pipeline.config import load
from pipeline.execution.engine import run
from pipeline.phases.annotate import Annotate
from pipeline.planning.plan import make_plan
from pipeline.reporting.browse import build_index
from pipeline.reporting.preview import Preview, preview, print_preview
from pipeline.reporting.preview.effects import Effects
from pipeline.reporting.preview.preview_run import NUM_EXAMPLES
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder, RunNotFound
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small, run_until
from tests.pipeline.reporting.pages import PAGES, write_pages

WITH_SIGNALS: dict[str, Any] = {
    "extract": {"length": {"min_chars": 5}},
    "annotate": {"quality": {}},
    "select": {"language": {"min_score": 0.0, "keep": ["en"]}},
}


@pytest.fixture
def signals(small: Small, lid_file: Path) -> Small:
    """A config whose run stores languages and quality signals for pages of every kind."""
    kinds = [*PAGES, "good", "copy", "half", "french", "french"]
    files = [
        write_pages(small.folder / f"{name}.warc.wet", kinds)
        for name in ("first", "second")
    ]
    annotate = WITH_SIGNALS["annotate"] | {"language": {"model": str(lid_file)}}
    tree = {
        **small.tree,
        **WITH_SIGNALS,
        "annotate": annotate,
        "input": {"files": [str(path) for path in files]},
    }
    return Small(small.folder, tree)


def read_stored_decisions(found: RunFolder) -> pa.Table:
    return pa.concat_tables(
        [
            pq.read_table(found.folder("select").path(f"{split.key}.decisions.parquet"))
            for split in found.splits
        ]
    )


def decide(found: RunFolder, overrides: Sequence[str]) -> dict[int, tuple[Any, ...]]:
    """Return doc_id -> decision, value, limit, detail and bucket under these overrides."""
    with build_index(found) as index:
        effect = Effects(index, counts_all=True).compute(tuple(overrides))
        kept, dropped = effect.phase.decide_all()
    rows = [{**row, "decision": row["reason"]} for row in dropped.to_pylist()]
    rows += [{**row, "decision": "kept"} for row in kept.to_pylist()]
    return {row["doc_id"]: pick_rule(row) for row in rows}


def pick_rule(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the decision and the rule; of a kept document its bucket."""
    names = ("value", "limit", "detail")
    bucket = row.get("bucket") if row["decision"] == "kept" else None
    return (row["decision"], bucket, *(row.get(name) for name in names))


def run_again(small: Small, overrides: Sequence[str]) -> RunFolder:
    """Run the config with these overrides in the same folder."""
    small.config()
    list(run(make_plan(load(str(small.path), [*overrides, f"run_dir={small.folder}/run"]))))
    return RunFolder.open(small.folder / "run")


@pytest.mark.parametrize(
    "overrides",
    [
        ["select.language.keep=null"],
        ["select.language={min_score: 0.99, keep: null}"],
        ["select.quality={min_words: 10, languages: null, min_stop_words: null}"],
        ["select.quality={max_words: 14, min_words: 0}", "select.language.keep=[en, fr]"],
        ["select.quality={min_words: 99999, languages: null}"],
    ],
)
def test_preview_keeps_what_a_run_keeps(signals: Small, overrides: list[str]) -> None:
    """Decisions, documents, characters, languages and reasons equal those of a real run."""
    before, _ = signals.run()
    found_preview = preview(before, overrides)
    decisions = decide(before, overrides)
    after = run_again(signals, overrides)
    stored = {row["doc_id"]: row for row in read_stored_decisions(after).to_pylist()}
    assert decisions == {doc_id: pick_rule(row) for doc_id, row in stored.items()}
    assert make_report(before).steps[-1].num_docs == found_preview.before.num_docs
    report = make_report(after)
    assert (
        found_preview.after.num_docs
        == sum(report.languages.values())
        == read_stored_decisions(after)["decision"].to_pylist().count("kept")
    )
    assert found_preview.after.num_chars == report.steps[-1].num_chars
    assert {
        name: amount.num_docs
        for name, (_, amount) in found_preview.languages.items()
        if amount.num_docs
    } == report.languages
    of_select = {
        decision: n
        for decision, n in report.reasons.items()
        if not decision.startswith(("length.", "paragraphs."))
    }
    assert {reason: n for reason, (_, n) in found_preview.reasons.items() if n} == of_select
    assert (
        found_preview.before.num_docs
        + found_preview.newly_kept.num_docs
        - found_preview.newly_dropped.num_docs
        == found_preview.after.num_docs
    )
    assert found_preview.before.num_tokens == make_report(before).num_tokens


def test_unknown_tokens_are_estimated(signals: Small) -> None:
    """Documents that stay have counted tokens; new ones have the tokens per character of their language."""
    before, _ = signals.run()
    fewer = preview(before, ["select.quality={max_words: 14, min_words: 0}"])
    assert fewer.newly_dropped.num_docs > 0
    assert (
        fewer.after.num_tokens
        == make_report(
            run_again(signals, ["select.quality={max_words: 14, min_words: 0}"])
        ).num_tokens
    )
    more = preview(before, ["select.language.keep=null"])
    share = more.before.num_tokens / more.before.num_chars
    assert more.newly_kept.num_tokens == pytest.approx(
        more.newly_kept.num_chars * share, abs=1
    )


def test_examples_name_the_deciding_rule(signals: Small) -> None:
    """Newly kept examples name the rule that dropped them, newly dropped ones the rule that drops them."""
    before, _ = signals.run()
    found_preview = preview(before, ["select.language={min_score: 0.0, keep: [fr]}"])
    assert {example.reason for example in found_preview.examples_kept} == {
        "language.not_wanted"
    }
    assert {example.detail for example in found_preview.examples_kept} == {"fr"}
    assert {example.detail for example in found_preview.examples_dropped} == {"en"}
    assert all(
        example.text
        for example in (*found_preview.examples_kept, *found_preview.examples_dropped)
    )
    assert len({example.doc_id for example in found_preview.examples_dropped}) == min(
        10, found_preview.newly_dropped.num_docs
    )
    limited = preview(before, ["select.quality={max_words: 14, min_words: 0}"])
    assert {example.limit for example in limited.examples_dropped} == {14.0}
    assert all(
        example.value is not None and example.value > 14
        for example in limited.examples_dropped
    )


def test_examples_are_a_reproducible_sample(small: Small) -> None:
    """At most ten are drawn from the whole run, and the same ones each time."""
    files = [write_pages(small.folder / f"{name}.warc.wet", ["good"] * 30) for name in "ab"]
    found, _ = small.run(input={"files": [str(path) for path in files]})
    found_preview = preview(found, ["select.language={keep: [fr]}"])
    assert (found_preview.newly_dropped.num_docs, len(found_preview.examples_dropped)) == (
        60,
        10,
    )
    assert {example.doc_id >> 32 for example in found_preview.examples_dropped} == {0, 1}
    assert preview(found, ["select.language={keep: [fr]}"]) == found_preview


PHASE_OF = {
    "annotate.language.max_chars=10": "annotate",
    "annotate.minhash={}": "annotate",
    "paragraph_dedup.keep=drop_all_copies": "paragraph_dedup",
    "extract.length.min_chars=6": "extract",
    "input.files_per_split=2": "extract",
    "fuzzy_dedup={}": "fuzzy_dedup",
    "write_shards.seed=9": "write_shards",
}


def test_changes_outside_of_select_are_refused(signals: Small) -> None:
    """There is one line per key, with the phase that would have to run again."""
    found, _ = signals.run()
    with pytest.raises(ConfigError) as raised:
        preview(found, ["select.language=null", "engine.advanced.batch_mb=1", *PHASE_OF])
    found_preview = {
        fault.partition(" would have to run again")[0] for fault in raised.value.faults
    }
    assert found_preview == {
        f"--set {override.partition('=')[0]}: {phase}"
        for override, phase in PHASE_OF.items()
    }


def test_wrong_keys_and_values_are_refused(signals: Small) -> None:
    """All faults are reported at once, with the nearest key."""
    found, _ = signals.run()
    with pytest.raises(ConfigError) as raised:
        preview(
            found,
            [
                "select.langauge=null",
                "select.language.min_score=7",
                "select.perplexity.cutoffs=nowhere.csv",
            ],
        )
    assert any("did you mean language?" in fault for fault in raised.value.faults)
    with pytest.raises(ConfigError, match="no such file; wanted model, run, or the path"):
        preview(found, ["select.perplexity.cutoffs=nowhere.csv"])


def test_rule_without_stored_scores_is_refused(small: Small) -> None:
    """The message names the missing column."""
    found, _ = small.run()
    with pytest.raises(
        ConfigError,
        match=r"stage quality needs rps_doc_word_count .* was not stored by this run",
    ):
        preview(found, ["select.quality={}"])


def test_preview_reads_only_the_run_and_writes_nothing(
    signals: Small, tmp_path: Path
) -> None:
    """The files of the run do not change, and a moved run without input gives the same result."""
    found, _ = signals.run()

    def listing() -> dict[str, tuple[int, int]]:
        paths = sorted(Path(found.run_dir).rglob("*"))
        return {
            str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths
        }

    before = listing()
    found_preview = preview(found, ["select.language.keep=null"])
    assert listing() == before
    moved = tmp_path / "elsewhere"
    shutil.move(Path(found.run_dir), moved)
    for path in tmp_path.glob("*.wet"):
        path.unlink()
    again = preview(RunFolder.open(moved), ["select.language.keep=null"])
    assert (again.after, again.examples_kept) == (
        found_preview.after,
        found_preview.examples_kept,
    )


def test_run_without_select_is_an_error(signals: Small) -> None:
    """Before select has run there is nothing to compare with."""
    list(run_until(signals.plan(), "annotate"))
    with pytest.raises(
        RunNotFound, match="select is not done yet; run the config to its end first"
    ):
        preview(RunFolder.open(signals.folder / "run"), ["select.language=null"])


def test_scores_of_another_version_are_named(
    signals: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The preview uses the stored scores and names the phase that a run would run again."""
    found, _ = signals.run()
    assert preview(found, ["select.language=null"]).outdated == ()
    monkeypatch.setattr(Annotate, "version", 99)
    found_preview = preview(found, ["select.language=null"])
    assert found_preview.outdated == ("annotate",)
    assert "a run would run annotate again" in shown(found_preview)


def shown(found_preview: Preview) -> str:
    out = io.StringIO()
    print_preview(found_preview, SafeConsole(file=out, width=140))
    return out.getvalue()


def test_terminal_and_json_show_every_part(signals: Small) -> None:
    """Changes, sums, languages, reasons and examples are printed; the JSON has the same numbers."""
    found, _ = signals.run()
    found_preview = preview(found, ["select.language.keep=[fr]"])
    text = shown(found_preview)
    for expected in (
        'select.language.keep: ["en"] -> ["fr"]',
        "newly kept",
        "Kept, by language",
        "language.not_wanted",
        "would be dropped: language.not_wanted (en)",
        "was dropped: language.not_wanted (fr)",
        "Nothing was written.",
    ):
        assert expected in text
    figures = json.loads(json.dumps(asdict(found_preview)))
    assert figures["after"]["num_docs"] == found_preview.after.num_docs
    assert figures["languages"]["fr"][1]["num_docs"] == found_preview.after.num_docs


def test_run_without_tokenize_has_no_tokens(signals: Small) -> None:
    """Without counted tokens none are estimated."""
    list(run_until(signals.plan(), "select"))
    found_preview = preview(
        RunFolder.open(signals.folder / "run"), ["select.language=null"]
    )
    assert not found_preview.is_tokenized
    assert found_preview.after.num_tokens == 0
    assert found_preview.after.num_docs > found_preview.before.num_docs > 0
    assert NUM_EXAMPLES >= len(found_preview.examples_kept) > 0
