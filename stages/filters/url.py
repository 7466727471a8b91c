r"""Drop documents by their address: block lists of domains and URLs, words, patterns, sources that are had elsewhere.

Promises: a listed domain stands for all that lies in it (`example.com` for `a.b.example.com`, never for
`badexample.com`), a listed URL for the paths below it; a batch is judged as columns; a list takes 8 bytes an entry,
whatever its length. What is kept of an entry is 56 bits of a hash, so a URL of k dots and slashes is dropped by mistake
with probability (k + 2) * n / 2^56 at n entries: of a billion URLs two or so, at 20 million entries and k = 5.
Leaves to others: the lists themselves. UT1's (Université Toulouse Capitole) is read as it is unpacked.

    blacklists/adult/domains     one domain a line            stage = Url(UrlSettings(domains=("blacklists",)), files)
    blacklists/adult/urls        one URL a line               stage.open()
    more.txt                     either; # begins a comment   stage.apply(batch).dropped  # url.domain_blocked,
                                                                                          # "adult: example.com"

The normal form, in which URLs and entries are compared: white space around it, scheme, user, port, fragment, dots
after the host and slashes at the end are taken off, as is `www.`, `www1.`, ... before a host that has a dot without it;
the rest is in lower case, path and query too; percent escapes are decoded once (what is no UTF-8 becomes U+FFFD); a
host beyond ASCII is written in Punycode (IDNA 2003, RFC 3490), or stays where that is impossible.

    HTTPS://user@WWW.Bücher.example:8080/A%20b/?q=%C3%89#top      xn--bcher-kva.example/a b/?q=é
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Outcome, Stage, chain, drop_where, keep_all
from stages.kernels import url_keys
from stages.settings.filters import UrlSettings, normalize_words

MAX_CATEGORIES = 1 << url_keys.CATEGORY_BITS
"""Files with a name of their own (`adult`, `malware`, ...) that one list can tell apart."""

_CHUNK_BYTES = 1 << 24  # of a list read at a time
_LISTS = ("domains", "urls")  # the names of UT1's files
_NORMAL = (
    "normal url"  # a column that lives within `apply`; a space keeps it apart from every other
)
_NOT_OF_A_WORD = r"[^a-z0-9\x{80}-\x{10ffff}]+"

_PLAIN = r"^[a-z0-9_\-]+(\.[a-z0-9_\-]+)*(/[a-z0-9._~\-]+)*$"
"""In normal form as it stands, unless it begins with www."""
_PARTS = (
    r"(?s)^(?:(?:[a-z][a-z0-9+.\-]*:)?//)?(?:[^/?#]*@)?"  # scheme, user
    r"(?:www[0-9]{0,3}\.([^/?#:]*\.[^/?#:]+?)|(\[[^\]/?#]*\]|[^/?#:]*?))\.*(?::[^/?#]*)?"  # host, port
    r"((?:[/?][^#]*)?)(?:#.*)?$"  # path and query, fragment
)
_NOT_DECODED = r"%|^[^/?]*[^\x00-\x7f]"


class Url(Stage[UrlSettings]):
    """Drops documents whose URL is listed, has a listed word or matches a pattern; those without a URL are kept.

    Source: Penedo et al. 2023 (RefinedWeb), appendix G.1: block list, then words, then curated sources.
    """

    name = "url"
    version = 1
    needs = pa.schema([DOCUMENT.field("url")])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "url.domain_blocked": "The domain, one that it lies in, or the URL is on a block list of domains.",
            "url.subword": "The letters and digits of the URL hold one of subwords.",
            "url.hard_word": "One of the words of the URL is among hard_words.",
            "url.soft_words": "The number of different soft_words in the URL is above max_soft_words.",
            "url.pattern": "The URL matches one of the regular expressions in patterns.",
            "url.curated": "The source is one of curated, which are left to copies from elsewhere.",
        }
    )

    _judges: list[Callable[[pa.Table], Outcome]]

    @classmethod
    def required_files(cls, settings: UrlSettings) -> tuple[str, ...]:
        """The lists that are files, each once, in the order of the settings."""
        lists = (settings.subwords, settings.hard_words, settings.soft_words, settings.curated)
        return tuple(
            dict.fromkeys([*settings.domains, *(one for one in lists if isinstance(one, str))])
        )

    def open(self) -> None:
        """Read the lists.

        Raises:
            ValueError: a list is empty, holds what is no word, or has more categories than can be told apart.
        """
        settings = self.settings
        self._judges = []
        if settings.domains:
            blocked = BlockList.read([self.files[reference] for reference in settings.domains])
            self._judges.append(
                lambda batch: self._judge_domains(batch, blocked, "url.domain_blocked")
            )
        if subwords := self._words_of(settings.subwords):
            self._judges.append(lambda batch: self._judge_subwords(batch, subwords))
        if hard_words := self._words_of(settings.hard_words):
            hard = BlockList.of_words(hard_words)
            self._judges.append(lambda batch: self._judge_hard_words(batch, hard))
        if soft_words := self._words_of(settings.soft_words):
            soft = BlockList.of_words(soft_words)
            self._judges.append(lambda batch: self._judge_soft_words(batch, soft))
        for pattern in settings.patterns:
            self._judges.append(lambda batch, pattern=pattern: self._judge_pattern(batch, pattern))
        if settings.curated:
            lines = self._lines_of(settings.curated)
            curated = BlockList.made([("", pa.array(lines, pa.large_string()))])
            self._judges.append(lambda batch: self._judge_domains(batch, curated, "url.curated"))

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows that no rule drops; the reason is the first rule that does, in the order of `reasons`."""
        outcome = keep_all(batch, {_NORMAL: normal_form(batch.column("url"))})
        for judge in self._judges:
            outcome = chain(outcome, judge(outcome.kept))
        return Outcome(outcome.kept.drop_columns([_NORMAL]), outcome.dropped, outcome.counters)

    def _lines_of(self, given: str | tuple[str, ...]) -> list[str]:
        if not isinstance(given, str):
            return list(given)
        lines = [line for chunk in _lines_in(self.files[given]) for line in chunk.to_pylist()]
        if not lines:
            raise ValueError(f"{self.files[given]}: the list is empty; give one entry a line")
        return lines

    def _words_of(self, given: str | tuple[str, ...]) -> tuple[str, ...]:
        try:
            return normalize_words(self._lines_of(given))
        except ValueError as error:
            raise ValueError(f"{given}: {error}") from error

    def _judge_domains(self, batch: pa.Table, blocked: BlockList, reason: str) -> Outcome:
        hits = blocked.hits(url_keys.list_parent_keys, batch.column(_NORMAL))
        is_first = np.diff(hits.texts, prepend=-1) > 0
        names = [
            f"{category}: {part}" if category else part
            for category, part in zip(hits.categories(is_first), hits.parts(is_first), strict=True)
        ]
        return _drop(batch, reason, hits.texts[is_first], names)

    def _judge_subwords(self, batch: pa.Table, subwords: tuple[str, ...]) -> Outcome:
        squeezed = pc.replace_substring_regex(batch.column(_NORMAL), _NOT_OF_A_WORD, "")
        rows = np.flatnonzero(pc.match_substring_regex(squeezed, "|".join(subwords)))
        found = [
            next(word for word in subwords if word in text)
            for text in squeezed.take(rows).to_pylist()
        ]
        return _drop(batch, "url.subword", rows, found)

    def _judge_hard_words(self, batch: pa.Table, hard: BlockList) -> Outcome:
        hits = hard.hits(url_keys.list_word_keys, batch.column(_NORMAL))
        is_first = np.diff(hits.texts, prepend=-1) > 0
        return _drop(batch, "url.hard_word", hits.texts[is_first], hits.parts(is_first))

    def _judge_soft_words(self, batch: pa.Table, soft: BlockList) -> Outcome:
        hits = soft.hits(url_keys.list_word_keys, batch.column(_NORMAL))
        order = np.lexsort((hits.keys, hits.texts))  # (hits,) by URL, equal words side by side
        texts, keys = hits.texts[order], hits.keys[order]
        is_other = (np.diff(texts, prepend=-1) > 0) | (keys != np.roll(keys, 1))
        counts = np.bincount(texts[is_other], minlength=batch.num_rows)
        limit = self.settings.max_soft_words
        rows = np.flatnonzero(counts > limit)
        of_dropped = np.isin(hits.texts, rows)
        found: dict[int, dict[str, None]] = {row: {} for row in rows.tolist()}
        for row, word in zip(hits.texts[of_dropped].tolist(), hits.parts(of_dropped), strict=True):
            found[row][word] = None
        details = [" ".join(words) for words in found.values()]
        return _drop(batch, "url.soft_words", rows, details, value=pa.array(counts), limit=limit)

    def _judge_pattern(self, batch: pa.Table, pattern: str) -> Outcome:
        rows = np.flatnonzero(pc.match_substring_regex(batch.column(_NORMAL), pattern))
        return _drop(batch, "url.pattern", rows, [pattern] * len(rows))


