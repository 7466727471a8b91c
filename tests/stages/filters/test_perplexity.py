"""Texts are normalised for CCNet's models, scored as one sentence, and sorted into buckets."""

from __future__ import annotations

import io
import pickle
import time
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kenlm
import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.filters.language_model import (
    MAX_PERPLEXITY,
    PLANES,
    SPACES,
    LanguageModel,
    normalize_for_lm,
)
from stages.filters.perplexity import (
    BINS,
    Perplexity,
    PerplexityFilter,
    PerplexityFilterSettings,
    PerplexitySettings,
    read_cutoffs_csv,
)
from stages.histograms import BIN_WIDTH

# ---- normalisation ----

MARKS = "，。、„”“«»」「《》´∶：？！（）；–～’━〈〉【】％►"
PUNCTUATION = dict(zip(MARKS, ',.,"""""""""\'::?!();-~\'-<>[]%-', strict=True))
PUNCTUATION.update({"—": " - ", "．": ". ", "…": "..."})
"""The replacements of CCNet's text_normalizer.py, without the digit １, which is 0 by then."""


def normalized_in_steps(text: str) -> str:
    """Return the text by CCNet's rule, step by step."""
    decomposed = unicodedata.normalize("NFD", text.strip().lower())
    bare = [c for c in decomposed if unicodedata.category(c) != "Mn"]
    digits = ["0" if c.isdecimal() else c for c in bare]
    mapped = "".join(PUNCTUATION.get(c, c) for c in digits)
    return "".join(c for c in mapped if not (ord(c) < 32 or 127 <= ord(c) < 160))


def test_every_code_point_is_normalized_as_in_steps():
    """The table agrees with the rule on every code point, lone surrogates included."""
    text = "x".join(map(chr, range(0x110000)))
    assert normalize_for_lm(text) == normalized_in_steps(text)


@settings(deadline=None)
@given(
    st.text()
    | st.text(
        alphabet=st.characters(categories=["Mn", "Mc", "Me", "Lu", "Nd", "Pi", "Cc", "Zs"])
    )
)
def test_every_string_is_normalized_as_in_steps(text: str):
    """Context (combining marks in any order, final sigma, white space at the ends) makes no difference."""
    assert normalize_for_lm(text) == normalized_in_steps(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" Été\n1984 … ", "ete0000 ..."),
        ("ΟΔΟΣ İ", "οδος i"),
        ("１．「話」", '0. "話"'),
        ("٣٤ ²", "00 ²"),
        ("a\tb\x85c\x00d", "abcd"),
        ("e\u0301\u0327—", "e - "),
        ("", ""),
    ],
)
def test_examples_of_normalization(text: str, line: str):
    """Accents and controls are removed, digits become 0, wide punctuation becomes ASCII."""
    assert normalize_for_lm(text) == line


def test_marks_in_the_wrong_order_take_linear_time():
    """Sorting those of one character took 5 CPU seconds for 100,000 and 90 for 400,000."""
    start_s = time.thread_time()
    stem, dot = "\U0001d165", "\U0001d16d"  # spacing marks of the classes 216 and 226
    assert (
        normalize_for_lm("a" + "\u0301\u0316" * 200_000 + f"b{dot}{stem}")
        == f"ab{stem}{dot}"
    )
    assert time.thread_time() - start_s < 5


def test_spaces_are_all_that_split_knows():
    """SPACES are the characters at which str.split splits and that normalisation does not delete."""
    assert [
        c
        for c in map(chr, range(0x110000))
        if c.isspace() and normalize_for_lm(f"a{c}b") == f"a{c}b"
    ] == [*SPACES]


# ---- scores ----

ARPA = """\\data\\
ngram 1=8
ngram 2=6
ngram 3=2

\\1-grams:
-2.0\t<unk>\t0
-99\t<s>\t-0.4
-1.1\t</s>
-0.7\t▁the\t-0.3
-1.2\t▁cat\t-0.2
-1.3\t▁dog\t-0.25
-0.9\t▁sat\t-0.1
-1.5\t▁0\t-0.15

\\2-grams:
-0.3\t<s> ▁the\t-0.2
-0.6\t▁the ▁cat\t-0.1
-0.5\t▁the ▁dog\t-0.12
-0.4\t▁cat ▁sat\t-0.05
-0.8\t▁dog ▁sat\t-0.06
-0.2\t▁sat </s>

\\3-grams:
-0.1\t<s> ▁the ▁cat
-0.15\t▁the ▁cat ▁sat

\\end\\
"""


