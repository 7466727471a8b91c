"""The sample crawl is readable by other libraries and agrees with its truth table."""

from __future__ import annotations

import gzip
import hashlib
import tracemalloc
import zlib
from base64 import b32encode
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.extract.html2text import extract_plain_text
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from pipeline.sample_crawl import generator, truth_table
from pipeline.sample_crawl.generator import Format, SampleCrawl, generate
from pipeline.sample_crawl.keyed_random import Permutation
from pipeline.sample_crawl.kinds import KINDS, TAIL_KINDS
from pipeline.sample_crawl.pages import Pages
from pipeline.sample_crawl.records import render_warcinfo
from pipeline.sample_crawl.texts import MIN_SENTENCE_LETTERS, keep_prefix_free
from pipeline.sample_crawl.truth_table import TRUTH
from stages.dedup.paragraph_hashes import hash_paragraph
from tests.pipeline.sample_crawl.invented import LIBRARY, make_crawl

FORMATS: tuple[Format, ...] = ("wet", "warc")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def crawls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SampleCrawl]:
    """The same 300 pages in eight files, as text and as HTML."""
    folder = tmp_path_factory.mktemp("crawls")
    return {name: make_crawl(folder / name, format=name) for name in FORMATS}


@pytest.fixture(scope="module", params=FORMATS)
def crawl(request: pytest.FixtureRequest, crawls: dict[str, SampleCrawl]) -> SampleCrawl:
    """Each of the two formats in turn."""
    return crawls[request.param]


def read_truth(crawl: SampleCrawl) -> list[Row]:
    """Return the truth table as dictionaries."""
    return pq.read_table(crawl.truth).to_pylist()


def iter_members(path: Path) -> Iterator[bytes]:
    """Yield the gzip members of a file, decompressed; a cut one as far as possible."""
    rest = path.read_bytes()
    while rest:
        unpacker = zlib.decompressobj(wbits=31)
        yield unpacker.decompress(rest)
        rest = unpacker.unused_data


def iter_pages(crawl: SampleCrawl) -> Iterator[tuple[Row, bytes]]:
    """Yield each row of the truth table with the decompressed member of its record."""
    rows = read_truth(crawl)
    for path in crawl.files:
        mine = [
            row for row in rows if row["file"] == path.relative_to(crawl.folder).as_posix()
        ]
        pages: list[bytes] = []
        for member in iter_members(path):
            is_info = b"warcinfo" in member[:40]
            is_page = (
                b"WARC-Type: request" not in member and b"WARC-Type: metadata" not in member
            )
            if is_page and not is_info:
                pages.append(member)
        yield from zip(mine, pages, strict=True)


def read_bodies(crawl: SampleCrawl) -> dict[str, list[str]]:
    """Return URL -> lines without title, for WET pages with a complete and decodable record."""
    bodies: dict[str, list[str]] = {}
    for row, member in iter_pages(crawl):
        if row["kind"] not in {"damaged_utf8", "truncated"}:
            body = member.split(b"\r\n\r\n", 1)[1].decode()
            bodies[row["url"]] = body.removesuffix("\n\r\n\r\n").split("\n")[1:]
    return bodies


def digest_folder(folder: Path) -> str:
    """Return one digest of all names and bytes in a folder."""
    whole = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(folder)}\0{content}\n".encode())
    return whole.hexdigest()


@pytest.mark.parametrize("crawl_format", FORMATS)
def test_equal_arguments_give_equal_bytes(tmp_path: Path, crawl_format: Format) -> None:
    """Equal seeds give equal bytes in any folder; another seed gives another crawl."""
    first, again, other = (
        digest_folder(
            make_crawl(tmp_path / name, 120, format=crawl_format, seed=seed).folder
        )
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_fastwarc_reads_every_intact_record(crawl: SampleCrawl) -> None:
    """FastWARC finds all undamaged pages, with the ids of the truth table and correct digests."""
    found: dict[str, str] = {}
    for path in crawl.files:
        for record in _read_to_fault(path):
            block = record.reader.read()
            digest = (
                "sha1:"
                + b32encode(hashlib.sha1(block, usedforsecurity=False).digest()).decode()
            )
            is_page = record.record_type in (
                WarcRecordType.conversion,
                WarcRecordType.response,
            )
            if (
                is_page
                and record.headers["WARC-Block-Digest"] == digest
                and len(block) == record.content_length
            ):
                found[str(record.record_id).strip("<>")] = (
                    record.headers.get("WARC-Target-URI") or ""
                )
    rows = [row for row in read_truth(crawl) if row["expected_decision"] != "quarantined"]
    sound = {row["record_id"].strip("<>"): row["url"] for row in rows}
    assert {record_id: url for record_id, url in found.items() if url} == sound


def _read_to_fault(path: Path) -> Iterator[WarcRecord]:
    """Yield FastWARC's records of a file, up to a framing fault."""
    with path.open("rb") as file:
        records = ArchiveIterator(file, parse_http=False)
        while True:
            try:
                yield next(records)
            except (OSError, StopIteration):
                return


def test_warcio_reads_every_intact_record(crawl: SampleCrawl) -> None:
    """Warcio confirms each digest in the files without framing fault, and finds every page."""
    broken = {row["file"] for row in read_truth(crawl) if row["kind"] in TAIL_KINDS}
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
        for row in read_truth(crawl)
        if row["file"] not in broken and row["kind"] != "damaged_type"
    ]
    assert urls == expected


