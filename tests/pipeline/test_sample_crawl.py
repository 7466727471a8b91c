"""The sample crawl: readable by others, the same each time, and as its truth table says."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import gzip
import hashlib
import random
import tracemalloc
import zlib
from base64 import b32encode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from pipeline.sample_crawl import generator as sample_crawl
from pipeline.sample_crawl.generator import KINDS, TAIL_KINDS, TRUTH, Format, SampleCrawl, generate
from stages.dedup.paragraphs import hash_paragraph

FORMATS: tuple[Format, ...] = ("wet", "warc")
Row = dict[str, Any]


class InventedLibrary:
    """Sentences of made-up words: what the real library gives, without the network."""

    def summaries(self, language: str, part: Literal["pages"]) -> Iterable[tuple[str, str]]:
        """Four hundred titles with four sentences each."""
        assert part == "pages"
        sentences = _sentences(language, 1_600)
        return [
            (f"Title {i} <{language}>", " ".join(sentences[4 * i : 4 * i + 4])) for i in range(400)
        ]

    def sentences(self, language: str) -> Sequence[str]:
        """Six hundred sentences."""
        return _sentences(language, 600)


@cache
def _sentences(language: str, num_sentences: int) -> list[str]:
    draws = random.Random(language)
    return [_sentence(draws) for _ in range(num_sentences)]


def _sentence(draws: random.Random) -> str:
    words = [
        "".join(draws.choices("aeioulnrstdéñç", k=draws.randint(2, 9)))
        for _ in range(draws.randint(8, 18))
    ]
    return " ".join(words).capitalize() + " & 1984."


LIBRARY = InventedLibrary()


def make(
    out: Path, num_documents: int = 300, documents_per_file: int = 40, **arguments: Any
) -> SampleCrawl:
    """A small crawl of invented text."""
    arguments = {"seed": 1, "format": "wet", "library": LIBRARY, **arguments}
    return generate(
        out, num_documents=num_documents, documents_per_file=documents_per_file, **arguments
    )


@pytest.fixture(scope="module")
def crawls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SampleCrawl]:
    """The same 300 pages in eight files, as text and as HTML."""
    folder = tmp_path_factory.mktemp("crawls")
    return {name: make(folder / name, format=name) for name in FORMATS}


@pytest.fixture(scope="module", params=FORMATS)
def crawl(request: pytest.FixtureRequest, crawls: dict[str, SampleCrawl]) -> SampleCrawl:
    """Each of the two in turn."""
    return crawls[request.param]


def truth_of(crawl: SampleCrawl) -> list[Row]:
    """The truth table as dictionaries."""
    return pq.read_table(crawl.truth).to_pylist()


def members_of(path: Path) -> Iterator[bytes]:
    """The gzip members of a file, unpacked one by one; a cut one as far as it goes."""
    rest = path.read_bytes()
    while rest:
        unpacker = zlib.decompressobj(wbits=31)
        yield unpacker.decompress(rest)
        rest = unpacker.unused_data


def pages_of(crawl: SampleCrawl) -> Iterator[tuple[Row, bytes]]:
    """Each row of the truth with the unpacked member of its record, found by counting members alone."""
    rows = truth_of(crawl)
    for path in crawl.files:
        mine = [row for row in rows if row["file"] == path.relative_to(crawl.folder).as_posix()]
        members = [m for m in members_of(path) if b"warcinfo" not in m[:40]]
        pages = [
            m for m in members if b"WARC-Type: request" not in m and b"WARC-Type: metadata" not in m
        ]
        yield from zip(mine, pages, strict=True)


def bodies_of(crawl: SampleCrawl) -> dict[str, list[str]]:
    """Url to the lines of a WET page without its title, for all pages with a whole and decodable record."""
    return {
        row["url"]: member.split(b"\r\n\r\n", 1)[1]
        .decode()
        .removesuffix("\n\r\n\r\n")
        .split("\n")[1:]
        for row, member in pages_of(crawl)
        if row["kind"] not in {"damaged_utf8", "truncated"}
    }


def digest_of(folder: Path) -> str:
    """One digest of all names and bytes in a folder."""
    whole = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        whole.update(
            f"{path.relative_to(folder)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return whole.hexdigest()


@pytest.mark.parametrize("crawl_format", FORMATS)
def test_the_same_arguments_give_the_same_bytes(tmp_path: Path, crawl_format: Format) -> None:
    """Two runs agree in every byte, in folders of different names; another seed does not."""
    first, again, other = (
        digest_of(make(tmp_path / name, 120, format=crawl_format, seed=seed).folder)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_fastwarc_reads_every_sound_record(crawl: SampleCrawl) -> None:
    """FastWARC finds all undamaged pages, with the ids of the truth and digests that match their blocks."""
    found: dict[str, str] = {}
    for path in crawl.files:
        for record in _read_to_the_break(path):
            block = record.reader.read()
            digest = (
                "sha1:" + b32encode(hashlib.sha1(block, usedforsecurity=False).digest()).decode()
            )
            is_page = record.record_type in (WarcRecordType.conversion, WarcRecordType.response)
            if (
                is_page
                and record.headers["WARC-Block-Digest"] == digest
                and len(block) == record.content_length
            ):
                found[str(record.record_id).strip("<>")] = (
                    record.headers.get("WARC-Target-URI") or ""
                )
    rows = [row for row in truth_of(crawl) if row["expected_fate"] != "quarantined"]
    sound = {row["record_id"].strip("<>"): row["url"] for row in rows}
    assert {record_id: url for record_id, url in found.items() if url} == sound


def _read_to_the_break(path: Path) -> Iterator[WarcRecord]:
    """FastWARC's records of a file, up to the framing fault that may end it."""
    with path.open("rb") as file:
        records = ArchiveIterator(file, parse_http=False)
        while True:
            try:
                yield next(records)
            except (OSError, StopIteration):
                return


