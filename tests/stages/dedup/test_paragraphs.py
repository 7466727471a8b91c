"""Paragraph hashes equal those of CCNet, and removal keeps the other lines unchanged."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.contract import Outcome, Stage
from stages.dedup.duplicate_lines import find_duplicates
from stages.dedup.paragraph_hashes import hash_paragraph, hash_paragraphs
from stages.dedup.paragraphs import (
    ParagraphHashes,
    ParagraphRemoval,
)
from stages.settings.base import Settings
from tests.stages.batches import make_batch

Keep: TypeAlias = Literal["drop_all_copies", "keep_first"]

# Made by CCNet's own code (facebookresearch/cc_net at bda555b, its normalize_for_dedup and its hash) on Python 3.11.
GOLDEN = [
    ("", 957977401221134810),
    ("   \t ", 957977401221134810),
    ("Hello, World! 42 times.", 5424979409685322662),
    ("  Où est-ce que l’on s’arrête… « ici » ?  ", 18181130537189921361),
    ("ΟΔΥΣΣΕΥΣ ΣΑΣ, ΤΟ 1999", 12938645559770513339),
    ("İSTANBUL’da 7 gün", 13721972936916586636),
    ("Ёлка – 12 рублей; 5％ скидка", 4821324512500064043),
    ("「東京」は２０２４年、最高です！", 1557934669628797071),
    ("中文（简体）：第３章～第１０章", 6426150478260874953),
    ("مرحبا بالعالم ١٢٣", 9472442048022130614),
    ("हिन्दी में ४५ शब्द", 15926160079000147309),
    ("ﬀ STRASSE ẞ Straße", 1759941607616064216),
    (
        "emoji \U0001f469\u200d\U0001f680 \U0001f680 and \U0001d7d8\U0001d7d9\U0001d7da \U0001d400",
        3192594071458887408,
    ),
    ("\u3000\u5168\u89d2\u30b9\u30da\u30fc\u30b9\u3000", 4551241077519432137),
    ("\x00\x1b[31mred\x1b[0m\x7f\x85 end\x9f", 4774246307375519309),
    ("soft\xadhyphen\u200bzero\ufeffwidth", 16984370010138532875),
    ("   \ufeff  \u0130", 7672457334054432881),
    ("x" * 200, 10614580705021927828),
]

# Anything, with what the rule treats specially made frequent.
LINES = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("Σσςİıſẞ’…「１９٣𝟘\x00\x1c\x85\xa0\u2003\u3000\u200b\u0301 aA0\t"),
        st.sampled_from("abcXYZ 0189"),
    ),
    max_size=80,
)
TEXTS = st.lists(
    st.one_of(st.none(), st.lists(LINES, min_size=1, max_size=5).map("\n".join)), max_size=8
)


def hashes_line_by_line(texts: list[str | None]) -> list[list[int]]:
    """Return the hashes by the plain rule, for each line of each text."""
    return [
        [] if text is None else [hash_paragraph(line) for line in text.split("\n")]
        for text in texts
    ]


def hashes_per_text(texts: pa.Array | pa.ChunkedArray) -> list[list[int]]:
    """Return the hashes by the compiled rule, one list per text."""
    offsets, hashes = hash_paragraphs(texts)
    return [hashes[start:end].tolist() for start, end in pairwise(offsets)]


def hash_lines(lines: list[str]) -> list[int]:
    """Return the hashes by the compiled rule of one text that consists of these lines."""
    return hash_paragraphs(pa.array(["\n".join(lines)], pa.large_string()))[1].tolist()


@pytest.mark.parametrize(("line", "golden"), GOLDEN)
def test_hashes_equal_those_of_ccnets_code(line: str, golden: int) -> None:
    """Both rules give CCNet's hashes, in a dozen scripts."""
    assert hash_paragraph(line) == golden
    assert hash_lines([line]) == [golden]


@given(TEXTS, st.sampled_from([pa.string(), pa.large_string()]))
@settings(deadline=None)
def test_texts_hash_as_their_lines_do(texts: list[str | None], kind: pa.DataType) -> None:
    """The compiled rule equals the plain one on any strings.

    Null has no lines, an empty text has one.
    """
    assert hashes_per_text(pa.array(texts, kind)) == hashes_line_by_line(texts)


