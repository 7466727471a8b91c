"""Each stage also runs alone, as a function on Arrow tables and as an operator of Ray Data."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stages
from stages import Counters, Outcome, Settings, Stage
from stages.contract import DOCUMENT, keep_all
from stages.filters.language import LanguageFilter, LanguageFilterSettings
from stages.filters.length import Length, LengthSettings
from stages.filters.lines import Lines, LinesSettings
from stages.filters.perplexity import PerplexityFilter, PerplexityFilterSettings
from tests.conftest import REPOSITORY
from tests.stages.examples import tiny_lid

ENGLISH, FRENCH = "the treaty was signed in the museum", "le chat et la souris"

PAGE = (REPOSITORY / "docs" / "stages.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class CountedOpeningSettings(Settings):
    """No settings."""


class CountedOpening(Stage[CountedOpeningSettings]):
    """A stage that counts how often it is opened."""

    name = "length"
    version = 1
    needs = pa.schema([DOCUMENT.field("text")])
    times: ClassVar[int] = 0

    def open(self) -> None:
        """Count."""
        type(self).times += 1

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep everything."""
        return keep_all(batch)


def test_kept_rows_are_returned_without_ids() -> None:
    """A table needs neither a `doc_id` nor the exact type of a column."""
    operator = stages.as_map_batches(Length, LengthSettings(min_chars=3))
    table = pa.table({"url": ["a", "b", "c"], "text": ["long", "x", "longer"]})
    kept = pickle.loads(pickle.dumps(operator))(table)
    assert kept.column_names == ["url", "text"]
    assert kept.column("url").to_pylist() == ["a", "c"]
    assert operator(table.slice(0, 0)).num_rows == 0


@pytest.mark.parametrize("id_type", [pa.int32(), pa.uint64(), pa.string()])
def test_ids_of_the_caller_are_kept(id_type: pa.DataType) -> None:
    """A `doc_id` of any type comes back in its place, even if it is not unique."""
    ids = pa.array(["7", "7", "5"]).cast(id_type)
    table = pa.table({"doc_id": ids, "text": ["long", "x", "longer"]})
    operator = stages.as_map_batches(Length, LengthSettings(min_chars=3))
    kept = operator(table)
    assert kept.column("doc_id").to_pylist() == ids.take([0, 2]).to_pylist()
    assert kept.schema.names == ["doc_id", "text"]


def test_dropped_rows_are_returned_with_their_reasons() -> None:
    """With `keep_dropped` all rows come back in order; those that were dropped have a reason."""
    operator = stages.as_map_batches(
        PerplexityFilter,
        PerplexityFilterSettings(cutoffs={"en": (340, 520)}, keep=("head",)),
        keep_dropped=True,
    )
    table = pa.table({"language": ["en", "en", "en"], "perplexity": [900.0, 100.0, 500.0]})
    rows = operator(table).to_pylist()
    assert [row["perplexity"] for row in rows] == [900.0, 100.0, 500.0]
    reason = "perplexity.bucket_not_wanted"
    assert [row["reason"] for row in rows] == [reason, None, reason]
    assert [row["limit"] for row in rows] == [340.0, None, 340.0]
    assert [row["bucket"] for row in rows] == [None, "head", None]


def test_a_dropped_row_keeps_its_own_text() -> None:
    """A stage that changes texts changes those of kept rows only."""
    operator = stages.as_map_batches(
        Lines, LinesSettings(min_sentences=1), keep_dropped=True
    )
    texts = ["Home\nThe treaty was signed in Ghent.", "Home\nContact"]
    table = pa.table({"text": texts, "kept_lines": pa.nulls(2, pa.list_(pa.uint32()))})
    rows = operator(table).to_pylist()
    assert [row["text"] for row in rows] == [
        "The treaty was signed in Ghent.",
        "Home\nContact",
    ]


def test_a_stage_is_opened_once_per_process() -> None:
    """Copies of the operator, as Ray makes them for each task, share one open stage."""
    operator = stages.as_map_batches(CountedOpening, CountedOpeningSettings())
    for _ in range(3):
        pickle.loads(pickle.dumps(operator))(pa.table({"text": ["a"]}))
    assert CountedOpening.times == 1


def test_a_missing_column_and_a_missing_file_are_named(tmp_path: Path) -> None:
    """The errors say what is needed."""
    operator = stages.as_map_batches(LanguageFilter, LanguageFilterSettings())
    with pytest.raises(
        ValueError, match=r"needs the column language \(string\); found text"
    ):
        operator(pa.table({"text": ["a"]}))
    from stages.filters.language import Language, LanguageSettings

    with pytest.raises(FileNotFoundError, match=r"stage language: .* pass files=\{'lid"):
        stages.as_map_batches(
            Language, LanguageSettings(), files={"lid.176.ftz": tmp_path / "none.ftz"}
        )


def test_the_package_exports_five_names() -> None:
    """These are the public interface of `stages`."""
    assert len(stages.__all__) <= 5
    assert all(hasattr(stages, name) for name in stages.__all__)


def test_the_documented_stage_passes_its_documented_test() -> None:
    """The first two examples of docs/stages.md: a stage, and its test."""
    namespace: dict[str, Any] = {"__name__": "documented"}
    for example in EXAMPLES[:2]:
        exec(compile(example, "docs/stages.md", "exec"), namespace)  # noqa: S102
    namespace["test_documents_with_many_digits_are_dropped"]()


def test_the_documented_limit_comes_from_the_run() -> None:
    """The third example of docs/stages.md: one class declares the histogram and finds its limit in it."""
    namespace: dict[str, Any] = {"__name__": "documented"}
    for example in (EXAMPLES[0], EXAMPLES[2]):
        exec(compile(example, "docs/stages.md", "exec"), namespace)  # noqa: S102
    lengths = list(range(100, 200))
    batch = pa.table(
        {
            "doc_id": pa.array(range(100), pa.uint64()),
            "language": pa.array(["en"] * 100),
            "num_chars": pa.array(lengths, pa.int64()),
        }
    )
    settings = namespace["ShortestSettings"]()
    counters = Counters()
    for histogram in namespace["Shortest"].histograms(settings):
        histogram.count(counters, batch)
    stage = namespace["Shortest"](settings, run_counters=counters)
    stage.open()
    outcome = stage.apply(batch)
    outcome.check(batch, "shortest")
    assert outcome.dropped.num_rows == 10
    uncounted = namespace["Shortest"](settings)
    uncounted.open()
    assert uncounted.apply(batch).kept.equals(batch)


RAY_PROGRAM = """
import json, sys
import ray
ray.init(logging_level="ERROR")
ray.data.DataContext.get_current().enable_progress_bars = False
folder, model = sys.argv[1:]
{example}
print(json.dumps(sorted(row["text"] for row in rows)))
"""


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_the_documented_operators_run_in_ray_data(tmp_path: Path) -> None:
    """The last example of docs/stages.md, on Parquet files: two stages as two operators."""
    folder = tmp_path / "documents"
    folder.mkdir()
    for index, text in enumerate([ENGLISH, FRENCH]):
        table = pa.table({"text": [text, f"{text} {text}"]})
        pq.write_table(table, folder / f"{index}.parquet")
    program = RAY_PROGRAM.format(example=EXAMPLES[3])
    model = tiny_lid(tmp_path / "lid.bin")
    process = subprocess.run(
        [sys.executable, "-c", program, str(folder), str(model)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[-1]) == sorted(
        [ENGLISH, f"{ENGLISH} {ENGLISH}"]
    )