def train_pieces(sentences: list[str], model_type: str, rule: str) -> bytes:
    """Return a small SentencePiece model with a normalisation rule."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, vocab_size=40, model_type=model_type,
        normalization_rule_name=rule, hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return model.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models of words (en), of unigram pieces (sco), and of pieces with spaces (ang)."""
    folder = tmp_path_factory.mktemp("lm")
    sentences = [
        "the cat sat",
        "the dog sat",
        "a cat and the dog sat 0",
        "the cat",
        "the dog",
    ] * 40
    kinds = {
        "en": ("word", "nmt_nfkc"),
        "sco": ("unigram", "nmt_nfkc"),
        "ang": ("unigram", "identity"),
    }
    for language, (model_type, rule) in kinds.items():
        (folder / f"{language}.sp.model").write_bytes(
            train_pieces(sentences, model_type, rule)
        )
        (folder / f"{language}.arpa.bin").write_text(ARPA, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def stage(folder: Path) -> Perplexity:
    """The stage with all models loaded."""
    perplexity = Perplexity(
        PerplexitySettings(models=dict.fromkeys(("en", "sco", "ang"), "lm")), {"lm": folder}
    )
    perplexity.open()
    return perplexity


def perplexities(
    stage: Perplexity, rows: Sequence[tuple[str | None, str | None]]
) -> list[float | None]:
    """Return the perplexity of each (language, text)."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(rows)), pa.uint64()),
            "text": pa.array([text for _, text in rows], pa.large_string()),
            "language": pa.array([language for language, _ in rows], pa.string()),
        }
    )
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("perplexity").equals(
        Perplexity.adds.field("perplexity")
    )
    return outcome.kept["perplexity"].to_pylist()


def test_perplexity_of_a_sentence_worked_by_hand(stage: Perplexity):
    """log10 p of `the cat sat </s>` is -0.3 - 0.1 - 0.15 - 0.05 - 0.2 (one backoff), for four tokens."""
    assert perplexities(stage, [("en", "The\x01 Cát sat\n")]) == [round(10 ** (0.8 / 4), 1)]


@pytest.mark.parametrize("language", ["en", "sco", "ang"])
@pytest.mark.parametrize(
    "text",
    [
        "the cat sat",
        "the dog sat 12",
        "a strange cat",
        "sat\u3000\xa0sat sat",
        "日本 the",
        "".join(SPACES),
    ],
)
def test_perplexity_is_the_formula_over_tokens(
    stage: Perplexity, folder: Path, language: str, text: str
):
    """Perplexity is 10 ^ (-log10 p / (tokens + 1)), with KenLM's probabilities and CCNet's tokens."""
    processor = sentencepiece.SentencePieceProcessor(
        model_file=str(folder / f"{language}.sp.model")
    )
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE
    model = kenlm.Model(str(folder / f"{language}.arpa.bin"), config)
    sentence = " ".join(processor.encode(normalized_in_steps(text), out_type=str))
    log10_prob = sum(log10_prob for log10_prob, _, _ in model.full_scores(sentence))
    wanted = 10 ** (-log10_prob / (len(sentence.split()) + 1)) if sentence else None
    assert perplexities(stage, [(language, text)]) == [pytest.approx(wanted, abs=0.051)]


def test_no_model_or_no_text_means_no_perplexity(stage: Perplexity):
    """The perplexity is null for other languages, no language, and texts that are normalised to nothing."""
    rows = [
        ("fr", "the cat"),
        (None, "the cat"),
        ("en", ""),
        ("en", None),
        ("en", "\n\0 \u0301"),
    ]
    assert perplexities(stage, rows) == [None] * 5


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["en", "sco", "ang", "fr", None]),
            st.none() | st.text(max_size=20),
        ),
        max_size=6,
    )
)
def test_batch_makes_no_difference(
    stage: Perplexity, rows: Sequence[tuple[str | None, str | None]]
):
    """Any text has the same score in any batch; scores are finite, at least 1, with one decimal."""
    together = perplexities(stage, rows)
    assert together == [score for row in rows for score in perplexities(stage, [row])]
    assert all(
        score is None or (1 <= score <= MAX_PERPLEXITY and score == round(score, 1))
        for score in together
    )


def test_hopeless_text_has_a_finite_perplexity(tmp_path: Path, folder: Path):
    """Where 10^x would overflow, the limit is stored: the document is in the tail, not in bucket all."""
    (tmp_path / "en.sp.model").write_bytes((folder / "en.sp.model").read_bytes())
    (tmp_path / "en.arpa.bin").write_text(
        ARPA.replace("-2.0\t<unk>", "-900\t<unk>"), encoding="utf-8"
    )
    assert LanguageModel(tmp_path, "en").perplexity("zzzz") == MAX_PERPLEXITY


def test_missing_file_is_named(tmp_path: Path):
    """The error names the missing file and the setting to change."""
    with pytest.raises(
        FileNotFoundError, match=r"no en\.sp\.model, wanted .* point models\.en at a folder"
    ):
        LanguageModel(tmp_path, "en")


def test_nothing_is_printed(folder: Path, capfd: pytest.CaptureFixture[str]):
    """Loading and scoring print nothing."""
    LanguageModel(folder, "en").perplexity("the cat")
    assert capfd.readouterr() == ("", "")


def test_unopened_stage_pickles_and_names_its_files(folder: Path):
    """A stage can be pickled before it is opened; a folder that is used twice is listed once."""
    settings = PerplexitySettings(models={"sco": "b", "en": "b", "de": "a"})
    assert Perplexity.required_files(settings) == ("a", "b")
    pickled = pickle.dumps(
        Perplexity(PerplexitySettings(models={"en": "b"}), {"b": folder})
    )
    stage = pickle.loads(pickled)
    stage.open()
    assert perplexities(stage, [("en", "the cat sat")]) == [round(10 ** (0.8 / 4), 1)]


# ---- cutoffs ----

PERPLEXITIES = st.floats(1.0, MAX_PERPLEXITY, allow_nan=False)


@settings(deadline=None)
@given(st.lists(PERPLEXITIES, min_size=1, max_size=50), st.integers(0, 100))
def test_percentile_is_at_most_one_bin_above_the_exact_one(
    values: list[float], percent: int
):
    """It is above the exact order statistic, by less than one bin."""
    rank = max(1, -(-percent * len(values) // 100))
    exact = sorted(values)[rank - 1]
    cutoff = BINS.find_percentile(Counter(BINS.find(values).tolist()), percent)
    assert exact < cutoff <= exact * BIN_WIDTH * (1 + 1e-12)
    assert sum(value < cutoff for value in values) >= rank


@pytest.mark.parametrize("percent", [1, 30, 60, 99])
def test_percentile_agrees_with_numpy(percent: int):
    """On perplexities like those of a crawl, it is numpy's percentile to one bin."""
    values = np.random.default_rng(0).lognormal(6, 0.8, 4001).clip(1)
    exact = float(np.percentile(values, percent, method="inverted_cdf"))
    assert (
        exact
        < BINS.find_percentile(Counter(BINS.find(values).tolist()), percent)
        <= exact * BIN_WIDTH
    )


@settings(deadline=None)
@given(st.lists(PERPLEXITIES, min_size=1), st.lists(PERPLEXITIES))
def test_histograms_merge_by_addition(some: list[float], others: list[float]):
    """The percentile of added counts is that of the whole."""
    added = Counter(BINS.find(some).tolist()) + Counter(BINS.find(others).tolist())
    assert BINS.find_percentile(added, 30) == BINS.find_percentile(
        Counter(BINS.find([*others, *some]).tolist()), 30
    )


def test_bins_are_pinned():
    """Some bins are recorded, because later versions read stored bins."""
    assert BINS.find([1.0, 1.004, 1.005, 340.0, 1e6, MAX_PERPLEXITY]).tolist() == [
        0,
        0,
        1,
        1168,
        2770,
        138500,
    ]
    assert BINS.find(pa.array([], pa.float64())).tolist() == []


@pytest.mark.parametrize(
    ("histogram", "percent"),
    [({}, 30), ({5: 1}, 101), ({5: 1}, -1), ({5: 1}, float("nan"))],
)
def test_percentile_of_nothing_is_refused(histogram: dict[int, int], percent: float):
    """An empty histogram or a percent outside 0..100 is an error, not a number."""
    with pytest.raises(ValueError, match=r"wanted 0\.\.100 of at least one"):
        BINS.find_percentile(histogram, percent)


def test_reads_the_cutoffs_of_ccnet(tmp_path: Path):
    """A table of percentiles by language gives the two cutoffs of each language."""
    path = tmp_path / "cutoff.csv"
    path.write_text(
        ",de,en\n0,0,10\n30,370,340\n60,590,520\n99,9000,8000\n", encoding="utf-8"
    )
    assert read_cutoffs_csv(path) == {"de": (370.0, 590.0), "en": (340.0, 520.0)}
    assert read_cutoffs_csv(path, (0, 99)) == {"de": (0.0, 9000.0), "en": (10.0, 8000.0)}


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (",en\n30,340\n", "no row for percentile 60, found 30"),
        (",en,de\n30,340,370\n60,520\n", "one number for each of the 2 languages"),
        (",en\n30,340\n60,many\n", "could not convert string to float: 'many'"),
        ("", "no row for percentile 30, found none"),
    ],
)
def test_broken_cutoffs_are_refused(tmp_path: Path, table: str, fault: str):
    """The error has the file and the missing percentile, short row or wrong number."""
    path = tmp_path / "cutoff.csv"
    path.write_text(table, encoding="utf-8")
    with pytest.raises(ValueError, match=fault) as caught:
        read_cutoffs_csv(path)
    assert str(path) in str(caught.value)


