"""URLs are compared in normal form, by domain, by path prefix and by whole words."""

from __future__ import annotations

import gc
import gzip
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.filters.block_list import MAX_CATEGORIES, BlockList, normalize_urls
from stages.filters.url import Url, UrlSettings
from stages.kernels import url_keys

label = st.from_regex(r"[a-z0-9]([a-z0-9\-]{0,6}[a-z0-9])?", fullmatch=True)
host = (
    st.lists(label, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda h: not h.startswith("www"))
)
segment = st.from_regex(r"[a-z0-9._~\-]{1,5}", fullmatch=True)
path = st.lists(segment, max_size=4).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)


def normal(url: str | None) -> str:
    return normalize_urls(pa.array([url], pa.string())).to_pylist()[0]


def opened(files: dict[str, Path] | None = None, **settings: Any) -> Url:
    stage = Url(UrlSettings(**settings), files or {})
    stage.open()
    return stage


def list_drops(stage: Url, *urls: str | None) -> list[Any]:
    """Return for each URL None, or (reason, value, limit, detail)."""
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(urls)), pa.uint64()),
            "url": pa.array(urls, pa.string()),
        }
    )
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.equals(batch.schema)
    dropped = {
        row.pop("doc_id"): tuple(row.values()) for row in outcome.dropped.to_pylist()
    }
    return [dropped.get(i) for i in range(len(urls))]


def make_stage(tmp_path: Path, *entries: str) -> Url:
    """Return a stage that blocks these entries."""
    file = tmp_path / "list.txt"
    file.write_text("\n".join(entries) + "\n", encoding="utf-8")
    return opened({"list": file}, domains=("list",))


# --- The normal form ---


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        (
            "HTTPS://user@WWW.B\u00fccher.example:8080/A%20b/?q=%C3%89#top",
            "xn--bcher-kva.example/a b/?q=\u00e9",
        ),
        ("www.com", "www.com"),
        ("http://www.com./", "www.com"),
        ("http://www12.a.com", "a.com"),
        ("http://wwwa.com", "wwwa.com"),
        ("a.com?x=1", "a.com/?x=1"),
        ("//[::1]:80/x", "[::1]/x"),
        (" //a.b.c// ", "a.b.c"),
        ("http://a:b@c@d.com", "d.com"),
        ("http://%77ww.a.com/%2541", "www.a.com/%41"),
        ("http://a.com/%ff", "a.com/\ufffd"),
        (f"http://\u00fc{'a' * 70}.com/", f"\u00fc{'a' * 70}.com"),
        ("", ""),
        (None, ""),
    ],
)
def test_normal_forms(url: str | None, wanted: str) -> None:
    """Each rule of the normal form has an example."""
    assert normal(url) == wanted


@given(
    host=host,
    path=path,
    scheme=st.sampled_from(["", "//", "http://", "HTTPS://", "ftp://"]),
    user=st.sampled_from(["", "me@", "me:secret@"]),
    www=st.sampled_from(["", "www.", "WWW2."]),
    port=st.sampled_from(["", ":", ":80", ":8080"]),
    end=st.sampled_from(["", "/", "#top", "/#a/b?c"]),
    escaped=st.booleans(),
    upper=st.booleans(),
)
def test_spelling_makes_no_difference(
    host: str,
    path: str,
    scheme: str,
    user: str,
    www: str,
    port: str,
    end: str,
    escaped: bool,
    upper: bool,
) -> None:
    """Scheme, user, www, port, case, escapes, last slash and fragment do not change it."""
    www = www if "." in host else ""
    spelled = (
        "".join(f"%{ord(c):02x}" if c.isalpha() else c for c in path) if escaped else path
    )
    url = scheme + user + www + host + port + (spelled.upper() if upper else spelled) + end
    assert normal(url) == host + path


@given(
    st.lists(
        st.text(max_size=30) | st.builds(str.__add__, host, st.text(max_size=9)), max_size=8
    )
)
def test_a_normal_form_does_not_depend_on_other_rows(urls: list[str]) -> None:
    """For any URLs in one batch."""
    assert normalize_urls(
        pa.chunked_array([urls[:3], urls[3:]], pa.string())
    ).to_pylist() == [normal(u) for u in urls]


# --- Block lists ---


@given(
    entries=st.sets(host | st.builds(str.__add__, host, path), max_size=8),
    host=host,
    path=path,
)
def test_hits_are_those_of_a_set(entries: set[str], host: str, path: str) -> None:
    """Every parent domain of the host and every prefix of the path is looked up."""
    labels, parts = host.split("."), path.split("/")[1:]
    domains = (
        [host]
        if labels[-1].isdigit()
        else [".".join(labels[i:]) for i in reversed(range(len(labels)))]
    )
    candidates = domains + [
        host + "".join(f"/{part}" for part in parts[: i + 1]) for i in range(len(parts))
    ]
    some = entries | set(candidates[::2])
    listed = BlockList.build([("", pa.array(sorted(some), pa.large_string()))])
    hits = listed.find(
        url_keys.list_parent_keys, pa.array([host + path], pa.large_string())
    )
    assert hits.get_parts(np.ones(len(hits.keys), bool)) == [
        one for one in candidates if one in some
    ]


