"""Runs against previous runs: month after month they decide as one run over all months."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.phases.previous_runs import find_owner
from pipeline.planning.plan import make_plan
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.preview import preview
from pipeline.runs.run_folder import RunFolder
from stages.dedup.minhash import MinHash
from tests.conftest import wet_record
from tests.pipeline.conftest import Small, run_until

LONG = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
# Pages are made of short lines, and of long lines that are near-duplicates of each other.
LINES = (
    *(
        "The treaty was signed in the museum.",
        "Cookies are good for you.",
        "Third line of them all.",
        "A fourth.",
    ),
    *(
        LONG,
        LONG.replace("wordq", "edited"),
        LONG.replace("wordd", "edited"),
        LONG.replace("worda wordb", "x y"),
    ),
)

PAGE = st.lists(st.sampled_from(range(len(LINES))), min_size=1, max_size=3)
MONTHS = st.lists(st.lists(PAGE, min_size=1, max_size=5), min_size=3, max_size=3)


@dataclass(frozen=True)
class Crawl:
    """One file of pages per month, and runs over some months up to fuzzy_dedup."""

    folder: Path
    months: Sequence[Sequence[Sequence[int]]]
    tree: Mapping[str, Any]

    def write(self) -> None:
        """Write the files. A URL has month and page."""
        for month, pages in enumerate(self.months):
            texts = ["\n".join(["Title", *(LINES[i] for i in page)]) for page in pages]
            records = [
                wet_record(f"https://example.org/{month}/{i}", text)
                for i, text in enumerate(texts)
            ]
            (self.folder / f"{month}.warc.wet").write_bytes(b"".join(records))

    def run(
        self, name: str, months: Sequence[int], previous: Sequence[str] = ()
    ) -> RunFolder:
        """Run over these months, against previous runs."""
        files = [str(self.folder / f"{month}.warc.wet") for month in months]
        places = {
            "run_dir": str(self.folder / name),
            "previous_runs": [str(self.folder / run) for run in previous],
        }
        plan = make_plan(
            RunConfig.model_validate({**self.tree, **places, "input": {"files": files}})
        )
        list(run_until(plan, "fuzzy_dedup"))
        return RunFolder.open(plan.run_dir)


def read_texts(found: RunFolder) -> dict[str, str]:
    """Return URL -> text of the documents that annotate kept."""
    rows = [
        row
        for split in found.splits
        for row in read_rows(found, "annotate", f"{split.key}.documents.parquet")
    ]
    return {row["url"]: row["text"] for row in rows}


def read_rows(found: RunFolder, phase: str, name: str) -> list[dict[str, Any]]:
    with found.folder(phase).open(name) as file:
        return pq.read_table(file).to_pylist()


def find_exact_copies(found: RunFolder) -> dict[str, str]:
    """Return URL -> URL of the document whose copy it is."""
    rows = [
        row
        for split in found.splits
        for row in read_rows(found, "annotate", f"{split.key}.decisions.parquet")
    ]
    return {
        row["url"]: find_url(found, row["representative"])
        for row in rows
        if row["decision"].startswith("exact_dedup.")
    }


def find_near_duplicates(found: RunFolder) -> dict[str, str]:
    """Return URL -> URL of its representative."""
    representatives: dict[str, str] = {}
    for index in range(len(found.splits)):
        with found.folder("fuzzy_dedup").open("near_duplicates.arrow") as file:
            for row in pa.ipc.open_file(file).get_batch(index).to_pylist():
                representatives[find_url(found, index << 32 | row["record"])] = find_url(
                    found, row["representative"]
                )
    return representatives


def find_url(found: RunFolder, doc_id: int) -> str:
    home, doc_id = find_owner(doc_id, len(found.splits), found.previous) or (found, doc_id)
    name = f"{home.splits[doc_id >> 32].key}.documents.parquet"
    with home.folder("extract").open(name) as file:
        rows = pq.read_table(file, columns=["doc_id", "url"]).to_pylist()
    return next(row["url"] for row in rows if row["doc_id"] == doc_id)


def select_month(by_url: Mapping[str, str], month: int) -> dict[str, str]:
    return {
        url: value
        for url, value in by_url.items()
        if url.startswith(f"https://example.org/{month}/")
    }


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    MONTHS,
    st.sampled_from(["drop_all_copies", "keep_first", "keep_all"]),
    st.sampled_from([None, {"by": "text"}, {"by": "digest"}]),
    st.sampled_from([None, "jaccard"]),
)
def test_month_after_month_decides_as_one_run(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_tokenizer: Path,
    lid_file: Path,
    months: list[list[list[int]]],
    keep: Literal["drop_all_copies", "keep_first", "keep_all"],
    copies: dict[str, str] | None,
    rule: str | None,
) -> None:
    """The last of three runs removes what one run over all three months removes.

    The runs before it may keep more: a paragraph that a later month repeats (with
    drop_all_copies), and two documents that only a later one joins.
    """
    crawl = Crawl(
        tmp_path_factory.mktemp("months"),
        months,
        {
            "extract": {"length": None},
            "exact_dedup": copies,
            "paragraph_dedup": {"keep": keep},
            "annotate": {
                "language": {"model": str(lid_file)},
                "minhash": {
                    "threshold": 0.5,
                    "ngram_words": 2,
                    "num_permutations": 32,
                },
            },
            "fuzzy_dedup": {"keep": "first", "rule": rule},
            "tokenize": {"tokenizer": str(tiny_tokenizer)},
            "engine": {"kind": "inline"},
        },
    )
    crawl.write()
    whole = crawl.run("whole", (0, 1, 2))
    first = crawl.run("first", (0,))
    second = crawl.run("second", (1,), ["first"])
    third = crawl.run("third", (2,), ["first", "second"])
    assert select_month(read_texts(whole), 2) == read_texts(third)
    assert select_month(find_exact_copies(whole), 2) == find_exact_copies(third)
    for month, found in enumerate((first, second)):
        assert select_month(find_exact_copies(whole), month) == find_exact_copies(found)
        if keep != "drop_all_copies":
            assert select_month(read_texts(whole), month) == read_texts(found)
    if keep == "drop_all_copies":
        return  # the texts of the first months differ, and so do their band hashes
    decided = find_near_duplicates(whole)
    found = {
        **find_near_duplicates(first),
        **find_near_duplicates(second),
        **find_near_duplicates(third),
    }
    assert select_month(decided, 2).keys() == find_near_duplicates(third).keys()
    assert found.keys() <= decided.keys()
    # The one run keeps the first document of a cluster.
    for url, representative in found.items():
        assert decided.get(representative, representative) == decided[url]
        assert representative not in find_near_duplicates(first)


@pytest.fixture
def months(small: Small, lid_file: Path) -> Small:
    """Two files.

    The second has a copy, a shared line and a near-duplicate of the first, and a new page.
    """
    rng = random.Random(3)
    words = [f"w{rng.randrange(10**6)}" for _ in range(60)]
    edited_words = [*words[:30], "the", *words[31:]]
    pages = {
        "first": {
            "copied": "The same page of the museum.\nAnd its end.",
            "original": " ".join(words),
            "line": "Shared line.\nOld.",
        },
        "second": {
            "copy": "The same page of the museum.\nAnd its end.",
            "edited": " ".join(edited_words),
            "quoting": "Shared line.\nNew.",
            "news": "Nobody has said this of the treaty.",
        },
    }
    for month, texts in pages.items():
        records = [
            wet_record(f"https://example.org/{name}", f"Title\n{text}")
            for name, text in texts.items()
        ]
        (small.folder / f"{month}.warc.wet").write_bytes(b"".join(records))
    minhash = {"threshold": 0.5, "ngram_words": 2}
    tree = {
        **small.tree,
        "exact_dedup": {"by": "text"},
        "annotate": {"language": {"model": str(lid_file)}, "minhash": minhash},
        "fuzzy_dedup": {"keep": "longest"},
    }
    return Small(small.folder, tree)


def make_input(small: Small, name: str) -> dict[str, Any]:
    return {"input": {"files": [str(small.folder / f"{name}.warc.wet")]}}


def test_an_increment_keeps_new_documents_and_traces_name_the_previous_run(
    months: Small,
) -> None:
    """The previous run does not change, and previews work."""
    first, _ = months.run("2026-10", **make_input(months, "first"))
    before = contents(Path(first.run_dir))
    found, _ = months.run(
        "2026-11", **make_input(months, "second"), previous_runs=[str(first.run_dir)]
    )
    assert contents(Path(first.run_dir)) == before
    traces = {
        name: explain(found, f"https://example.org/{name}")[0]
        for name in ("copy", "edited", "quoting", "news")
    }
    assert {name: trace.decision for name, trace in traces.items()} == {
        "copy": "exact_dedup.same_text",
        "edited": "minhash.near_duplicate",
        "quoting": "kept",
        "news": "kept",
    }
    for name, shown in (
        ("copy", "copy of document 0 of {}: https://example.org/copied (kept)"),
        (
            "edited",
            "near-duplicate of document 1 of {}: https://example.org/original (kept)",
        ),
        ("quoting", "also in document 2 of {}: https://example.org/line (kept)"),
    ):
        lines = format_trace(traces[name])
        assert any(shown.format(first.run_dir) in line for line in lines), lines
    assert preview(found, ["select.language={min_score: 1.0}"]).before.num_docs == 2
    shutil.rmtree(Path(first.run_dir))
    (trace,) = explain(found, "https://example.org/edited")
    assert (
        f"                 near-duplicate of document 1 of {first.run_dir}"
        in format_trace(trace)
    )


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_fingerprints_depend_only_on_what_is_read_of_a_previous_run(months: Small) -> None:
    """They do not depend on its folder and its thresholds."""
    first, _ = months.run("2026-10", **make_input(months, "first"))

    def fingerprints(*previous: str, **sections: Any) -> dict[str, str | None]:
        plan = months.plan(
            "2026-11", **make_input(months, "second"), previous_runs=previous, **sections
        )
        return {phase.name: phase.fingerprint for phase in plan.phases}

    alone, against = fingerprints(), fingerprints(str(first.run_dir))
    unchanged = {name for name in alone if alone[name] == against[name]}
    assert unchanged == {
        "extract",
        "exact_hashes",
        "substring_hashes",
        "substring_dedup",
    }  # the last two: off
    shutil.move(Path(first.run_dir), months.folder / "moved")
    months.run(
        "moved", **make_input(months, "first"), select={"language": {"min_score": 0.9}}
    )
    assert fingerprints(str(months.folder / "moved")) == against
    off = {
        "exact_dedup": None,
        "fuzzy_dedup": None,
        "paragraph_dedup": {"keep": "keep_all"},
    }
    assert fingerprints(str(months.folder / "moved"), **off) == fingerprints(**off)


def test_previous_runs_with_other_settings_are_refused(months: Small) -> None:
    """The error of the plan has both values."""
    first, _ = months.run("2026-10", **make_input(months, "first"))
    described = json.loads((Path(first.run_dir) / "run.json").read_text())
    minhash = described["config"]["annotate"]["minhash"]
    for annotate, message in (
        ({"minhash": None}, r"its annotate\.minhash is null"),
        (
            {"minhash": {**minhash, "threshold": 0.8}},
            r"threshold is 0\.8 \(bands and rows .* ours 0\.5",
        ),
        ({}, r"its exact_dedup is null, ours .*text"),
    ):
        config = {
            **described["config"],
            "annotate": {**described["config"]["annotate"], **annotate},
        }
        config["exact_dedup"] = config["exact_dedup"] if annotate else None
        if annotate == {"minhash": None}:
            config["fuzzy_dedup"] = None
        (Path(first.run_dir) / "run.json").write_text(
            json.dumps({**described, "config": config})
        )
        with pytest.raises(ConfigError, match=message):
            months.plan(
                "2026-11",
                **make_input(months, "second"),
                previous_runs=[str(first.run_dir)],
            )
    (Path(first.run_dir) / "run.json").write_text(json.dumps(described))
    (Path(first.run_dir) / "run.json").write_text(
        json.dumps(described).replace('"store_ngrams": true', '"store_ngrams": false')
    )
    with pytest.raises(ConfigError, match="store_ngrams is false"):
        months.plan(
            "2026-11", **make_input(months, "second"), previous_runs=[str(first.run_dir)]
        )


def test_a_previous_run_of_an_earlier_version_is_refused_before_anything_runs(
    months: Small,
) -> None:
    """Its files of hashes have no segments."""
    first, _ = months.run("2026-10", **make_input(months, "first"))
    for phase, kind in (("extract", "distinct_hashes"), ("annotate", "bands")):
        first.folder(phase).path(f"done/places_of_{kind}.json").unlink()
    with pytest.raises(ConfigError) as error:
        months.plan(
            "2026-11", **make_input(months, "second"), previous_runs=[str(first.run_dir)]
        )
    assert [fault.partition("; ")[0] for fault in error.value.faults] == [
        f"previous_runs: {first.run_dir}: its {phase} was written by an earlier version of this program"
        for phase in ("extract", "annotate")
    ]


def test_unusable_previous_runs_are_reported_at_once(months: Small) -> None:
    """Missing, unfinished, repeated or older runs, and the run itself, are faults."""
    first, _ = months.run("2026-10", **make_input(months, "first"))
    shutil.copytree(Path(first.run_dir), months.folder / "stopped")
    (months.folder / "stopped" / first.folders["fuzzy_dedup"] / "phase.json").unlink()
    described = (Path(first.run_dir) / "run.json").read_text()
    shutil.copytree(Path(first.run_dir), months.folder / "old")
    (months.folder / "old" / "run.json").write_text(
        described.replace(f'"minhash": {MinHash.version}', '"minhash": 0')
    )
    names = ["2026-10", "2026-10", "2026-11", "nowhere", "stopped", "old"]
    previous = [str(months.folder / name) for name in names]
    with pytest.raises(ConfigError) as error:
        months.plan("2026-11", **make_input(months, "second"), previous_runs=previous)
    faults = "\n".join(error.value.faults)
    for fault in (
        "2026-10 is named twice",
        "2026-11 is the run itself",
        "nowhere: no run here",
        "stopped: its fuzzy_dedup is not finished",
        f"old: its stage minhash is version 0, ours is {MinHash.version}",
    ):
        assert fault in faults
    assert len(error.value.faults) == 5
