"""Labels and scores equal fastText's own, and the filter uses only the stored columns."""

from __future__ import annotations

import lzma
import pickle
import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import fasttext
import numpy as np
import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.filters.language import (
    Language,
    LanguageFilter,
    LanguageFilterSettings,
    LanguageSettings,
    compute_min_score,
)
from stages.settings.languages import (
    ISO_639_3,
    LID_176,
    convert_label,
    normalize_code,
    read_labels,
    suggest_language,
)
from tests.conftest import REPOSITORY
from tests.stages.batches import make_batch

# Texts that trip line readers: empty, blank, NUL, odd line breaks, the model's own markers.
HOSTILE = [
    "",
    "\n\n",
    " ",
    "\0",
    "a\0b",
    "\r\n\t\v\f",
    "\u2028\x85",
    "\U0010ffff",
    "x" * 100_000,
    "</s> oui",
    "__label__xx",
]


def opened(path: Path, max_chars: int | None = None) -> Language:
    """Return the stage with the model at `path` loaded."""
    stage = Language(LanguageSettings(model="lid", max_chars=max_chars), {"lid": path})
    stage.open()
    return stage


def read_languages(
    stage: Language, texts: Sequence[str | None]
) -> list[tuple[str | None, float]]:
    """Return (language, language_score) of every text."""
    batch = make_batch(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("language").equals(Language.adds.field("language"))
    assert outcome.kept.schema.field("language_score").equals(
        Language.adds.field("language_score")
    )
    return list(
        zip(
            outcome.kept["language"].to_pylist(),
            outcome.kept["language_score"].to_pylist(),
            strict=True,
        )
    )


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fastText model of two languages."""
    folder = tmp_path_factory.mktemp("lid")
    lines = [
        "__label__en the cat and the dog are here",
        "__label__fr le chat et le chien sont ici",
    ] * 50
    (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # fastText 0.9.3 draws a tenth of the weights per thread and leaves the rest as malloc gave them: NaN, now and then.
    model = fasttext.train_supervised(
        str(folder / "train.txt"),
        dim=10,
        epoch=20,
        lr=0.5,
        minn=2,
        maxn=3,
        bucket=1000,
        thread=11,
        verbose=0,
    )
    model.save_model(str(folder / "lid.bin"))
    return folder / "lid.bin"


@pytest.fixture(scope="module")
def tiny_stage(tiny_model: Path) -> Language:
    """The stage with the tiny model loaded."""
    return opened(tiny_model)


def test_labels_are_read_from_the_beginning_of_the_model(tiny_model: Path) -> None:
    """They equal the labels of fastText. A file that is no model has none."""
    assert read_labels(tiny_model) == {"en", "fr"}
    text = tiny_model.with_name("train.txt")
    assert read_labels(text) is None
    cut = tiny_model.with_name("cut.bin")
    cut.write_bytes(tiny_model.read_bytes()[:100])
    assert read_labels(cut) is None


def test_the_table_of_codes_has_the_labels_of_lid_176(shared_data: Path) -> None:
    """Config checks use the table, because they run before the model is fetched."""
    assert read_labels(shared_data / "models" / "lid.176.ftz") == LID_176.keys()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("English", "en"), ("nb", "no"), ("iw", "he"), ("pt-BR", "pt"), ("fren", "fr")],
)
def test_the_nearest_code_is_suggested(wrong: str, right: str) -> None:
    """Names, old codes, tags with a region and misspelt names lead to a code."""
    assert suggest_language(wrong, LID_176) == right
    assert suggest_language("qqqqqqq", LID_176) is None


def test_the_sample_of_the_page_is_read_if_wanted(tiny_model: Path) -> None:
    """Documents without a sample, of WET files, are judged by their text."""
    settings = LanguageSettings(model="lid", read="page_sample")
    stage = Language(settings, {"lid": tiny_model})
    stage.open()
    english, french = "the cat and the dog are here", "le chat et le chien sont ici"
    batch = make_batch([english, english, french])
    samples = pa.array([french, None, english], pa.large_string())
    scored = stage.apply(batch.append_column("page_sample", samples)).kept
    assert scored["language"].to_pylist() == ["fr", "en", "en"]
    assert "page_sample" in Language.required_columns(settings).names
    assert Language.required_columns(LanguageSettings()) == Language.needs


def test_reads_the_whole_text_as_one_line(tiny_stage: Language):
    """Newlines are removed, not replaced by spaces, as CCNet removes them."""
    split, joined, spaced = read_languages(
        tiny_stage, ["le\nchat the", "lechat the", "le chat the"]
    )
    assert split == joined != spaced


def test_score_has_two_decimals_and_stays_within_one(tiny_stage: Language):
    """The stored score is rounded and at most 1, even if fastText's is above 1."""
    for _, score in read_languages(
        tiny_stage, ["the cat and the dog", "le chat et le chien", "cat chien"]
    ):
        assert score == round(score, 2)
        assert 0.0 < score <= 1.0


def test_empty_text_has_no_language(tiny_stage: Language):
    """An empty or null text has language null and score 0."""
    assert read_languages(tiny_stage, ["", None]) == [(None, 0.0), (None, 0.0)]


@settings(deadline=None)
@given(texts=st.lists(st.text(max_size=30) | st.sampled_from(HOSTILE), max_size=6))
def test_equals_predict_one_by_one(
    tiny_model: Path, tiny_stage: Language, texts: list[str]
):
    """In any batch, labels and scores equal fastText's for each text."""
    model = fasttext.load_model(str(tiny_model))
    wanted: list[tuple[str | None, float]] = []
    for text in texts:
        labels, scores = map(list, model.predict([text.replace("\n", "")]))
        label, score = labels[0][0], scores[0][0]
        wanted.append(
            (label.removeprefix("__label__"), round(float(score), 2))
            if text
            else (None, 0.0)
        )
    assert read_languages(tiny_stage, texts) == wanted
    assert [row for text in texts for row in read_languages(tiny_stage, [text])] == wanted


@pytest.fixture(scope="module")
def glot_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fastText model whose labels are those of GlotLID, for English, Russian and Hindi."""
    folder = tmp_path_factory.mktemp("glot")
    words = [
        "__label__eng_Latn the cat and the dog are here",
        "__label__rus_Cyrl кошка и собака уже здесь",
        "__label__hin_Latn billi aur kutta yahan hain",
    ] * 50
    (folder / "train.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    model = fasttext.train_supervised(
        str(folder / "train.txt"),
        dim=10,
        epoch=20,
        lr=0.5,
        minn=2,
        maxn=3,
        bucket=1000,
        thread=11,
        verbose=0,
    )
    model.save_model(str(folder / "glot.bin"))
    return folder / "glot.bin"


def test_labels_of_other_models_become_codes(glot_model: Path):
    """The table gives the codes; `labels` has other codes for some labels."""
    texts = ["the dog", "собака здесь", "kutta yahan", ""]
    by_table = read_languages(opened(glot_model), texts)
    renaming = Language(
        LanguageSettings(model="glot", labels={"rus_Cyrl": "russe"}), {"glot": glot_model}
    )
    renaming.open()
    renamed = read_languages(renaming, texts)
    assert [code for code, _ in by_table] == ["en", "ru", "hi-Latn", None]
    assert [code for code, _ in renamed] == ["en", "russe", "hi-Latn", None]
    assert [score for _, score in renamed] == [score for _, score in by_table]


@pytest.mark.parametrize(
    ("label", "code"),
    [
        ("deu_Latn", "de"),
        ("cmn_Hani", "zh"),
        ("zho_Hant", "zh"),
        ("srp_Latn", "sr"),
        ("uzn_Cyrl", "uz-Cyrl"),  # usually in Latin letters
        ("als", "als"),  # of lid.176: Alemannic
        ("als_Latn", "sq"),  # of ISO 639-3: Tosk Albanian
        ("gsw_Latn", "als"),
        ("nob_Latn", "no"),
        ("ckb_Arab", "ckb"),
        ("ary_Arab", "ary_Arab"),  # Moroccan Arabic has no code
        ("zxx_Zxxx", "zxx_Zxxx"),
    ],
)
def test_labels_become_the_codes_of_lid_176(label: str, code: str) -> None:
    """A script is left out where it is usual; a label without a code stays."""
    assert convert_label(label) == code


def test_the_codes_of_lid_176_are_fixed_points() -> None:
    """A label of lid.176 is its own code, in models and in configs."""
    for code in LID_176:
        assert (convert_label(code), normalize_code(code)) == (code, code)


def test_a_config_can_name_one_script_of_several() -> None:
    """All of Chinese is zh, so one of its scripts has another code. Hani is both."""
    codes = ["cmn_Hani", "zho_Hant", "zh-Hant", "srp_Cyrl", "hin_Deva"]
    assert list(map(normalize_code, codes)) == ["zh", "zh-Hant", "zh-Hant", "sr-Cyrl", "hi"]


def test_labels_with_a_script_reach_every_code_of_lid_176() -> None:
    """Except Nahuatl, a group of languages without a code in ISO 639-3."""
    assert LID_176.keys() - set(ISO_639_3.values()) == {"nah"}


def test_scores_are_counted_by_language(tiny_stage: Language) -> None:
    """In hundredths; a text without a language has no score."""
    texts = ["the cat and the dog", "le chat et le chien", "the dog", ""]
    outcome = tiny_stage.apply(make_batch(texts))
    counted: dict[str, list[float]] = {"language_score.en": [], "language_score.fr": []}
    for row in outcome.kept.to_pylist():
        if row["language"] is not None:
            counted[f"language_score.{row['language']}"].append(row["language_score"])
    found = outcome.counters.histograms
    assert found.keys() == counted.keys()
    for name, scores in counted.items():
        assert sorted(found[name].elements()) == sorted(round(100 * s) for s in scores)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=60))
def test_a_limit_of_the_run_is_median_minus_deviation(hundredths: list[int]) -> None:
    """As numpy computes them from all scores, within 0.3 and 0.9."""
    scores = np.array(hundredths) / 100
    wanted = min(max(float(np.median(scores) - np.std(scores)), 0.3), 0.9)
    assert compute_min_score(Counter(hundredths)) == pytest.approx(wanted, abs=5.1e-5)


def test_max_chars_reads_only_the_start(tiny_model: Path):
    """The rest of the text has no effect. Code points are counted, not bytes."""
    stage = opened(tiny_model, max_chars=9)
    short, long = read_languages(
        stage, ["él chat é", "él chat é the cat and the dog are here"]
    )
    assert short == long
    assert read_languages(opened(tiny_model), ["él chat é"]) == [short]


def test_nothing_is_printed(tiny_model: Path, capfd: pytest.CaptureFixture[str]):
    """Opening and applying print nothing."""
    read_languages(opened(tiny_model), ["the cat"])
    assert capfd.readouterr() == ("", "")


def test_unopened_stage_pickles(tiny_model: Path):
    """A stage can be pickled before it is opened, and lists its file."""
    pickled = pickle.dumps(Language(LanguageSettings(model="lid"), {"lid": tiny_model}))
    stage = pickle.loads(pickled)
    stage.open()
    assert stage.required_files(stage.settings) == ("lid",)
    assert read_languages(stage, ["the dog"])[0][0] == "en"


@pytest.mark.shared_data
def test_labels_of_lid_176_hold_their_floor(shared_data: Path):
    """Accuracy on 200 labelled sentences of each of five languages does not fall."""
    floors = {"en": 0.995, "fr": 0.99, "de": 0.995, "ru": 1.0, "zh": 0.97}
    wanted = re.compile("|".join(floors))
    with lzma.open(
        shared_data / "labels" / "eld_big-test_60langs.tsv.xz", "rt", encoding="utf-8"
    ) as file:
        rows = [line.rstrip("\n").split("\t") for line in file if wanted.match(line)]
    stage = opened(shared_data / "models" / "lid.176.ftz")
    for language, floor in floors.items():
        texts: Sequence[str | None] = list(
            islice((text for label, text in rows if label == language), 200)
        )
        found = [label for label, _ in read_languages(stage, texts)]
        assert found.count(language) / len(texts) >= floor, language


@pytest.mark.shared_data
def test_c4_keeps_english_with_many_names(shared_data: Path):
    """Langdetect gives this text more than 0.99, which C4 asks for, and fastText 0.8."""
    text = (
        "Pick up the Yeti Rambler at REI, Costco or Target. Colors: Navy, Charcoal, Seafoam. "
        "It fits most car cup holders."
    )
    stage = opened(shared_data / "models" / "lid.176.ftz")
    [(language, score)] = read_languages(stage, [text])
    c4 = yaml.safe_load((REPOSITORY / "configs" / "c4.yaml").read_text(encoding="utf-8"))
    assert language == "en"
    assert c4["select"]["language"]["min_score"] <= score


@pytest.mark.shared_data
def test_golden_scores_of_lid_176(shared_data: Path):
    """Label and score of fixed sentences equal the recorded ones."""
    stage = opened(shared_data / "models" / "lid.176.ftz")
    texts: Sequence[str | None] = [
        "Where is the\nnearest station?",
        "Où est la gare la plus proche ?",
        "最寄りの駅はどこですか",
    ]
    assert read_languages(stage, texts) == [("en", 0.99), ("fr", 0.97), ("ja", 0.97)]


def apply_filter(
    settings: LanguageFilterSettings, rows: Sequence[tuple[str | None, float]]
) -> tuple[list[int], list[Any]]:
    """Return the kept ids and the drops."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(rows)), pa.uint64()),
            "language": pa.array([language for language, _ in rows], pa.string()),
            "language_score": pa.array([score for _, score in rows], pa.float64()),
        }
    )
    outcome = LanguageFilter(settings).apply(batch)
    outcome.check(batch, "language")
    assert {
        row["reason"] for row in outcome.dropped.to_pylist()
    } <= LanguageFilter.reasons.keys()
    return outcome.kept["doc_id"].to_pylist(), outcome.dropped.to_pylist()


