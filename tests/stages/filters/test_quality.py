"""Signals equal their definitions in plain Python; rules drop values past their limits."""

from __future__ import annotations

import lzma
import math
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.contract import Outcome
from stages.filters.quality import (
    DEFINITIONS,
    Quality,
    QualityFilter,
    QualityFilterSettings,
    QualitySettings,
)
from stages.sentence_marks import SENTENCE_MARKS
from tests.stages.kernels.quality.defined_tokens import split_tokens

OFF: dict[str, Any] = {
    name: None
    for name in QualityFilterSettings.model_fields
    if name.startswith(("min", "max"))
}


def make_batch(texts: Sequence[str | None], language: str = "en") -> pa.Table:
    """Return a batch of documents with these texts, numbered from 0."""
    return pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            "language": pa.array([language] * len(texts), pa.string()),
        }
    )


def measure(texts: Sequence[str | None]) -> list[dict[str, Any]]:
    """Return the signals of each text."""
    batch = make_batch(texts)
    outcome = Quality(QualitySettings()).apply(batch)
    outcome.check(batch, "quality")
    assert outcome.kept.schema.field("num_stop_words").type == pa.int64()
    return outcome.kept.select(Quality.adds.names).to_pylist()


def apply_filter(texts: Sequence[str], *, language: str = "en", **keys: Any) -> Outcome:
    """Return the outcome of the filter for texts; rules that are not named are off."""
    scored = Quality(QualitySettings()).apply(make_batch(texts, language)).kept
    outcome = QualityFilter(QualityFilterSettings(**(OFF | keys))).apply(scored)
    outcome.check(scored, "quality")
    return outcome


# --- The definitions, in plain Python ---

WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def lower(text: str) -> str:
    """Return the lower case, character by character, where it is one character."""
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def share(part: float, whole: float) -> float:
    """Return a share; a share of nothing is 0."""
    return part / whole if whole else 0.0


def repeated(items: Sequence[Any], chars: Sequence[int]) -> tuple[float, float]:
    """Return the shares of repeated items, and of their characters."""
    firsts = {item: i for i, item in reversed(list(enumerate(items)))}
    is_repeated = [firsts[item] < i for i, item in enumerate(items)]
    return share(sum(is_repeated), len(items)), share(
        sum(n for n, again in zip(chars, is_repeated, strict=True) if again), sum(chars)
    )


def top_ngram(words: Sequence[str], n: int) -> float:
    """Return RedPajama-V2's rps_doc_frac_chars_top_ngram."""
    grams = Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))
    gram, count = grams.most_common(1)[0] if grams else ((), 0)
    return share(sum(map(len, gram)) * count * (count > 1), sum(map(len, words)))


def dupe_ngrams(words: Sequence[str], n: int) -> float:
    """Return RedPajama-V2's rps_doc_frac_chars_dupe_ngrams."""
    grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
    counts = Counter(grams)
    covered = {i + k for i, gram in enumerate(grams) if counts[gram] > 1 for k in range(n)}
    return share(sum(len(words[i]) for i in covered), sum(map(len, words)))


def top_ngram_in_text(words: Sequence[str], n: int, text: str) -> float:
    """Return the share of datatrove's find_top_duplicate, 0 if the n-gram occurs once."""
    grams = Counter(" ".join(words[i : i + n]) for i in range(len(words) - n + 1))
    gram, count = grams.most_common(1)[0] if grams else ("", 0)
    return share(len(gram) * count * (count > 1), len(text))


def repeated_ngrams(words: Sequence[str], n: int, text: str) -> float:
    """Return the share of datatrove's find_all_duplicate."""
    known: set[tuple[str, ...]] = set()
    num_chars = i = 0
    while i + n <= len(words):
        gram = tuple(words[i : i + n])
        is_repeated = gram in known
        num_chars += sum(map(len, gram)) * is_repeated
        known.add(gram)
        i += n if is_repeated else 1
    return share(num_chars, len(text))