def _drop(
    batch: pa.Table, reason: str, rows: NDArray[np.int64], details: list[str], **measured: Any
) -> Outcome:
    is_dropped = np.zeros(batch.num_rows, np.bool_)
    is_dropped[rows] = True
    detail = np.full(batch.num_rows, None, object)
    detail[rows] = details
    return drop_where(
        batch, pa.array(is_dropped), reason, detail=pa.array(detail, pa.string()), **measured
    )


# --- Lists ---


@dataclass(frozen=True)
class Hits:
    """The parts of URLs that are on a list, in the order of the URLs, and in one as the kernel meets them."""

    utf8: NDArray[np.uint8]
    keys: NDArray[np.uint64]  # (hits,), as are the others
    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    numbers: NDArray[np.int64]
    names: tuple[str, ...]

    def parts(self, wanted: NDArray[np.bool_]) -> list[str]:
        """What was found, as it stands in the URL."""
        spans = zip(self.starts[wanted].tolist(), self.ends[wanted].tolist(), strict=True)
        return [self.utf8[start:end].tobytes().decode() for start, end in spans]

    def categories(self, wanted: NDArray[np.bool_]) -> list[str]:
        """The name of the file that each comes from."""
        return [self.names[number] for number in self.numbers[wanted].tolist()]


