"""substring_dedup over whole crawls, compared with plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_files.reader import ConfigError
from pipeline.execution.inline import InlineEngine
from pipeline.phases.dedup import hash_phase, substring_dedup
from pipeline.phases.dedup.substring_dedup import (
    SubstringHashes,
    find_repeated_windows,
    join_windows,
)
from pipeline.phases.phase import Phase
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.preview import preview
from pipeline.reporting.report import make_report
from pipeline.reporting.report.summary import list_stage_counters
from pipeline.runs.exchange import group_by_range
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_row_groups
from stages.dedup.substring_dedup import SPANS, cut_spans, hash_windows
from tests.conftest import wet_record
from tests.connected_engine import ConnectedEngine
from tests.faults.runs.small_run import hash_outputs
from tests.pipeline.conftest import Small, run_until

MIN_WORDS = 5
SECTIONS: dict[str, Any] = {
    "extract": {"length": {"min_chars": 1}},
    "paragraph_dedup": {"keep": "keep_all"},
    "substring_dedup": {"min_words": MIN_WORDS},
}

# URL -> text
Pages = dict[str, str]


def make_pages(seed: int, num_pages: int = 24) -> Pages:
    """Return pages of random words with spans copied from others, over lines too."""
    rng = random.Random(seed)
    pages: Pages = {}
    words: list[str] = []
    for number in range(num_pages):
        text = [f"w{rng.randrange(300)}" for _ in range(rng.randrange(3, 40))]
        for _ in range(rng.randrange(3)):
            start = rng.randrange(len(words) + 1)
            place = rng.randrange(len(text) + 1)
            text[place:place] = words[start : start + rng.randrange(12)]
        words += text
        seps = rng.choices([" ", " ", " ", "\n"], k=len(text))
        joined = "".join(
            word + separator for word, separator in zip(text, seps, strict=True)
        )
        pages[f"https://{seed}.example/{number}"] = joined.strip()
    return pages


def write_files(small: Small, pages: Pages, name: str) -> list[str]:
    """Write two WET files of these pages, and return their paths."""
    records = [wet_record(url, f"Title\n{text}") for url, text in pages.items()]
    paths: list[str] = []
    for number, part in enumerate((records[:9], records[9:])):
        path = small.folder / f"{name}{number}.warc.wet"
        path.write_bytes(b"".join(part))
        paths.append(str(path))
    return paths


def run_pages(small: Small, pages: Pages, name: str = "run", **sections: Any) -> RunFolder:
    """Run these pages with substring_dedup alone."""
    files = {"files": write_files(small, pages, name)}
    return small.run(name, **{"input": files, **SECTIONS, **sections})[0]


def read_documents(*arguments: Any) -> Iterator[pa.Table]:
    """Yield what `read_row_groups` does, one document at a time."""
    for table in read_row_groups(*arguments):
        for row in range(table.num_rows):
            yield table.slice(row, 1)


def read_texts(found: RunFolder) -> Pages:
    """Return URL -> text of the documents that annotate has stored."""
    texts: Pages = {}
    for split in found.splits:
        path = found.folder("annotate").path(f"{split.key}.documents.parquet")
        for row in pq.read_table(path, columns=["url", "text"]).to_pylist():
            texts[row["url"]] = row["text"]
    return texts


def find_by_hand(
    pages: Pages, before: Pages | None = None, min_words: int = MIN_WORDS
) -> dict[str, list[bool]]:
    """Return URL -> whether each word is in a span that an earlier page has."""
    seen: set[tuple[str, ...]] = set()
    marks: dict[str, list[bool]] = {}
    for url, text in {**(before or {}), **pages}.items():
        words = text.split()
        windows = [
            tuple(words[i : i + min_words]) for i in range(len(words) - min_words + 1)
        ]
        marks[url] = [False] * len(words)
        for place, window in enumerate(windows):
            if window in seen:
                marks[url][place : place + min_words] = [True] * min_words
        seen.update(windows)
    return marks


def cut_by_hand(pages: Pages, before: Pages | None = None) -> Pages:
    """Return the texts without repeated spans and without lines that lose all words."""
    marks = find_by_hand(pages, before)
    left: Pages = {}
    for url, text in pages.items():
        place, lines = 0, list[str]()
        for line in text.split("\n"):
            words = line.split()
            gone = marks[url][place : place + len(words)]
            kept = [word for word, is_cut in zip(words, gone, strict=True) if not is_cut]
            place += len(words)
            if kept or not words:
                lines.append(" ".join(kept))
        if any(lines):
            left[url] = "\n".join(lines)
    return left


def strip_lines(texts: Pages) -> Pages:
    """Return the texts without blanks at the ends of lines."""
    stripped: Pages = {}
    for url, text in texts.items():
        stripped[url] = "\n".join(line.strip() for line in text.split("\n"))
    return stripped


@pytest.mark.parametrize("seed", range(3))
def test_spans_of_earlier_pages_are_cut(small: Small, seed: int) -> None:
    """Exactly the words of spans that an earlier page has; the first page keeps them."""
    pages = make_pages(seed)
    found = run_pages(small, pages)
    assert strip_lines(read_texts(found)) == strip_lines(cut_by_hand(pages))
    num_cut = sum(sum(marks) for marks in find_by_hand(pages).values())
    report = make_report(found)
    assert report.counters["annotate"]["repeated_words"] == num_cut > 0
    num_chars = {step.name: step.num_chars for step in report.steps}
    left = sum(len(text) for text in read_texts(found).values())
    assert num_chars["read"] > num_chars["annotate: substring_dedup"] > left
    assert report.steps[-1].num_chars == left
    counters = {counters.stage: counters.rows for counters in list_stage_counters(report)}
    display_name = "Words cut because an earlier document has them"
    assert counters["substring_dedup"][display_name] == num_cut


def test_partitions_make_no_difference(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven partitions find the same spans as one."""
    pages = make_pages(0)
    one = run_pages(small, pages)
    monkeypatch.setattr(hash_phase, "count_partitions", lambda *_: 7)
    many = run_pages(small, pages, "many")
    # With the places of their segments.
    assert len(list(many.folder("substring_dedup").list_done())) == 7 + 1
    assert read_texts(one) == read_texts(many)


