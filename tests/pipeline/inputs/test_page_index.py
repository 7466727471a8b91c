"""Pages of a snapshot are found in its index and fetched one by one, from a local server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from pipeline.config import InputConfig, PageQuery, RunConfig
from pipeline.errors import RunAborted
from pipeline.execution.engine import TaskFinished, run
from pipeline.inputs import polite_reader
from pipeline.inputs.input_splits import list_input_splits
from pipeline.inputs.page_index import can_match
from pipeline.inputs.polite_reader import PoliteReader, count_readers
from pipeline.inputs.read_file import read_file
from pipeline.reporting.explain import explain, format_trace
from pipeline.runs.run_folder import RunFolder
from stages.warc.read_report import Quarantined, ReadReport
from stages.warc.reader import PageTimeout
from storage.retries import RetryPolicy
from storage.settings import DEFAULT_SETTINGS
from tests.connected_engine import ConnectedEngine
from tests.pipeline.conftest import Small, run_until
from tests.pipeline.inputs.snapshot import CRAWL, make_snapshot
from tests.servers import FileServer

pytest.importorskip("obstore")

WORDS = [
    "apple",
    "banana",
    "cherry",
    "damson",
    "elder",
    "fig",
    "grape",
    "hazel",
    "iris",
    "juniper",
    "kiwi",
    "lemon",
    "mango",
    "nutmeg",
    "olive",
    "pear",
    "quince",
    "rowan",
    "sloe",
    "thyme",
]


def make_pages() -> list[tuple[str, str, str]]:
    """20 pages of four sites, sorted by domain as in the index."""
    hosts = ("www.alpha.org", "de.beta.org", "en.beta.org", "gamma.net")
    languages = ("eng", "deu,eng", "eng,deu", "deu")
    return [
        (f"https://{hosts[i // 5]}/{word}", languages[i // 5], word)
        for i, word in enumerate(WORDS)
    ]


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A served snapshot, an empty cache, and short waits after refusals."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    policy = RetryPolicy(timeout_s=0.5, first_wait_s=0.01, longest_wait_s=0.05)
    monkeypatch.setattr(polite_reader, "REFUSAL_RETRIES", policy)
    with FileServer(make_snapshot(make_pages())) as served:
        yield served


def make_input(snapshot: FileServer, **query: Any) -> dict[str, Any]:
    pages = {"requests_per_s": 10_000, "pages_per_split": 3, **query}
    crawl = {"crawl": CRAWL, "base_url": f"{snapshot.url}/", "pages": pages}
    return {"files": None, "common_crawl": crawl, "max_quarantined_share": 0.5}


def _read_rows(snapshot: FileServer) -> list[dict[str, Any]]:
    """Return the rows of the index."""
    rows: list[dict[str, Any]] = []
    for name in sorted(name for name in snapshot.files if "subset=warc" in name):
        rows += pq.read_table(pa.BufferReader(snapshot.files[name])).to_pylist()
    return rows


def read_reports(config: RunConfig) -> tuple[list[str], list[ReadReport]]:
    """Return the last parts of the URLs of all documents, and the reports on the splits."""
    words: list[str] = []
    reports: list[ReadReport] = []
    splits = list_input_splits(config.input)
    for split in splits:
        for file in split.files:
            reading = read_file(
                file,
                config,
                split=split.index,
                num_splits=len(splits),
                first_record=0,
                page_timeout=PageTimeout(),
            )
            try:
                while True:
                    urls = next(reading).column("url").to_pylist()
                    words += [url.rpartition("/")[2] for url in urls]
            except StopIteration as end:
                reports.append(end.value)
    return words, reports


def read_all(small: Small, query: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return the words of all documents and the causes of quarantined records."""
    words, reports = read_reports(small.config(input=query))
    causes: list[str] = []
    for report in reports:
        causes += [entry.cause for entry in report.quarantine]
    return words, causes