@dataclass(frozen=True)
class BlockList:
    """Entries as sorted keys, each with the number of its category in the lowest bits; 8 bytes an entry.

    20 million domains: 160 MB, 350 MB while they are read, which takes 11 s of a core (2 shared cores); 60,000 URLs/s.
    """

    entries: NDArray[np.uint64]  # (n,) ascending, no key twice
    categories: tuple[str, ...]

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Self:
        """The lists in files and folders. A category is called as the folder of UT1's file, or as the plain file.

        Raises:
            ValueError: nothing to read in a folder, or too many categories.
        """
        files = [(category, file) for path in paths for category, file in _list_files(path)]
        return cls.made((category, chunk) for category, file in files for chunk in _lines_in(file))

    @classmethod
    def made(cls, chunks: Iterable[tuple[str, pa.Array]]) -> Self:
        """A list out of (category, entries); an entry in several categories belongs to the one that came first."""
        numbers: dict[str, int] = {}
        entries = np.empty(0, np.uint64)
        for category, lines in chunks:
            number = numbers.setdefault(category, len(numbers))
            if number >= MAX_CATEGORIES:
                raise ValueError(
                    f"block lists of more than {MAX_CATEGORIES} categories, the last being {category!r}: leave some "
                    f"out, or join files into one"
                )
            keys = url_keys.hash_urls(*_buffers(normal_form(lines)))
            keys = keys[keys > 0] | np.uint64(number)
            entries.resize(
                len(entries) + len(keys), refcheck=False
            )  # 20 million are not to be held twice
            entries[len(entries) - len(keys) :] = keys
        return cls(_distinct(entries), tuple(numbers))

    @classmethod
    def of_words(cls, words: Iterable[str]) -> Self:
        """A list of words, of no category."""
        keys, *_ = url_keys.list_word_keys(*_buffers(pa.array(list(words), pa.large_string())))
        return cls(_distinct(keys), ("",))

    def hits(
        self, parts_of: Callable[..., url_keys.KeySpans], normal: pa.ChunkedArray | pa.Array
    ) -> Hits:
        """Which of the parts of URLs in normal form are listed."""
        utf8, offsets = _buffers(normal)
        keys, texts, starts, ends = parts_of(utf8, offsets)
        found, numbers = np.zeros(len(keys), np.bool_), np.zeros(0, np.int64)
        if len(self.entries):
            nearest = self.entries[
                np.minimum(np.searchsorted(self.entries, keys), len(self.entries) - 1)
            ]
            found = (nearest ^ keys) < MAX_CATEGORIES
            numbers = (nearest[found] & np.uint64(MAX_CATEGORIES - 1)).astype(np.int64)
        return Hits(
            utf8, keys[found], texts[found], starts[found], ends[found], numbers, self.categories
        )