def test_order_of_tasks_and_size_of_batches_make_no_difference(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of every phase has the same bytes."""
    pages = make_pages(0)
    reference = run_pages(small, pages)
    in_order = InlineEngine.run_tasks

    def backwards(self: InlineEngine, phase: Phase, task_ids: Sequence[str]) -> object:
        return in_order(self, phase, list(reversed(task_ids)))

    monkeypatch.setattr(InlineEngine, "run_tasks", backwards)
    other = run_pages(
        small,
        pages,
        "other",
        input={"files": write_files(small, pages, "run")},
        engine={"kind": "inline", "advanced": {"batch_mb": 0.0001}},
    )
    assert hash_outputs(other) == hash_outputs(reference)


def test_a_split_is_hashed_in_parts_of_bounded_size(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small parts give the same file, and no more rows than the limit and one batch are held."""
    pages = make_pages(0)
    one = run_pages(small, pages)
    sizes: list[int] = []

    def note_size(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        sizes.append(rows.num_rows)
        return group_by_range(rows)

    # A part has 10 rows, and each document is a batch.
    monkeypatch.setattr(substring_dedup, "BYTES_HELD", 2_000 * 2**19 // 10)
    monkeypatch.setattr(substring_dedup, "read_row_groups", read_documents)
    monkeypatch.setattr(substring_dedup, "group_by_range", note_size)
    files = {"files": write_files(small, pages, "run")}
    many = run_pages(small, pages, "many", input=files)
    longest = max(len(text.split()) for text in pages.values())
    assert len(sizes) > 4
    assert max(sizes) < 10 + longest
    for split in one.splits:
        name = SubstringHashes.windows.file_name(split.key)
        file, other = (run.folder(SubstringHashes.name).path(name) for run in (one, many))
        assert file.read_bytes() == other.read_bytes()


@pytest.mark.ray
def test_ray_writes_the_same_files(small: Small, ray_engine: ConnectedEngine) -> None:
    """All files of both phases, and the texts, equal those of the in-process engine."""
    pages = make_pages(0)
    inline = run_pages(small, pages)
    files = {"files": write_files(small, pages, "run")}
    plan = small.plan("ray", **{**SECTIONS, "input": files, "engine": {"kind": "ray"}})
    list(run_until(plan, "annotate", ray_engine.use(plan)))
    for phase in ("substring_hashes", "substring_dedup", "annotate"):
        one, other = inline.folder(phase), plan.folder(phase)
        names = [
            name for name in one.root.list_names() if name.endswith((".arrow", ".parquet"))
        ]
        assert names
        for name in names:
            assert one.path(name).read_bytes() == other.path(name).read_bytes()


def test_documents_with_spans_are_dropped(small: Small) -> None:
    """`action: drop` keeps the documents without repeated spans, unchanged."""
    pages = make_pages(1)
    found = run_pages(
        small, pages, substring_dedup={"min_words": MIN_WORDS, "action": "drop"}
    )
    marks = find_by_hand(pages)
    sound = {url: text for url, text in pages.items() if not any(marks[url])}
    assert read_texts(found) == sound
    reasons = make_report(found).reasons
    assert reasons["substring_dedup.repeated_span"] == len(pages) - len(sound) > 0
    url = next(url for url in pages if url not in sound)
    (trace,) = explain(found, url)
    assert trace.decision == "substring_dedup.repeated_span"
    assert sum(span.num_words for span in trace.repeated) == sum(marks[url])
    assert trace.repeated[0].first is not None


def test_spans_of_previous_runs_are_cut(small: Small) -> None:
    """A second run gives the texts that one run over both crawls would."""
    first, second = make_pages(2, 8), make_pages(3, 8)
    shared = " ".join(list(first.values())[:2])
    second["https://3.example/shared"] = shared
    run_pages(small, first, "before")
    found = run_pages(small, second, previous_runs=[str(small.folder / "before")])
    expected = cut_by_hand(second, before=first)
    assert strip_lines(read_texts(found)) == strip_lines(expected)
    (trace,) = explain(found, "https://3.example/shared")
    (other,) = {span.first for span in trace.repeated}
    assert other is not None
    assert other.url == next(iter(first))


def test_preview_decides_by_the_cut_texts(small: Small, lid_file: Path) -> None:
    """Another limit of words keeps the documents that have as many words left."""
    pages = make_pages(1)
    scores = {"language": {"model": str(lid_file)}, "quality": {}}
    found = run_pages(small, pages, annotate=scores)
    limits = "{min_words: 15, languages: null, min_stop_words: null}"
    kept = preview(found, [f"select.quality={limits}"]).after.num_docs
    sizes = [len(text.split()) for text in cut_by_hand(pages).values()]
    assert kept == sum(size >= 15 for size in sizes)
    assert kept < sum(len(text.split()) >= 15 for text in pages.values())
    with pytest.raises(ConfigError, match="substring_dedup would have to run again"):
        preview(found, ["substring_dedup.min_words=6"])


def test_previous_runs_with_other_windows_are_refused(small: Small) -> None:
    """The error names both settings."""
    pages = make_pages(2, 3)
    run_pages(small, pages, "before")
    with pytest.raises(ConfigError, match=r"its substring_dedup is .*'min_words': 5"):
        run_pages(
            small,
            pages,
            previous_runs=[str(small.folder / "before")],
            substring_dedup={"min_words": 9},
        )


def test_explain_names_the_spans_and_the_first_document(small: Small) -> None:
    """`explain` shows each span as it is written, and the first document that has it."""
    span_text = "one two three, FOUR five six"
    pages = {
        "https://a.example/": f"start {span_text} end",
        "https://b.example/": f"other words {span_text.lower()}\nand more",
        "https://c.example/": "nothing of it here",
    }
    found = run_pages(small, pages)
    (trace,) = explain(found, "https://b.example/")
    text = "\n".join(format_trace(trace))
    assert "1 span of words in earlier documents, 6 words" in text
    assert "'one two three, four five six'" in text
    assert "first in document 0: https://a.example/ (kept)" in text
    assert "0 paragraphs removed" in text
    (trace,) = explain(found, "https://a.example/")
    assert "substring_dedup" not in "\n".join(format_trace(trace))


# Pages of few different words, which repeat spans of all lengths.
FEW_WORDS = st.lists(st.sampled_from(["a", "b", "c", "a\n"]), max_size=16).map(" ".join)


@given(st.lists(FEW_WORDS, max_size=6), st.integers(1, 5))
def test_cut_texts_are_those_of_plain_python(texts: list[str], min_words: int) -> None:
    """Hashes, comparison, spans and cutting together, for any texts."""
    pages = {str(number): text for number, text in enumerate(texts)}
    column = pa.array(texts, pa.large_string())
    starts, hashes = hash_windows(column, min_words)
    ids = np.repeat(np.arange(len(texts), dtype=np.uint64), np.diff(starts))
    words = np.arange(len(ids), dtype=np.uint64) - starts[ids].astype(np.uint64)
    is_repeated = find_repeated_windows(hashes[0], hashes[1], ids)
    windows = (ids << np.uint64(32) | words)[is_repeated]
    bounds = join_windows(windows, min_words)
    of_text = [bounds[bounds >> np.uint64(32) == number] for number in range(len(texts))]
    spans = [values.astype(np.uint32).tolist() for values in of_text]
    cut = cut_spans(column, pa.array(spans, SPANS.type))
    marks = find_by_hand(pages, min_words=min_words)
    kept: list[list[str]] = []
    for url, text in pages.items():
        marked = zip(text.split(), marks[url], strict=True)
        kept.append([word for word, is_cut in marked if not is_cut])
    assert [text.split() for text in cut.texts.to_pylist()] == kept
    assert cut.num_words.tolist() == [sum(marks[url]) for url in pages]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 5))))
def test_a_window_is_repeated_if_an_earlier_document_has_it(
    rows: list[tuple[int, int, int]],
) -> None:
    """Both hashes must be equal; windows of the same document are not repeated."""
    rows.sort(key=lambda row: row[2])
    table = np.array(rows, np.uint64).reshape(len(rows), 3)
    found = find_repeated_windows(table[:, 0], table[:, 1], table[:, 2])
    expected = [
        any(other[:2] == row[:2] and other[2] < row[2] for other in rows) for row in rows
    ]
    assert found.tolist() == expected


def test_off_by_default(small: Small) -> None:
    """Without the section, no phase of it writes a file."""
    found = small.run()[0]
    for phase in ("substring_hashes", "substring_dedup"):
        names = found.folder(phase).root.list_names()
        assert not [name for name in names if name.endswith(".arrow")]