def split_words(text: str) -> list[str]:
    """Return the words without punctuation, in lower case."""
    stripped = (raw.translate(WITHOUT_PUNCTUATION) for raw in text.split())
    return [lower(word) for word in stripped if word]


def defined_word_signals(text: str) -> dict[str, float]:
    """Return the signals of words, by their definitions."""
    raw_words, words = text.split(), split_words(text)
    counts, num_ellipses = Counter(words), text.count("...") + text.count("…")
    return {
        "rps_doc_word_count": len(words),
        "rps_doc_mean_word_length": share(sum(map(len, words)), len(words)),
        "hash_to_word_ratio": share(text.count("#"), len(raw_words)),
        "ellipsis_to_word_ratio": share(num_ellipses, len(raw_words)),
        "frac_words_without_letter": share(
            sum(not any(map(str.isalpha, w)) for w in raw_words), len(raw_words)
        ),
        "rps_doc_lorem_ipsum": share(
            " ".join(words).count("lorem ipsum"), len(" ".join(words))
        ),
        "rps_doc_frac_unique_words": share(len(counts), len(words)),
        "rps_doc_unigram_entropy": -sum(
            n / len(words) * math.log(n / len(words)) for n in counts.values()
        ),
        "num_stop_words": len(
            {"the", "be", "to", "of", "and", "that", "have", "with"} & set(words)
        ),
    }


def defined_ngram_signals(text: str) -> dict[str, float]:
    """Return the signals of word n-grams, by their definitions."""
    words, tokens = split_words(text), split_tokens(text)
    return {
        **{f"rps_doc_frac_chars_top_{n}gram": top_ngram(words, n) for n in range(2, 5)},
        **{
            f"rps_doc_frac_chars_dupe_{n}grams": dupe_ngrams(words, n) for n in range(5, 11)
        },
        **{
            f"frac_chars_top_{n}gram": top_ngram_in_text(tokens, n, text)
            for n in range(2, 5)
        },
        **{
            f"frac_chars_dupe_{n}grams": repeated_ngrams(tokens, n, text)
            for n in range(5, 11)
        },
    }


def split_pieces(text: str) -> list[str]:
    """Return RedPajama-V2's raw words: nltk's WordPunctTokenizer."""
    return re.findall(r"\w+|[^\w\s]+", text)


def defined_piece_signals(text: str) -> dict[str, float]:
    """Return the signals of pieces, sentences and characters, by their definitions."""
    pieces = split_pieces(text)
    num_symbols = text.count("#") + text.count("...") + text.count("…")
    return {
        "rps_doc_num_sentences": len(re.findall(r"\b[^.!?]+[.!?]*", text)),
        "num_sentences": len(
            re.findall(rf"\b[^.!?{SENTENCE_MARKS}]+[.!?{SENTENCE_MARKS}]*", text)
        ),
        "rps_doc_symbol_to_word_ratio": share(num_symbols, len(pieces)),
        "rps_doc_frac_no_alph_words": share(
            sum(not re.search("[a-zA-Z]", p) for p in pieces), len(pieces)
        ),
        "rps_doc_frac_all_caps_words": share(sum(map(str.isupper, pieces)), len(pieces)),
        "rps_doc_curly_bracket": share(text.count("{") + text.count("}"), len(text)),
        "newline_to_word_ratio": share(text.count("\n"), len(pieces)),
    }


def normalize(text: str) -> str:
    """Return the words in normal form, joined by blanks."""
    return " ".join(lower(text.translate(WITHOUT_PUNCTUATION)).split())


def mean(values: Sequence[float]) -> float:
    """Return the mean, added in order so that the last bit equals the kernel's."""
    total = 0.0
    for value in values:
        total += value
    return share(total, len(values))