def test_filter_checks_the_score_before_the_language():
    """A score equal to the limit is kept."""
    rows = [("en", 0.5), ("en", 0.49), ("fr", 0.9), ("fr", 0.1), (None, 0.0)]
    kept, dropped = apply_filter(
        LanguageFilterSettings(min_score=0.5, keep=("en", "de")), rows
    )
    assert kept == [0]
    assert dropped == [
        {
            "doc_id": 1,
            "reason": "language.score_too_low",
            "value": 0.49,
            "limit": 0.5,
            "detail": None,
        },
        {
            "doc_id": 3,
            "reason": "language.score_too_low",
            "value": 0.1,
            "limit": 0.5,
            "detail": None,
        },
        {
            "doc_id": 4,
            "reason": "language.score_too_low",
            "value": 0.0,
            "limit": 0.5,
            "detail": None,
        },
        {
            "doc_id": 2,
            "reason": "language.not_wanted",
            "value": None,
            "limit": None,
            "detail": "fr",
        },
    ]


def test_a_language_can_have_its_own_limit():
    """Others, and documents without a language, have the default."""
    rows = [("de", 0.6), ("de", 0.65), ("fr", 0.5), ("fr", 0.49), (None, 0.0)]
    limits = LanguageFilterSettings.model_validate(
        {"min_score": {"default": 0.5, "deu": 0.65}}
    )
    kept, dropped = apply_filter(limits, rows)
    assert kept == [1, 2]
    assert [(row["doc_id"], row["limit"]) for row in dropped] == [
        (0, 0.65),
        (3, 0.5),
        (4, 0.5),
    ]