@given(TEXTS, st.data())
@settings(deadline=None)
def test_chunks_and_slices_do_not_change_hashes(
    texts: list[str | None], data: st.DataObject
) -> None:
    """Texts may be in several chunks, or in a slice of a longer array."""
    cut = data.draw(st.integers(0, len(texts)))
    whole = pa.array(["before", *texts, "after"], pa.large_string())
    chunked = pa.chunked_array(
        [whole.slice(1, cut), whole.slice(1 + cut, len(texts) - cut)]
    )
    assert hashes_per_text(chunked) == hashes_line_by_line(texts)
    assert hashes_per_text(whole.slice(1, len(texts))) == hashes_line_by_line(texts)


def test_no_texts_have_no_hashes() -> None:
    """Empty arrays and chunked arrays are valid input."""
    for texts in (pa.array([], pa.large_string()), pa.chunked_array([], pa.string())):
        offsets, hashes = hash_paragraphs(texts)
        assert (offsets.tolist(), hashes.tolist()) == ([0], [])


def test_every_code_point_within_a_line() -> None:
    """Each code point between two letters is hashed as in plain Python."""
    code_points = np.r_[0:0xD800, 0xE000:0x110000]
    lines = [
        "".join(f"a{chr(c)}" for c in part if chr(c) != "\n") + "a"
        for part in np.array_split(code_points, 8192)
    ]
    assert hash_lines(lines) == [hash_paragraph(line) for line in lines]


@pytest.mark.parametrize("context", ["{}", "a{}", "{}a", " {}"])
def test_code_points_at_the_ends_of_a_line(context: str) -> None:
    """Alone, last, first and after a blank, for two planes and one in 97 of the others."""
    code_points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 97)]
    lines = [context.format(chr(c)) for c in code_points if c != 10]
    assert hash_lines(lines) == [hash_paragraph(line) for line in lines]


def test_every_length_around_the_blocks_of_sha1() -> None:
    """Messages of 0 to 300 bytes have the hashes of hashlib."""
    lines = ["y" * n for n in range(300)]
    assert hash_lines(lines) == [
        int.from_bytes(
            hashlib.sha1(line.encode(), usedforsecurity=False).digest()[:8], "little"
        )
        for line in lines
    ]


def test_lines_may_grow_when_lower_cased() -> None:
    """The lower case of a long line may need more bytes."""
    line = "Ⱥ" * 100_000 + "İ" * 100_000
    assert hash_lines([line]) == [hash_paragraph(line)]


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=6),
            st.sampled_from([b"\xc3", b"\xe2\x80", b"\xf0\x9f\x98\x80", b"\n"]),
        )
    )
)
@settings(deadline=None)
def test_bytes_that_are_not_utf8_are_refused(pieces: list[bytes]) -> None:
    """Any bytes are either valid UTF-8 and hashed, or refused."""
    raw = b"".join(pieces)
    array = pa.LargeStringArray.from_buffers(
        1, pa.py_buffer(np.array([0, len(raw)])), pa.py_buffer(raw)
    )
    try:
        expected = hashes_line_by_line([raw.decode()])
    except UnicodeDecodeError:
        with pytest.raises(
            ValueError, match=r"text 0, line \d+: not UTF-8 at byte \d+ of the line"
        ):
            hash_paragraphs(array)
    else:
        assert hashes_per_text(array) == expected


def find_duplicates_by_rule(corpus: list[list[int]], keep: Keep) -> list[bool]:
    """Return which hashes are removed, by the two rules in plain Python."""
    must_go: list[bool] = []
    for index, document in enumerate(corpus):
        for line, h in enumerate(document):
            others = (
                corpus[:index]
                if keep == "keep_first"
                else corpus[:index] + corpus[index + 1 :]
            )
            is_elsewhere = any(h in other for other in others)
            must_go.append(h == 0 or h in document[:line] or is_elsewhere)
    return must_go


HASHES = st.one_of(
    st.integers(0, 4), st.integers(0, 4).map(lambda k: k << 61), st.integers(0, 2**64 - 1)
)


