"""Quality rules on Chinese, Japanese, Thai, Arabic, Hindi and Korean: real sentences are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from stages.contract import Outcome, RuleResult, evaluate_all_rules
from stages.filters.quality import (
    Quality,
    QualityFilter,
    QualityFilterSettings,
    QualitySettings,
)
from stages.filters.quality.rules import RULES, describe_exemptions
from tests.stages.filters.other_scripts import NUM_SENTENCES, TEXTS

# Gopher's rules by default, and those of FineWeb and C4.
ALL_RULES = QualityFilterSettings(
    languages=None,
    min_terminal_line_share=0.12,
    max_short_line_share=0.67,
    max_newlines_per_word=0.3,
    min_sentences=5,
    max_lorem_ipsum_share=0,
    max_curly_bracket_share=0,
)


def measure(language: str | None, *texts: str) -> pa.Table:
    """Return texts of one language with their signals."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            "language": pa.array([language] * len(texts), pa.string()),
        }
    )
    return Quality(QualitySettings()).apply(batch).kept


def apply_all_rules(language: str, *texts: str) -> Outcome:
    """Return the outcome of all rules for texts of one language."""
    return QualityFilter(ALL_RULES).apply(measure(language, *texts))


def list_results(language: str | None, text: str) -> dict[str, RuleResult]:
    """Return the result of every rule for a text, by reason."""
    with evaluate_all_rules() as results:
        QualityFilter(ALL_RULES).apply(measure(language, text))
    return {result.reason: result for result in results}


@pytest.mark.parametrize("language", TEXTS)
def test_sentences_of_every_script_are_kept(language: str) -> None:
    """No rule takes a script for bad text."""
    assert apply_all_rules(language, TEXTS[language]).dropped.to_pylist() == []


@pytest.mark.parametrize("language", TEXTS)
def test_repeated_lines_are_dropped_in_every_script(language: str) -> None:
    """Rules of lines need neither words nor sentences."""
    line, _, _ = TEXTS[language].partition("\n")
    (drop,) = apply_all_rules(language, "\n".join([line] * 20)).dropped.to_pylist()
    assert drop["reason"] == "quality.duplicate_lines_too_many"


@pytest.mark.parametrize("language", ["ar", "hi", "ko"])
def test_words_are_counted_where_blanks_separate_them(language: str) -> None:
    """A line of fewer than 50 words is too short, as in English."""
    line, _, _ = TEXTS[language].partition("\n")
    (drop,) = apply_all_rules(language, line).dropped.to_pylist()
    assert (drop["reason"], drop["limit"]) == ("quality.words_too_few", 50)


@pytest.mark.parametrize("language", NUM_SENTENCES)
def test_sentences_end_with_the_marks_of_their_script(language: str) -> None:
    """Each sentence and each line ends with one."""
    (row,) = measure(language, TEXTS[language]).to_pylist()
    assert row["num_sentences"] == NUM_SENTENCES[language]
    assert row["frac_lines_end_with_terminal_punctuation"] == 1


@pytest.mark.parametrize(
    ("language", "off"),
    [
        ("zh", {"words_too_few", "words_too_short", "words_too_long", "hashes_too_many"}),
        ("zh-Hant", {"words_too_few", "short_lines_too_many"}),
        ("th", {"words_too_few", "sentences_too_few", "terminal_lines_too_few"}),
        ("ja", {"alpha_words_too_few", "newlines_too_many", "short_lines_too_many"}),
        ("ko", {"words_too_short", "short_lines_too_many", "stop_words_too_few"}),
        ("hi", {"stop_words_too_few"}),
    ],
)
def test_a_rule_that_measures_nothing_says_that_it_is_off(
    language: str, off: set[str]
) -> None:
    """`explain` prints the value and this detail; no limit is compared."""
    results = list_results(language, "x")
    for reason in off:
        result = results[f"quality.{reason}"]
        assert isinstance(result.limit, pa.ChunkedArray)
        assert result.limit.to_pylist() == [None]
        assert result.detail is not None
        assert result.detail.to_pylist() == ["off for its language"]
        assert result.is_broken.to_pylist() == [False]
    on = results["quality.duplicate_lines_too_many"]
    assert (on.limit, on.detail) == (0.3, None)


@pytest.mark.parametrize("language", ["en", "de", "ar", "hi", "hi-Latn", None])
def test_words_are_judged_where_blanks_separate_them(language: str | None) -> None:
    """And where the language is not known. Romanised Hindi has blanks, as Hindi has."""
    result = list_results(language, "x")["quality.words_too_few"]
    assert result.is_broken.to_pylist() == [True]


def test_languages_with_rules_that_are_off_are_listed() -> None:
    """`plan` prints a line for each cause; rules without a limit are not named."""
    limits = {rule.limit for rule in RULES} - {"max_newlines_per_word", "max_symbol_share"}
    first, *_ = describe_exemptions(limits, None)
    assert first == "off for all languages but en: min_stop_words (the words are English)"
    english, blanks, characters, marks = describe_exemptions(
        limits, ["en", "zh", "th", "ko"]
    )
    assert english == "off for zh, th, ko: min_stop_words (the words are English)"
    assert blanks.startswith("off for zh, th: min_words, max_words, min_mean_word_length, ")
    assert blanks.endswith(", min_alpha_word_share (no blanks between words)")
    assert characters.startswith(
        "off for zh, ko: min_mean_word_length, max_short_line_share ("
    )
    assert marks.startswith("off for th: min_terminal_line_share, min_sentences (")
    assert list(describe_exemptions(limits, ["en"])) == []


def test_bad_words_are_found_inside_texts_without_blanks(tmp_path: Path) -> None:
    """The longest entry counts, and case does not matter."""
    words = tmp_path / "zh.txt"
    words.write_text("地图\n古老的地图\nVIP\n", encoding="utf-8")
    settings = QualitySettings.model_validate({"bad_words": {"zh": "words"}})
    stage = Quality(settings, {"words": words})
    stage.open()
    texts = [TEXTS["zh"], "贵宾vip室", "没有"]
    found = stage.apply(measure("zh", *texts)).kept
    assert found["rps_doc_ldnoobw_words"].to_pylist() == [2, 1, 0]


def test_stop_words_are_refused_where_words_have_no_blanks() -> None:
    """The pieces of such a text are whole clauses, so a share of them says nothing."""
    lists: dict[str, Any] = {"stop_words": {"en": "en.txt", "ja": "ja.txt"}}
    with pytest.raises(ValidationError, match="ja has no blanks between words"):
        QualitySettings.model_validate(lists)