def _distinct(entries: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same memory, ascending; of keys that differ in the category alone, the first."""
    entries.sort()
    num_distinct = url_keys.drop_duplicate_keys(entries)
    return entries if num_distinct == len(entries) else entries[:num_distinct].copy()


def _list_files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield _category(path), path
        return
    wanted = {*_LISTS, *(f"{name}.gz" for name in _LISTS)}
    files = sorted(
        f for f in path.rglob("*") if f.is_file() and (f.name in wanted or f.suffix == ".txt")
    )
    if not files:
        raise ValueError(
            f"{path}: no file named domains or urls and no .txt is in this folder; unpack UT1's there"
        )
    yield from ((_category(file), file) for file in files)


def _category(file: Path) -> str:
    stem = file.name.split(".", maxsplit=1)[0]
    return file.parent.name if stem in _LISTS else stem


def _lines_in(file: Path) -> Iterator[pa.Array]:
    """The entries of a file, without comments and blank lines; of several fields the last (hosts files have two)."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
        rest = b""
        while chunk := opened.read(_CHUNK_BYTES):
            whole, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                yield _fields(whole)
        if rest:
            yield _fields(rest)


def _fields(text: bytes) -> pa.Array:
    lines = pc.split_pattern(
        pa.array([text.decode("utf-8", "replace")], pa.large_string()), "\n"
    ).flatten()
    lines = pc.replace_substring_regex(lines, r"(?:^|\s)#.*$", "") if b"#" in text else lines
    lines = pc.utf8_trim_whitespace(lines)
    if pc.any(pc.match_substring_regex(lines, r"\s")).as_py():
        lines = pc.replace_substring_regex(lines, r"^.*\s", "")
    return lines.filter(pc.not_equal(lines, ""))


# --- The normal form ---


def normal_form(urls: pa.Array | pa.ChunkedArray) -> pa.Array:
    """URLs, or entries of a list, as they are compared: `host/path?query`; a null is empty. (n,) large_string."""
    whole = urls.combine_chunks() if isinstance(urls, pa.ChunkedArray) else urls
    trimmed = pc.utf8_lower(
        pc.utf8_trim_whitespace(pc.fill_null(pc.cast(whole, pa.large_string()), ""))
    )
    is_plain = pc.and_(
        pc.match_substring_regex(trimmed, _PLAIN), pc.invert(pc.starts_with(trimmed, "www"))
    )
    others = pc.invert(is_plain)
    if not pc.any(others).as_py():
        return trimmed
    rest = pc.replace_substring_regex(trimmed.filter(others), _PARTS, r"\1\2\3")
    is_coded = pc.match_substring_regex(rest, _NOT_DECODED)
    decoded = pa.array(
        [_decoded(url) for url in rest.filter(is_coded).to_pylist()], pa.large_string()
    )
    rest = pc.replace_with_mask(rest, is_coded, decoded)
    rest = pc.replace_substring_regex(rest, "/+$", "")
    rest = pc.replace_substring_regex(
        rest, r"^([^/?]*)\?", r"\1/?"
    )  # an empty path is "/" (RFC 3986, section 6.2.3)
    return pc.replace_with_mask(trimmed, others, rest)


def _decoded(url: str) -> str:
    """Percent escapes and hosts beyond ASCII: a few URLs in a hundred, so one by one."""
    (host_end,) = re.match("[^/?]*", url).span()[1:]  # type: ignore[union-attr]
    host, path = unquote(url[:host_end]).lower(), unquote(url[host_end:]).lower()
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:  # an empty label or one of more than 63 characters
            return host + path
    return host + path


def _buffers(texts: pa.Array | pa.ChunkedArray) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of all texts, and where each starts: what the kernels read."""
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    if not len(whole):
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, utf8 = whole.buffers()
    starts = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    return np.frombuffer(utf8 or b"", np.uint8), starts