def read_words(run: RunFolder) -> list[str]:
    """Return the last parts of the URLs of the extracted documents, in order."""
    urls: list[str] = []
    for split in run.splits:
        path = run.folder("extract").path(f"{split.key}.documents.parquet")
        urls += pq.read_table(path, columns=["url"]).column(0).to_pylist()
    return [url.rpartition("/")[2] for url in urls]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"domains": ["beta.org"]}, WORDS[5:15]),
        ({"hosts": ["en.beta.org"]}, WORDS[10:15]),
        ({"hosts": ["en.beta.org"], "domains": ["gamma.net"]}, WORDS[10:20]),
        ({"languages": ["de"]}, [*WORDS[5:10], *WORDS[15:]]),
        ({"languages": ["deu"], "domains": ["beta.org"]}, WORDS[5:10]),
        ({"url_pattern": "/(fig|pear)$"}, ["fig", "pear"]),
        ({"domains": ["beta.org"], "max_pages": 4}, WORDS[5:9]),
    ],
)
def test_a_query_gives_its_pages(
    snapshot: FileServer, query: dict[str, Any], wanted: list[str]
) -> None:
    """The parts of the index have as many pages as match."""
    config = InputConfig.model_validate(make_input(snapshot, **query))
    splits = list_input_splits(config)
    parts = [file.part for split in splits for file in split.files]
    assert sum(part.stop - part.start for part in parts if part) == len(wanted)


def test_pages_go_through_the_chain(small: Small, snapshot: FileServer) -> None:
    """In the order of the index, with their places in the snapshot; only their bytes are read."""
    found, _ = small.run(input=make_input(snapshot, domains=["beta.org"]))
    assert read_words(found) == WORDS[5:15]
    (trace,) = explain(found, "https://de.beta.org/fig")
    text = "\n".join(format_trace(trace))
    assert "CC-MAIN-1.warc.gz at byte " in text
    assert len(snapshot.list_ranges("segments")) == 10
    assert not snapshot.list_ranges("robotstxt")
    assert all(snapshot.list_ranges("segments"))


def test_a_second_plan_sends_no_request(small: Small, snapshot: FileServer) -> None:
    """The row groups that match are kept in the cache, and other queries have other splits."""
    query = make_input(snapshot, domains=["beta.org"])
    first = small.plan(input=query)
    snapshot.requests.clear()
    assert [split.key for split in small.plan(input=query).splits] == [
        split.key for split in first.splits
    ]
    assert snapshot.requests == []
    other = small.plan(input=make_input(snapshot, domains=["beta.org"], languages=["en"]))
    assert not {split.key for split in other.splits} & {split.key for split in first.splits}