@given(st.text(alphabet="ab1./?-\u00fc", max_size=30))
def test_words_consist_of_letters_and_digits(text: str) -> None:
    """Any other character separates words."""
    words = [
        word for word in "".join(c if c.isalnum() else " " for c in text).split(" ") if word
    ]
    utf8 = np.frombuffer(text.encode() + b"ab", np.uint8)
    _, _, starts, ends = url_keys.list_word_keys(
        utf8, np.array([0, len(utf8) - 2], np.int64)
    )
    assert [
        utf8[s:e].tobytes().decode() for s, e in zip(starts, ends, strict=True)
    ] == words


def test_a_domain_blocks_its_subdomains(tmp_path: Path) -> None:
    """It does not block its parent, or a domain with the same ending."""
    stage = make_stage(tmp_path, "example.com", "0.1", "10.0.0.1", "site.org/bad")
    reason = "url.domain_blocked"
    assert list_drops(
        stage,
        "http://a.b.example.com/x",
        "http://badexample.com/",
        "http://com/",
        "http://example.com.org/",
        "http://10.0.0.1/x",
        "http://7.10.0.0.1/x",
        "http://site.org/bad/page?x",
        "http://site.org/bad?x",
        "http://site.org/badly",
        "http://a.site.org/bad",
        None,
    ) == [
        (reason, None, None, "list: example.com"),
        None,
        None,
        None,
        (reason, None, None, "list: 10.0.0.1"),
        None,
        (reason, None, None, "list: site.org/bad"),
        (reason, None, None, "list: site.org/bad"),
        None,
        None,
        None,
    ]


def test_lists_are_read_in_the_layout_of_ut1(tmp_path: Path) -> None:
    """Also plain lists, hosts files and compressed files."""
    for name, text in {
        "adult/domains": b"bad.com\r\nworse.com\n",
        "adult/urls": b"site.com/bad\ncaf\xe9.com/x\n",
        "adult/usage": b"ignored.com\n",
        "gaming/domains": b"worse.com\ngame.com",
    }.items():
        (tmp_path / "ut1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ut1" / name).write_bytes(text)
    (tmp_path / "hosts").write_bytes(b"# a comment\n\n0.0.0.0 ads.com # of ads\n  \n")
    (tmp_path / "more.txt.gz").write_bytes(
        gzip.compress(b"http://WWW.Packed.com/\n", mtime=0)
    )
    references = ("ut1", "hosts", "more.txt.gz")
    files = {name: tmp_path / name for name in references}
    stage = opened(files, domains=references)
    urls = [
        "bad.com",
        "worse.com",
        "site.com/bad",
        "ignored.com",
        "game.com",
        "ads.com",
        "packed.com",
    ]
    assert [decision and decision[-1] for decision in list_drops(stage, *urls)] == [
        "adult: bad.com",
        "adult: worse.com",  # of two categories the first
        "adult: site.com/bad",
        None,
        "gaming: game.com",
        "hosts: ads.com",
        "more: packed.com",
    ]


