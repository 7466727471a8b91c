"""Stages that are off by default, each in a small whole run: what they do reaches the shards and the accounts."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from pipeline.reporting.report import make_report, print_report, to_html
from pipeline.runs.run_folder import RunFolder
from tests.conftest import wet_record
from tests.pipeline.conftest import Small
from tests.stages.examples import tiny_reference


def write_wet(path: Path, texts: Sequence[str]) -> dict[str, Any]:
    """The config's `input`: a WET file of those pages."""
    records = [
        wet_record(f"https://example.org/{i}", f"Title\n{text}")
        for i, text in enumerate(texts)
    ]
    path.write_bytes(b"".join(records))
    return {"files": [str(path)]}


def stored(run: RunFolder, phase: str) -> pa.Table:
    """The documents of the first unit, as a phase stored them."""
    return pq.read_table(run.folder(phase).path(f"{run.splits[0].key}.documents.parquet"))


def said_in_shards(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What the first shard says of its documents, by URL."""
    with tarfile.open(Path(run.dataset) / "shard-000000.tar") as tar:
        files = [tar.extractfile(member) for member in tar if member.name.endswith(".json")]
        return {
            row["url"]: row for file in files if file is not None for row in json.load(file)
        }


def on_terminal(run: RunFolder) -> str:
    """The report as it is printed."""
    console = Console(width=120, record=True, file=StringIO())
    print_report(make_report(run), console)
    return console.export_text()


def test_repaired_text_is_hashed_and_stored(small: Small, tmp_path: Path) -> None:
    """Mojibake is mended before deduplication, so a broken copy is a copy."""
    sound, broken = (
        "The treaty was signed in the tÃ©nt of Ghent.",
        "The treaty was signed in the tént of Ghent.",
    )
    run, _ = small.run(
        input=write_wet(tmp_path / "m.warc.wet", [sound, broken]),
        extract={"unicode": {}, "length": None},
    )
    assert stored(run, "extract")["text"].to_pylist() == [broken] * 2
    assert stored(run, "annotate")["text"].to_pylist() == [broken]


def test_placeholders_are_in_the_shards_and_not_in_what_is_scored(
    small: Small, tmp_path: Path
) -> None:
    """The stored text is the page's; each document in the shards, and the tally, say how many were replaced."""
    texts = [
        "Write to ann@example.org or call 415-555-2671 before noon.",
        "The treaty was signed in Ghent.",
    ]
    files = write_wet(tmp_path / "p.warc.wet", texts)
    run, _ = small.run("with", input=files, tokenize={"pii": {"email": "Q", "phone": "QQ"}})
    bare, _ = small.run("without", input=files)
    assert (
        stored(run, "annotate")["text"].to_pylist()
        == stored(bare, "annotate")["text"].to_pylist()
        == texts
    )
    said = said_in_shards(run)
    found = {
        url[-1]: [row[f"pii_{kind}"] for kind in ("email", "ip", "phone", "card")]
        for url, row in said.items()
    }
    assert found == {"0": [1, 0, 1, 0], "1": [0, 0, 0, 0]}
    assert not [
        name
        for row in said_in_shards(bare).values()
        for name in row
        if name.startswith("pii_")
    ]
    with_pii, without = (
        r.folder("tokenize").record(r.splits[0].key)["counters"]["counts"]
        for r in (run, bare)
    )
    assert {name: n for name, n in with_pii.items() if name not in without} == {
        "pii_email": 1,
        "pii_phone": 1,
    }
    assert with_pii["tokens"] < without["tokens"]
    counters = make_report(run).counters["tokenize"]
    replaced = {
        name: number for name, number in counters.items() if name.startswith("pii_")
    }
    assert replaced == {"pii_email": 1, "pii_ip": 0, "pii_card": 0, "pii_phone": 1}
    for shown in (to_html(make_report(run)), on_terminal(run)):
        assert "Counted by tokenize: pii" in shown
        assert "E-mail addresses replaced" in shown
    assert not [name for name in make_report(bare).counters["tokenize"] if "pii_" in name]
    assert "tokenize: pii" not in to_html(make_report(bare)) + on_terminal(bare)


def test_lines_taken_out_are_counted_in_the_report(small: Small, tmp_path: Path) -> None:
    """The report says how many lines went by line rules, and how many are left, of the documents that have some."""
    texts = [
        "Home\nThe treaty was signed in Ghent.\nMenu",
        "The river rose again in spring.",
        "All the pages of this site",
    ]
    run, _ = small.run(
        input=write_wet(tmp_path / "l.warc.wet", texts),
        annotate={"lines": {"min_sentences": 1}},
    )
    report = make_report(run)
    assert report.reasons == {"lines.none_left": 1}
    counters = report.counters["annotate"]
    assert (counters["lines_removed"], counters["paragraphs"]) == (2, 2)
    for shown in (to_html(report), on_terminal(run)):
        assert "Counted by annotate: lines" in shown
        assert "Lines removed" in shown


def test_other_limits_of_a_classifier_score_nothing_again(
    small: Small, tmp_path: Path
) -> None:
    """Scores are stored and said in the shards; changed limits renew select and what follows; the reason names it."""
    (tmp_path / "model").mkdir()
    one = {"model": str(tiny_reference(tmp_path / "model")), "label": "__label__reference"}
    texts = [
        "The treaty was signed and the treaty was signed.",
        "Buy cheap shoes online, buy cheap shoes online.",
    ]
    chain = {
        "input": write_wet(tmp_path / "c.warc.wet", texts),
        "annotate": {"classifiers": {"hq": one}},
    }
    run, _ = small.run(**chain, select={"classifiers": {"hq": {"min": 0.4}}})
    good, bad = stored(run, "annotate")["classifier_hq"].to_pylist()
    assert good > 0.4 > bad
    decisions = pq.read_table(
        run.folder("select").path(f"{run.splits[0].key}.decisions.parquet")
    ).to_pylist()
    assert [
        (row["decision"], row["value"], row["limit"], row["detail"]) for row in decisions
    ] == [
        ("kept", None, None, None),
        ("classifiers.score_too_low", bad, 0.4, "hq"),
    ]
    assert [row["classifier_hq"] for row in said_in_shards(run).values()] == [good]
    before, after = (
        {
            phase.name: phase.fingerprint
            for phase in small.plan(**chain, select={"classifiers": limits}).phases
        }
        for limits in ({"hq": {"min": 0.4}}, {"hq": {"max": 0.4}})
    )
    assert [name for name in before if before[name] != after[name]] == [
        "select",
        "tokenize",
        "write_shards",
    ]


def test_listed_urls_end_at_the_first_stage(small: Small, tmp_path: Path) -> None:
    """A block list drops before anything is hashed, and the fate names the entry; another list is another run."""
    (tmp_path / "list.txt").write_text("example.org/1\n")
    files = write_wet(
        tmp_path / "u.warc.wet",
        ["The treaty was signed in Ghent.", "The treaty was signed in Bruges."],
    )
    run, _ = small.run(
        input=files, extract={"url": {"domains": [str(tmp_path / "list.txt")]}}
    )
    assert stored(run, "extract")["url"].to_pylist() == ["https://example.org/0"]
    decisions = pq.read_table(
        run.folder("extract").path(f"{run.splits[0].key}.decisions.parquet")
    ).to_pylist()
    assert [(row["decision"], row["detail"]) for row in decisions] == [
        ("url.domain_blocked", "list: example.org/1")
    ]
    before = small.plan(
        input=files, extract={"url": {"domains": [str(tmp_path / "list.txt")]}}
    )
    (tmp_path / "list.txt").write_text("example.net\n")
    after = small.plan(
        input=files, extract={"url": {"domains": [str(tmp_path / "list.txt")]}}
    )
    assert (
        run.folders["extract"]
        == before.folder("extract").root.name
        != after.folder("extract").root.name
    )


def test_overlap_with_evaluation_sets_is_told_per_set(small: Small, tmp_path: Path) -> None:
    """Shares are stored, the report counts by set, found or not, and another limit scores nothing again."""
    question = (
        "Which treaty was signed in the city of Ghent on the day before Christmas of 1814?"
    )
    (tmp_path / "history.jsonl").write_text(json.dumps({"question": question}) + "\n")
    (tmp_path / "other.txt").write_text("A line of nine words that no page of ours has.\n")
    sets = {
        "history": str(tmp_path / "history.jsonl"),
        "other": str(tmp_path / "other.txt"),
    }
    texts = [
        f"They asked: {question} Nobody knew.",
        "Nothing of the kind is to be read on this page.",
    ]
    chain = {
        "input": write_wet(tmp_path / "d.warc.wet", texts),
        "annotate": {"decontamination": {"sets": sets}},
    }
    run, _ = small.run("strict", **chain, select={"decontamination": {}})
    (shared,), none = stored(run, "annotate")["contamination"].to_pylist()
    assert shared == {"set": "history", "words": 16, "share": 0.8}
    assert none == []
    assert count_overlaps(run) == {
        "contaminated.history": 1,
        "contaminated.other": 0,
        "contaminated_words.history": 16,
        "contaminated_words.other": 0,
        "decontaminated.history": 1,
    }
    decisions = pq.read_table(
        run.folder("select").path(f"{run.splits[0].key}.decisions.parquet")
    ).to_pylist()
    assert [
        (row["decision"], row["value"], row["limit"], row["detail"]) for row in decisions
    ] == [
        ("decontamination.share_too_high", 0.8, 0.0, "history"),
        ("kept", None, None, None),
    ]
    for shown in (on_terminal(run), to_html(make_report(run))):
        assert "Documents that share a word n-gram with the evaluation set: other" in shown
        assert "Documents dropped because of the evaluation set: history" in shown

    lenient, _ = small.run(
        "strict", **chain, select={"decontamination": {"max_share": {"history": 0.9}}}
    )
    assert lenient.folders["annotate"] == run.folders["annotate"]
    assert lenient.folders["select"] != run.folders["select"]
    kept = count_overlaps(lenient)
    assert (kept["contaminated.history"], kept["contaminated_words.history"]) == (1, 16)
    assert "decontaminated.history" not in kept


def count_overlaps(run: RunFolder) -> dict[str, int]:
    """Return the counters of the stages named decontamination."""
    counters = make_report(run).counters
    merged = {**counters["annotate"], **counters["select"]}
    return {name: number for name, number in merged.items() if "contaminated" in name}