def test_row_groups_of_other_domains_are_not_read(snapshot: FileServer) -> None:
    """Their statistics exclude them; small files are read with their footers here."""
    name = next(name for name in snapshot.files if "subset=warc/part-00001" in name)
    metadata = pq.read_metadata(pa.BufferReader(snapshot.files[name]))
    query = PageQuery(domains=("gamma.net",))
    groups = range(metadata.num_row_groups)
    assert [can_match(metadata.row_group(group), query) for group in groups] == [
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("status", [403, 429, 500, 503])
def test_a_refused_request_is_repeated(
    small: Small, snapshot: FileServer, status: int
) -> None:
    """No page is lost."""
    names = [name for name in snapshot.files if "segments" in name or "subset=warc" in name]
    for name in names:
        snapshot.failures[name] = [status, status]
    words, causes = read_all(small, make_input(snapshot, domains=["beta.org"]))
    assert (words, causes) == (WORDS[5:15], [])
    assert not any(snapshot.failures.values())


def test_a_cut_answer_is_requested_again(small: Small, snapshot: FileServer) -> None:
    """Half a record would be a truncated page."""
    snapshot.cuts = {name: 50 for name in snapshot.files if "segments" in name}
    words, causes = read_all(small, make_input(snapshot, domains=["beta.org"]))
    assert (words, causes) == (WORDS[5:15], [])
    assert not snapshot.cuts


def test_a_missing_record_is_quarantined(small: Small, snapshot: FileServer) -> None:
    """One file is gone, and another is shorter than the index says."""
    first, second = sorted(name for name in snapshot.files if "segments" in name)
    del snapshot.files[first]
    snapshot.files[second] = snapshot.files[second][:-500]
    query = make_input(snapshot, domains=["beta.org", "gamma.net"])
    words, causes = read_all(small, query)
    assert words == ["fig", "hazel", "juniper", "lemon", "nutmeg", "pear", "rowan"]
    assert causes == ["index.record_missing"] * 8


def test_a_broken_record_is_quarantined_with_its_place(
    small: Small, snapshot: FileServer
) -> None:
    """The place is that in the snapshot, not in a temporary file."""
    name = max(name for name in snapshot.files if "segments" in name)
    content = bytearray(snapshot.files[name])
    config = small.config(input=make_input(snapshot, hosts=["de.beta.org"]))
    pages = [row for row in _read_rows(snapshot) if row["url"].endswith("/fig")]
    offset = pages[0]["warc_record_offset"]
    content[offset + 40 : offset + 80] = b"\xff" * 40
    snapshot.files[name] = bytes(content)
    entries: list[Quarantined] = []
    for report in read_reports(config)[1]:
        entries += report.quarantine
    places = {(entry.file, entry.offset) for entry in entries}
    assert places == {(name.rpartition("/")[2], offset)}


def test_a_server_that_refuses_for_long_fails_the_task(
    small: Small, snapshot: FileServer
) -> None:
    """What was read is kept, and the next run continues."""
    query = make_input(snapshot, domains=["beta.org"])
    plan = small.plan(input=query)
    name = min(name for name in snapshot.files if "segments" in name)
    snapshot.failures[name] = [403] * 1_000
    with pytest.raises(RunAborted, match="403"):
        list(run(plan))
    snapshot.failures.clear()
    found, _ = small.run(input=query)
    assert read_words(found) == WORDS[5:15]


class Clock:
    """A clock that goes on only while a reader sleeps: other work takes no time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def read_bytes(
    snapshot: FileServer, monkeypatch: pytest.MonkeyPatch, *numbers: int
) -> list[float]:
    """Send so many requests, and then more, by one reader at 100 per second; return the seconds they take."""
    clock = Clock()
    monkeypatch.setattr(polite_reader, "time", clock)
    reader = PoliteReader(f"{snapshot.url}/", DEFAULT_SETTINGS, requests_per_s=100)
    name = next(name for name in snapshot.files if "segments" in name)
    ends_s = [0.0]
    for number in numbers:
        for start in range(number):
            reader.read_range(name, start, start + 1)
        ends_s.append(clock.now_s)
    return [end_s - start_s for start_s, end_s in itertools.pairwise(ends_s)]


def test_requests_keep_the_rate(
    snapshot: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 100 requests per second, ten of them take 0.1 s."""
    assert read_bytes(snapshot, monkeypatch, 10) == pytest.approx([0.1])


def test_requests_slow_down_after_a_refusal(
    snapshot: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two refusals make the time between requests four times as long, which then shrinks by 5 % each."""
    name = next(name for name in snapshot.files if "segments" in name)
    snapshot.failures[name] = [503, 503]
    _, later_s = read_bytes(snapshot, monkeypatch, 1, 5)
    assert later_s == pytest.approx(sum(0.01 * 4 * 0.95**k for k in range(5)))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"domains": ["missing.org"]}, "has no such page"),
        ({"url_pattern": "(("}, r"url_pattern is '\(\(': .*"),
    ],
)
def test_a_wrong_query_is_refused(
    snapshot: FileServer, query: dict[str, Any], message: str
) -> None:
    """When the run is planned."""
    config = InputConfig.model_validate(make_input(snapshot, **query))
    with pytest.raises(ConfigError, match=message):
        list_input_splits(config)


@pytest.mark.parametrize(
    ("crawl", "message"),
    [
        ({"pages": {}}, "give at least one of domains, hosts"),
        ({"pages": {"domains": ["a.org"]}, "format": "wet"}, "remove format"),
        ({"pages": {"domains": ["a.org"]}, "count": 5}, r"use pages\.max_pages"),
    ],
)
def test_settings_of_files_and_pages_do_not_mix(
    crawl: dict[str, Any], message: str
) -> None:
    """Only WARC files have an index, and pages are not counted in files."""
    with pytest.raises(ValueError, match=message):
        InputConfig.model_validate({"common_crawl": {"crawl": CRAWL, **crawl}})


@pytest.mark.ray
def test_tasks_of_a_cluster_share_the_rate(
    small: Small, snapshot: FileServer, ray_engine: ConnectedEngine
) -> None:
    """Each gets the rate divided by the tasks that can run at a time; the pages are the same."""
    query = make_input(snapshot, domains=["beta.org"])
    plan = small.plan(input=query, engine={"kind": "ray"})
    shares: list[int] = []
    for event in run_until(plan, "extract", ray_engine.use(plan)):
        if isinstance(event, TaskFinished):
            shares += [count_readers(plan.config, splits) for splits in (1, 100)]
    assert set(shares) == {1, 2}  # the shared Ray has two CPUs
    assert read_words(RunFolder.open(plan.run_dir)) == WORDS[5:15]


def test_a_run_in_this_process_has_the_whole_rate(
    small: Small, snapshot: FileServer
) -> None:
    """Its tasks run one after the other."""
    config = small.config(input=make_input(snapshot, domains=["beta.org"]))
    assert count_readers(config, 100) == 1