def test_warcio_reads_every_sound_record(crawl: SampleCrawl) -> None:
    """Warcio agrees with the digest of every record in the files that no framing fault ends, and misses none."""
    broken = {row["file"] for row in truth_of(crawl) if row["kind"] in TAIL_KINDS}
    whole = [path for path in crawl.files if path.name not in broken]
    assert len(whole) >= 4
    urls: list[str | None] = []
    for path in whole:
        with path.open("rb") as file:
            for record in WarcioIterator(file, check_digests=True, no_record_parse=True):
                record.content_stream().read()
                assert record.rec_headers.get_header("WARC-Block-Digest")
                assert record.digest_checker is not None
                assert record.digest_checker.passed
                if record.rec_type in {"conversion", "response"}:
                    urls.append(record.rec_headers.get_header("WARC-Target-URI"))
    expected = [
        None if row["kind"] == "damaged_uri" else row["url"]
        for row in truth_of(crawl)
        if row["file"] not in broken and row["kind"] != "damaged_type"
    ]
    assert urls == expected


def test_files_open_with_a_warcinfo_record(crawl: SampleCrawl) -> None:
    """Every file says its own name and what it is part of, as Common Crawl's do."""
    for path in crawl.files:
        first = next(members_of(path)).decode()
        assert first.startswith("WARC/1.0\r\nWARC-Type: warcinfo\r\n")
        assert f"WARC-Filename: {path.name}\r\n" in first
        assert "isPartOf: CC-MAIN-SAMPLE\r\n" in first