def defined_line_signals(text: str) -> dict[str, float]:
    """Return the signals of lines, by their definitions."""
    stripped = [line.strip() for line in text.split("\n")]
    lines = [line for line in stripped if line]
    paragraphs = [tuple(run) for is_text, run in groupby(stripped, key=bool) if is_text]
    dupe_lines, dupe_line_chars = repeated(lines, [len(line) for line in lines])
    dupe_paragraphs, dupe_paragraph_chars = repeated(
        paragraphs, [sum(map(len, p)) for p in paragraphs]
    )
    return {
        "rps_doc_frac_lines_end_with_ellipsis": share(
            sum(x.endswith(("...", "…")) for x in lines), len(lines)
        ),
        "frac_lines_start_with_bulletpoint": share(
            sum(x[0] in "-–•‣▶◀◦■□▪▫" for x in lines), len(lines)
        ),
        "frac_lines_end_with_terminal_punctuation": share(
            sum(x[-1] in '.!?"”»›」』﹂﹄｣' + SENTENCE_MARKS for x in lines), len(lines)
        ),
        "frac_short_lines": share(sum(len(x) <= 30 for x in lines), len(lines)),
        "rps_lines_ending_with_terminal_punctution_mark_mean": mean(
            [x[-1] in ".!?”" for x in lines]
        ),
        "rps_lines_javascript_counts_mean": mean(
            [normalize(x).split().count("javascript") for x in lines]
        ),
        "rps_lines_num_words_mean": mean([len(normalize(x).split()) for x in lines]),
        "rps_lines_numerical_chars_fraction_mean": mean(
            [share(sum(map(str.isnumeric, normalize(x))), len(normalize(x))) for x in lines]
        ),
        "rps_lines_start_with_bulletpoint_mean": mean(
            [x[0] in "–•‣▶◀◦■□▪▫" for x in lines]
        ),
        "rps_lines_uppercase_letter_fraction_mean": mean(
            [share(sum(map(str.isupper, x)), len(x)) for x in lines]
        ),
        "frac_dupe_lines": dupe_lines,
        "frac_chars_dupe_lines": dupe_line_chars,
        "frac_dupe_paragraphs": dupe_paragraphs,
        "frac_chars_dupe_paragraphs": dupe_paragraph_chars,
    }


def assert_as_defined(texts: Sequence[str], *, with_ngrams: bool = True) -> None:
    """Check that all signals are equal, and the entropy nearly equal."""
    for text, measured in zip(texts, measure(texts), strict=True):
        expected = (
            defined_word_signals(text)
            | defined_piece_signals(text)
            | defined_line_signals(text)
        )
        if with_ngrams:
            expected |= defined_ngram_signals(text)
        signals = measured if with_ngrams else {name: measured[name] for name in expected}
        entropy = expected.pop("rps_doc_unigram_entropy")
        assert signals.pop("rps_doc_unigram_entropy") == pytest.approx(entropy, abs=1.1e-8)
        assert signals == expected


# --- The signals ---

PHRASES = [
    "the ",
    "The",
    "be",
    "WITH",
    "cat",
    "d'État",
    "a-b",
    "#",
    "...",
    "....",
    "…",
    "-",
    "• ",
    " ",
    '."',
    "”",
]
SCRIPTS = [
    "。",
    "漢字！",
    "।",
    "؟",
    "」",
    "»",
    "12",
    "½",
    "漢字",
    "ไทย",
    "😀",
    "İ",
    "ΣΑΣ",
    "ǅ",
    "Ⓐ",
    "Ⅷ",
    "A_B",
    "Ab",
    "NATO",
]
RARE = [
    "lorem ",
    "ipsum",
    "Lorem, Ipsum!",
    "{",
    "}",
    "javascript ",
    "JavaScript",
    "?!",
    "3.14",
    "_",
]
BREAKS = [
    "\n",
    "\n\n",
    " \n\t\n",
    "\u00a0",
    "\u2028",
    "\x1c",
    "\u3000",
    "\U000e0041",
    "\U0010ffff",
]
phrases = st.sampled_from([*PHRASES, *SCRIPTS, *RARE, *BREAKS])
pages = st.lists(
    st.one_of(phrases, phrases, phrases, st.text(max_size=4)), max_size=60
).map("".join)
refrains = st.lists(
    st.sampled_from(["a ", "bb ", "ccc ", "a bb ", "bb a ccc\n", "a\n\n"]), max_size=60
).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(pages, refrains), max_size=4))
def test_signals_are_as_defined(texts: list[str]):
    """On any text, the compiled signals equal the definitions in plain Python."""
    assert_as_defined(texts)


