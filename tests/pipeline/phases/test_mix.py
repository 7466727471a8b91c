"""Copies by quality bin and a budget of tokens, in whole runs of eight small pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from loader import TokenLoader
from pipeline.execution.engine import PhaseStarted
from pipeline.phases.annotate import Annotate
from pipeline.phases.select import Select
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.preview import preview
from pipeline.reporting.preview.in_memory import SelectInMemory
from pipeline.reporting.report import make_report
from pipeline.retraction import retract
from pipeline.retraction.apply import find_unretracted, read_log
from pipeline.retraction.request import make_request
from pipeline.runs.run_folder import RunFolder
from shardwriter.format import Manifest, ShardIndex
from shardwriter.verification.dataset import verify
from stages.mixing.mix import COPY_SHIFT
from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import format_report, write_wet

WORDS = [
    "the",
    "treaty",
    "of",
    "the",
    "town",
    "was",
    "signed",
    "in",
    "the",
    "museum",
    "of",
    "the",
    "shop",
]

# Each page is longer than the one before. Pages 0 to 3 are in the first file.
TEXTS = [" ".join([f"page{i}", *WORDS * (i + 1)]) for i in range(8)]

BINS = [
    {"from_percentile": 0, "num_copies": 0},
    {"from_percentile": 25, "num_copies": 1},
    {"from_percentile": 75, "num_copies": 3},
]


@pytest.fixture
def mixed(small: Small, tmp_path: Path) -> Small:
    """A config with eight pages of rising length in two files."""
    files: list[str] = []
    for name, texts in (("one", TEXTS[:4]), ("two", TEXTS[4:])):
        files += write_wet(tmp_path / f"{name}.warc.wet", texts)["files"]
    language = {**small.tree["annotate"]["language"], "labels": {"fr": "en"}}
    tree: Mapping[str, Any] = {
        **small.tree,
        "input": {"files": files},
        "extract": {"length": {"min_chars": 1}},
        "annotate": {"language": language},
        "write_shards": {"shard_tokens": 500},
    }
    return Small(small.folder, tree)


def select(**mix: Any) -> dict[str, Any]:
    return {"language": None, "mix": {"by": "num_chars", **mix}}


def read_indexes(run: RunFolder) -> list[ShardIndex]:
    """Return the indexes of all shards, in order."""
    paths = sorted(Path(str(run.dataset)).glob("*.idx"))
    return [ShardIndex.from_bytes(path.read_bytes(), path.name) for path in paths]


def list_doc_ids(run: RunFolder) -> list[int]:
    """Return the doc_ids of the dataset, in order."""
    return [int(doc_id) for index in read_indexes(run) for doc_id in index.doc_ids]


def count_copies(run: RunFolder) -> dict[int, int]:
    """Return doc_id of a document -> copies in the dataset."""
    return dict(Counter(doc_id % 2**COPY_SHIFT for doc_id in list_doc_ids(run)))


def read_manifest(run: RunFolder) -> Manifest:
    path = Path(str(run.dataset)) / "manifest.json"
    return Manifest.loads(path.read_bytes(), str(path))


def read_decisions(run: RunFolder) -> list[str]:
    """Return the decisions of select on all documents, in input order."""
    decisions: list[str] = []
    for split in run.splits:
        path = run.folder("select").path(Select.decisions.file_name(split.key))
        decisions += pq.read_table(path).column("decision").to_pylist()
    return decisions


def test_copies_are_written_reported_and_explained(mixed: Small) -> None:
    """The worst quarter is dropped, the best quarter is stored three times, scattered."""
    run, _ = mixed.run(select=select(bins=BINS))
    ids = [split << 32 | record for split in (0, 1) for record in range(4)]
    copies = dict(zip(ids, [0, 0, 1, 1, 1, 1, 3, 3], strict=True))
    assert count_copies(run) == {doc: number for doc, number in copies.items() if number}
    assert read_decisions(run) == ["mix.no_copy"] * 2 + ["kept"] * 6

    manifest = read_manifest(run)
    assert manifest.totals.num_docs == 10
    mix = manifest.run["mix"]
    assert [each["num_copies"] for each in mix["bins"]] == [0, 4, 6]
    assert sum(each["num_tokens"] for each in mix["bins"]) == manifest.totals.num_tokens
    assert mix["num_distinct_docs"] == 6
    assert not verify(Path(str(run.dataset)))

    report = make_report(run)
    assert report.num_tokens == manifest.totals.num_tokens
    assert sum(report.language_tokens.values()) == manifest.totals.num_tokens
    assert "75-100" in format_report(run)

    copy = ids[-1] + (2 << COPY_SHIFT)
    assert copy in list_doc_ids(run)
    (trace,) = explain(run, str(copy))
    assert (trace.doc_id, len(trace.copies)) == (ids[-1], 2)
    lines = "\n".join(format_trace(trace))
    assert "stored 3 times: percentile 93.75 of its language, quality bin 75-100" in lines
    assert "passes mix.no_copy (value 93.75, 75-100)" in lines
    (trace,) = explain(run, str(ids[0]))
    assert "dropped: mix.no_copy (value 6.25, 0-25)" in "\n".join(format_trace(trace))


def test_copies_have_the_tokens_of_their_document_and_other_places(mixed: Small) -> None:
    """Every copy is whole, and the loader reads all of them."""
    run, _ = mixed.run(select=select(bins=BINS))
    lengths: dict[int, set[int]] = {}
    for index in read_indexes(run):
        sizes = index.doc_starts[1:] - index.doc_starts[:-1]
        for doc_id, size in zip(index.doc_ids.tolist(), sizes.tolist(), strict=True):
            lengths.setdefault(doc_id % 2**COPY_SHIFT, set()).add(size)
    assert all(len(sizes) == 1 for sizes in lengths.values())
    documents = [doc_id % 2**COPY_SHIFT for doc_id in list_doc_ids(run)]
    best = documents[-1]
    assert len(set(documents[-3:])) > 1, f"three copies of {best} are neighbours"
    loader = TokenLoader(str(run.dataset), seq_len=16, global_batch_rows=1, epochs=1)
    assert len(list(loader)) > 0


def test_one_copy_of_all_gives_the_shards_of_a_run_without_the_option(
    mixed: Small,
) -> None:
    """The same bytes. Only the metadata of documents has one more column."""
    bins = [
        {"from_percentile": 0, "num_copies": 1},
        {"from_percentile": 60, "num_copies": 1},
    ]
    run, _ = mixed.run(
        "mixed", select=select(bins=bins), write_shards={"documents_json": False}
    )
    without, _ = mixed.run(
        "without", select={"language": None}, write_shards={"documents_json": False}
    )
    for path in sorted(Path(str(without.dataset)).glob("shard-*")):
        assert path.read_bytes() == (Path(str(run.dataset)) / path.name).read_bytes()


def test_a_changed_factor_reruns_select_and_later_phases(mixed: Small) -> None:
    """The percentiles are counted once."""
    run, events = mixed.run(select=select(bins=BINS))
    assert "mix_percentiles" in {
        event.phase for event in events if isinstance(event, PhaseStarted)
    }
    higher = [*BINS[:2], {"from_percentile": 75, "num_copies": 4}]
    run, events = mixed.run(select=select(bins=higher))
    started = [event.phase for event in events if isinstance(event, PhaseStarted)]
    assert started == ["select", "tokenize", "write_shards"]
    assert sorted(count_copies(run).values()) == [1, 1, 1, 1, 4, 4]


def test_a_budget_keeps_the_best_and_the_report_compares(mixed: Small) -> None:
    """Documents over the budget are dropped; the decision has the percentile where it ends."""
    everything, _ = mixed.run("all", select=select())
    budget = read_manifest(everything).totals.num_tokens // 2
    run, _ = mixed.run("budget", select=select(budget={"num_tokens": budget}))
    decisions = read_decisions(run)
    first_kept = decisions.index("kept")
    assert decisions == ["mix.over_budget"] * first_kept + ["kept"] * (8 - first_kept)
    largest = max(read_indexes(run)[0].doc_starts)  # a whole shard is more than a document
    assert abs(read_manifest(run).totals.num_tokens - budget) <= largest
    cuts = Select.read_cuts(run.folder("select"))
    assert [cut.setting for cut in cuts] == ["select.mix.budget: from percentile"]
    assert f"{budget:,}" in format_report(run)
    report = make_report(run)
    assert report.mix is not None
    assert report.mix.budget_tokens == budget
    assert report.mix.estimated_tokens == pytest.approx(report.num_tokens, rel=0.1)
    shares = {"default": 1, "en": 0.5}
    limited, _ = mixed.run(
        "limited",
        select=select(budget={"num_tokens": budget, "max_language_share": shares}),
    )
    tokens = read_manifest(limited).totals.num_tokens
    assert tokens < read_manifest(run).totals.num_tokens


@pytest.mark.parametrize(
    "mix",
    [
        {"bins": BINS},
        {"bins": [{"from_percentile": 0, "num_copies": 1.5}]},
        {"budget": {"num_tokens": 200}},
    ],
)
def test_a_preview_equals_a_run(mixed: Small, mix: Mapping[str, Any]) -> None:
    """From a run without the section, and from itself: documents and tokens of every bin."""
    plain, _ = mixed.run("plain", select={"language": None})
    run, _ = mixed.run("mixed", select=select(**mix))
    tokens = read_manifest(run).totals.num_tokens
    wanted = json.dumps({"by": "num_chars", **mix})
    found = preview(plain, [f"select.mix={wanted}"])
    assert found.after.num_docs == read_decisions(run).count("kept")
    assert found.after.num_tokens == tokens
    bins = {each["percentiles"]: each for each in read_manifest(run).run["mix"]["bins"]}
    for label, (_, after) in found.bins.items():
        assert after.num_docs == bins[label]["num_docs"]
        assert after.num_tokens == bins[label]["num_tokens"]
    same = preview(run, [])
    assert (same.before, same.after) == (found.after, found.after)


@pytest.mark.parametrize("mix", [{"bins": BINS}, {"budget": {"num_tokens": 400}}])
def test_decisions_in_memory_equal_those_of_the_run(
    mixed: Small, mix: Mapping[str, Any]
) -> None:
    """As `browse` computes them, from the stored scores."""
    run, _ = mixed.run(select=select(**mix))
    name = Annotate.documents.file_name
    paths = [run.folder("annotate").path(name(split.key)) for split in run.splits]
    documents = pa.concat_tables([pq.read_table(path) for path in paths])
    _, dropped = SelectInMemory(load_plan(run), documents).decide_all()
    wanted = [reason for reason in read_decisions(run) if reason != "kept"]
    assert wanted
    assert dropped.column("reason").to_pylist() == wanted


def test_a_retraction_takes_every_copy(mixed: Small) -> None:
    """The two pages with this address have one copy and three."""
    run, _ = mixed.run(select=select(bins=BINS))
    request = make_request(["example.org/3"], [])
    retract(run, request, reason="takedown", requested_by="the author")
    (entry,) = read_log(run.dataset).entries
    assert entry.num_docs == 4
    assert find_unretracted(run) == []


@pytest.mark.parametrize(
    ("mix", "fault"),
    [
        ({"by": "quality_score"}, "select.score is null"),
        ({"by": "num_char"}, "did you mean num_chars?"),
        ({"topics": ["news"]}, "annotate.classifiers has none"),
        ({"bins": [{"from_percentile": 5, "num_copies": 1}]}, "must rise from 0"),
        ({"bins": [{"from_percentile": 0, "num_copies": 8}]}, "less than or equal to 7"),
        ({"budget": {"num_tokens": 9, "max_language_share": {"en": 1}}}, "add default"),
    ],
)
def test_a_wrong_mix_is_refused(mixed: Small, mix: dict[str, Any], fault: str) -> None:
    """The error names the key."""
    with pytest.raises(ConfigError) as caught:
        mixed.config(select=select(**mix))
    assert fault in str(caught.value)
