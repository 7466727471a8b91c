"""The requests of retraction that a run folder stores. They stay in force for later runs there.

retractions/000001.json                  the request: URLs, domains, reason, by whom, when
retractions/000001.documents.parquet     the documents that it named when it was recorded
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
from pydantic import Field, TypeAdapter

from pipeline.retraction.request import Request, make_request
from pipeline.runs.done_records import to_json
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_table, write_parquet
from stages.contract import join_doc_id, split_doc_id
from storage import Store
from storage.json_schema import MAX_INTEGER, JsonObject, parse_json

FOLDER = "retractions"


class _Record(JsonObject):
    number: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    recorded_at: str
    reason: str
    requested_by: str
    urls: list[str]
    domains: list[str]


_RECORD = TypeAdapter(_Record)
_REMEDY = "restore the file from a copy of the run folder"


@dataclass(frozen=True)
class RequestRecord:
    """A request of retraction that a run folder stores.

    Attributes:
        number: 1, 2, 3, ...
        recorded_at: in UTC, such as "2026-11-22T21:40:07Z".
        reason: why, in the words of the person who recorded it.
        requested_by: who asked for it.
        request: the URLs and domains.
    """

    number: int
    recorded_at: str
    reason: str
    requested_by: str
    request: Request

    @property
    def file(self) -> str:
        """The name of the record in the folder."""
        return f"{self.number:06d}.json"

    @property
    def documents_file(self) -> str:
        """The name of the list of documents in the folder."""
        return f"{self.number:06d}.documents.parquet"

    @property
    def sha256(self) -> str:
        """SHA-256 of the record. The logs of datasets name it."""
        return hashlib.sha256(self.dumps()).hexdigest()

    def dumps(self) -> bytes:
        """Return the content of the file."""
        value = {
            "number": self.number,
            "recorded_at": self.recorded_at,
            "reason": self.reason,
            "requested_by": self.requested_by,
            "urls": list(self.request.urls),
            "domains": list(self.request.domains),
        }
        return to_json(value)

    def is_same_request(self, other: RequestRecord) -> bool:
        """Whether both ask for the same, for the same reason."""
        return (self.request, self.reason, self.requested_by) == (
            other.request,
            other.reason,
            other.requested_by,
        )


def read_records(run_dir: Store) -> list[RequestRecord]:
    """Return the requests of a run, oldest first.

    Raises:
        DamagedFile: a file does not hold a request.
    """
    folder = run_dir.child(FOLDER)
    records: list[RequestRecord] = []
    for name in folder.list_names():
        if name.endswith(".json"):
            content = folder.read_bytes(name)
            records.append(_parse(content, folder.locate(name)))
    return records


def _parse(content: bytes, where: str) -> RequestRecord:
    value: dict[str, Any] = parse_json(content, _RECORD, where, _REMEDY)
    request = make_request(value.pop("urls"), value.pop("domains"))
    return RequestRecord(**value, request=request)


def store_record(run_dir: Store, record: RequestRecord, documents: pa.Table) -> None:
    """Store a request. It is in force when its record exists, which is written last."""
    folder = run_dir.child(FOLDER)
    folder.make_folder()
    with folder.staging_folder(f"{record.number:06d}") as staging:
        path = staging / record.documents_file
        write_parquet(documents, path)
        folder.move_in(path, record.documents_file)
    folder.put(record.file, record.dumps())


def list_doc_ids(run: RunFolder, record: RequestRecord) -> Iterator[int]:
    """Yield the ids in this run of the documents that a request named when it was recorded."""
    for doc_id, _ in _list_documents(run, record):
        yield doc_id


def find_recorded_ids(run: RunFolder, url: str) -> set[int]:
    """Return the ids of the documents that requests named, and that had this URL."""
    found: set[int] = set()
    for record in read_records(run.run_dir):
        for doc_id, named_url in _list_documents(run, record):
            if named_url == url:
                found.add(doc_id)
    return found


def _list_documents(
    run: RunFolder, record: RequestRecord
) -> Iterator[tuple[int, str | None]]:
    """Yield id in this run and URL of the documents that a request named."""
    indexes = {split.key: split.index for split in run.splits}
    file = run.run_dir.child(FOLDER).open(record.documents_file)
    documents = read_table(pa.PythonFile(file, mode="r"), ["doc_id", "split", "url"])
    for row in documents.to_pylist():
        if row["split"] in indexes:
            _, number = split_doc_id(row["doc_id"])
            yield join_doc_id(indexes[row["split"]], number), row["url"]
