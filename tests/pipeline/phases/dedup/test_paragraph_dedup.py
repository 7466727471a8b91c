"""Duplicate paragraphs are removed by the rule of the config."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.report import make_report
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import RULES, read_decisions, write_pages


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