def test_every_character_is_classified_as_python_does():
    """White space, letters, lower case and punctuation of every code point."""
    known = [chr(p) for p in range(0x34000) if not 0xD800 <= p < 0xE000]
    for between in (" ", "a"):
        assert_as_defined([between.join(known)], with_ngrams=False)
        # The plain definitions of these signals take ten times as long as the others, so they are
        # compared on fewer characters. Unicode blocks after these are mostly ideographs.
        assert_as_defined([between.join(known[:0x3100])])
    beyond = "".join(map(chr, range(0x34000, 0x110000)))
    assert beyond.lower() == beyond
    assert not any(c.isspace() or c.isalnum() or c.isupper() or c.istitle() for c in beyond)
    assert not any(unicodedata.category(c)[0] in "PS" for c in beyond)


def test_punctuation_counts_in_the_n_grams_of_gophers_rules():
    """A table of prices repeats its punctuation; datatrove's words have it, RedPajama-V2's not."""
    text = " ".join(f"({price}) / ($):" for price in "abcdefgh")
    [signals] = measure([text])
    # ") / ( $ )" seven times after the first, and ") / ( $" eight times.
    assert signals["frac_chars_dupe_5grams"] == 7 * 5 / len(text)
    assert signals["frac_chars_top_4gram"] == 8 * len(") / ( $") / len(text)
    assert signals["rps_doc_frac_chars_dupe_5grams"] == 0


def test_definitions_name_every_signal():
    """Each added column has its definition, in the same order."""
    assert list(DEFINITIONS) == Quality.adds.names


def test_empty_and_null_texts_have_zero_signals():
    """All signals of a document without text are 0."""
    assert all(
        value == 0 for signals in measure(["", None, " \n"]) for value in signals.values()
    )
    assert measure([]) == []


@given(texts=st.lists(refrains, max_size=5), cut=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_batch_size_changes_nothing(texts: list[str], cut: int):
    """A slice of a batch has the signals of a separate batch."""
    batch, stage = make_batch(texts), Quality(QualitySettings())
    halves = [stage.apply(batch.slice(0, cut)).kept, stage.apply(batch.slice(cut)).kept]
    assert pa.concat_tables(halves) == stage.apply(batch).kept


@pytest.mark.shared_data
def test_signals_are_as_defined_on_wikipedia(shared_data: Path):
    """Texts of six languages, alone and repeated."""
    for file in sorted((shared_data / "reference").glob("*.xz")):
        with lzma.open(file, "rt", encoding="utf-8") as lines:
            texts = [lines.read(1500) for _ in range(5)]
        assert_as_defined([*texts, texts[0] + texts[1] + "\n\n" + texts[0]])


# --- Lists of words ---

BAD_WORDS = "quality.bad_words_too_many"


def measure_with_lists(
    tmp_path: Path,
    texts: Sequence[str | None],
    languages: Sequence[str | None],
    **lists: Mapping[str, Sequence[str]],
) -> pa.Table:
    """Return the signals of texts with lists of words: setting -> language -> entries."""
    files: dict[str, Path] = {}
    for kind, of_languages in lists.items():
        for language, entries in of_languages.items():
            path = files[f"{kind}-{language}.txt"] = tmp_path / f"{kind}-{language}.txt"
            path.write_text("\n".join(entries), encoding="utf-8")
    settings = {
        kind: {lang: f"{kind}-{lang}.txt" for lang in of} for kind, of in lists.items()
    }
    stage = Quality(QualitySettings(**settings), files)
    assert set(Quality.required_files(stage.settings)) == set(files)
    stage.open()
    batch = make_batch(texts).set_column(2, "language", pa.array(languages, pa.string()))
    kept = stage.apply(batch).kept
    assert kept.select(
        Quality.added_columns(stage.settings).names
    ).schema == Quality.added_columns(stage.settings)
    return kept


ENTRIES = ["the", "a", "bb", "a bb", "bb a ccc", "漢字", "be", "cat the"]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    texts=st.lists(st.one_of(pages, refrains), min_size=1, max_size=4),
    entries=st.sets(st.sampled_from(ENTRIES)),
)
def test_listed_words_are_counted_as_redpajama_does(
    tmp_path: Path, texts: list[str], entries: set[str]
):
    """Word n-grams on a list are counted with overlaps."""
    entries |= {"ccc"}
    kept = measure_with_lists(
        tmp_path,
        texts,
        ["en"] * len(texts),
        bad_words={"en": [*entries]},
        stop_words={"en": [*entries]},
    )
    for text, row in zip(texts, kept.to_pylist(), strict=True):
        words, pieces = normalize(text).split(), split_pieces(text)
        runs = (
            words[i:j]
            for i in range(len(words))
            for j in range(i + 1, min(i + 4, len(words) + 1))
        )
        assert row["rps_doc_ldnoobw_words"] == sum(" ".join(run) in entries for run in runs)
        assert row["rps_doc_stop_word_fraction"] == share(
            sum(p in entries for p in pieces), len(pieces)
        )


