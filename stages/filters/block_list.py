r"""Block lists of domains, URLs and words, and the normal form in which URLs are compared.

The normal form (`normalize_urls`):

- White space around the URL, scheme, user, port, fragment, dots after the host and slashes at the
  end are removed, and `www.`, `www1.`, ... if the rest of the host contains a dot.
- The rest is in lower case, including path and query.
- Percent escapes are decoded once. Bytes that are not UTF-8 become U+FFFD.
- A host with other characters than ASCII is written in Punycode (IDNA 2003, RFC 3490), if possible.

    HTTPS://user@WWW.Bücher.example:8080/A%20b/?q=%C3%89#top   ->   xn--bcher-kva.example/a b/?q=é

A list stores 56 bits of a hash per entry, in 8 bytes. A URL of k dots and slashes matches a list of
n entries by mistake with probability (k + 2) * n / 2^56. For k = 5 and 20 million entries these are
about two of a billion URLs.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.kernels import url_keys
from stages.string_buffers import read_string_buffers

# The number of categories (`adult`, `malware`, ...) of one list: files with different
# names.
MAX_CATEGORIES = 1 << url_keys.CATEGORY_BITS

_CHUNK_BYTES = 1 << 24  # of a list read at a time
_LISTS = ("domains", "urls")  # the names of UT1's files

# Matches URLs that are in normal form already, unless they begin with www.
_PLAIN = r"^[a-z0-9_\-]+(\.[a-z0-9_\-]+)*(/[a-z0-9._~\-]+)*$"
_PARTS = (
    r"(?s)^(?:(?:[a-z][a-z0-9+.\-]*:)?//)?(?:[^/?#]*@)?"  # scheme, user
    # host, port
    r"(?:www[0-9]{0,3}\.([^/?#:]*\.[^/?#:]+?)|(\[[^\]/?#]*\]|[^/?#:]*?))\.*(?::[^/?#]*)?"
    r"((?:[/?][^#]*)?)(?:#.*)?$"  # path and query, fragment
)
# A percent escape, or a host with other characters than ASCII.
_NOT_DECODED = r"%|^[^/?]*[^\x00-\x7f]"


@dataclass(frozen=True)
class Hits:
    """The parts of URLs that are in a list, in the order of the URLs."""

    utf8: NDArray[np.uint8]
    keys: NDArray[np.uint64]  # (hits,), as are the others
    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    numbers: NDArray[np.int64]
    names: tuple[str, ...]

    def get_parts(self, wanted: NDArray[np.bool_]) -> list[str]:
        """Return the parts that were found, as spelled in the URL."""
        parts: list[str] = []
        starts, ends = self.starts[wanted].tolist(), self.ends[wanted].tolist()
        for start, end in zip(starts, ends, strict=True):
            part = self.utf8[start:end].tobytes()
            parts.append(part.decode())
        return parts

    def get_categories(self, wanted: NDArray[np.bool_]) -> list[str]:
        """Return the category of each part."""
        return [self.names[number] for number in self.numbers[wanted].tolist()]


@dataclass(frozen=True)
class BlockList:
    """Sorted keys of entries, each with the number of its category in the lowest bits.

    20 million domains take 160 MB, and 350 MB and 11 s of a core while they are read (2 shared
    cores). Speed: 60,000 URLs/s.
    """

    entries: NDArray[np.uint64]  # (n,) ascending, no key twice
    categories: tuple[str, ...]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """Read files and folders. A category is named after the folder of UT1's file, or the file.

        Raises:
            ValueError: a folder contains no list, or there are too many categories.
        """
        files: list[tuple[str, Path]] = []
        for path in paths:
            # all folders first: a wrong path is found before any reading
            files += _list_files(path)
        return cls.build(_read_chunks(files))

    @classmethod
    def build(cls, chunks: Iterable[tuple[str, pa.Array]]) -> Self:
        """Build a list of (category, entries). An entry of several categories gets the first one."""
        numbers: dict[str, int] = {}
        entries = np.empty(0, np.uint64)
        for category, lines in chunks:
            number = numbers.setdefault(category, len(numbers))
            if number >= MAX_CATEGORIES:
                raise ValueError(
                    f"block lists of more than {MAX_CATEGORIES} categories, the last being "
                    f"{category!r}: leave some out, or join files into one"
                )
            keys = url_keys.hash_urls(*read_string_buffers(normalize_urls(lines)))
            keys = keys[keys > 0] | np.uint64(number)
            # Resized in place: 20 million entries should not be held twice.
            entries.resize(len(entries) + len(keys), refcheck=False)
            entries[len(entries) - len(keys) :] = keys
        return cls(_distinct(entries), tuple(numbers))

    @classmethod
    def from_words(cls, words: Iterable[str]) -> Self:
        """Build a list of words without a category."""
        keys, *_ = url_keys.list_word_keys(
            *read_string_buffers(pa.array(list(words), pa.large_string()))
        )
        return cls(_distinct(keys), ("",))

    def find(
        self,
        split_parts: Callable[..., url_keys.KeySpans],
        normal: pa.ChunkedArray | pa.Array,
    ) -> Hits:
        """Find the listed parts of URLs in normal form."""
        utf8, offsets = read_string_buffers(normal)
        keys, texts, starts, ends = split_parts(utf8, offsets)
        found, numbers = np.zeros(len(keys), np.bool_), np.zeros(0, np.int64)
        if len(self.entries):
            positions = np.searchsorted(self.entries, keys)
            nearest = self.entries[np.minimum(positions, len(self.entries) - 1)]
            # Equal keys differ in the bits of the category only, which are the lowest.
            found = (nearest ^ keys) < MAX_CATEGORIES
            numbers = (nearest[found] & np.uint64(MAX_CATEGORIES - 1)).astype(np.int64)
        return Hits(
            utf8,
            keys[found],
            texts[found],
            starts[found],
            ends[found],
            numbers,
            self.categories,
        )


def _read_chunks(files: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, pa.Array]]:
    for category, file in files:
        for chunk in read_entries(file):
            yield category, chunk


def _distinct(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sort in place; of keys that differ in their category only, keep the first."""
    entries.sort()
    num_distinct = url_keys.drop_duplicate_keys(entries)
    return entries if num_distinct == len(entries) else entries[:num_distinct].copy()


