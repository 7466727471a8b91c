"""Overlap with an evaluation set equals that of a plain Python set of word n-grams."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.filters.decontamination import (
    CONTAMINATION,
    Decontamination,
    DecontaminationFilter,
    DecontaminationFilterSettings,
    DecontaminationSettings,
    _hash_words,
    words,
)
from stages.kernels import ngram_overlap
from tests.stages.batches import make_batch
from tests.stages.examples import HOSTILE

few_words = st.lists(
    st.sampled_from(["a", "B", "c", "d-e", "\u4e2d\u6587", "f\u00ad", "..."]), max_size=14
).map(" ".join)


def opened(
    folder: Path, sets: Mapping[str, Sequence[str]], **others: Any
) -> Decontamination:
    """Return a stage with these examples, one text file per set."""
    files: dict[str, Path] = {}
    for name, examples in sets.items():
        files[name] = folder / f"{name}.txt"
        files[name].write_text(
            "".join(f"{example}\n" for example in examples), encoding="utf-8"
        )
    stage = Decontamination(
        DecontaminationSettings(sets={name: name for name in sets}, **others), files
    )
    stage.open()
    return stage


def find_overlaps(
    stage: Decontamination, *texts: str | None
) -> list[dict[str, tuple[int, float]]]:
    """Return, for each text, set -> (words, share)."""
    batch = make_batch(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("contamination").type == CONTAMINATION.type
    return [
        {one["set"]: (one["words"], one["share"]) for one in row}
        for row in outcome.kept["contamination"].to_pylist()
    ]


def count_shared_words(
    text: str, examples: Sequence[str], longest: int, shortest: int
) -> int:
    """Return the number of words of the text in shared n-grams, by the definition."""
    runs: set[tuple[str, ...]] = set()
    for example in map(words, examples):
        span = min(longest, len(example))
        if span >= shortest:
            runs |= {tuple(example[i : i + span]) for i in range(len(example) - span + 1)}
    mine = words(text)
    covered: set[int] = set()
    for span in range(shortest, longest + 1):
        for i in range(len(mine) - span + 1):
            if tuple(mine[i : i + span]) in runs:
                covered |= set(range(i, i + span))
    return len(covered)


@settings(deadline=None)
@given(
    texts=st.lists(few_words, max_size=4),
    ones=st.lists(few_words, max_size=3),
    others=st.lists(few_words, max_size=3),
    longest=st.integers(1, 4),
    data=st.data(),
)
def test_counts_equal_those_of_a_plain_set_of_ngrams(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    ones: list[str],
    others: list[str],
    longest: int,
    data: st.DataObject,
) -> None:
    """For any texts and sets, also for examples shorter than an n-gram."""
    shortest = data.draw(st.integers(1, longest))
    sets = {"b": [*ones, "a B c d-e"], "a": [*others, "c c c c"]}
    folder = tmp_path_factory.mktemp("sets")
    stage = opened(folder, sets, ngram_words=longest, min_example_words=shortest)
    for text, shared in zip(texts, find_overlaps(stage, *texts), strict=True):
        wanted = {
            name: count_shared_words(text, examples, longest, shortest)
            for name, examples in sets.items()
        }
        assert {name: count for name, (count, _) in shared.items()} == {
            n: c for n, c in wanted.items() if c
        }
        assert all(
            share == round(count / len(words(text)), 4) for count, share in shared.values()
        )


@given(st.text(max_size=60))
def test_the_kernel_finds_the_words_of_the_rule(text: str) -> None:
    """A text has one hash per word, and equal words have equal hashes."""
    mine = words(text)
    hashes, firsts = _hash_words(pa.array(["x", text], pa.large_string()))
    assert firsts.tolist() == [0, 1, 1 + len(mine)]
    assert [hashes[1:].tolist().index(one) for one in hashes[1:].tolist()] == [
        mine.index(word) for word in mine
    ]
    alone = [_hash_words(pa.array([word], pa.large_string()))[0].tolist() for word in mine]
    assert alone == [[one] for one in hashes[1:].tolist()]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_texts_have_the_words_of_the_rule(hostile: str) -> None:
    """The kernel and the rule agree on hostile texts."""
    text = HOSTILE[hostile] or ""
    _, firsts = _hash_words(pa.array([text], pa.large_string()))
    assert firsts.tolist() == [0, len(words(text))]


def test_words_consist_of_letters_only() -> None:
    """Punctuation separates words. Format characters vanish."""
    assert (
        words("\u201cDon\u2019t stop\u2014now!\u201d")
        == words("don't stop, NOW")
        == ["don", "t", "stop", "now"]
    )
    assert words("co\u00adop 3+4=7 caf\u00e9 e\u0301") == [
        "coop",
        "3",
        "4",
        "7",
        "cafe",
        "e",
    ]


def test_a_hyphen_separates_words_as_any_dash_does(tmp_path: Path) -> None:
    """GPT-3 removes it: there "well-known" is one word, and not the two of "well – known"."""
    assert words("well-known") == words("well – known") == ["well", "known"]
    example = "a well-known poet wrote it in the year of the great fire"
    stage = opened(tmp_path, {"quiz": [example]})
    texts = [example.replace("-", dash) for dash in ("-", "\u2010", " \u2013 ", "\u2014")]
    assert find_overlaps(stage, *texts) == [{"quiz": (13, 1.0)}] * 4


def test_width_and_normal_form_hide_no_example() -> None:
    """Full-width letters and digits, and accents as characters of their own."""
    assert words("\uff21\uff42\uff43 \uff11\uff12") == ["abc", "12"]
    assert words("r\u00e9sum\u00e9") == words("re\u0301sume\u0301") == ["resume"]


def test_shares_are_computed_per_set(tmp_path: Path) -> None:
    """Thirteen common words are found, twelve are not, and a whole example of eight is."""
    question = " ".join(f"w{i}" for i in range(20))
    stage = opened(
        tmp_path,
        {
            "long": [question],
            "short": ["one two three four five six seven eight", "too short"],
        },
    )
    part = " ".join(f"W{i}," for i in range(3, 16))
    assert find_overlaps(
        stage,
        f"before it {part} after it",
        " ".join(f"w{i}" for i in range(3, 15)),
        f"{question} and then: one two three four five six seven eight!",
        "one two three four five six seven nine, too short",
        None,
    ) == [
        {"long": (13, round(13 / 17, 4))},
        {},
        {"long": (20, 0.6667), "short": (8, 0.2667)},
        {},
        {},
    ]


def test_sets_are_read_from_text_json_lines_and_folders(tmp_path: Path) -> None:
    """Every string of a .jsonl line is an example; compressed files are read too."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    lines = [
        {"id": 1, "q": "a b c", "options": ["d e f", {"x": "g h i"}], "n": None},
        "j k \ud800 l",
    ]
    (folder / "one.jsonl").write_text(
        "\n\ufeff".join(map(json.dumps, lines)) + "\n\n", encoding="utf-8"
    )
    (folder / "two.txt.gz").write_bytes(gzip.compress(b"m n o\np q r", mtime=0))
    (folder / "README.md").write_text("s t u")
    stage = Decontamination(
        DecontaminationSettings(sets={"x": "mixed"}, ngram_words=3, min_example_words=3),
        {"mixed": folder},
    )
    stage.open()
    texts = [
        "a b c",
        "d e f",
        "g h i",
        "c d e",
        "j k l",
        "m n o",
        "p q r",
        "o p q",
        "s t u",
    ]
    assert [bool(one) for one in find_overlaps(stage, *texts)] == [
        True,
        True,
        True,
        False,
        True,
        True,
        True,
        False,
        False,
    ]


