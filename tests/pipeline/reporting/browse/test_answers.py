"""The answers of browse: they agree with the stored decisions, explain, and the texts."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from pipeline.reporting.browse import build_index
from pipeline.reporting.browse.answers import ANSWERS, Parameters, Session
from pipeline.reporting.browse.differences import MAX_WORDS, list_segments
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.search import Search, find_documents
from pipeline.reporting.browse.texts import search_texts
from pipeline.reporting.explain import explain
from pipeline.runs.phase_folder import read_digests
from pipeline.runs.run_folder import RunFolder, RunNotFound
from tests.conftest import wet_record
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import read_decisions


def ask(index: Index, question: str, **parameters: Any) -> dict[str, Any]:
    """Ask as the page does; a list stands for a repeated parameter."""
    lists = {
        name: [str(item) for item in (value if isinstance(value, list) else [value])]
        for name, value in parameters.items()
    }
    return ANSWERS[question](Session(index), Parameters(lists))


def list_ids(answer: dict[str, Any]) -> list[int]:
    return [int(document["doc_id"]) for document in answer["documents"]]


def test_the_index_has_each_document_once_with_its_decision(index: Index) -> None:
    """Documents that were dropped at once are in it too."""
    stored = read_decisions(index.run)
    found = ask(index, "documents", num_docs=100, order="input")
    decisions = {int(doc["doc_id"]): doc["decision"] for doc in found["documents"]}
    assert decisions == stored
    assert list_ids(found) == sorted(stored)
    assert [index.find_row(doc_id) is None for doc_id in stored] == [False] * len(stored)
    assert index.find_row(99 << 32) is None
    assert sum(ask(index, "run")["decisions"].values()) == len(stored)


@pytest.mark.parametrize(
    ("search", "is_wanted"),
    [
        ({"decision": "kept"}, lambda row: row["decision"] == "kept"),
        ({"decision": "dropped"}, lambda row: row["decision"] != "kept"),
        ({"decision": "minhash"}, lambda row: row["decision"].startswith("minhash.")),
        ({"language": "fr"}, lambda row: row["language"] == "fr"),
        ({"language": "unknown"}, lambda row: row["language"] is None),
        ({"domain": "EXAMPLE.org"}, lambda row: "//example.org/" in row["url"]),
        ({"domain": "example"}, lambda row: ".example/" in row["url"]),
        ({"domain": "xample.org"}, lambda row: "//xample.org/" in row["url"]),
        ({"url": "<SCRIPT>"}, lambda row: "<script>" in row["url"]),
    ],
)
def test_a_search_finds_all_documents_that_match(
    index: Index, search: dict[str, str], is_wanted: Any
) -> None:
    """By decision, stage, language, domain with its subdomains, and part of the URL."""
    rows = [row for table in read_decision_rows(index.run) for row in table]
    found = ask(index, "documents", num_docs=100, order="input", **search)
    assert list_ids(found) == sorted(row["doc_id"] for row in rows if is_wanted(row))
    assert found["num_found"] == len(found["documents"])


def read_decision_rows(run: RunFolder) -> list[list[dict[str, Any]]]:
    return [
        pq.read_table(run.folder(phase).path(f"{split.key}.decisions.parquet")).to_pylist()
        for phase in ("extract", "annotate", "select")
        for split in run.splits
    ]


def test_a_range_of_scores_is_inclusive_and_needs_the_score(index: Index) -> None:
    """Several ranges must all hold."""
    words = index.read_numbers("rps_doc_word_count")
    low, high = np.nanmin(words), np.nanmedian(words)
    scores = [f"rps_doc_word_count={low}:{high}", "num_lines=1:"]
    found = ask(index, "documents", num_docs=100, score=scores)
    assert found["num_found"] == int(((words >= low) & (words <= high)).sum())
    assert 0 < found["num_found"] < index.num_scored
    with pytest.raises(ConfigError, match="'nothing': no such score; stored are"):
        ask(index, "documents", score="nothing=1:2")


def test_pages_are_disjoint_and_complete_in_every_order(index: Index) -> None:
    """The random order depends on the seed only; a score orders both ways, without it last."""
    for order in ("random", "input", "num_chars", "-num_chars"):
        whole = list_ids(ask(index, "documents", order=order, num_docs=100))
        pages: list[int] = []
        for offset in range(0, index.num_docs, 3):
            page = ask(index, "documents", order=order, num_docs=3, offset=offset)
            pages += list_ids(page)
        assert pages == whole
        assert sorted(whole) == sorted(index.doc_ids.tolist())
    random = list_ids(ask(index, "documents", num_docs=100))
    assert list_ids(ask(index, "documents", num_docs=100, seed=1)) != random
    lengths = [
        document["scores"].get("num_chars", 0)
        for document in ask(index, "documents", order="-num_chars")["documents"]
    ]
    assert lengths == sorted(lengths, reverse=True)


def test_a_text_is_found_wherever_the_search_is_interrupted(index: Index) -> None:
    """Each request goes on where the one before ended, also after every row group."""
    everything = find_documents(index, Search())
    whole = search_texts(index, everything, "TREATY", max_found=100)
    assert whole.next_row is None
    assert whole.num_searched == index.num_docs
    assert {"kept", "minhash.near_duplicate", "paragraphs.none_left"} <= {
        index.names["decision"].values[index.read_numbers("decision")[row]]
        for row in whole.rows
    }
    rows: list[int] = []
    num_searched, next_row = 0, 0
    while next_row is not None:
        part = search_texts(index, everything, "TREATY", first_row=next_row, max_search_s=0)
        rows += part.rows
        num_searched += part.num_searched
        next_row = part.next_row
    assert (rows, num_searched) == (whole.rows, index.num_docs)
    answer = ask(index, "documents", text="treaty alpha")
    assert [document["url"][:15] for document in answer["documents"]] == ["https://attack."]


def test_a_document_shows_what_explain_shows(index: Index) -> None:
    """For every document: its decision, its source, and each line as kept or removed."""
    for doc_id in index.doc_ids.tolist():
        found = ask(index, "document", doc_id=doc_id)
        (trace,) = explain(index.run, str(doc_id))
        assert (found["url"], found["decision"]) == (trace.url, trace.decision)
        left = [line["text"] for line in found["lines"] if line["mark"] == "kept"]
        removed = [line["text"] for line in found["lines"] if line["mark"] == "duplicate"]
        annotated = trace.rows.get(("annotate", "documents"))
        if annotated:
            assert "\n".join(left) == annotated["text"]
        if trace.removed:
            assert sorted(removed) == sorted(trace.removed.paragraphs)
        assert found["num_lines"] == len(found["lines"])
    with pytest.raises(RunNotFound, match="no document '123456789012' was read"):
        ask(index, "document", doc_id=123456789012)


def test_every_near_duplicate_shows_the_same_cluster(index: Index) -> None:
    """The representative is first; a document without duplicates has no cluster."""
    near = ask(index, "documents", domain="near.example", order="input")["documents"]
    (kept,) = [document["doc_id"] for document in near if document["is_kept"]]
    assert len(near) == 3
    for document in near:
        cluster = ask(index, "document", doc_id=document["doc_id"])["cluster"]
        assert (cluster["representative"], cluster["num_docs"]) == (kept, 3)
        assert cluster["documents"][0]["doc_id"] == kept
        assert sorted(list_ids(cluster)) == [int(other["doc_id"]) for other in near]
    alone = ask(index, "documents", url="attack")["documents"][0]
    assert ask(index, "document", doc_id=alone["doc_id"])["cluster"] is None


def test_differences_rebuild_both_texts(index: Index) -> None:
    """Near-duplicates differ in one word; documents without a stored text are an error."""
    near = list_ids(ask(index, "documents", domain="near.example", order="input"))
    answer = ask(index, "differences", first=near[0], second=near[1])
    assert [pair for pair in answer["segments"] if pair[0] != "both"] == [
        ("first", "first "),
        ("second", "second "),
    ]
    assert not answer["is_cut"]
    for side, doc_id in (("first", near[0]), ("second", near[1])):
        (trace,) = explain(index.run, str(doc_id))
        text = "".join(text for of, text in answer["segments"] if of in ("both", side))
        assert text == trace.rows["annotate", "documents"]["text"]
    short = list_ids(ask(index, "documents", decision="length"))[0]
    with pytest.raises(RunNotFound, match=f"no text of document {short} is stored"):
        ask(index, "differences", first=short, second=near[0])


@pytest.mark.parametrize("pattern", ["a ", "a b ", "a b a a b "])
def test_hostile_repetition_does_not_make_the_comparison_slow(pattern: str) -> None:
    """The words of both texts are frequent; the comparison ends at once and is right."""
    first = (pattern.split() * MAX_WORDS)[:MAX_WORDS]
    second = ["x", *first[:-1]]
    start = time.process_time()
    segments = list_segments(first, second)
    assert time.process_time() - start < 20
    for words, side in ((first, "first"), (second, "second")):
        text = "".join(text for of, text in segments if of in ("both", side))
        assert text == "".join(words)


def test_the_table_of_domains_adds_up(index: Index) -> None:
    """Read = kept + lost; the reasons are the most frequent ones."""
    answer = ask(index, "domains")
    assert answer["num_domains"] == len(answer["domains"])
    assert sum(domain["num_docs"] for domain in answer["domains"]) == index.num_docs
    for domain in answer["domains"]:
        if not domain["name"]:
            continue  # URLs without a host
        found = ask(index, "documents", domain=domain["name"])["decisions"]
        assert domain["num_kept"] == found.pop("kept", 0)
        assert domain["num_docs"] == domain["num_kept"] + sum(found.values())
        reasons = {lost["reason"]: lost["num_docs"] for lost in domain["reasons"]}
        assert reasons.items() <= found.items()
        assert sum(reasons.values()) == sum(sorted(found.values())[-3:])
    (near,) = ask(index, "domains", name="NEAR")["domains"]
    assert (near["num_docs"], near["num_kept"]) == (3, 1)
    names = [domain["name"] for domain in ask(index, "domains", order="name")["domains"]]
    assert names == sorted(names)
    assert [
        ask(index, "domains", order="name", offset=place, num_domains=1)["domains"][0][
            "name"
        ]
        for place in range(len(names))
    ] == names


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_docs": 101}, "num_docs is '101', wanted a number in 0..100"),
        ({"offset": "-1"}, "offset is '-1', wanted a number"),
        ({"seed": "9" * 5000}, "seed is '9999"),
        ({"order": "nothing"}, "'nothing': no such score"),
        ({"score": "perplexity"}, "expected COLUMN=LOW:HIGH"),
    ],
)
def test_a_wrong_parameter_is_named(
    index: Index, parameters: dict[str, Any], message: str
) -> None:
    """With what was found and what is wanted."""
    with pytest.raises(ConfigError, match=message):
        ask(index, "documents", **parameters)


def undo(run: RunFolder, phase: str) -> None:
    """Make the folder of a phase look as before its first task."""
    run.folder(phase).unfinish()
    run.folder(phase).root.child("done").delete_all()
    read_digests.cache_clear()


def test_an_unfinished_run_shows_the_splits_that_are_done(small: Small) -> None:
    """Documents without a decision say so; a run without any document is refused."""
    run, _ = small.run()
    undo(run, "select")
    with build_index(run) as built:
        found = ask(built, "documents")
        assert set(found["decisions"]) == {"not decided yet"}
        assert ask(built, "document", doc_id=list_ids(found)[0])["decision"] == (
            "not decided yet"
        )
    undo(run, "annotate")
    undo(run, "extract")
    wanted = "extract has not finished an input split yet"
    with pytest.raises(RunNotFound, match=wanted), build_index(run):
        pass


def test_spans_that_an_earlier_document_has_are_listed(small: Small) -> None:
    """A line that lost all of its words is marked; a line that lost some is left."""
    words = " ".join(f"{one}{other}" for one in "abc" for other in "defghij")
    first = f"the treaty of the museum begins\n{words}\nand it ends in the first way"
    second = f"another treaty begins\n{words}\nthe other says {words} as well"
    file = small.folder / "spans.warc.wet"
    pages = [
        wet_record(f"https://example.org/{name}", f"Title\n{text}")
        for name, text in (("first", first), ("second", second))
    ]
    file.write_bytes(b"".join(pages))
    run, _ = small.run(input={"files": [str(file)]}, substring_dedup={"min_words": 10})
    with build_index(run) as built:
        found = ask(built, "document", doc_id=1)
    assert [line["mark"] for line in found["lines"]] == ["kept", "span", "kept"]
    assert found["num_repeated"] == len(found["repeated"]) > 0
    assert found["repeated"][0]["first"]["url"] == "https://example.org/first"