def test_files_begin_with_a_warcinfo_record(crawl: SampleCrawl) -> None:
    """It has the name of the file and of the crawl, as in Common Crawl's files."""
    for path in crawl.files:
        first = next(iter_members(path)).decode()
        assert first.startswith("WARC/1.0\r\nWARC-Type: warcinfo\r\n")
        assert f"WARC-Filename: {path.name}\r\n" in first
        assert "isPartOf: CC-MAIN-SAMPLE\r\n" in first


def test_truth_has_one_row_per_page_in_order(crawl: SampleCrawl) -> None:
    """Rows follow files and records; URLs are unique; sources are pages; kinds match KINDS."""
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
    assert {row["kind"]: row["expected_decision"] for row in rows} == {
        kind.name: kind.expected for kind in KINDS
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
    """Each damaged kind occurs, its record has the fault, and framing faults end their files."""
    members: dict[str, bytes] = {}
    for row, member in iter_pages(crawls["wet"]):
        if row["kind"].startswith("damaged"):
            members[row["kind"]] = member
            assert row["record"] == 39 or row["kind"] not in TAIL_KINDS
    assert b"WARC-Type" not in members["damaged_type"]
    assert b"WARC-Target-URI" not in members["damaged_uri"]
    assert b"\0" in members["damaged_nul"]
    with pytest.raises(UnicodeDecodeError):
        members["damaged_utf8"].decode()
    assert not members["damaged_header"].startswith(b"WARC/")
    promised = int(
        members["damaged_length"].split(b"Content-Length: ")[1].split(b"\r\n")[0]
    )
    assert promised > len(members["damaged_length"])
    assert read_truth(crawls["wet"])[-1]["kind"] == "truncated"
    with gzip.open(crawls["wet"].files[-1]) as file, pytest.raises(EOFError):
        file.read()


def test_truth_counts_lines_as_ccnet_does(crawls: dict[str, SampleCrawl]) -> None:
    """Unique and repeated lines, and which pages are emptied, agree with CCNet's hashes."""
    rows = {row["url"]: row for row in read_truth(crawls["wet"])}
    bodies = read_bodies(crawls["wet"])
    num_chars = {url: len("\n".join(lines)) for url, lines in bodies.items()}
    assert {rows[url]["kind"] for url, n in num_chars.items() if n < 300} == {"short"}
    pages_with: dict[int, set[str]] = defaultdict(set)
    for url, lines in bodies.items():
        if num_chars[url] >= 300:
            for line in lines:
                pages_with[hash_paragraph(line)].add(url)
    for url, row in rows.items():
        if row["num_unique_lines"] is None:
            assert row["expected_decision"] in {"too_short", "quarantined"} or row[
                "kind"
            ].startswith("damaged")
            continue
        num_pages = [
            len(pages_with[h]) for h in {hash_paragraph(line) for line in bodies[url]}
        ]
        counted = (num_pages.count(1), len(num_pages) - num_pages.count(1))
        assert (row["num_unique_lines"], row["num_repeated_lines"]) == counted, row
        assert (row["num_unique_lines"] == 0) == (row["expected_decision"] == "emptied")


def test_copies_share_paragraphs_with_their_source(crawls: dict[str, SampleCrawl]) -> None:
    """Mirrors share all, half of them the whole page; edited copies none; partial copies some."""
    bodies = read_bodies(crawls["wet"])
    num_whole = 0
    for row in read_truth(crawls["wet"]):
        if row["source_url"] is None:
            continue
        copy, source = bodies[row["url"]], bodies[row["source_url"]]
        # Between seven navigation lines and three of the footer.
        shared = set(copy[7:-3]) & set(source[7:-3])
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
    """A page's HTML, decoded by its declared charset, gives the lines of its WET record."""
    bodies = read_bodies(crawls["wet"])
    declared: Counter[str] = Counter()
    for row, member in iter_pages(crawls["warc"]):
        if row["kind"].startswith("damaged") or row["kind"] == "truncated":
            continue
        _, http_head, payload = member.removesuffix(b"\r\n\r\n").split(b"\r\n\r\n", 2)
        if b"charset=" in http_head:
            where, head = "header", http_head
        else:
            where, head = "meta", payload.split(b"<title>")[0]
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
    """A thousand more pages, 3 MB of text, need less than half a megabyte more."""

    def peak_bytes(num_documents: int) -> int:
        tracemalloc.start()
        make_crawl(tmp_path / str(num_documents), num_documents, 500)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    monkeypatch.setattr(truth_table, "ROWS_PER_GROUP", 500)
    # all sentences invented, all modules imported
    make_crawl(tmp_path / "unmeasured", 1_000)
    fewer, more = (
        peak_bytes(1_000),
        peak_bytes(2_000),
    )  # from 1,000 on all languages are there
    assert abs(more - fewer) < 500_000


def test_any_page_of_a_huge_crawl_can_be_computed() -> None:
    """Any of ten million pages is made without those before it; the last one is truncated."""
    pages = Pages(10_000_000, 2_500, 1, ("en", "fr"), LIBRARY)
    assert pages.get_page(9_999_999).spec.kind == "truncated"
    assert pages.get_page(2_499).spec.kind == "damaged_length"
    page = pages.get_page(1_234_567)
    assert page.lines == pages.make_page(page.spec.role).lines


def test_number_of_sites_grows_with_the_square_root() -> None:
    """Nine times as many pages have about three times as many sites."""

    def num_sites(num_documents: int) -> int:
        pages = Pages(num_documents, 2_500, 1, ("en",), LIBRARY)
        return len(pages.sites["en"])

    assert num_sites(9_000) == pytest.approx(3 * num_sites(1_000), rel=0.05)


@pytest.mark.parametrize("crawl_format", FORMATS)
def test_common_crawl_layout(tmp_path: Path, crawl_format: Format) -> None:
    """Files are in a snapshot's folders, and its list names them in order, relative to the root."""
    crawl = make_crawl(
        tmp_path / "bucket", 100, 40, format=crawl_format, layout="common-crawl"
    )
    paths_list = tmp_path / f"bucket/crawl-data/CC-MAIN-SAMPLE/{crawl_format}.paths.gz"
    assert crawl.paths_list == paths_list
    names = gzip.decompress(paths_list.read_bytes()).decode().split()
    assert [crawl.folder / name for name in names] == list(crawl.files)
    assert {row["file"] for row in read_truth(crawl)} == set(names)
    end = ".warc.wet.gz" if crawl_format == "wet" else ".warc.gz"
    assert names[0].endswith(
        f"/{crawl_format}/CC-MAIN-20261101000000-20261101010000-00000{end}"
    )


@pytest.mark.parametrize("documents_per_file", [1, 7, 100, 1_000])
def test_any_number_of_files(tmp_path: Path, documents_per_file: int) -> None:
    """All pages exist for any number of files, and only file ends have framing faults."""
    crawl = make_crawl(tmp_path / "crawl", 100, documents_per_file)
    rows = read_truth(crawl)
    assert len(rows) == len({row["url"] for row in rows}) == 100
    assert len(crawl.files) == -(-100 // documents_per_file)
    last_record = {row["file"]: row["record"] for row in rows}
    assert all(
        row["record"] == last_record[row["file"]]
        for row in rows
        if row["kind"] in TAIL_KINDS
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
def test_invalid_arguments_are_refused(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """The message has the value found and the way to mend it."""
    with pytest.raises(ValueError, match=message):
        make_crawl(tmp_path / "crawl", **arguments)
    assert not list(tmp_path.iterdir())


def test_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    """A crawl is never written over another one."""
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(
        FileExistsError, match="is not an empty folder; remove it or name another one"
    ):
        make_crawl(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_interrupted_generation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder appears only when the crawl is complete: after an exception nothing is left."""
    names: list[str] = []

    def stop_at_second_file(name: str, seed: int) -> bytes:
        names.append(name)
        if len(names) == 2:
            raise KeyboardInterrupt(name)
        return render_warcinfo(name, seed)

    monkeypatch.setattr(generator, "render_warcinfo", stop_at_second_file)
    with pytest.raises(KeyboardInterrupt, match="00001"):
        make_crawl(tmp_path / "crawl", 100, 40)
    assert not list(tmp_path.iterdir())


@given(n=st.integers(1, 3_000), key=st.integers())
def test_permutations_are_bijections(n: int, key: int) -> None:
    """Every number below n is the image of one number."""
    permutation = Permutation(n, key)
    assert sorted(map(permutation, range(n))) == list(range(n))


@given(
    st.lists(
        st.builds(str.__mul__, st.sampled_from(["ab", "b", "ba"]), st.integers(20, 30)),
        max_size=20,
    )
)
def test_kept_sentences_are_prefix_free(sentences: list[str]) -> None:
    """No kept sentence begins another, and each long removed one begins with a kept one."""
    kept = keep_prefix_free(sentences)
    assert not any(a != b and b.startswith(a) for a in kept for b in kept)
    long_enough = {s for s in sentences if len(s) >= MIN_SENTENCE_LETTERS}
    assert set(kept) <= long_enough
    assert all(any(s.startswith(k) for k in kept) for s in long_enough)


@pytest.mark.models
def test_real_texts_make_a_crawl(tmp_path: Path) -> None:
    """Good pages are in the requested languages, and nearly all lines differ."""
    crawl = generate(
        tmp_path / "crawl", num_documents=300, seed=1, format="wet", documents_per_file=100
    )
    rows = read_truth(crawl)
    assert {row["language"] for row in rows if row["kind"] == "good"} == {"en", "fr", "es"}
    bodies = read_bodies(crawl)
    lines = [
        line for row in rows if row["kind"] == "good" for line in bodies[row["url"]][7:-3]
    ]
    assert len({hash_paragraph(line) for line in lines}) == len(lines)