@given(
    st.lists(st.lists(HASHES, max_size=8), max_size=8),
    st.sampled_from(["drop_all_copies", "keep_first"]),
    st.booleans(),
)
@settings(deadline=None)
def test_removed_copies_are_those_of_the_rule(
    corpus: list[list[int]], keep: Keep, is_wide: bool
) -> None:
    """Both rules equal brute force, for hashes that differ in any bits."""
    documents = 7 * np.repeat(np.arange(len(corpus)), [len(d) for d in corpus])
    hashes = np.array([h for document in corpus for h in document], np.uint64)
    sized = (
        documents.astype(np.uint64) << np.uint64(32)
        if is_wide
        else documents.astype(np.uint32)
    )
    assert find_duplicates(hashes, sized, keep).tolist() == find_duplicates_by_rule(
        corpus, keep
    )


@pytest.mark.parametrize("keep", ["drop_all_copies", "keep_first"])
def test_many_hashes_of_one_hash_range(keep: Keep) -> None:
    """A frequent hash makes a large partition. The top 16 bits are equal."""
    rng = np.random.default_rng(1)
    hashes = rng.integers(1, 100_000, 200_000, dtype=np.uint64) * np.uint64(
        2**31 - 1
    ) | np.uint64(0xABCD << 48)
    hashes[rng.random(len(hashes)) < 0.4] = 7
    documents = np.sort(rng.integers(0, 20_000, len(hashes))).astype(np.uint32)
    num_documents_of = {
        h: len(set(group))
        for h, group in group_by_key(hashes.tolist(), documents.tolist()).items()
    }
    seen: set[int] = set()
    expected = []
    for h in hashes.tolist():
        expected.append(
            h in seen or (keep == "drop_all_copies" and num_documents_of[h] > 1)
        )
        seen.add(h)
    assert find_duplicates(hashes, documents, keep).tolist() == expected