def test_sets_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    """The error has the file and the line."""
    with pytest.raises(ValueError, match=r"sets\.x: no example in .* has 8 words or more"):
        opened(tmp_path, {"x": ["a b c"]})
    (tmp_path / "bad.jsonl").write_text('{"a": "b"}\n{"a": \n')
    (tmp_path / "bad.txt").write_bytes(b"fine\n\xff\n")
    (tmp_path / "none").mkdir()
    for name, message in {
        "bad.jsonl": r"bad\.jsonl, line 2: not JSON",
        "bad.txt": r"bad\.txt, line 2: not UTF-8",
        "none": "no file in this folder ends with one of .jsonl",
    }.items():
        stage = Decontamination(
            DecontaminationSettings(sets={"x": name}), {name: tmp_path / name}
        )
        with pytest.raises(ValueError, match=message):
            stage.open()
    with pytest.raises(ValueError, match="min_example_words is 9, above ngram_words 5"):
        DecontaminationSettings(sets={"x": "x"}, ngram_words=5, min_example_words=9)
    with pytest.raises(ValueError, match="at most 64"):
        DecontaminationSettings(sets={str(i): "x" for i in range(65)})


def test_sixty_four_sets_have_a_bit_each(tmp_path: Path) -> None:
    """64 is the maximum."""
    sets = {
        f"s{i:02}": [f"x{i} y{i}", "shared by all"] for i in range(ngram_overlap.MAX_SETS)
    }
    stage = opened(tmp_path, sets, ngram_words=2, min_example_words=2)
    shared = find_overlaps(stage, "x63 y63", "x0 y0", "shared by")
    assert [set(one) for one in shared] == [{"s63"}, {"s00"}, set(sets)]