def test_filter_keeps_every_language_by_default():
    """Without a list only the score decides, and with min_score 0 nothing is dropped."""
    rows = [("en", 0.7), ("qu", 0.8), (None, 0.0)]
    assert apply_filter(LanguageFilterSettings(), rows)[0] == [0, 1]
    assert apply_filter(LanguageFilterSettings(min_score=0.0), rows)[0] == [0, 1, 2]
    assert apply_filter(LanguageFilterSettings(min_score=0.0, keep=("qu",)), rows)[0] == [1]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.none() | st.sampled_from(["en", "fr"]), st.integers(0, 100)),
        max_size=8,
    )
)
def test_filter_accounts_balance(rows: list[tuple[str | None, int]]):
    """Each row of any batch is kept or dropped as the rule says."""
    settings = LanguageFilterSettings(keep=("en",))
    kept, _ = apply_filter(settings, [(language, score / 100) for language, score in rows])
    assert kept == [
        row
        for row, (language, score) in enumerate(rows)
        if score >= 50 and language == "en"
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_score": 1.7},
        {"min_score": -0.1},
        {"min_score": {"default": 0.5, "de": 1.7}},
        {"min_score": {"de": 0.65}},
        {"keep": ()},
        {"threshold": 0.5},
    ],
)
def test_filter_settings_are_checked(wrong: dict[str, Any]):
    """Scores outside 0..1, an empty list and unknown keys are refused."""
    with pytest.raises(ValidationError):
        LanguageFilterSettings(**wrong)