def test_truth_has_one_row_per_page_in_order(crawl: SampleCrawl) -> None:
    """Rows follow files and records, urls are unique, sources are pages, kinds are as counted and promised."""
    table = pq.read_table(crawl.truth)
    rows = table.to_pylist()
    assert table.schema.equals(TRUTH)
    assert len(rows) == crawl.num_documents == 300
    assert [(row["file"], row["record"]) for row in rows] == [
        (path.name, record)
        for path in crawl.files
        for record in range(40 if path != crawl.files[-1] else 20)
    ]
    urls = {row["url"] for row in rows}
    assert len(urls) == 300
    assert {row["source_url"] for row in rows} - {None} < urls
    assert Counter(row["kind"] for row in rows) == crawl.num_documents_by_kind
    assert {row["kind"]: row["expected_fate"] for row in rows} == {
        kind.name: kind.fate for kind in KINDS
    }
    assert crawl.num_bytes == sum(path.stat().st_size for path in crawl.files)


def test_shares_of_kinds(crawls: dict[str, SampleCrawl]) -> None:
    """Every kind has its share, rounded up to whole pages, and good pages are the largest kind."""
    counts = crawls["wet"].num_documents_by_kind
    for kind in KINDS:
        if kind.name not in {"good", "truncated"}:
            assert 0 <= counts[kind.name] - kind.per_mille * 0.3 < 1, kind
    assert counts["truncated"] == 1
    assert counts["good"] == max(counts.values())


def test_damaged_pages_have_their_faults(crawls: dict[str, SampleCrawl]) -> None:
    """Each damaged kind is there, its record has that fault, and framing faults end their files."""
    members: dict[str, bytes] = {}
    for row, member in pages_of(crawls["wet"]):
        if row["kind"].startswith("damaged"):
            members[row["kind"]] = member
            assert row["record"] == 39 or row["kind"] not in TAIL_KINDS
    assert b"WARC-Type" not in members["damaged_type"]
    assert b"WARC-Target-URI" not in members["damaged_uri"]
    assert b"\0" in members["damaged_nul"]
    with pytest.raises(UnicodeDecodeError):
        members["damaged_utf8"].decode()
    assert not members["damaged_header"].startswith(b"WARC/")
    promised = int(members["damaged_length"].split(b"Content-Length: ")[1].split(b"\r\n")[0])
    assert promised > len(members["damaged_length"])
    assert truth_of(crawls["wet"])[-1]["kind"] == "truncated"
    with gzip.open(crawls["wet"].files[-1]) as file, pytest.raises(EOFError):
        file.read()


def test_truth_counts_lines_as_ccnet_does(crawls: dict[str, SampleCrawl]) -> None:
    """The counts of unique and repeated lines, and so who is emptied, are those of CCNet's hashes over the crawl."""
    rows = {row["url"]: row for row in truth_of(crawls["wet"])}
    bodies = bodies_of(crawls["wet"])
    num_chars = {url: len("\n".join(lines)) for url, lines in bodies.items()}
    assert {rows[url]["kind"] for url, n in num_chars.items() if n < 300} == {"short"}
    pages_with: dict[int, set[str]] = defaultdict(set)
    for url, lines in bodies.items():
        if num_chars[url] >= 300:
            for line in lines:
                pages_with[hash_paragraph(line)].add(url)
    for url, row in rows.items():
        if row["num_unique_lines"] is None:
            assert row["expected_fate"] in {"too_short", "quarantined"} or row["kind"].startswith(
                "damaged"
            )
            continue
        num_pages = [len(pages_with[h]) for h in {hash_paragraph(line) for line in bodies[url]}]
        counted = (num_pages.count(1), len(num_pages) - num_pages.count(1))
        assert (row["num_unique_lines"], row["num_repeated_lines"]) == counted, row
        assert (row["num_unique_lines"] == 0) == (row["expected_fate"] == "emptied")


