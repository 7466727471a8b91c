"""Counterfactuals: what is said to be kept is what a real run keeps, and nothing is written."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from config_files.reader import ConfigError
from pipeline.config import load
from pipeline.execution.engine import PhaseFinished, run
from pipeline.phases.annotate import Annotate
from pipeline.planning.plan import make_plan
from pipeline.reporting import preview as previewing
from pipeline.reporting.preview import Preview, decisions_with, preview, print_preview, to_json
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder, RunNotFound
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import PAGES, write_pages

WITH_SIGNALS: dict[str, Any] = {
    "extract": {"length": {"min_chars": 5}},
    "annotate": {"quality": {}},
    "select": {"language": {"min_score": 0.0, "keep": ["en"]}},
}


@pytest.fixture
def signals(small: Small, lid_file: Path) -> Small:
    """A config whose run stores a language and quality signals for pages of every kind, in two files."""
    kinds = [*PAGES, "good", "copy", "half", "french", "french"]
    files = [write_pages(small.folder / f"{name}.warc.wet", kinds) for name in ("first", "second")]
    annotate = WITH_SIGNALS["annotate"] | {"language": {"model": str(lid_file)}}
    tree = {
        **small.tree,
        **WITH_SIGNALS,
        "annotate": annotate,
        "input": {"files": [str(path) for path in files]},
    }
    return Small(small.folder, tree)


def stored_fates(found: RunFolder) -> pa.Table:
    return pa.concat_tables(
        [
            pq.read_table(found.folder("select").path(f"{split.key}.decisions.parquet"))
            for split in found.splits
        ]
    )


def for_good(small: Small, overrides: Sequence[str]) -> RunFolder:
    """A real run with these overrides, in the same folder."""
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
        ["select.language.keep=[xx]"],
    ],
)
def test_what_recut_keeps_is_what_a_run_keeps(signals: Small, overrides: list[str]) -> None:
    """Fates, documents, characters, languages and reasons are those of the ledger and the report of a real run."""
    before, _ = signals.run()
    said = preview(before, overrides)
    decisions = pa.concat_tables(decisions_with(before, before.change_config(overrides)))
    after = for_good(signals, overrides)
    assert decisions.equals(stored_fates(after))
    assert make_report(before).steps[-1].num_docs == said.before.num_docs
    report = make_report(after)
    assert (
        said.after.num_docs
        == sum(report.languages.values())
        == stored_fates(after)["decision"].to_pylist().count("kept")
    )
    assert said.after.num_chars == report.steps[-1].num_chars
    assert {
        name: amount.num_docs for name, (_, amount) in said.languages.items() if amount.num_docs
    } == report.languages
    of_select = {
        decision: n
        for decision, n in report.reasons.items()
        if not decision.startswith(("length.", "paragraphs."))
    }
    assert {reason: n for reason, (_, n) in said.reasons.items() if n} == of_select
    assert (
        said.before.num_docs + said.newly_kept.num_docs - said.newly_dropped.num_docs
        == said.after.num_docs
    )
    assert said.before.num_tokens == make_report(before).num_tokens


def test_tokens_are_counted_where_they_are_known_and_estimated_elsewhere(signals: Small) -> None:
    """What stays has the tokens that the run has counted; what is new has as many a character as its language has."""
    before, _ = signals.run()
    fewer = preview(before, ["select.quality={max_words: 14, min_words: 0}"])
    assert fewer.newly_dropped.num_docs > 0
    assert (
        fewer.after.num_tokens
        == make_report(
            for_good(signals, ["select.quality={max_words: 14, min_words: 0}"])
        ).num_tokens
    )
    more = preview(before, ["select.language.keep=null"])
    share = more.before.num_tokens / more.before.num_chars
    assert more.newly_kept.num_tokens == pytest.approx(more.newly_kept.num_chars * share, abs=1)


def test_examples_name_the_rule_that_decided(signals: Small) -> None:
    """Newly kept ones the rule they fell to, newly dropped ones the rule they would fall to, with the text."""
    before, _ = signals.run()
    said = preview(before, ["select.language={min_score: 0.0, keep: [fr]}"])
    assert {example.reason for example in said.examples_kept} == {"language.not_wanted"}
    assert {example.detail for example in said.examples_kept} == {"fr"}
    assert {example.detail for example in said.examples_dropped} == {"en"}
    assert all(example.text for example in (*said.examples_kept, *said.examples_dropped))
    assert len({example.doc_id for example in said.examples_dropped}) == min(
        10, said.newly_dropped.num_docs
    )
    limited = preview(before, ["select.quality={max_words: 14, min_words: 0}"])
    assert {example.limit for example in limited.examples_dropped} == {14.0}
    assert all(
        example.value is not None and example.value > 14 for example in limited.examples_dropped
    )


def test_at_most_ten_examples_are_drawn_the_same_each_time(small: Small) -> None:
    """From all over the run, not its beginning; twice the same."""
    files = [write_pages(small.folder / f"{name}.warc.wet", ["good"] * 30) for name in "ab"]
    found, _ = small.run(input={"files": [str(path) for path in files]})
    said = preview(found, ["select.language={keep: [fr]}"])
    assert (said.newly_dropped.num_docs, len(said.examples_dropped)) == (60, 10)
    assert {example.doc_id >> 32 for example in said.examples_dropped} == {0, 1}
    assert preview(found, ["select.language={keep: [fr]}"]) == said


PHASE_OF = {
    "annotate.language.max_chars=10": "annotate",
    "annotate.minhash={}": "annotate",
    "paragraph_dedup.keep=drop_all_copies": "paragraph_dedup",
    "extract.length.min_chars=6": "extract",
    "input.files_per_split=2": "extract",
    "fuzzy_dedup={}": "fuzzy_dedup",
    "write_shards.seed=9": "write_shards",
}


def test_a_change_of_more_than_select_is_refused(signals: Small) -> None:
    """With the key and the phase that would have to run again, one line for each."""
    found, _ = signals.run()
    with pytest.raises(ConfigError) as raised:
        preview(found, ["select.language=null", "engine.advanced.batch_mb=1", *PHASE_OF])
    said = {fault.partition(" would have to run again")[0] for fault in raised.value.faults}
    assert said == {
        f"--set {override.partition('=')[0]}: {phase}" for override, phase in PHASE_OF.items()
    }


def test_wrong_keys_and_values_are_refused_as_everywhere(signals: Small) -> None:
    """All at once, with the nearest key."""
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


def test_a_rule_whose_scores_were_not_stored_is_refused(small: Small) -> None:
    """The message names what is missing."""
    found, _ = small.run()
    with pytest.raises(
        ConfigError, match=r"stage quality needs rps_doc_word_count .* was not stored by this run"
    ):
        preview(found, ["select.quality={}"])


def test_nothing_is_written_and_nothing_but_the_run_is_read(signals: Small, tmp_path: Path) -> None:
    """Every file of the run keeps its bytes and times; without input, and moved elsewhere, the answer is the same."""
    found, _ = signals.run()

    def listing() -> dict[str, tuple[int, int]]:
        paths = sorted(Path(found.run_dir).rglob("*"))
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}

    before = listing()
    said = preview(found, ["select.language.keep=null"])
    assert listing() == before
    moved = tmp_path / "elsewhere"
    shutil.move(Path(found.run_dir), moved)
    for path in tmp_path.glob("*.wet"):
        path.unlink()
    again = preview(RunFolder.open(moved), ["select.language.keep=null"])
    assert (again.after, again.examples_kept) == (said.after, said.examples_kept)


def test_a_run_that_is_not_selected_yet_is_told(signals: Small) -> None:
    """There is nothing to compare with before select has run."""
    for event in run(signals.plan()):
        if isinstance(event, PhaseFinished) and event.phase == "fuzzy_dedup":
            break
    with pytest.raises(
        RunNotFound, match="select is not done yet; run the config to its end first"
    ):
        preview(RunFolder.open(signals.folder / "run"), ["select.language=null"])


def test_scores_of_another_version_are_told(
    signals: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run would make them anew first; what is said is by the old ones."""
    found, _ = signals.run()
    assert preview(found, ["select.language=null"]).renewed == ()
    monkeypatch.setattr(Annotate, "version", 99)
    said = preview(found, ["select.language=null"])
    assert said.renewed == ("annotate",)
    assert "a run would do annotate anew" in shown(said)


def shown(said: Preview) -> str:
    out = io.StringIO()
    print_preview(said, Console(file=out, width=140))
    return out.getvalue()


def test_what_is_shown_has_every_part(signals: Small) -> None:
    """Changes, sums, languages, reasons, examples both ways; JSON has the same figures."""
    found, _ = signals.run()
    said = preview(found, ["select.language.keep=[fr]"])
    text = shown(said)
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
    figures = json.loads(to_json(said))
    assert figures["after"]["num_docs"] == said.after.num_docs
    assert figures["languages"]["fr"][1]["num_docs"] == said.after.num_docs


def test_a_run_that_is_not_tokenized_has_no_tokens(signals: Small) -> None:
    """Then nothing is estimated either."""
    for event in run(signals.plan()):
        if isinstance(event, PhaseFinished) and event.phase == "select":
            break
    said = preview(RunFolder.open(signals.folder / "run"), ["select.language=null"])
    assert not said.is_tokenized
    assert said.after.num_tokens == 0
    assert said.after.num_docs > said.before.num_docs > 0
    assert previewing.NUM_EXAMPLES >= len(said.examples_kept) > 0