def _list_files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield _name_category(path), path
        return
    # Sorted: an entry of several categories gets the first, on every machine the same.
    files = sorted(filter(_is_list_file, path.rglob("*")))
    if not files:
        raise ValueError(
            f"{path}: this folder contains no file named domains or urls and no .txt file; unpack "
            f"UT1's lists there"
        )
    for file in files:
        yield _name_category(file), file


def _is_list_file(path: Path) -> bool:
    has_list_name = path.name.removesuffix(".gz") in _LISTS or path.suffix == ".txt"
    return has_list_name and path.is_file()


def _name_category(file: Path) -> str:
    stem = file.name.split(".", maxsplit=1)[0]
    return file.parent.name if stem in _LISTS else stem


def read_entries(file: Path) -> Iterator[pa.Array]:
    """Yield the entries of a file. Of several fields in a line, the last (hosts files have two)."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        rest = b""
        while chunk := opened.read(_CHUNK_BYTES):
            # The last line of a chunk can be cut, so it is read with the next chunk.
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield _split_entries(whole)
        if rest:
            yield _split_entries(rest)


def _split_entries(text: bytes) -> pa.Array:
    whole = pa.array([text.decode("utf-8", "replace")], pa.large_string())
    lines = pc.split_pattern(whole, "\n").flatten()
    if b"#" in text:
        lines = pc.replace_substring_regex(lines, r"(?:^|\s)#.*$", "")
    lines = pc.utf8_trim_whitespace(lines)
    if pc.any(pc.match_substring_regex(lines, r"\s")).as_py():
        lines = pc.replace_substring_regex(lines, r"^.*\s", "")
    return lines.filter(pc.not_equal(lines, ""))


# --- Normal form ---


def normalize_urls(urls: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the normal form of URLs or entries, `host/path?query`; (n,) large_string.

    A null URL becomes the empty string.
    """
    whole = urls.combine_chunks() if isinstance(urls, pa.ChunkedArray) else urls
    texts = pc.fill_null(pc.cast(whole, pa.large_string()), "")
    trimmed = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    # Most entries of lists are in normal form already. One pattern finds them.
    has_www = pc.starts_with(trimmed, "www")
    is_plain = pc.and_(pc.match_substring_regex(trimmed, _PLAIN), pc.invert(has_www))
    others = pc.invert(is_plain)
    if not pc.any(others).as_py():
        return trimmed
    rest = pc.replace_substring_regex(trimmed.filter(others), _PARTS, r"\1\2\3")
    is_coded = pc.match_substring_regex(rest, _NOT_DECODED)
    decoded = list(map(_decode_url, rest.filter(is_coded).to_pylist()))
    rest = pc.replace_with_mask(rest, is_coded, pa.array(decoded, pa.large_string()))
    rest = pc.replace_substring_regex(rest, "/+$", "")
    # An empty path is "/" (RFC 3986, section 6.2.3).
    rest = pc.replace_substring_regex(rest, r"^([^/?]*)\?", r"\1/?")
    return pc.replace_with_mask(trimmed, others, rest)


def _decode_url(url: str) -> str:
    """Decode percent escapes and encode the host. Few URLs in a hundred need this."""
    host_end = len(re.split("[/?]", url, maxsplit=1)[0])
    host, path = unquote(url[:host_end]).lower(), unquote(url[host_end:]).lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:  # an empty label or one of more than 63 characters
            return host + path
    return host + path