def test_copies_are_what_their_kind_says(crawls: dict[str, SampleCrawl]) -> None:
    """Mirrors have their source's paragraphs, half of them its whole text; edited copies none; partial copies some."""
    bodies = bodies_of(crawls["wet"])
    num_whole = 0
    for row in truth_of(crawls["wet"]):
        if row["source_url"] is None:
            continue
        copy, source = bodies[row["url"]], bodies[row["source_url"]]
        shared = set(copy[7:-3]) & set(
            source[7:-3]
        )  # between seven navigation lines and three of the footer
        if row["kind"] == "mirror_copy":
            assert copy[7:-3] == source[7:-3]
            num_whole += copy == source
        elif row["kind"] == "near_copy":
            assert not shared
            words, theirs = (" ".join(body[7:-3]).split() for body in (copy, source))
            num_replaced = sum(a != b for a, b in zip(words, theirs, strict=True))
            assert 0 < num_replaced / len(words) <= 0.1
        else:
            assert row["kind"] == "partial_copy"
            assert 0 < len(shared) < len(copy[7:-3])
    assert num_whole >= crawls["wet"].num_documents_by_kind["mirror_copy"] // 2


def test_html_extracts_to_the_lines_of_the_text(crawls: dict[str, SampleCrawl]) -> None:
    """A page's HTML, decoded by the charset it declares, gives the lines of the same page's WET record."""
    bodies = bodies_of(crawls["wet"])
    declared: Counter[str] = Counter()
    for row, member in pages_of(crawls["warc"]):
        if row["kind"].startswith("damaged") or row["kind"] == "truncated":
            continue
        _, http_head, payload = member.removesuffix(b"\r\n\r\n").split(b"\r\n\r\n", 2)
        where, head = (
            ("header", http_head)
            if b"charset=" in http_head
            else ("meta", payload.split(b"<title>")[0])
        )
        charset = head.split(b"charset=")[1].split()[0].strip(b'">').decode()
        declared[f"{where} {charset}"] += 1
        page = payload.decode(charset)
        title = page.split("<title>")[1].split("</title>")[0]
        assert title
        text = extract_plain_text(page)
        assert [line for line in text.split("\n") if line] == [
            " ".join(line.split()) for line in bodies[row["url"]]
        ]
    assert declared["header utf-8"] > declared.total() / 2
    for charset in ("windows-1252", "iso-8859-1"):
        assert declared[f"header {charset}"]
        assert declared[f"meta {charset}"]


def test_memory_does_not_grow_with_the_crawl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand pages more, 3 MB of text, need less than half a megabyte more."""

    def peak_bytes(num_documents: int) -> int:
        tracemalloc.start()
        make(tmp_path / str(num_documents), num_documents, 500)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    monkeypatch.setattr(sample_crawl, "TRUTH_ROWS_PER_GROUP", 500)
    make(tmp_path / "unmeasured", 1_000)  # all sentences invented, all modules imported
    fewer, more = peak_bytes(1_000), peak_bytes(2_000)  # from 1,000 on all languages are there
    assert abs(more - fewer) < 500_000


def test_pages_of_a_huge_crawl_are_made_one_at_a_time() -> None:
    """Any page of a crawl of ten million can be had without those before it, and the last one is the cut one."""
    pages = sample_crawl._Pages(10_000_000, 2_500, 1, ("en", "fr"), LIBRARY)
    assert pages.at(9_999_999).place.kind == "truncated"
    assert pages.at(2_499).place.kind == "damaged_length"
    page = pages.at(1_234_567)
    assert page.lines == pages.page(page.place.role).lines


def test_number_of_sites_grows_like_the_root() -> None:
    """Nine times as many pages have about three times as many sites, in the main languages."""

    def num_sites(num_documents: int) -> int:
        pages = sample_crawl._Pages(num_documents, 2_500, 1, ("en",), LIBRARY)
        return len(pages.sites["en"])

    assert num_sites(9_000) == pytest.approx(3 * num_sites(1_000), rel=0.05)


@pytest.mark.parametrize("crawl_format", FORMATS)
def test_common_crawl_layout(tmp_path: Path, crawl_format: Format) -> None:
    """The files lie in a snapshot's folders, and its list names them relative to the root, in order."""
    crawl = make(tmp_path / "bucket", 100, 40, format=crawl_format, layout="common-crawl")
    paths_list = tmp_path / f"bucket/crawl-data/CC-MAIN-SAMPLE/{crawl_format}.paths.gz"
    assert crawl.paths_list == paths_list
    names = gzip.decompress(paths_list.read_bytes()).decode().split()
    assert [crawl.folder / name for name in names] == list(crawl.files)
    assert {row["file"] for row in truth_of(crawl)} == set(names)
    end = ".warc.wet.gz" if crawl_format == "wet" else ".warc.gz"
    assert names[0].endswith(f"/{crawl_format}/CC-MAIN-20261101000000-20261101010000-00000{end}")


