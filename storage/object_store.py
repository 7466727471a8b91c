"""Folders in an object store: S3 and compatible servers, and other stores of obstore."""

from __future__ import annotations

import contextlib
import functools
import mmap
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, cast

from storage.base import Buffer, Store
from storage.client import S3, check_installed, get_status
from storage.download import FileDownload
from storage.errors import InvalidAddress, NotFound
from storage.local import make_scratch_folder
from storage.object_file import ObjectFile, RangeDownload, check_complete, get_version
from storage.object_requests import RequestSender
from storage.retries import RequestCounters, requests
from storage.settings import DEFAULT_SETTINGS, StorageSettings

# A file up to this size is uploaded by one request: if the process dies, nothing is left
# behind. A larger one is uploaded in parts, because S3 accepts at most 5 GiB in one
# request.
SINGLE_PUT_BYTES = 512 << 20

PART_BYTES = 64 << 20

# One request fetches 50 to 100 MB/s from S3, and NUM_CONNECTIONS of them this much memory each.
MAP_PART_BYTES = 4 << 20

# Requests at a time when many small files are read.
NUM_CONNECTIONS = 16

# Reads whose results may wait until they are taken.
READ_AHEAD = 4 * NUM_CONNECTIONS

CHECK_TIMEOUT_S = 5.0

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class ObjectStore(Store):
    """A folder of objects.

    An object must not be replaced while it is read without a version: the reader could get a
    mixture of the old and the new content.

    Attributes:
        root: "s3://bucket", or an address of another protocol.
        prefix: The folder below the root; "" is the root itself.
        settings: How the server is reached.
        counters: Where requests are counted; None: `storage.retries.requests`.
    """

    root: str
    prefix: str = ""
    settings: StorageSettings = DEFAULT_SETTINGS
    counters: RequestCounters | None = None

    @classmethod
    def from_address(
        cls,
        address: str,
        settings: StorageSettings = DEFAULT_SETTINGS,
        counters: RequestCounters | None = None,
    ) -> Self:
        """Return the folder at an address, e.g. s3://bucket/runs/x or https://host/dataset.

        Raises:
            InvalidAddress: an s3 address names no bucket, or obstore is not installed.
        """
        check_installed(address)
        if not address.startswith(S3):
            return cls(address.rstrip("/"), "", settings, counters)
        bucket, _, key = address.removeprefix(S3).partition("/")
        if not bucket:
            remedy = "use an address such as s3://bucket/folder"
            raise InvalidAddress(address, "the address names no bucket", remedy)
        return cls(S3 + bucket, re.sub("/+", "/", key).strip("/"), settings, counters)

    def __str__(self) -> str:
        return f"{self.root}/{self.prefix}".rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the address."""
        return str(self).rpartition("/")[2]

    def locate(self, name: str) -> str:
        """Return the address of an object."""
        return f"{self}/{name}".rstrip("/")

    def get_local_path(self, name: str = "") -> None:
        """Return None: objects have no path on this machine."""
        del name

    def child(self, name: str) -> Self:
        """Return the folder of that name in this one, whether or not it exists."""
        return replace(self, prefix=self._key(name))

    def check(self) -> None:
        """List the folder once, with few retries."""
        timeout_s = min(CHECK_TIMEOUT_S, self.settings.retry_timeout_s)
        impatient = replace(self.settings, retry_timeout_s=timeout_s)
        replace(self, settings=impatient).list_names()

    # ---- reading ----

    def open(self, name: str) -> BinaryIO:
        """Open an object for reading. Fetches its end: the footer, or all of a small object."""
        read_tail = functools.partial(self._read_tail, name)
        read_range = functools.partial(self.read_range, name)
        return cast("BinaryIO", ObjectFile(self.locate(name), read_tail, read_range))

    def map(self, name: str) -> Buffer:
        """Return the content of an object. Parts of a large one are fetched at the same time."""
        head = self._head(name)
        size, version = int(head["size"]), get_version(head)
        if size <= MAP_PART_BYTES:
            return self.read_range(name, 0, size, version)
        content = memoryview(bytearray(size))

        def fetch(start: int) -> None:
            stop = min(start + MAP_PART_BYTES, size)
            content[start:stop] = self.read_range(name, start, stop, version)

        for _ in self.read_each(range(0, size, MAP_PART_BYTES), fetch):
            pass
        return content.toreadonly()

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a small object."""
        return self.read_version(name)[0]

    def read_version(self, name: str) -> tuple[bytes, str]:
        """Return the content of a small object, and its ETag."""
        import obstore

        def get(client: Any) -> tuple[bytes, str]:
            result = obstore.get(client, self._key(name))
            content, size = bytes(result.bytes()), int(result.meta["size"])
            check_complete(len(content), size)
            return content, result.meta["e_tag"] or ""

        return self._requests.send("get", self.locate(name), get)

    def read_range(
        self, name: str, start: int, stop: int, version: str | None = None
    ) -> memoryview:
        """Return bytes start..stop-1. Bytes that arrive before a connection breaks are kept.

        Raises:
            ObjectChanged: the object has another version, or is shorter.
        """
        if start == stop:
            return memoryview(b"")  # servers refuse an empty range
        download = RangeDownload(
            self._key(name), start, stop, version, self._requests.counters
        )
        byte_range = f"{name}, bytes {start}..{stop - 1}"
        return self._requests.send(
            "get", self.locate(byte_range), download.receive, stop - start, download
        )

    def download(self, target: Path) -> None:
        """Copy the object at this address to a local file, completely or not at all.

        The bytes of a broken attempt stay beside it. The next attempt, of this process or a later
        one, requests the rest (RFC 9110 section 14) if the object still has the same ETag and size.
        """
        download = FileDownload(str(self), self.prefix, target)
        self._requests.send("get", str(self), download.receive, 0, download)

    def _read_tail(self, name: str, num_bytes: int) -> tuple[bytes, int, str | None]:
        """Return the last bytes, at most `num_bytes`, the size of the object, and its version."""
        import obstore

        def get(client: Any) -> tuple[bytes, int, str | None]:
            options: Any = {"range": {"suffix": num_bytes}}
            try:
                result = obstore.get(client, self._key(name), options=options)
            except Exception as error:
                # An empty object has no last byte (RFC 9110 section 14.1.2).
                if get_status(error) == 416:
                    return b"", 0, None
                raise
            tail, size = bytes(result.bytes()), int(result.meta["size"])
            check_complete(len(tail), min(num_bytes, size))
            return tail, size, get_version(result.meta)

        return self._requests.send("get", self.locate(name), get)

    def get_size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        return int(self._head(name)["size"])

    def get_size_and_version(self, name: str) -> tuple[int, str]:
        """Return the size of an object in bytes, and its ETag.

        Raises:
            InvalidAddress: the server sends no ETag.
        """
        head = self._head(name)
        if head["e_tag"] is None:
            remedy = "use a server that sends ETags, which tell versions of an object apart"
            raise InvalidAddress(self.locate(name), "the server sends no ETag", remedy)
        return int(head["size"]), head["e_tag"]

    def get_modified_time(self, name: str) -> datetime:
        """Return when an object was last written, by the server's clock."""
        return self._head(name)["last_modified"]

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        try:
            self._head(name)
        except NotFound:
            return False
        return True

    def _head(self, name: str) -> Mapping[str, Any]:
        import obstore

        return self._requests.send(
            "head", self.locate(name), lambda client: obstore.head(client, self._key(name))
        )

    def list_names(self) -> list[str]:
        """Return the sorted names of the objects in this folder; one request per 1,000."""
        # Some servers list an emptied folder as an object with the folder's key.
        keys = [entry["path"] for entry in self._list()["objects"]]
        return _sort_visible(key for key in keys if key != self.prefix)

    def list_folders(self) -> list[str]:
        """Return the sorted names of the folders in this folder; one request per 1,000."""
        return _sort_visible(self._list()["common_prefixes"])

    def _list(self) -> Mapping[str, Any]:
        import obstore

        return self._requests.send(
            "list",
            str(self),
            lambda client: obstore.list_with_delimiter(client, self.prefix or None),
        )

    def read_each(self, items: Iterable[K], read: Callable[[K], T]) -> Iterator[T]:
        """Yield `read(item)` of each item, in order, several at a time to hide the latency."""
        with ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
            # Not Executor.map: it would read all items, however slowly they are taken.
            pending: deque[Future[T]] = deque()
            for item in items:
                pending.append(threads.submit(read, item))
                if len(pending) == READ_AHEAD:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()

    # ---- writing ----

    def make_folder(self) -> None:
        """Do nothing: folders exist only in the keys of objects."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small object, or replace it, by one request."""
        import obstore

        self._requests.send(
            "put",
            self.locate(name),
            lambda client: obstore.put(
                client, self._key(name), content, use_multipart=False
            ),
        )

    def create(self, name: str, content: bytes) -> str | None:
        """Write a small object that does not exist yet; return its ETag, or None if it exists."""
        return self._put_if(name, content, "create")

    def replace(self, name: str, content: bytes, version: str) -> str | None:
        """Replace a small object if it still has that ETag."""
        return self._put_if(name, content, {"e_tag": version})

    def _put_if(self, name: str, content: bytes, mode: Any) -> str | None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put(client: Any) -> str | None:
            try:
                result = obstore.put(client, self._key(name), content, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                return None
            return result["e_tag"] or ""

        # None: the condition failed, perhaps because of our own earlier attempt.
        version = self._requests.send("put", self.locate(name), put)
        if version is not None:
            return version
        # A repeated request can meet the object that its first attempt wrote.
        with contextlib.suppress(NotFound):
            found, version = self.read_version(name)
            return version if found == content else None
        return None

    @contextlib.contextmanager
    def staging_folder(self, name: str) -> Generator[Path]:
        """Provide an empty folder in this user's scratch folder on this machine."""
        with make_scratch_folder(self.settings.scratch_dir, name) as folder:
            yield folder

    def move_in(self, file: Path, name: str) -> None:
        """Upload a file of a staging folder, which is removed with its folder."""
        self.upload(file, name)

    def rename(self, name: str, new_name: str) -> None:
        """Copy an object on the server, then delete it under its old name."""
        import obstore

        source, target = self._key(name), self._key(new_name)
        self._requests.send(
            "put", self.locate(name), lambda client: obstore.copy(client, source, target)
        )
        self.delete(name)

    def upload(self, file: Path, name: str) -> None:
        """Upload a local file, completely or not at all; a very large file in parts."""
        # One request is atomic by itself. Parts are atomic because only the last request makes the
        # object visible.
        num_bytes = file.stat().st_size
        if num_bytes > SINGLE_PUT_BYTES:
            self._upload_in_parts(file, num_bytes, name)
        elif num_bytes:
            self._upload_at_once(file, num_bytes, name)
        else:
            self.put(name, b"")  # an empty file cannot be mapped

    def _upload_at_once(self, file: Path, num_bytes: int, name: str) -> None:
        import obstore

        key = self._key(name)
        # Mapped, so that the content takes no memory of the process.
        with _map_view(file) as view:
            self._requests.send(
                "put",
                self.locate(name),
                lambda client: obstore.put(client, key, view, use_multipart=False),
                num_bytes,
            )

    def _upload_in_parts(self, file: Path, num_bytes: int, name: str) -> None:
        """Upload in parts.

        Crash window: obstore aborts an upload that fails, and the server drops its parts. A
        process that is killed leaves hidden parts, which only the bucket's rule for incomplete
        uploads removes (docs/object-storage.md).
        """
        import obstore

        key, num_parts = self._key(name), -(-num_bytes // PART_BYTES)
        options: Any = {
            "use_multipart": True,
            "chunk_size": PART_BYTES,
            "max_concurrency": 2,
        }
        # The parts and the request that begins the upload; `send` counts the one that ends it.
        self._requests.counters.add("put", num_parts + 1)
        self._requests.send(
            "put",
            self.locate(name),
            lambda client: obstore.put(client, key, file, **options),
            PART_BYTES,
            retries_parts=True,
        )

    def set_latest_link(self, name: str, target: str) -> None:
        """Write an object that holds the name of the folder `target`."""
        self.put(name, target.encode())

    def delete(self, *names: str) -> None:
        """Delete objects, 1,000 per request; those that do not exist are skipped."""
        self._delete_keys([self._key(name) for name in names])

    def delete_all(self) -> None:
        """Delete all objects below this folder."""
        import obstore

        pages = self._requests.send(
            "list", str(self), lambda client: list(obstore.list(client, self.prefix))
        )
        self._delete_keys([entry["path"] for page in pages for entry in page])

    def delete_unfinished(self) -> None:
        """Do nothing: an upload that did not finish is no object."""

    def _delete_keys(self, keys: list[str]) -> None:
        import obstore

        if keys:
            self._requests.send(
                "delete", str(self), lambda client: obstore.delete(client, keys)
            )

    # ---- requests ----

    @property
    def _requests(self) -> RequestSender:
        counters = self.counters if self.counters is not None else requests
        return RequestSender(self.root, self.settings, counters)

    def _key(self, name: str) -> str:
        return f"{self.prefix}/{name}".strip("/")


def _sort_visible(keys: Iterable[str]) -> list[str]:
    """Return the sorted last parts of keys, without those that begin with "."."""
    names = [key.rstrip("/").rpartition("/")[2] for key in keys]
    return sorted(name for name in names if not name.startswith("."))


@contextlib.contextmanager
def _map_view(file: Path) -> Generator[memoryview]:
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        yield view