def test_a_line_may_cross_the_end_of_a_read_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the read blocks has no effect."""
    whole = BlockList.read([blocked_file(tmp_path)])
    for num_bytes in (1, 7, 100):
        monkeypatch.setattr("stages.filters.block_list._CHUNK_BYTES", num_bytes)
        assert np.array_equal(
            BlockList.read([tmp_path / "list.txt"]).entries, whole.entries
        )
    assert len(whole.entries) == 50


def blocked_file(folder: Path) -> Path:
    (folder / "list.txt").write_text(
        "\n".join(f"site{i}.example/p{i}" for i in range(50)), encoding="utf-8"
    )
    return folder / "list.txt"


def test_a_million_entries_take_eight_megabytes(tmp_path: Path) -> None:
    """An entry needs 8 bytes in memory, and a small multiple of that while reading."""
    num_entries = 1_000_000
    file = tmp_path / "domains"
    file.write_text(
        "".join(f"host-{i * 7919}.example{i % 97}.com\n" for i in range(num_entries)),
        encoding="ascii",
    )
    # compiled before it is measured
    BlockList.build([("", pa.array(["warm.up"], pa.large_string()))])
    gc.collect()
    arrow_before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        listed = BlockList.read([file])
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(listed.entries) == num_entries
    assert held + pa.total_allocated_bytes() - arrow_before < 8.2 * num_entries
    assert peak < 100e6
    found = listed.find(
        url_keys.list_parent_keys,
        pa.array(["x.host-7919.example1.com", "host-1.com"], pa.large_string()),
    )
    assert found.texts.tolist() == [0]


def test_too_many_categories_and_empty_folders_are_refused(tmp_path: Path) -> None:
    """Both are faults of the config."""
    chunks = [
        (f"c{i}", pa.array([f"{i}.com"], pa.large_string()))
        for i in range(MAX_CATEGORIES + 1)
    ]
    assert len(BlockList.build(chunks[:-1]).entries) == MAX_CATEGORIES
    with pytest.raises(
        ValueError,
        match=f"more than {MAX_CATEGORIES} categories, the last being 'c{MAX_CATEGORIES}'",
    ):
        BlockList.build(chunks)
    with pytest.raises(ValueError, match="no file named domains or urls"):
        opened({"empty": tmp_path}, domains=("empty",))


# --- Words, patterns, sources ---


def test_words_are_whole_and_subwords_are_not() -> None:
    """RefinedWeb's three kinds: anywhere in the URL, whole words, and two soft words."""
    stage = opened(
        subwords=("subword",), hard_words=("Hard",), soft_words=("one", "two", "three")
    )
    assert list_drops(
        stage,
        "http://foobann.edsub-wo.rdbar.com/any/bar",
        "http://example.com/a-HARD-page",
        "http://harder.com/",
        "http://one.com/one/ONE",
        "http://one.com/two?x=three",
        "http://example.com/%74wo-one",
        "http://onetwo.com",
    ) == [
        ("url.subword", None, None, "subword"),
        ("url.hard_word", None, None, "hard"),
        None,
        None,
        ("url.soft_words", 3.0, 1.0, "one two three"),
        ("url.soft_words", 2.0, 1.0, "two one"),
        None,
    ]


def test_lists_of_words_may_be_files(tmp_path: Path) -> None:
    """One word per line; comments are skipped."""
    (tmp_path / "hard.txt").write_text("# hard\nbad\nWorse\n", encoding="utf-8")
    (tmp_path / "curated.txt").write_text("wikipedia.org\n", encoding="utf-8")
    files = {name: tmp_path / name for name in ("hard.txt", "curated.txt")}
    settings = UrlSettings(hard_words="hard.txt", curated="curated.txt", soft_words=("a",))
    assert Url.required_files(settings) == ("hard.txt", "curated.txt")
    stage = opened(files, hard_words="hard.txt", curated="curated.txt")
    assert [
        decision and decision[0]
        for decision in list_drops(stage, "x.com/worse", "en.wikipedia.org/wiki/X", "x.com")
    ] == [
        "url.hard_word",
        "url.curated",
        None,
    ]
    (tmp_path / "hard.txt").write_text("two words\n", encoding="utf-8")
    stage = opened(files, hard_words="hard.txt")
    assert list_drops(stage, "x.com/words", "x.com/two") == [
        ("url.hard_word", None, None, "words"),
        None,
    ]
    (tmp_path / "hard.txt").write_text("two-words\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"hard\.txt: 'two-words' is not a single word"):
        opened(files, hard_words="hard.txt")
    (tmp_path / "hard.txt").write_text("#\n", encoding="utf-8")
    with pytest.raises(ValueError, match="the list is empty"):
        opened(files, hard_words="hard.txt")


def test_patterns_and_sources(tmp_path: Path) -> None:
    """The drop names the pattern.

    Curated sources are checked last, by domain or by path.
    """
    stage = opened(
        patterns=(r"/wp-login\b", r"\.(xyz|top)(/|$)"), curated=("arxiv.org", "x.com/wiki")
    )
    assert [
        decision and (decision[0], decision[-1])
        for decision in list_drops(
            stage,
            "a.com/wp-login?x",
            "http://A.XYZ",
            "http://export.arxiv.org/abs/1",
            "x.com/wiki/1",
            "x.com/w",
            "a.xyz.com",
        )
    ] == [
        ("url.pattern", r"/wp-login\b"),
        ("url.pattern", r"\.(xyz|top)(/|$)"),
        ("url.curated", "arxiv.org"),
        ("url.curated", "x.com/wiki"),
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "no rule is given"),
        ({"patterns": ("(",)}, r"'\(' is not a regular expression of RE2"),
        ({"patterns": ("(?=x)",)}, "is not a regular expression of RE2"),
        ({"hard_words": ("two words",)}, "'two words' is not a single word"),
        ({"soft_words": ("",)}, "'' is not a single word"),
    ],
)
def test_settings_that_could_not_work_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    """The error is raised when the config is read."""
    with pytest.raises(ValueError, match=message):
        UrlSettings(**settings)
