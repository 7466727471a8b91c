"""Duplicate paragraphs are removed by the rule of the config."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal

import pytest

from pipeline.phases.dedup import paragraph_dedup
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder
from tests.conftest import wet_record
from tests.pipeline.conftest import Small
from tests.pipeline.phases.dedup.test_substring_dedup import read_texts
from tests.pipeline.reporting.pages import LETTERS, RULES, read_decisions, write_pages

# URL -> lines, of one file
Pages = dict[str, list[str]]


@pytest.mark.parametrize(
    ("keep", "num_kept"), [("drop_all_copies", 1), ("keep_first", 2), ("keep_all", 3)]
)
def test_keep_decides_how_many_copies_of_a_page_are_kept(
    small: Small, keep: Literal["drop_all_copies", "keep_first", "keep_all"], num_kept: int
) -> None:
    """None, one or both of two equal pages are kept. Report and trace agree with this."""
    path = write_pages(small.folder / "first.warc.wet", ["good", "copy", "copy"])
    config: dict[str, Any] = RULES | {"paragraph_dedup": {"keep": keep}}
    found, _ = small.run(input={"files": [str(path)]}, **config)
    assert sorted(read_decisions(found).values()).count("kept") == num_kept
    assert make_report(found).steps[-1].num_docs == num_kept
    (trace,) = explain(found, "2")
    assert any(
        f"{0 if keep == 'keep_all' else 2} paragraphs removed" in line
        for line in format_trace(trace)
    )
    assert found.folder("paragraph_dedup").summary()["task_ids"] == (
        0 if keep == "keep_all" else 1
    )


def make_files(seed: int) -> list[Pages]:
    """Return four files of pages whose lines occur again in a page, in a file and in other files."""
    rng = random.Random(seed)
    files: list[Pages] = []
    for number in range(4):
        pages: Pages = {}
        for page in range(rng.randrange(1, 9)):
            words = [f"line {rng.randrange(40)}".translate(LETTERS) for _ in range(6)]
            pages[f"https://{seed}.example/{number}/{page}"] = words[: rng.randrange(1, 7)]
        files.append(pages)
    return files


def run_files(
    small: Small, files: Sequence[Pages], name: str, **sections: Any
) -> RunFolder:
    """Run files of pages with paragraph_dedup."""
    paths: list[str] = []
    for number, pages in enumerate(files):
        path = small.folder / f"{number}.warc.wet"
        texts = {url: "\n".join(["Title", *lines]) for url, lines in pages.items()}
        path.write_bytes(b"".join(wet_record(url, text) for url, text in texts.items()))
        paths.append(str(path))
    changed: dict[str, Any] = {
        "input": {"files": paths},
        "extract": {"length": {"min_chars": 1}},
        **sections,
    }
    return small.run(name, **changed)[0]


def remove_by_hand(
    files: Sequence[Pages], keep: str, group_splits: int, are_copies_dropped: bool
) -> dict[str, str]:
    """Return URL -> the lines that the rule leaves, by comparing each line with all others."""
    seen: set[tuple[str, ...]] = set()
    left: dict[str, str] = {}
    for first in range(0, len(files), group_splits):
        pages: Pages = {}
        for file in files[first : first + group_splits]:
            for url, lines in file.items():
                if not are_copies_dropped or tuple(lines) not in seen:
                    pages[url] = lines
                seen.add(tuple(lines))
        urls = list(pages)
        for place, (url, lines) in enumerate(pages.items()):
            others = (
                urls[:place] if keep == "keep_first" else urls[:place] + urls[place + 1 :]
            )
            elsewhere = {line for other in others for line in pages[other]}
            kept = [line for line in dict.fromkeys(lines) if line not in elsewhere]
            if kept:
                left[url] = "\n".join(kept)
    return left


@pytest.mark.parametrize("num_partitions", [1, 7])
@pytest.mark.parametrize(
    ("keep", "group_splits", "are_copies_dropped"),
    [
        ("drop_all_copies", 4, False),
        ("drop_all_copies", 3, True),
        ("keep_first", 4, True),
        ("keep_first", 3, False),
    ],
)
def test_what_is_left_does_not_depend_on_the_exchange(
    small: Small,
    monkeypatch: pytest.MonkeyPatch,
    keep: str,
    group_splits: int,
    are_copies_dropped: bool,
    num_partitions: int,
) -> None:
    """Splits that send each hash once, in any number of partitions, leave what brute force leaves."""
    files = make_files(num_partitions)
    monkeypatch.setattr(paragraph_dedup, "count_partitions", lambda *_: num_partitions)
    found = run_files(
        small,
        files,
        "run",
        paragraph_dedup={"keep": keep, "group_splits": group_splits},
        exact_dedup={"by": "text"} if are_copies_dropped else None,
    )
    expected = remove_by_hand(files, keep, group_splits, are_copies_dropped)
    assert read_texts(found) == expected


def test_a_line_of_every_page_is_sent_once_per_split(small: Small) -> None:
    """A partition holds as many rows of a frequent line as there are splits, not pages."""
    counts: list[int] = []
    for num_pages in (5, 500):
        files = [
            {
                f"https://{number}.example/{page}": ["On each page.", "On each page."]
                for page in range(num_pages)
            }
            for number in range(3)
        ]
        found = run_files(small, files, f"of-{num_pages}")
        counters = found.folder("paragraph_dedup").summary()["counters"]["counts"]
        assert counters["distinct_paragraphs_repeated"] == 2
        counts.append(counters["distinct_paragraphs"])
    assert counts == [3, 3]