# ---- buckets ----

CUTOFFS = {"en": (340.0, 520.0)}


def apply_filter(
    settings: PerplexityFilterSettings, rows: Sequence[tuple[str | None, float | None]]
) -> Any:
    """Return the outcome of the filter for (language, perplexity) rows."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(rows)), pa.uint64()),
            "language": pa.array([language for language, _ in rows], pa.string()),
            "perplexity": pa.array([perplexity for _, perplexity in rows], pa.float64()),
        }
    )
    outcome = PerplexityFilter(settings).apply(batch)
    outcome.check(batch, "perplexity")
    assert outcome.kept.schema.field("bucket").equals(PerplexityFilter.adds.field("bucket"))
    assert {
        row["reason"] for row in outcome.dropped.to_pylist()
    } <= PerplexityFilter.reasons.keys()
    return outcome


ROWS = [
    ("en", 339.9),
    ("en", 340.0),
    ("en", 519.9),
    ("en", 520.0),
    ("en", None),
    ("fr", 100.0),
    (None, 5.0),
]


def test_buckets_end_strictly_below_their_cutoffs():
    """A perplexity equal to a cutoff is in the next bucket.

    Without cutoffs the bucket is "all".
    """
    kept = apply_filter(PerplexityFilterSettings(cutoffs=CUTOFFS), ROWS).kept
    assert kept["bucket"].to_pylist() == [
        "head",
        "middle",
        "middle",
        "tail",
        "all",
        "all",
        "all",
    ]
    assert set(
        apply_filter(PerplexityFilterSettings(), ROWS).kept["bucket"].to_pylist()
    ) == {"all"}


@pytest.mark.parametrize(
    ("keep", "drops"),
    [
        (("head", "middle", "all"), [(3, 520.0, 520.0, "tail")]),
        (
            ("head", "all"),
            [
                (1, 340.0, 340.0, "middle"),
                (2, 519.9, 340.0, "middle"),
                (3, 520.0, 340.0, "tail"),
            ],
        ),
        (("middle", "all"), [(0, 339.9, None, "head"), (3, 520.0, 520.0, "tail")]),
        (
            ("tail", "all"),
            [
                (0, 339.9, None, "head"),
                (1, 340.0, None, "middle"),
                (2, 519.9, None, "middle"),
            ],
        ),
        (
            ("head", "middle", "tail"),
            [(4, None, None, "all"), (5, 100.0, None, "all"), (6, 5.0, None, "all")],
        ),
    ],
)
def test_drops_have_bucket_and_missed_cutoff(
    keep: tuple[str, ...], drops: list[tuple[Any, ...]]
):
    """The limit is the cutoff below which the document would be kept."""
    dropped = apply_filter(
        PerplexityFilterSettings.model_validate({"cutoffs": CUTOFFS, "keep": keep}), ROWS
    ).dropped
    assert [
        (row["doc_id"], row["value"], row["limit"], row["detail"])
        for row in dropped.to_pylist()
    ] == drops


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["en", "fr", None]), st.none() | st.floats(1, 1000)),
        max_size=8,
    )
)
def test_filter_accounts_balance(rows: Sequence[tuple[str | None, float | None]]):
    """Each row of any batch is kept or dropped as the rule says."""
    outcome = apply_filter(PerplexityFilterSettings(cutoffs=CUTOFFS, keep=("head",)), rows)
    assert outcome.kept["doc_id"].to_pylist() == [
        row
        for row, (language, score) in enumerate(rows)
        if language == "en" and score is not None and score < 340
    ]


@pytest.mark.parametrize(
    "wrong",
    [{"cutoffs": {"en": (520, 340)}}, {"cutoffs": {"en": (-1, 340)}}, {"cutoffs": {"en": (float("nan"), 1)}},
     {"keep": ()}, {"keep": ("best",)}, {"cutoffs": {"en": (1, 2, 3)}}],
)  # fmt: skip
def test_filter_settings_are_checked(wrong: dict[str, Any]):
    """Cutoffs out of order, below 0 or not numbers, and unknown buckets are refused."""
    with pytest.raises(ValidationError):
        PerplexityFilterSettings(**wrong)


def test_no_digit_or_accent_is_in_a_plane_that_is_left_out() -> None:
    """The other planes of this Python's Unicode have no characters, or private ones."""
    others = set(range(0x110000)).difference(*PLANES)
    assert {unicodedata.category(chr(code)) for code in others} <= {"Cn", "Co"}
