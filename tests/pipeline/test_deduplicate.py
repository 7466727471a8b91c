"""Repeated paragraphs, by the rule that the config names."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pipeline.reporting.explain import explain
from pipeline.reporting.report import make_report
from tests.pipeline.conftest import Small
from tests.pipeline.test_ledger import RULES, last_fates, write_pages


@pytest.mark.parametrize(("keep", "num_kept"), [("none", 1), ("first", 2), ("all", 3)])
def test_which_copies_stay(small: Small, keep: Literal["none", "first", "all"], num_kept: int) -> None:
    """Of two equal pages both go, one stays, or both do; the books balance, and stories are told, all the same."""
    path = write_pages(small.folder / "first.warc.wet", ["good", "copy", "copy"])
    config: dict[str, Any] = RULES | {"deduplicate": {"keep": keep}}
    found, _ = small.run(input={"files": [str(path)]}, **config)
    assert sorted(last_fates(found).values()).count("kept") == num_kept
    assert make_report(found).steps[-1].num_docs == num_kept
    (story,) = explain(found, "2")
    assert any(f"{0 if keep == 'all' else 2} paragraphs removed" in line for line in story.lines)
    assert found.folder("deduplicate").summary()["works"] == (0 if keep == "all" else 1)