def test_each_language_has_its_own_list(tmp_path: Path):
    """Without a list for the language, the signal is null and breaks no rule."""
    texts, languages = (
        ["mist", "mist mist", "mist", None, "mist"],
        ["en", "de", "fr", "de", None],
    )
    kept = measure_with_lists(
        tmp_path, texts, languages, bad_words={"de": ["", "Mist", "mist"], "en": ["rot"]}
    )
    assert kept["rps_doc_ldnoobw_words"].to_pylist() == [0, 2, None, 0, None]
    judge = QualityFilter(
        QualityFilterSettings.model_validate(OFF | {"languages": None, "max_bad_words": 0})
    )
    dropped = judge.apply(kept).dropped.to_pylist()
    assert dropped == [
        {"doc_id": 1, "reason": BAD_WORDS, "value": 2, "limit": 0, "detail": None}
    ]


def test_a_list_without_words_is_refused(tmp_path: Path):
    """An empty or binary file is an error with its path before the run."""
    with pytest.raises(
        ValueError, match=r"bad_words-en\.txt: no word in this list; write one per line"
    ):
        measure_with_lists(tmp_path, ["a"], ["en"], bad_words={"en": [" ", ""]})
    (tmp_path / "latin").write_bytes(b"\xe9t\xe9")
    stage = Quality(
        QualitySettings(stop_words={"fr": "latin"}), {"latin": tmp_path / "latin"}
    )
    with pytest.raises(ValueError, match=r"latin: a list of words must be UTF-8"):
        stage.open()


# --- The rules ---

PROSE = (
    "The committee met on the first day of spring to read what had been written about the river and its people. "
    "Nobody could say with any certainty that their letters would be answered before winter, yet they have kept "
    "writing, as families do when distance grows; some sent drawings, others only dates.\nA clerk copied each page "
    "twice, folded it, and put both into separate drawers."
)


def test_prose_passes_gophers_rules():
    """An ordinary English paragraph breaks no default rule."""
    scored = Quality(QualitySettings()).apply(make_batch([PROSE])).kept
    assert QualityFilter(QualityFilterSettings()).apply(scored).kept.num_rows == 1