@pytest.mark.parametrize("documents_per_file", [1, 7, 100, 1_000])
def test_any_number_of_files(tmp_path: Path, documents_per_file: int) -> None:
    """However the pages are cut into files, all are there and only file ends carry framing faults."""
    crawl = make(tmp_path / "crawl", 100, documents_per_file)
    rows = truth_of(crawl)
    assert len(rows) == len({row["url"] for row in rows}) == 100
    assert len(crawl.files) == -(-100 // documents_per_file)
    last_record = {row["file"]: row["record"] for row in rows}
    assert all(
        row["record"] == last_record[row["file"]] for row in rows if row["kind"] in TAIL_KINDS
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_documents": 99}, "num_documents is 99, must be at least 100"),
        ({"documents_per_file": 0}, "documents_per_file is 0, must be at least 1"),
        ({"languages": ("en", "xx")}, r"languages are \['en', 'xx'\], must be one to five"),
        ({"languages": ()}, "must be one to five"),
        (
            {"num_documents": 10**9},
            "usable sentences in 'en' make .* ask for fewer documents or bring more text",
        ),
    ],
)
def test_refused_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    """What cannot be made is refused at once, with the value found and the way out."""
    with pytest.raises(ValueError, match=message):
        make(tmp_path / "crawl", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    """A crawl is never written over another one."""
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(
        FileExistsError, match="is not an empty folder; remove it or name another one"
    ):
        make(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_broken_run_leaves_nothing(tmp_path: Path) -> None:
    """The folder appears only when the crawl is whole: an exception half-way leaves no trace."""

    def stop(line: str) -> None:
        raise KeyboardInterrupt(line)

    with pytest.raises(KeyboardInterrupt, match="00000"):
        make(tmp_path / "crawl", 100, 40, say=stop)
    assert not list(tmp_path.iterdir())


@given(n=st.integers(1, 3_000), key=st.integers())
def test_permutations_are_bijections(n: int, key: int) -> None:
    """Every number below n comes out once."""
    permutation = sample_crawl._Permutation(n, key)
    assert sorted(map(permutation, range(n))) == list(range(n))


@given(
    st.lists(
        st.builds(str.__mul__, st.sampled_from(["ab", "b", "ba"]), st.integers(20, 30)), max_size=20
    )
)
def test_kept_sentences_are_prefix_free(sentences: list[str]) -> None:
    """No kept sentence begins another, and each long enough one that went is begun by a kept one."""
    kept = sample_crawl._prefix_free(sentences)
    assert not any(a != b and b.startswith(a) for a in kept for b in kept)
    long_enough = {s for s in sentences if len(s) >= sample_crawl.MIN_SENTENCE_LETTERS}
    assert set(kept) <= long_enough
    assert all(any(s.startswith(k) for k in kept) for s in long_enough)


@pytest.mark.models
def test_real_texts_make_a_crawl(tmp_path: Path) -> None:
    """With the project's own texts the good pages are in the languages asked for, and nearly all lines differ."""
    crawl = generate(
        tmp_path / "crawl", num_documents=300, seed=1, format="wet", documents_per_file=100
    )
    rows = truth_of(crawl)
    assert {row["language"] for row in rows if row["kind"] == "good"} == {"en", "fr", "es"}
    bodies = bodies_of(crawl)
    lines = [line for row in rows if row["kind"] == "good" for line in bodies[row["url"]][7:-3]]
    assert len({hash_paragraph(line) for line in lines}) == len(lines)
