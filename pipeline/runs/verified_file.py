"""Reading a stored output, by ranges or as a whole, with every byte verified before it is used."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO, Self

from pipeline.runs.output_digests import BLOCK_BYTES, OutputDigests, compute_crcs
from pipeline.runs.removed_outputs import REMOVED, is_removed
from storage import Store
from storage.errors import DamagedFile
from terminal_output import format_command

log = logging.getLogger(__name__)

_REMEDY = "run the config of its run again: it makes the file again"


@dataclass(frozen=True)
class Damage:
    """A stored file that differs from what was written.

    Attributes:
        folder: the address of the phase folder.
        file: the name of the file in it.
        found: what is there.
        wanted: what should be there.
        place: the place in the file; "": the whole file.
    """

    folder: str
    file: str
    found: str
    wanted: str
    place: str = ""

    @property
    def address(self) -> str:
        """The address of the file."""
        return f"{self.folder}/{self.file}"

    def __str__(self) -> str:
        place = f": {self.place}" if self.place else ""
        return f"{self.address}{place}: found {self.found}, wanted {self.wanted}"


class DamagedOutput(DamagedFile):
    """A stored output differs from what was written."""

    def __init__(self, damage: Damage) -> None:
        place = f": {damage.place}" if damage.place else ""
        remedy = _REMEDY
        if damage.found == REMOVED:
            run_dir = damage.folder.rpartition("/")[0]
            command = f"{format_command('pipeline')} clean {run_dir} --restore"
            remedy = f"run `{command}`, then the config: it makes the file again"
        super().__init__(damage.address + place, damage.found, damage.wanted, remedy)
        self.damage = damage

    def __reduce__(self) -> tuple[type[Self], tuple[Damage]]:  # type: ignore[override]
        return type(self), (self.damage,)


@dataclass
class StoredOutput:
    """An output of a task, and what its done-record says about it.

    Attributes:
        root: the phase folder.
        name: the file.
        digests: its digests, perhaps from a cache.
        read_digests: reads the digests from the done-record.
    """

    root: Store
    name: str
    digests: OutputDigests
    read_digests: Callable[[], OutputDigests]

    def open(self) -> BinaryIO:
        """Open the file.

        Raises:
            DamagedOutput: the file is missing or has another size.
        """
        try:
            file = self.root.open(self.name)
        except FileNotFoundError as error:
            raise self._describe_missing() from error
        try:
            self._check_size(file.seek(0, os.SEEK_END))
        except DamagedOutput:
            file.close()
            raise
        return file

    def refresh(self) -> None:
        """Read the digests again: those in the cache may be outdated."""
        self.digests = self.read_digests()

    def find_damage(self, content: bytes, first: int, stop: int) -> Damage | None:
        """Compare the blocks first..stop-1 with their CRCs; return the first difference."""
        found = compute_crcs(content)
        wanted = self.digests.block_crcs[first:stop].tolist()
        if found == wanted:
            return None
        found += [0] * (len(wanted) - len(found))  # the file was cut while it was open
        index = next(i for i, crc in enumerate(wanted) if crc != found[i])
        start = (first + index) * BLOCK_BYTES
        end = min(start + BLOCK_BYTES, self.digests.num_bytes)
        return self.describe(
            f"crc32 {found[index]:08x}",
            f"{wanted[index]:08x}",
            f"bytes {start} to {end - 1}",
        )

    def describe(self, found: str, wanted: str, place: str = "") -> Damage:
        """Return a damage of this file."""
        return Damage(str(self.root), self.name, found, wanted, place)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes != self.digests.num_bytes:
            wanted = f"a file of {self.digests.num_bytes} bytes"
            raise DamagedOutput(self.describe(f"{num_bytes} bytes", wanted))

    def _describe_missing(self) -> DamagedOutput:
        wanted = f"a file of {self.digests.num_bytes} bytes"
        found = REMOVED if is_removed(self.root, self.name) else "no file"
        return DamagedOutput(self.describe(found, wanted))


class VerifiedFile:
    """An output that is open for reading, as `pyarrow.PythonFile` needs it.

    Each read compares the blocks that it touches with their CRC-32. It does not use a memory map:
    a bad sector of the disk is an error here, and would kill the process there.
    """

    def __init__(self, output: StoredOutput) -> None:
        """Open the file and check its size.

        Raises:
            DamagedOutput: the file is missing or has another size.
        """
        self._output = output
        try:
            self._file = output.open()
        except DamagedOutput:
            output.refresh()
            self._file = output.open()
        self._position = 0
        # A Parquet column is often smaller than a block: the next one begins in the same block.
        self._last_index, self._last_block = -1, b""

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        starts = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._output.digests.num_bytes,
        }
        self._position = starts[whence] + offset
        return self._position

    def read(self, num_bytes: int = -1) -> memoryview:
        """Return the next bytes, at most that many; all if the number is negative.

        Raises:
            DamagedOutput: a block of the range is damaged.
        """
        end = self._output.digests.num_bytes
        if num_bytes >= 0:
            end = min(end, self._position + num_bytes)
        start = min(self._position, end)
        if start == end:
            return memoryview(b"")
        first = start // BLOCK_BYTES
        content = self._read_blocks(first, -(-end // BLOCK_BYTES))
        self._position = end
        offset = first * BLOCK_BYTES
        return memoryview(content)[start - offset : end - offset]

    # Arrow calls this instead of `read` where it can use the bytes without copying them.
    read_buffer = read

    def _read_blocks(self, first: int, stop: int) -> bytes:
        """Return the blocks first..stop-1."""
        content = b""
        if first == self._last_index:
            content = self._last_block
            first += 1
        if first < stop:
            content += self._fetch(first, stop)
            self._last_index = stop - 1
            # The last block alone, because a slice would keep the others in memory.
            last_bytes = (len(content) - 1) % BLOCK_BYTES + 1
            self._last_block = content[-last_bytes:]
        return content

    def _fetch(self, first: int, stop: int) -> bytes:
        """Read and verify blocks. Damaged ones are read a second time."""
        content = self._read_stored(first, stop)
        if self._output.find_damage(content, first, stop) is None:
            return content
        # A network may have changed the bytes on their way, and cached digests may be outdated.
        self._file.close()
        self._output.refresh()
        self._file = self._output.open()
        content = self._read_stored(first, stop)
        damage = self._output.find_damage(content, first, stop)
        if damage is not None:
            raise DamagedOutput(damage)
        where = self._output.root.locate(self._output.name)
        log.warning(
            "%s: a block was damaged when it was read first, and whole later", where
        )
        return content

    def _read_stored(self, first: int, stop: int) -> bytes:
        start = first * BLOCK_BYTES
        end = min(stop * BLOCK_BYTES, self._output.digests.num_bytes)
        try:
            self._file.seek(start)
            return self._file.read(end - start)
        except OSError as error:
            if error.errno != errno.EIO:  # of the disk; a server's errors are StorageErrors
                raise
            place = f"bytes {start} to {end - 1}"
            damage = self._output.describe(f"{error.strerror}", "readable bytes", place)
            raise DamagedOutput(damage) from error