NEAR_AND_PAST: list[tuple[str, float, str, str, str, float]] = [
    # limit, its value, a text that keeps to it, one that breaks it, the reason, the value seen
    ("min_words", 3, "a b c", "a b !", "words_too_few", 2),
    ("max_words", 3, "a b c !", "a b c d", "words_too_many", 4),
    ("min_mean_word_length", 3, "ab, abcd", "abc ab", "words_too_short", 2.5),
    ("max_mean_word_length", 3, "été abc", "abcd abc", "words_too_long", 3.5),
    ("max_symbol_share", 0.5, "# a", "# #", "hashes_too_many", 1),
    ("max_symbol_share", 0.5, "… a", "a... b…", "ellipses_too_many", 1),
    ("max_bullet_line_share", 0.5, "• a\nb", "- a\n • b", "bullet_lines_too_many", 1),
    ("max_ellipsis_line_share", 0.5, "a…\nb", "a…\nb... ", "ellipsis_lines_too_many", 1),
    ("min_alpha_word_share", 0.8, "a b c d 1", "a b c 1", "alpha_words_too_few", 0.75),
    ("min_stop_words", 2, "The end of", "the THE the", "stop_words_too_few", 1),
    ("max_duplicate_line_share", 0.5, "a\na", "a\na\na", "duplicate_lines_too_many", 2 / 3),
    (
        "max_duplicate_paragraph_share",
        0.5,
        "a\n\na",
        "a\n\na\n\na",
        "duplicate_paragraphs_too_many",
        2 / 3,
    ),
    (
        "max_duplicate_line_char_share",
        0.4,
        "ab\nab\nc",
        "abc\nabc\nd",
        "duplicate_lines_too_long",
        3 / 7,
    ),
    (
        "max_duplicate_paragraph_char_share",
        0.4,
        "ab\n\nab\n\nc",
        "abc\n\nabc\n\nd",
        "duplicate_paragraphs_too_long",
        3 / 7,
    ),
    (
        "max_top_2gram_char_share",
        6 / 9,
        "a b a b c",
        "a b a b",
        "top_2gram_too_frequent",
        6 / 7,
    ),
    (
        "max_top_3gram_char_share",
        0.9,
        "a b c a b d",
        "a b c a b c",
        "top_3gram_too_frequent",
        10 / 11,
    ),
    (
        "max_top_4gram_char_share",
        0.9,
        "a b c d a b c",
        "a b c d a b c d",
        "top_4gram_too_frequent",
        14 / 15,
    ),
    *(
        (
            f"max_duplicate_{n}gram_char_share",
            0.25,
            " ".join("abcdefghij"[:n] + "abcdefghij"[: n - 1]),
            " ".join("abcdefghij"[:n] * 2),
            f"duplicate_{n}grams_too_many",
            n / (4 * n - 1),
        )
        for n in range(5, 11)
    ),
    ("min_terminal_line_share", 0.5, "a.\nb", "a\nb", "terminal_lines_too_few", 0),
    (
        "max_short_line_share",
        0.5,
        "a" * 30 + "\n" + "b" * 31,
        "a" * 30,
        "short_lines_too_many",
        1,
    ),
    ("max_newlines_per_word", 0.5, "a\nb", "a\n\nb", "newlines_too_many", 1),
    ("min_sentences", 2, "Oh? Well", "Oh well...", "sentences_too_few", 1),
    (
        "max_lorem_ipsum_share",
        0,
        "lorem a ipsum",
        "Lorem ipsum",
        "lorem_ipsum_too_frequent",
        1 / 11,
    ),
    ("max_curly_bracket_share", 0.5, "{}ab", "{}", "curly_brackets_too_many", 1),
]


@pytest.mark.parametrize(
    ("name", "limit", "near", "past", "reason", "value"), NEAR_AND_PAST
)
def test_a_rule_keeps_its_limit_and_drops_values_past_it(
    name: str, limit: float, near: str, past: str, reason: str, value: float
):
    """The drop has reason, value and limit."""
    outcome = apply_filter([near, past], language="en", **{name: limit})
    assert outcome.kept["text"].to_pylist() == [near]
    (drop,) = outcome.dropped.to_pylist()
    assert drop == {
        "doc_id": 1,
        "reason": f"quality.{reason}",
        "value": value,
        "limit": limit,
        "detail": None,
    }


