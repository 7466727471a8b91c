"""What a retraction asks for: URLs and domains, in the normal form in which they are compared.

The normal form is that of block lists (`stages.filters.block_list.normalize_urls`): scheme, user,
port, `www.`, slashes at the end and upper case make no difference, and hosts are in Punycode. A
domain includes its subdomains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from config_files.reader import ConfigError
from stages.filters.block_list import normalize_urls

_HOST = r"^(?P<host>[^/?]*)"


@dataclass(frozen=True)
class Request:
    """The documents that a retraction asks for.

    Attributes:
        urls: normal forms of URLs, sorted, without repetition.
        domains: normal forms of domains, likewise.
    """

    urls: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()

    def find(self, urls: pa.Array | pa.ChunkedArray) -> Matches:
        """Return which of (n,) URLs the request names."""
        normal = normalize_urls(urls)
        is_url = pc.is_in(normal, value_set=pa.array(self.urls, pa.large_string()))
        hosts = pc.struct_field(pc.extract_regex(normal, _HOST), "host")
        encoded = pc.dictionary_encode(hosts)
        wanted = frozenset(self.domains)
        by_host = [_find_domain(host, wanted) for host in encoded.dictionary.to_pylist()]
        domains = pa.array(by_host, pa.string()).take(encoded.indices)
        return Matches(normal, is_url, domains)


@dataclass(frozen=True)
class Matches:
    """Which of n URLs a request names.

    Attributes:
        normal: (n,) their normal forms.
        is_url: (n,) bool, whether the URL itself is named.
        domains: (n,) the named domain that the URL belongs to, or null.
    """

    normal: pa.Array
    is_url: pa.Array
    domains: pa.Array

    @property
    def is_match(self) -> pa.Array:
        """(n,) bool, whether the URL or its domain is named."""
        return pc.or_(self.is_url, pc.is_valid(self.domains))

    def list_entries(self) -> set[str]:
        """Return the URLs and domains of the request that were found."""
        urls = pc.unique(self.normal.filter(self.is_url)).to_pylist()
        domains = pc.unique(self.domains.drop_null()).to_pylist()
        return {*urls, *domains}


def _find_domain(host: str | None, wanted: frozenset[str]) -> str | None:
    """Return the wanted domain that a host belongs to, or None."""
    parts = (host or "").split(".")
    for first in range(len(parts)):
        domain = ".".join(parts[first:])
        if domain in wanted:
            return domain
    return None


def read_request(urls: Path | None, domains: Path | None) -> Request:
    """Read a file of URLs and a file of domains, one entry per line; `#` begins a comment.

    Raises:
        ConfigError: a file cannot be read or has no entry, or an entry is not a domain. All such
            entries are named.
    """
    faults: list[str] = []
    read_urls, read_domains = _read_entries(urls, faults), _read_entries(domains, faults)
    if urls is None and domains is None:
        faults.append(
            "retract: nothing to retract; give --urls FILE, --domains FILE, or both"
        )
    for number, text, domain in read_domains:
        fault = _find_fault_of_domain(domain)
        if fault:
            faults.append(f"{domains}, line {number}: found {text!r}, {fault}")
    for number, text, _ in read_urls:
        if "/" not in text:
            faults.append(
                f"{urls}, line {number}: found {text!r}, wanted a URL with a path, such as "
                f"https://example.org/page; put whole domains into --domains"
            )
    if faults:
        raise ConfigError(faults)
    return make_request(
        (url for _, _, url in read_urls), (domain for _, _, domain in read_domains)
    )


def make_request(urls: Iterable[str], domains: Iterable[str]) -> Request:
    """Return the request for URLs and domains that are in normal form."""
    return Request(tuple(sorted(set(urls))), tuple(sorted(set(domains))))


def _read_entries(path: Path | None, faults: list[str]) -> list[tuple[int, str, str]]:
    """Return (line number, text, normal form) of each entry of a file."""
    if path is None:
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{path}: cannot be read ({error}); give a text file in UTF-8")
        return []
    numbered: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        # URLs may contain "#", so a comment begins at the start of a line or after a blank.
        text = line.partition(" #")[0].strip()
        if text and not text.startswith("#"):
            numbered.append((number, text))
    if not numbered:
        faults.append(f"{path}: found no entry, wanted one URL or domain per line")
        return []
    normal = normalize_urls(pa.array([text for _, text in numbered])).to_pylist()
    return [(*entry, form) for entry, form in zip(numbered, normal, strict=True)]


def _find_fault_of_domain(domain: str) -> str | None:
    """Return why a normal form is not a domain, or None."""
    if "/" in domain or "?" in domain:
        return "wanted a domain such as example.org; put URLs into --urls"
    if "." not in domain.strip("."):
        return (
            "wanted a domain with a dot; a top-level domain would retract all of its sites"
        )
    return None
