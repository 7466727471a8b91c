"""URLs and domains of a request are compared in a normal form."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from config_files.reader import ConfigError
from pipeline.retraction.request import Request, make_request, read_request

REQUEST = make_request(
    ["example.org/a", "example.org/b?id=1"], ["gone.example", "xn--bcher-kva.example"]
)


@pytest.mark.parametrize(
    ("url", "is_match"),
    [
        ("https://example.org/a", True),
        ("http://www.example.org:80/a/", True),
        ("HTTPS://user@EXAMPLE.org/A#part", True),
        ("https://example.org/a?page=2", False),
        ("https://example.org/ab", False),
        ("https://sub.example.org/a", False),
        ("https://example.org/b?id=1", True),
        ("https://example.org/b", False),
        ("https://gone.example/", True),
        ("https://a.b.gone.example/x", True),
        ("https://www.gone.example?x=1", True),
        ("https://notgone.example/x", False),
        ("https://example.org/gone.example", False),
        ("https://Bücher.example/x", True),
        ("https://shop.b%C3%BCcher.example/x", True),
        (None, False),
        ("", False),
    ],
)
def test_urls_and_domains_are_compared_in_normal_form(
    url: str | None, is_match: bool
) -> None:
    """Scheme, user, port, www, case and slashes at the end do not matter; the query does."""
    found = REQUEST.find(pa.array([url], pa.string()))
    assert found.is_match.to_pylist() == [is_match]
    assert bool(found.list_entries()) == is_match


def test_files_are_read_into_one_request(tmp_path: Path) -> None:
    """Comments and empty lines are left out; entries that mean the same are one entry."""
    urls, domains = tmp_path / "urls.txt", tmp_path / "domains.txt"
    urls.write_text(
        "# asked for on Monday\nhttps://www.Example.org/a/\nexample.org/a # again\n"
    )
    domains.write_text("\nhttps://Gone.example/\nbücher.example\n")
    wanted = Request(("example.org/a",), ("gone.example", "xn--bcher-kva.example"))
    assert read_request(urls, domains) == wanted


@pytest.mark.parametrize(
    ("urls", "domains", "message"),
    [
        (None, None, "give --urls FILE, --domains FILE, or both"),
        ("# none\n", None, "found no entry"),
        (
            None,
            "example.org\nexample.org/a\n",
            "line 2: found 'example.org/a', wanted a domain",
        ),
        (None, "com\n", "line 1: found 'com', wanted a domain with a dot"),
        ("\nexample.org\n", None, "line 2: found 'example.org', wanted a URL with a path"),
    ],
)
def test_unusable_entries_are_named(
    tmp_path: Path, urls: str | None, domains: str | None, message: str
) -> None:
    """With file and line."""
    paths: list[Path | None] = []
    for name, content in (("urls", urls), ("domains", domains)):
        path = tmp_path / name
        if content is not None:
            path.write_text(content)
        paths.append(None if content is None else path)
    with pytest.raises(ConfigError) as caught:
        read_request(*paths)
    assert message in "\n".join(caught.value.faults)