def group_by_key(keys: list[int], values: list[int]) -> dict[int, list[int]]:
    """Return the values of each key."""
    groups: dict[int, list[int]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    return groups


def test_invalid_input_of_duplicated_is_refused() -> None:
    """Different lengths, unsorted documents, an unknown rule."""
    hashes = np.array([1, 2, 3], np.uint64)
    with pytest.raises(ValueError, match="3 hashes for 2 documents"):
        find_duplicates(hashes, np.array([0, 1], np.uint64), "drop_all_copies")
    with pytest.raises(ValueError, match=r"documents\[2\] is 4 after 5"):
        find_duplicates(hashes, np.array([0, 5, 4], np.uint64), "drop_all_copies")
    with pytest.raises(ValueError, match="keep is 'last'"):
        find_duplicates(hashes, np.array([0, 1, 1], np.uint64), "last")  # pyright: ignore[reportArgumentType]


def apply_stage(stage: Stage[Any], batch: pa.Table) -> Outcome:
    """Apply a stage, check its contract and return the outcome."""
    stage.open()
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    for field in stage.adds:
        assert outcome.kept.schema.field(field.name).type == field.type
    return outcome


HASHING = ParagraphHashes(Settings())
REMOVAL = ParagraphRemoval(Settings())


def documents_table(
    texts: list[str | None], removed: list[list[int] | None] | None = None
) -> pa.Table:
    """Return a batch of documents, with `duplicate_lines` if they are given."""
    table = make_batch(texts)
    if removed is None:
        return table
    return table.append_column("duplicate_lines", pa.array(removed, pa.list_(pa.uint32())))


def apply_in_two_batches(
    stage: Stage[Any], batch: pa.Table, cut: int
) -> tuple[pa.Table, pa.Table]:
    """Return the kept and dropped rows of two batches."""
    halves = [apply_stage(stage, batch.slice(0, cut)), apply_stage(stage, batch.slice(cut))]
    return pa.concat_tables([h.kept for h in halves]), pa.concat_tables(
        [h.dropped for h in halves]
    )


@given(TEXTS, st.integers(0, 8))
@settings(deadline=None)
def test_hashing_adds_hashes_and_lengths(texts: list[str | None], cut: int) -> None:
    """Every document is kept, with its characters, lines and hashes."""
    batch = documents_table(texts)
    outcome = apply_stage(HASHING, batch)
    assert outcome.kept.column("paragraph_hashes").to_pylist() == hashes_line_by_line(texts)
    assert outcome.kept.column("original_num_chars").to_pylist() == [
        len(text or "") for text in texts
    ]
    assert outcome.kept.column("original_num_lines").to_pylist() == [
        0 if text is None else text.count("\n") + 1 for text in texts
    ]
    kept, dropped = apply_in_two_batches(HASHING, batch, min(cut, len(texts)))
    assert kept.equals(outcome.kept)
    assert (outcome.dropped.num_rows, dropped.num_rows) == (0, 0)


@st.composite
def removals(draw: st.DrawFn) -> tuple[list[str | None], list[list[int] | None]]:
    """Texts, and for each text some of its lines, or null."""
    texts = draw(TEXTS)
    removed: list[list[int] | None] = []
    for text in texts:
        last = -1 if text is None else text.count("\n")
        indices = st.lists(
            st.integers(0, max(last, 0)), unique=True, max_size=last + 1
        ).map(sorted)
        removed.append(draw(st.one_of(st.none(), indices)))
    return texts, removed


@given(removals(), st.integers(0, 8))
@settings(deadline=None)
def test_removal_keeps_the_other_lines_unchanged(
    documents: tuple[list[str | None], list[list[int] | None]], cut: int
) -> None:
    """Documents without text after the removal are dropped."""
    texts, removed = documents
    batch = documents_table(texts, removed)
    outcome = apply_stage(REMOVAL, batch)
    expected, empty = [], []
    for doc_id, (text, gone) in enumerate(zip(texts, removed, strict=True)):
        lines = [] if text is None else text.split("\n")
        kept_lines = [i for i in range(len(lines)) if i not in (gone or [])]
        left = "\n".join(lines[i] for i in kept_lines)
        row = {
            "doc_id": doc_id,
            "text": left,
            "num_chars": len(left),
            "num_lines": len(kept_lines),
        }
        if left.strip():
            expected.append(row | {"kept_lines": kept_lines})
        else:
            empty.append((doc_id, "paragraphs.none_left", float(len(lines)), 0.0, None))
    assert outcome.kept.to_pylist() == expected
    assert [tuple(row.values()) for row in outcome.dropped.to_pylist()] == empty
    kept, dropped = apply_in_two_batches(REMOVAL, batch, min(cut, len(texts)))
    assert kept.equals(outcome.kept)
    assert dropped.equals(outcome.dropped)


def test_the_three_steps_together() -> None:
    """Lines on two pages are removed; a line that one page repeats is kept once."""
    batch = documents_table(["Bread\nCookies?", "COOKIES?\nWine\n \nWine\n", "cookies?…"])
    hashed = apply_stage(HASHING, batch).kept.column("paragraph_hashes").combine_chunks()
    documents = np.repeat(np.arange(3, dtype=np.uint32), np.diff(hashed.offsets.to_numpy()))
    gone = find_duplicates(hashed.values.to_numpy(), documents, keep="drop_all_copies")
    removed = [
        np.flatnonzero(gone[start:end]).tolist()
        for start, end in pairwise(hashed.offsets.to_pylist())
    ]
    assert removed == [[1], [0, 3, 4], [0]]
    outcome = apply_stage(
        REMOVAL, documents_table(batch.column("text").to_pylist(), removed)
    )
    assert outcome.kept.column("text").to_pylist() == ["Bread", "Wine\n "]
    assert outcome.kept.column("num_lines").to_pylist() == [1, 2]
    assert outcome.dropped.column("doc_id").to_pylist() == [2]


@pytest.mark.parametrize("wrong", [[2], [1, 0], [0, 0], [0, 1, 2]])
def test_lines_that_the_text_does_not_have_are_refused(wrong: list[int]) -> None:
    """Indices beyond the text, repeated or unsorted belong to another text."""
    batch = documents_table(["a\nb", "c\nd"], [[0], wrong])
    with pytest.raises(
        ValueError,
        match=r"document 1: duplicate_lines is .* indices into the 2 lines of its text",
    ):
        REMOVAL.apply(batch)


@pytest.mark.shared_data
def test_real_pages_hash_line_by_line(shared_data: Path) -> None:
    """Crawled pages and Wikipedia in four more languages."""
    pages = gzip.decompress(
        (shared_data / "common-crawl" / "cc-main-2026-17.safe.warc.wet.gz").read_bytes()
    )
    texts: list[str | None] = [*pages.decode(errors="replace").split("WARC/1.0")]
    for path in sorted((shared_data / "reference").glob("[dfjz]*.txt.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            texts.append(file.read(100_000))
    assert hashes_per_text(pa.array(texts, pa.large_string())) == hashes_line_by_line(texts)
