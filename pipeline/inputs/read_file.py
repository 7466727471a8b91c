"""Read one input file of any kind as batches of documents."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from pathlib import Path

import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.inputs.fetch_pages import fetch_pages
from pipeline.inputs.input_files import (
    InputFile,
    check_digest,
    check_unchanged,
    local_copy,
)
from pipeline.inputs.polite_reader import PoliteReader, count_readers
from stages.text_records.reader import TextReader
from stages.warc.read_report import ReadReport
from stages.warc.reader import PageTimeout, WarcReader


def read_file(
    file: InputFile,
    config: RunConfig,
    *,
    split: int,
    num_splits: int,
    first_record: int,
    page_timeout: PageTimeout,
) -> Generator[pa.Table, None, ReadReport]:
    """Yield the documents of a file, and return the report on it.

    Args:
        file: the file.
        config: of the run.
        split: index of the input split.
        num_splits: of the run.
        first_record: records in the earlier files of the split.
        page_timeout: the time that a page may take.

    Raises:
        OSError: the file cannot be read, or has changed since the run was planned.
    """
    storage = config.storage.to_settings()
    open_warc = _make_opener(config, split, first_record, page_timeout)
    if config.input.text is not None:
        return (yield from _read_text(file, config, split, first_record))
    crawl = config.input.common_crawl
    if crawl is not None and crawl.pages is not None:
        rate = crawl.pages.requests_per_s / count_readers(config, num_splits)
        server = PoliteReader(crawl.base_url, storage, rate)
        pages = fetch_pages(file, crawl.pages, server, storage, open_warc, first_record)
        return (yield from pages)
    with local_copy(file, storage) as path:
        reader = open_warc(path)
        yield from reader
        check_digest(file, reader.report.sha256)
        return reader.report


def _make_opener(
    config: RunConfig, split: int, first_record: int, page_timeout: PageTimeout
) -> Callable[[Path], WarcReader]:
    """Return a function that opens a crawl file on this machine."""
    return functools.partial(
        WarcReader,
        settings=config.extract.warc,
        split=split,
        first_record=first_record,
        batch_bytes=_get_batch_bytes(config),
        page_timeout=page_timeout,
    )


def _read_text(
    file: InputFile, config: RunConfig, split: int, first_record: int
) -> Generator[pa.Table, None, ReadReport]:
    assert config.input.text is not None
    part = file.part
    with local_copy(file, config.storage.to_settings()) as path:
        reader = TextReader(
            path,
            config.input.text,
            split=split,
            first_record=first_record,
            start=part.start if part else 0,
            stop=part.stop if part else None,
            num_bytes=part.num_bytes if part else None,
            batch_bytes=_get_batch_bytes(config),
        )
        yield from reader
        check_unchanged(file)
        return reader.report


def _get_batch_bytes(config: RunConfig) -> int:
    return int(config.engine.advanced.batch_mb * 2**20)
