"""Files of n-gram sets, of which some are read: those of candidates for near-duplicates.

A set has a *place*: its offset in the file / ALIGNMENT_BYTES << 32 | its number of n-grams. The place is stored
where the set is needed, beside the document's band hashes. So a task that reads a set needs no index and no footer, and
knows what it will hold before it reads. The set follows its CRC-32 in the file, so no block around it is read either.

    writer = NgramWriter(path)
    places = writer.add(lists)                          # (n,) uint64; equal sets of a file have one place
    for wanted, sets in read_places(folder, "000000.ngrams.bin", places):
        ...

A task that needs more sets than fit into memory keeps them in a local file, `LocalSets`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from pipeline.runs.exchange import find_bounds
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.verified_file import DamagedOutput
from stages.dedup.minhash import flatten_lists
from storage.errors import StorageError

# Sets begin at multiples of it. A file can have 2**32 of these: 64 GB.
ALIGNMENT_BYTES = 16

_CRC_BYTES = 4

# Bytes between two sets that are read and dropped, relative to the bytes of the second one. So
# at most three times the bytes of the sets are read.
_GAP_SHARE = 2

# The same of a remote file: less than the time of a request.
_REMOTE_GAP_BYTES = 2**20

# Bytes of a file that one thread reads.
_WINDOW_BYTES = 2**25


def make_keys(
    documents: NDArray[np.uint64], places: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return a key of the set of each document, in the order of the sources and of their files.

    Args:
        documents: (n,) index of the source << 32 | record.
        places: (n,) the places of their sets.
    """
    sources = documents & np.uint64(0xFFFF_FFFF_0000_0000)
    return sources | places >> np.uint64(32)


def count_ngrams(places: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the number of n-grams of sets."""
    return (places & np.uint64(0xFFFF_FFFF)).astype(np.int64)


class NgramWriter:
    """Writes the n-gram sets of one split, each distinct set once."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._places: dict[bytes, int] = {}  # by the digest of the set

    def add(self, lists: pa.LargeListArray) -> NDArray[np.uint64]:
        """Append sets, large_list<uint32>, that are not in the file yet; return the places of all, (n,)."""
        starts, values = flatten_lists(lists)
        places = [
            self._add(values[start:end].tobytes())
            for start, end in itertools.pairwise(starts.tolist())
        ]
        return np.array(places, np.uint64)

    def _add(self, content: bytes) -> int:
        digest = hashlib.blake2b(content, digest_size=16).digest()
        place = self._places.get(digest)
        if place is None:
            start = self._file.tell()
            place = start // ALIGNMENT_BYTES << 32 | len(content) // 4
            self._file.write(crc32(content).to_bytes(_CRC_BYTES, "little") + content)
            self._file.write(bytes(-self._file.tell() % ALIGNMENT_BYTES))
            self._places[digest] = place
        return place

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def read_places(
    folder: PhaseFolder, name: str, places: NDArray[np.uint64]
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint32]]]:
    """Yield sets of one file: places, and the n-grams of all of them. The file is read in order, at most once.

    Args:
        folder: of the phase.
        name: the file.
        places: (n,) sorted, each once.

    Raises:
        DamagedOutput: the file is missing, or a set is not what was written.
    """
    windows = (
        (places >> np.uint64(32)) * np.uint64(ALIGNMENT_BYTES) // np.uint64(_WINDOW_BYTES)
    )
    bounds = itertools.pairwise(find_bounds(windows).tolist())
    reads = [(folder, name, places[start:end]) for start, end in bounds]
    found = folder.root.read_each(reads, _read_window)
    for (_, _, wanted), sets in zip(reads, found, strict=True):
        yield wanted, np.concatenate(sets)


class LocalSets:
    """Sets in a local file, by their keys."""

    def __init__(
        self,
        path: Path,
        sets: Iterable[tuple[int, NDArray[np.uint64], NDArray[np.uint32]]],
    ) -> None:
        """Write the file.

        Args:
            path: the file.
            sets: the index of a source, the places of its sets, and the n-grams of all of these; sorted by source and place.
        """
        keys, counts = [np.empty(0, np.uint64)], [np.zeros(1, np.int64)]
        with path.open("wb") as file:
            for source, places, values in sets:
                documents = np.broadcast_to(np.uint64(source << 32), len(places))
                keys.append(make_keys(documents, places))
                counts.append(count_ngrams(places))
                file.write(values.data)
        self._keys = np.concatenate(keys)
        self._starts = np.cumsum(np.concatenate(counts))
        has_values = bool(self._starts[-1])  # an empty file cannot be mapped
        self._values = (
            np.memmap(path, np.uint32, "r").view(np.ndarray) if has_values else None
        )

    def read(
        self, documents: NDArray[np.uint64], places: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the start of each document's set, (n + 1,), and the n-grams of all of them.

        Args:
            documents: (n,) index of the source << 32 | record.
            places: (n,) the places of their sets.
        """
        rows = np.searchsorted(self._keys, make_keys(documents, places))
        starts, ends = self._starts[rows], self._starts[rows + 1]
        found = [np.empty(0, np.uint32)]
        if self._values is not None:
            bounds = zip(starts.tolist(), ends.tolist(), strict=True)
            found += [self._values[start:end] for start, end in bounds]
        return np.append(0, np.cumsum(ends - starts)), np.concatenate(found)


def _read_window(
    read: tuple[PhaseFolder, str, NDArray[np.uint64]],
) -> list[NDArray[np.uint32]]:
    """Return sets of one file, which are sorted by place."""
    folder, name, places = read
    min_gap_bytes = _REMOTE_GAP_BYTES if folder.root.is_remote else 0
    starts = (places >> np.uint64(32)).astype(np.int64) * ALIGNMENT_BYTES
    sizes = _CRC_BYTES + 4 * count_ngrams(places)
    ends = starts + sizes
    is_far = starts[1:] - ends[:-1] > np.maximum(min_gap_bytes, _GAP_SHARE * sizes[1:])
    range_of_set = np.append(0, np.cumsum(is_far))
    bounds = find_bounds(range_of_set)
    ranges = list(
        zip(starts[bounds[:-1]].tolist(), ends[bounds[1:] - 1].tolist(), strict=True)
    )
    try:
        contents = folder.root.read_ranges(name, ranges)
    except (
        StorageError
    ):  # of a missing or shorter file: `_read_verified` says what is wrong
        contents = [memoryview(b"")] * len(ranges)
    sets: list[NDArray[np.uint32]] = []
    for start, end, index in zip(
        starts.tolist(), ends.tolist(), range_of_set.tolist(), strict=True
    ):
        begin = ranges[index][0]
        content = contents[index][start - begin : end - begin]
        if len(content) < end - start or not _is_intact(content):
            content = _read_verified(folder, name, start, end)
        sets.append(np.frombuffer(content, "<u4", offset=_CRC_BYTES))
    return sets


def _is_intact(content: memoryview) -> bool:
    wanted = int.from_bytes(content[:_CRC_BYTES], "little")
    return crc32(content[_CRC_BYTES:]) == wanted


def _read_verified(folder: PhaseFolder, name: str, start: int, end: int) -> memoryview:
    """Read a set again, with the blocks around it, whose digests are in the done-record."""
    with folder.open(name) as file:
        file.seek(start)
        content = memoryview(file.read(end - start))
    if len(content) < end - start or not _is_intact(content):
        place = f"bytes {start} to {end - 1}"
        raise DamagedOutput(
            folder.output(name).describe("other n-grams", "those of the band hashes", place)
        )
    return content