# --- Decisions ---


def list_drops(column: list[Any], **limits: Any) -> list[tuple[Any, ...] | None]:
    """Return for each row None, or (value, limit, set)."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(column)), pa.uint64()),
            "contamination": pa.array(
                [
                    None
                    if one is None
                    else [{"set": s, "words": 1, "share": x} for s, x in one.items()]
                    for one in column
                ],
                CONTAMINATION.type,
            ),
        }
    )
    stage = DecontaminationFilter(DecontaminationFilterSettings(**limits))
    whole = stage.apply(batch)
    whole.check(batch, stage.name)
    parts = [stage.apply(batch.slice(i, 1)).dropped for i in range(len(column))]
    assert pa.concat_tables([whole.dropped.slice(0, 0), *parts]) == whole.dropped
    dropped = {
        row["doc_id"]: (row["value"], row["limit"], row["detail"])
        for row in whole.dropped.to_pylist()
    }
    return [dropped.get(i) for i in range(len(column))]


def test_any_overlap_is_too_much_unless_a_limit_is_given() -> None:
    """A share equal to the limit is kept. The drop names the set that exceeds it most."""
    column = [{"a": 0.1}, {}, None, {"a": 0.2, "b": 0.3}, {"a": 1.0}]
    assert list_drops(column) == [
        (0.1, 0.0, "a"),
        None,
        None,
        (0.3, 0.0, "b"),
        (1.0, 0.0, "a"),
    ]
    assert list_drops(column, max_share=0.2) == [
        None,
        None,
        None,
        (0.3, 0.2, "b"),
        (1.0, 0.2, "a"),
    ]
    assert list_drops(column, max_share=1) == [None] * 5
    assert list_drops([{}, None]) == [None, None]


def test_each_set_may_have_its_limit() -> None:
    """A set without a limit drops nothing."""
    column = [{"a": 0.1, "b": 0.9}, {"a": 0.3, "b": 1.0}, {"b": 1.0}, {"a": 0.6, "c": 0.3}]
    limits = {"a": 0.2, "c": 0.1}
    assert list_drops(column, max_share=limits) == [
        None,
        (0.3, 0.2, "a"),
        None,
        (0.6, 0.2, "a"),
    ]


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)), max_size=6),
    st.integers(0, 4),
)
def test_a_row_is_dropped_if_one_set_is_above_its_limit(
    rows: list[dict[str, int]], limit: int
) -> None:
    """The drop names the set that exceeds its limit most."""
    column = [{name: share / 4 for name, share in row.items()} for row in rows]
    for row, decision in zip(column, list_drops(column, max_share=limit / 4), strict=True):
        worst = max(row.values(), default=0)
        assert (decision and decision[:2]) == (
            (worst, limit / 4) if worst > limit / 4 else None
        )
        assert decision is None or row[decision[2]] == worst


def test_every_key_is_in_the_sieve() -> None:
    """For any number of keys, each key has its bit, and few other keys have one."""
    for num_texts in (1, 2, 3, 1000):
        hashes, firsts = _hash_words(
            pa.array([f"t{i}" for i in range(num_texts)], pa.large_string())
        )
        keys = ngram_overlap.compute_ngram_keys(
            ngram_overlap.compute_prefix_states(hashes), firsts, 1, False
        )
        assert len(set(keys.tolist())) == num_texts
        bits = ngram_overlap.build_bit_filter(keys)
        mask = 8 * len(bits) - 1
        assert all(bits[(key & mask) >> 3] >> (key & 7) & 1 for key in keys.tolist())
        assert np.unpackbits(bits).sum() <= num_texts
        assert len(bits) <= max(64, 2 * num_texts)
