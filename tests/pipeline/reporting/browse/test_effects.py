"""The effect of other limits: it is what `preview` finds, and the histograms add up."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from config_files.reader import ConfigError
from pipeline.phases.select import Select
from pipeline.reporting.browse.answers import ANSWERS, Parameters, Session
from pipeline.reporting.browse.histograms import NUM_BINS, find_edges
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.limits import OFF, list_limits, list_lines, list_overrides
from pipeline.reporting.preview import preview
from pipeline.runs.split_output import read_table
from stages.filters.quality.rules import RULES

WORDS = "rps_doc_word_count"


@pytest.fixture(scope="module")
def session(index: Index) -> Session:
    return Session(index)


def ask(session: Session, *changes: str, score: str = "language_score") -> dict[str, Any]:
    """Ask for the effect of changed limits."""
    return ANSWERS["effect"](session, Parameters({"set": changes, "score": [score]}))


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["select.language.min_score=0.999"],
        ["select.quality.min_words=40"],
        ["select.quality.min_words=null"],
        ["select.quality.max_words=12", "select.quality.min_words=1"],
        ["select.classifiers.good.keep_top=0.25"],
        ["select.classifiers.good.keep_top=0.5", "select.classifiers.good.max=0.5"],
        ["select.classifiers.good.keep_top=null", "select.language.min_score=0.9"],
        ["select.score.min=0.4", "select.quality.min_words=12"],
        ["select.score.keep_top=0.5"],
    ],
)
def test_the_effect_is_that_of_preview(session: Session, changes: list[str]) -> None:
    """Documents, characters, languages, reasons, and the documents that change sides."""
    found = ask(session, *changes)
    wanted = preview(session.index.run, changes)
    for side in ("before", "after", "newly_kept", "newly_dropped"):
        amount = getattr(wanted, side)
        assert found[side]["num_docs"] == amount.num_docs
        assert found[side]["num_chars"] == amount.num_chars
    assert found["reasons"] == wanted.reasons
    assert found["languages"].keys() == wanted.languages.keys()
    for side in ("examples_kept", "examples_dropped"):
        by_id = {str(one.doc_id): one for one in getattr(wanted, side)}
        for example in found[side]:
            same = by_id[example["doc_id"]]
            for name in ("reason", "value", "limit", "detail"):
                assert example[name] == getattr(same, name)
    assert not session.effects.is_outdated


def test_some_change_moves_documents_to_each_side(session: Session) -> None:
    """Otherwise the test above would compare nothing."""
    more = ask(session, "select.quality.min_words=null")
    fewer = ask(session, "select.quality.min_words=40")
    assert more["examples_kept"]
    assert fewer["examples_dropped"]
    assert all(one["text"] for one in fewer["examples_dropped"])


def test_the_quality_score_decides_as_in_preview(session: Session) -> None:
    """Its cuts come from the documents that the other filters keep, like those of classifiers."""
    overrides = ("select.score.keep_top=0.5", "select.classifiers.good.keep_top=0.6")
    effect = session.effects.compute(overrides)
    wanted = preview(session.index.run, overrides)
    assert int(effect.is_kept.sum()) == wanted.after.num_docs
    assert effect.count_reasons()["score.not_in_top"] > 0
    assert effect.count_reasons() == {
        reason: after for reason, (_, after) in wanted.reasons.items() if after
    }


def test_the_quality_score_has_sliders_and_is_that_of_select(session: Session) -> None:
    """`select` stores the scores of the documents that it keeps."""
    index = session.index
    limits = [limit for limit in session.limits if limit.score == "quality_score"]
    assert {limit.key: limit.value for limit in limits} == {
        "select.score.keep_top": None,
        "select.score.min": 0.0,
    }
    stored: dict[int, float] = {}
    for split in index.run.splits:
        name = Select.scores.file_name(split.key)
        rows = read_table(index.run.folder(Select.name).open(name)).to_pylist()
        stored |= {row["doc_id"]: row["quality_score"] for row in rows}
    computed = index.read_numbers("quality_score")[: index.num_scored]
    by_id = dict(zip(index.doc_ids.tolist(), computed.tolist(), strict=False))
    assert len(stored) > 3
    assert {doc_id: by_id[doc_id] for doc_id in stored} == stored
    answer = ask(session, "select.score.min=0.4", score="quality_score")
    lines = answer["histograms"]["histograms"][0]["lines"]
    assert lines == [{"label": "min", "value": 0.4, "before": 0.0}]


def test_a_limit_by_language_is_a_slider_for_each(session: Session) -> None:
    """And a line in each language; in all languages together there is none."""
    override = "select.language.min_score={default: 0.25, en: 0.5}"
    config = session.index.run.change_config([override])
    (default, english) = list_limits(config, ["language_score"])
    assert (default.key, default.value) == ("select.language.min_score.default", 0.25)
    assert (english.key, english.value) == ("select.language.min_score.en", 0.5)
    overrides = list_overrides([default, english], {english.key: "0.75"})
    assert overrides == ["select.language.min_score.en=0.75"]
    filters = session.effects.compute((override,)).filters
    lines = {
        language: [line.value for line in list_lines(filters, "language_score", language)]
        for language in (None, "en", "fr")
    }
    assert lines == {None: [], "en": [0.5], "fr": [0.25]}


def test_the_histograms_have_each_document_once(session: Session) -> None:
    """In all languages together and by language; the sides agree with the numbers."""
    answer = ask(session, "select.quality.min_words=40", score=WORDS)
    everything, *languages = answer["histograms"]["histograms"]
    sides = ("dropped", "newly_kept", "newly_dropped", "kept")
    totals = {side: np.array(everything[side]) for side in sides}
    assert everything["language"] is None
    for side in sides:
        assert len(everything[side]) == NUM_BINS
        assert np.array_equal(sum(np.array(one[side]) for one in languages), totals[side])
    assert sum(total.sum() for total in totals.values()) == answer["num_scored"]
    before, after = (answer[side]["num_docs"] for side in ("before", "after"))
    assert (totals["kept"] + totals["newly_dropped"]).sum() == before
    assert (totals["kept"] + totals["newly_kept"]).sum() == after
    (line,) = [line for line in everything["lines"] if line["label"] == "min_words"]
    assert (line["value"], line["before"]) == (40, 8)


def test_a_cut_is_drawn_in_its_own_language(session: Session) -> None:
    """keep_top finds one limit per language."""
    answer = ask(session, score="classifier_good")["histograms"]
    cuts = {
        one["language"]: [line["value"] for line in one["lines"]]
        for one in answer["histograms"]
    }
    assert cuts.pop(None) == []
    assert len(cuts["en"]) == 1
    assert answer["edges"][0] <= cuts["en"][0] <= answer["edges"][-1]


@pytest.mark.parametrize("score", ["num_chars", WORDS, "language_score", "classifier_good"])
def test_every_value_is_in_the_bin_of_its_edges(session: Session, score: str) -> None:
    """Values beyond the axis are in the first and last bin."""
    answer = ask(session, score=score)["histograms"]
    values = session.index.read_numbers(score)[: session.index.num_scored]
    edges = np.array(answer["edges"])
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, NUM_BINS - 1)
    everything = answer["histograms"][0]
    drawn = sum(np.array(everything[side]) for side in ("dropped", "kept"))
    assert np.array_equal(np.bincount(bins, minlength=NUM_BINS), drawn)


def test_the_axis_fits_the_values() -> None:
    """Skewed values get a logarithmic axis; a limit nearby is on it; no values are no error."""
    values = np.exp(np.random.default_rng(1).normal(6, 1.5, 10_000))
    edges, is_log = find_edges(values)
    assert is_log
    assert np.all(np.diff(edges) > 0)
    edges, is_log = find_edges(np.linspace(10.0, 20.0, 100), [9.0, 1e9])
    assert not is_log
    assert edges[0] == 9.0
    assert edges[-1] < 21
    for values in (np.array([]), np.array([np.nan]), np.array([3.0, 3.0])):
        edges, is_log = find_edges(values)
        assert np.all(np.diff(edges) > 0)
        assert not is_log


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("select.language.keep=en", "select.language.keep: no such limit; wanted one of"),
        ("run_dir=/", "run_dir: no such limit"),
        ("select.language.min_score=x", "select.language.min_score: 'x' is not a number"),
        ("select.language.min_score=null", "'null' is not a number"),
        ("select.language.min_score=7", "less than or equal to 1"),
        ("select.quality.min_words=5.5", "'5.5' is not a number"),
        ("select.quality.min_words=1\nrun_dir=/", "is not a number"),
    ],
)
def test_only_limits_can_be_changed(session: Session, change: str, message: str) -> None:
    """A wrong key or value is named."""
    with pytest.raises(ConfigError) as raised:
        ask(session, change)
    assert message in "\n".join(raised.value.faults)


def test_every_rule_has_a_limit_that_can_be_moved(session: Session) -> None:
    """Of the quality rules on stored signals. Its bounds include its value."""
    answer = ANSWERS["limits"](session, Parameters({}))
    keys = {limit["key"] for limit in answer["limits"]}
    stored = [rule for rule in RULES if rule.signal in session.index.score_names]
    assert {f"select.quality.{rule.limit}" for rule in stored} < keys
    for limit in answer["limits"]:
        low, high = limit["bounds"]
        assert low < high
        assert limit["value"] is None or low <= limit["value"] <= high


def test_the_percentiles_are_one_key(session: Session) -> None:
    """One of the two changes; the other stays."""
    config = session.index.run.change_config(["select.perplexity.cutoffs=run"])
    limits = list_limits(config, ["perplexity"])
    assert [limit.value for limit in limits] == [30, 60]
    moved = list_overrides(limits, {"select.perplexity.percentiles.1": "45"})
    assert moved == ["select.perplexity.percentiles=[30, 45]"]
    assert list_overrides(limits, {}) == []
    optional = dataclasses.replace(limits[0], key="x", is_optional=True)
    assert list_overrides([optional], {"x": OFF}) == ["x=null"]
