"""The report on one file: how many records became documents, were skipped or quarantined."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from stages.contract import Counters, DocumentCountError


@dataclass(frozen=True)
class Quarantined:
    """A record, or a stretch of bytes between records, that could not become a document."""

    file: str
    # The number that its document would have in `doc_id`.
    record: int
    # On disk, of the record or of the gzip member that contains it. None in zstd and lz4
    # files.
    offset: int | None
    # One of `stages.warc.causes.CAUSES`.
    cause: str
    detail: str
    # Decompressed bytes that were skipped, or bytes on disk if they could not be
    # decompressed.
    skipped_bytes: int


@dataclass
class ReadReport:
    """What happened to the records of one file. It is complete after the last batch is read."""

    file: str
    # Records and broken stretches: the sum of `num_documents`, `skipped` and `quarantine`.
    num_records: int = 0
    num_documents: int = 0
    # WARC-Type -> records; "broken" counts stretches without a readable header.
    record_types: Counter[str] = field(default_factory=Counter[str])
    # Reason -> records; see `stages.warc.causes.SKIPPED`.
    skipped: Counter[str] = field(default_factory=Counter[str])
    quarantine: list[Quarantined] = field(default_factory=list[Quarantined])
    file_bytes: int = 0
    # Of the bytes that were read from the file, which are all of it.
    sha256: str = ""
    # Decompressed content of all intact records.
    content_bytes: int = 0
    text_bytes: int = 0
    # NUL bytes in texts, each replaced by a space.
    nul_bytes_replaced: int = 0
    # Soft hyphens, zero-width spaces and other characters that no reader sees.
    invisible_removed: int = 0
    # Byte sequences that could not be decoded, each replaced by U+FFFD.
    undecodable_replaced: int = 0
    # Documents whose content was cut by the crawler or by the HTTP transfer.
    num_cut: int = 0
    # Pages stored without the content coding that their HTTP header names.
    num_stored_decoded: int = 0
    # Pages whose main content was too short, and that gave all of their text.
    num_without_main_content: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether the file gave nothing: each record is quarantined, or there is none."""
        return not self.num_documents and not self.skipped

    def check(self) -> None:
        """Raise `DocumentCountError` unless each record is counted exactly once."""
        num_counted = self.num_documents + self.skipped.total() + len(self.quarantine)
        if num_counted != self.num_records or self.record_types.total() != self.num_records:
            raise DocumentCountError(
                f"{self.file}: {self.num_records} records, but {self.num_documents} documents, "
                f"{self.skipped.total()} skipped and {len(self.quarantine)} quarantined: a bug "
                "in stages/warc/reader.py"
            )

    def counters(self) -> Counters:
        """Return the report as counters, which can be added over files."""
        counters = Counters()
        for name in _COUNTED:
            counters.add(name, getattr(self, name))
        counters.add("num_files")
        if self.is_lost:
            counters.add(f"lost_file.{self.file}")
        for record_type, number in self.record_types.items():
            counters.add(f"type.{record_type}", number)
        for reason, number in self.skipped.items():
            counters.add(f"skipped.{reason}", number)
        for entry in self.quarantine:
            counters.add(f"quarantined.{entry.cause}")
        return counters


_COUNTED = (
    "num_records",
    "num_documents",
    "file_bytes",
    "content_bytes",
    "text_bytes",
    "nul_bytes_replaced",
    "invisible_removed",
    "undecodable_replaced",
    "num_cut",
    "num_stored_decoded",
    "num_without_main_content",
)
