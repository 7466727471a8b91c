"""Find pages of a Common Crawl snapshot in its columnar index.

The index is about 300 Parquet files with one row per page, sorted by reversed host. Row groups
whose statistics exclude a domain are not read, and of the others only the columns of the query.
https://commoncrawl.org/columnar-index describes the columns.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter

from config_files.reader import ConfigError
from pipeline.config import CommonCrawl, PageQuery
from pipeline.inputs.input_files import FilePart, InputFile
from pipeline.inputs.polite_reader import PoliteReader
from stages.settings.languages import ISO_639_3
from storage import StorageError, StorageSettings
from storage.errors import DamagedFile
from storage.json_schema import MAX_INTEGER, Count, JsonObject, parse_json
from storage.local import put_file

log = logging.getLogger(__name__)

_DOMAIN, _HOST = "url_host_registered_domain", "url_host_name"
_LANGUAGES, _URL = "content_languages", "url"

# Where the record of a page is.
PLACE = ("warc_filename", "warc_record_offset", "warc_record_length")

# Of a response record with its page, compressed (CC-MAIN-2024 to 2026); for estimates.
_RECORD_BYTES = 25_000

_LOG_INTERVAL_S = 10.0


class _Match(JsonObject):
    file: str
    row_group: Count
    num_pages: Annotated[int, Field(ge=1, le=MAX_INTEGER)]


_MATCHES = TypeAdapter(list[_Match])


@dataclass(frozen=True)
class Match:
    """A row group with pages of a query.

    Attributes:
        file: name of the index file below the address of the snapshots.
        row_group: its number.
        num_pages: the number of matching rows.
    """

    file: str
    row_group: int
    num_pages: int


def find_pages(
    config: CommonCrawl,
    query: PageQuery,
    names: Sequence[str],
    storage: StorageSettings,
    cache: Path,
) -> list[InputFile]:
    """Return the parts of the index whose pages tasks fetch, in the order of the index.

    The index is read once per query; the row groups that match are kept in the user's cache.

    Args:
        config: the snapshot.
        query: the pages.
        names: the files of the index, as listed in cc-index-table.paths.gz.
        storage: how the server is reached.
        cache: folder of the cache.

    Raises:
        ConfigError: no page matches, the pattern is wrong, or the index cannot be read.
    """
    files = [name for name in names if "/subset=warc/" in name]
    identity = _make_identity(config, query)
    cached = cache / f"{config.crawl}-{identity[:16]}.pages.json"
    matches = _read_cache(cached)
    if matches is None:
        matches = _search(config, query, files, storage)
        cached.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps([vars(match) for match in matches])
        put_file(cached, content.encode())
    base = config.base_url.rstrip("/") + "/"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return [
        InputFile(base + match.file, None, digest, part)
        for match in matches
        for part in _cut(match, query.pages_per_split)
    ]


def _make_identity(config: CommonCrawl, query: PageQuery) -> str:
    """Return a digest of what determines the pages of a query."""
    settings = query.model_dump(exclude={"pages_per_split", "requests_per_s"})
    value = {"crawl": config.crawl, "query": settings}
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read_cache(path: Path) -> list[Match] | None:
    try:
        rows = parse_json(path.read_bytes(), _MATCHES, str(path), "the index is read again")
    except FileNotFoundError:
        return None
    except DamagedFile as error:
        log.warning("%s", error)
        return None
    return [Match(**row) for row in rows]


def _search(
    config: CommonCrawl, query: PageQuery, files: Sequence[str], storage: StorageSettings
) -> list[Match]:
    """Return the row groups with matching pages, at most `max_pages` in all.

    Raises:
        ConfigError: there is none, or the index cannot be read.
    """
    log.info("looking for pages in the index of %s, %d files", config.crawl, len(files))
    reader = PoliteReader(config.base_url, storage, query.requests_per_s)
    found: list[Match] = []
    num_pages, logged_s = 0, time.monotonic()
    try:
        for number, name in enumerate(files):
            for match in _search_file(reader, name, query):
                num_wanted = match.num_pages
                if query.max_pages is not None:
                    num_wanted = min(num_wanted, query.max_pages - num_pages)
                found.append(Match(name, match.row_group, num_wanted))
                num_pages += num_wanted
                if num_pages == query.max_pages:
                    return found
            if time.monotonic() - logged_s >= _LOG_INTERVAL_S:
                logged_s = time.monotonic()
                log.info("  %d of %d files, %d pages", number + 1, len(files), num_pages)
    except (StorageError, pa.ArrowException, KeyError) as error:
        fault = f"the index of {config.crawl} cannot be read: {error}"
        raise ConfigError([f"input.common_crawl.pages: {fault}"]) from error
    if not found:
        raise ConfigError([f"input.common_crawl.pages: {config.crawl} has no such page"])
    return found


def _search_file(reader: PoliteReader, name: str, query: PageQuery) -> Iterator[Match]:
    with reader.open(name) as opened, pq.ParquetFile(opened, pre_buffer=False) as file:
        for group in range(file.num_row_groups):
            if not can_match(file.metadata.row_group(group), query):
                continue
            columns = _list_columns(query)
            rows = file.read_row_group(group, columns=columns, use_threads=False)
            num_pages = pc.sum(_match(rows, query)).as_py() or 0
            if num_pages:
                yield Match(name, group, num_pages)


def read_pages(
    reader: PoliteReader, name: str, part: FilePart, query: PageQuery
) -> list[tuple[str, int, int]]:
    """Return WARC file, offset and length of the pages of a part of the index."""
    with reader.open(name) as opened, pq.ParquetFile(opened, pre_buffer=False) as file:
        columns = [*_list_columns(query), *PLACE]
        rows = file.read_row_group(part.row_group, columns=columns, use_threads=False)
    pages = rows.filter(_match(rows, query)).slice(part.start, part.stop - part.start)
    return list(zip(*(pages.column(name).to_pylist() for name in PLACE), strict=True))


def _cut(match: Match, num_pages: int) -> Iterator[FilePart]:
    for start in range(0, match.num_pages, num_pages):
        stop = min(start + num_pages, match.num_pages)
        yield FilePart(start, stop, (stop - start) * _RECORD_BYTES, match.row_group)


def _list_columns(query: PageQuery) -> list[str]:
    given = {
        _DOMAIN: query.domains,
        _HOST: query.hosts,
        _LANGUAGES: query.languages,
        _URL: query.url_pattern,
    }
    return [name for name, condition in given.items() if condition]


def can_match(group: pq.RowGroupMetaData, query: PageQuery) -> bool:
    """Return whether the statistics of a row group allow one of the domains or hosts."""
    wanted = {_DOMAIN: query.domains, _HOST: query.hosts}
    ranges: list[bool] = []
    for index in range(group.num_columns):
        column = group.column(index)
        for value in wanted.get(column.path_in_schema, ()):
            known = column.statistics
            if known is None or not known.has_min_max:
                return True
            ranges.append(known.min <= value <= known.max)
    return any(ranges) or not (query.domains or query.hosts)


def _match(rows: pa.Table, query: PageQuery) -> pa.ChunkedArray:
    """Return for each row whether it matches, (n,) bool without nulls.

    Raises:
        ConfigError: the pattern is no regular expression.
    """
    conditions: list[pa.ChunkedArray] = []
    places = [(_DOMAIN, query.domains), (_HOST, query.hosts)]
    sites = [
        pc.is_in(rows.column(name), value_set=pa.array(values))
        for name, values in places
        if values
    ]
    if sites:
        conditions.append(sites[0] if len(sites) == 1 else pc.or_(*sites))
    if query.languages:
        # The first of several is the main one: "deu,eng".
        pattern = f"^({'|'.join(sorted(_list_codes(query)))})(,|$)"
        conditions.append(pc.match_substring_regex(rows.column(_LANGUAGES), pattern))
    if query.url_pattern:
        try:
            matches = pc.match_substring_regex(rows.column(_URL), query.url_pattern)
        except pa.ArrowInvalid as error:
            key = "input.common_crawl.pages.url_pattern"
            raise ConfigError([f"{key} is {query.url_pattern!r}: {error}"]) from error
        conditions.append(matches)
    found = conditions[0]
    for condition in conditions[1:]:
        found = pc.and_kleene(found, condition)
    return pc.fill_null(found, False)


def _list_codes(query: PageQuery) -> set[str]:
    """Return the languages by ISO 639-3, as the index names them."""
    wanted = set(query.languages)
    return wanted | {long for long, code in ISO_639_3.items() if code in wanted}