def test_every_reason_is_reached():
    """Each reason is a sentence that names its setting."""
    assert {f"quality.{case[4]}" for case in NEAR_AND_PAST} == set(
        QualityFilter.reasons
    ) - {BAD_WORDS}
    for name, _, _, _, reason, _ in NEAR_AND_PAST:
        sentence = QualityFilter.reasons[f"quality.{reason}"]
        assert name in sentence
        assert sentence.endswith(".")


def test_the_first_broken_rule_is_the_reason():
    """A text that breaks several rules is dropped once, by the order of the settings."""
    outcome = apply_filter(
        ["# #", "# # a"], min_words=1, max_symbol_share=0.1, min_stop_words=1
    )
    assert outcome.dropped["reason"].to_pylist() == [
        "quality.words_too_few",
        "quality.hashes_too_many",
    ]


def test_other_languages_are_not_checked():
    """Documents outside `languages` are kept; null checks every document."""
    assert apply_filter(["zu kurz"], language="de", min_words=50).kept.num_rows == 1
    assert (
        apply_filter(["zu kurz"], language="de", min_words=50, languages=None).kept.num_rows
        == 0
    )
    assert (
        apply_filter(
            ["zu kurz"], language="de", min_words=50, languages=("fr", "de")
        ).kept.num_rows
        == 0
    )


def test_a_language_can_have_its_own_limits():
    """A number, or null for no limit; the limit of the document's language is reported."""
    limits = {"languages": None, "min_words": {"default": 3, "de": 2, "fr": None}}
    for language, limit in (("en", 3), ("de", 2), ("fr", None)):
        dropped = apply_filter(["a b", "a"], language=language, **limits).dropped
        wanted = [limit for words in (2, 1) if limit is not None and words < limit]
        assert dropped["limit"].to_pylist() == wanted


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"min_words": {"de": 2}}, "no limit for other languages than de; add default"),
        ({"min_words": {"default": 2, "de": -1}}, "greater than or equal to 0"),
        ({"min_stop_words": {"default": 2, "en": 9}}, "less than or equal to 8"),
        (
            {"min_words": {"default": 2, "de": 60}, "max_words": 50},
            "min_words is 60 in de, above max_words, which is 50",
        ),
    ],
)
def test_wrong_limits_of_a_language_are_refused(wrong: dict[str, Any], message: str):
    """The error names the language."""
    with pytest.raises(ValidationError, match=message):
        QualityFilterSettings.model_validate(wrong)


def test_defaults_are_gophers():
    """Rae et al. 2021, appendix A.1.1 and table A1; the rules of C4 and FineWeb are off."""
    limits = QualityFilterSettings().model_dump()
    assert [limits[f"max_top_{n}gram_char_share"] for n in (2, 3, 4)] == [0.20, 0.18, 0.16]
    assert [limits[f"max_duplicate_{n}gram_char_share"] for n in range(5, 11)] == [
        0.15,
        0.14,
        0.13,
        0.12,
        0.11,
        0.10,
    ]
    assert (limits["min_words"], limits["max_words"], limits["min_stop_words"]) == (
        50,
        100_000,
        2,
    )
    assert [name for name, limit in limits.items() if limit is None] == [
        "min_terminal_line_share",
        "max_short_line_share",
        "max_newlines_per_word",
        "min_sentences",
        "max_lorem_ipsum_share",
        "max_curly_bracket_share",
        "max_bad_words",
    ]


def test_only_signals_with_a_limit_are_needed():
    """A filter can run on stored scores that lack the other signals."""
    few = QualityFilterSettings.model_validate(OFF | {"min_words": 3, "max_bad_words": 0})
    assert QualityFilter.required_columns(few).names == [
        "doc_id",
        "language",
        "rps_doc_word_count",
        "rps_doc_ldnoobw_words",
    ]


def test_settings_that_keep_nothing_are_refused():
    """The error shows a lower limit that is above its upper limit."""
    with pytest.raises(
        ValidationError,
        match="min_words is 60, above max_words, which is 50: no document could be kept",
    ):
        QualityFilterSettings(min_words=60, max_words=50)
