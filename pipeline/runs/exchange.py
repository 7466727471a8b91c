"""Files that all tasks of one phase write for all tasks of another: their segments, and partitions of hashes.

A file has one *segment* per reader: an Arrow record batch that one request reads, with a CRC-32. A done-record holds
the places of the segments of its files. When a phase is complete, one file collects them by segment, so that a reader
needs one small read for the places in all files, and one request for each file.

    files by hash           one file per input split, NUM_RANGES segments: equal parts of hash space, sorted by hash
    files by split          one file per partition, one segment per input split: the way back

A *partition* is the part of hash space of one task, a number of whole segments. The task reads it of all files. Where
that is more than fits into its memory, the task keeps it in local scratch, and takes one *part* after another into
memory. A part is processed in small *chunks*. Equal hashes are in the same chunk, in the order of the input.

    partition  |         p000of002         |         p001of002         |      one task
    parts      |      |      |      |      |      |      |      |      |      in memory at a time
    segments   | | | | | | | | | | | | | | | | | | | | | | | | | | | | |      of each file

    with SegmentWriter(output, name, schema) as file:
        write_by_hash(file, rows)                              # by the first column, uint64
    files = ExchangedFiles(((folder, keys),), Extract.distinct_hashes)
    for part in read_parts(files, "p000of004", bytes_per_row=12, memory_mb=2000, scratch=folder.scratch):
        for chunk in part.chunks():                            # a slice of each file's rows
            hashes, ids = part.gather(chunk)
"""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from pipeline.runs.verified_file import DamagedOutput
from storage.errors import StorageError

# Segments of a file by hash, and partitions at most: a partition is at least one segment.
NUM_RANGES = 2**8

# Reads of a phase, at most: tasks x files. In an object store each is a request, and 2,000,000
# requests cost 0.80 $ and take 50,000 s of latency, which all tasks share.
MAX_READS = 2**21

# Local scratch of a task, at most, even if that takes more reads. A phase that reaches it has a few
# hundred tasks, so a machine of a large cluster runs few of them at a time.
MAX_SCRATCH_BYTES = 2**36

# Rows of a chunk, on average: 16 MB of hashes and ids.
ROWS_PER_CHUNK = 2**20

# Of a file that is read as a whole.
_SEGMENTS_PER_READ = 32

# The place of a segment in a file. Length 0: the file has no such segment.
PLACE = np.dtype([("start", "<u8"), ("length", "<u4"), ("crc", "<u4")])


class SegmentedArtifact(Protocol):
    """What a phase declares about a file with segments (pipeline/phases/artifact.py)."""

    @property
    def kind(self) -> str:
        """The key of the file."""
        ...

    @property
    def schema(self) -> pa.Schema | None:
        """The Arrow columns."""
        ...

    def file_name(self, task_id: str) -> str:
        """Return the name of one task's file."""
        ...


# ---- Writing ----


class SegmentWriter:
    """Writes an Arrow file of segments, and notes their places for the done-record."""

    def __init__(self, output: PendingOutput, name: str, schema: pa.Schema) -> None:
        self._output, self._name = output, name
        self._sink = pa.OSFile(str(output.path(name)), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        # The magic number and the schema. Arrow writes them with the first batch.
        self._bounds = [8 + schema.serialize().size]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self._writer.close()
        self._sink.close()
        if kind is None:
            places = np.zeros(len(self._bounds) - 1, PLACE)
            places["start"] = self._bounds[:-1]
            places["length"] = np.diff(self._bounds)
            with self._output.path(self._name).open("rb") as file:
                file.seek(self._bounds[0])
                places["crc"] = [crc32(file.read(size)) for size in places["length"]]
            self._output.segments[self._name] = _encode(places)

    def write(self, segment: pa.RecordBatch) -> None:
        """Append the next segment."""
        self._writer.write_batch(segment)
        self._bounds.append(self._sink.tell())


def write_by_hash(file: SegmentWriter, rows: pa.RecordBatch) -> None:
    """Write the NUM_RANGES segments of a file by hash: rows in input order, by their first column."""
    for segment in group_by_range(rows):
        file.write(sort_by_hash(segment))


def group_by_range(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each range of hash space, by their first column (uint64), in their order."""
    ranges = (rows.column(0).to_numpy() >> np.uint64(56)).astype(np.uint16)
    # 16-bit integers: numpy sorts them by radix.
    order = np.argsort(ranges, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(ranges, minlength=NUM_RANGES)))
    for start, end in itertools.pairwise(bounds.tolist()):
        # One range at a time, so that there is no second copy of all rows.
        yield rows.take(pa.array(order[start:end]))


def sort_by_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows sorted by their first column (uint64); equal hashes stay in their order."""
    return rows.take(pa.array(np.argsort(rows.column(0).to_numpy(), kind="stable")))


def write_places(
    folder: PhaseFolder, artifact: SegmentedArtifact, task_ids: Sequence[str]
) -> None:
    """Collect the places of all segments of an artifact, segment by segment."""
    records = folder.records(task_ids)
    of_task = [
        find_places(record, artifact.file_name(task_id))
        for task_id, record in zip(task_ids, records, strict=True)
    ]
    num_segments = max((len(places) for places in of_task), default=0)
    places = np.zeros((num_segments, len(of_task)), PLACE)
    for index, each in enumerate(of_task):
        places[: len(each), index] = each
    name = name_places(artifact)
    with folder.commit(name) as output:
        places.tofile(output.path(f"{name}.bin"))
        output.record = {"entry": list(task_ids)}


def name_places(artifact: SegmentedArtifact) -> str:
    """Return the id of the commit with the places of an artifact."""
    return f"places_of_{artifact.kind}"


def _encode(places: NDArray[Any]) -> str:
    return base64.b64encode(places.tobytes()).decode()


def find_places(record: Mapping[str, Any], file: str) -> NDArray[Any]:
    """Return the places of the segments of a file, (n,) PLACE; none if a task did not write it."""
    output = record["outputs"].get(file, {"segments": ""})
    return np.frombuffer(base64.b64decode(output["segments"]), PLACE)


# ---- Reading segments ----


@dataclass(frozen=True)
class SegmentRange:
    """Consecutive segments of one file.

    Attributes:
        folder: the phase folder of the file.
        name: the file.
        places: (n,) PLACE.
    """

    folder: PhaseFolder
    name: str
    places: NDArray[Any]

    @property
    def num_bytes(self) -> int:
        """The bytes to read."""
        return int(self.places["length"].sum(dtype=np.int64))

    def read(self, schema: pa.Schema) -> list[pa.RecordBatch]:
        """Return the segments, by one request.

        Raises:
            DamagedOutput: the file is missing, or is not what was written.
        """
        content = self._read_content() if self.num_bytes else memoryview(b"")
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(content))
        return [
            pa.ipc.read_record_batch(messages.read_next_message(), schema)
            if length
            else join_batches(schema, [])
            for length in self.places["length"]
        ]

    def _read_content(self) -> memoryview:
        start = int(self.places["start"][0])
        try:
            content = self.folder.root.read_range(self.name, start, start + self.num_bytes)
        except StorageError:  # of a missing or shorter file: the blocks say what is wrong
            content = memoryview(b"")
        return content if self._is_intact(content) else self._read_again(start)

    def _read_again(self, start: int) -> memoryview:
        """Read the blocks around the segments, whose digests are in the done-record."""
        with self.folder.open(self.name) as file:
            file.seek(start)
            content = memoryview(file.read(self.num_bytes))
        if not self._is_intact(content):
            place = f"bytes {start} to {start + self.num_bytes - 1}"
            output = self.folder.output(self.name)
            raise DamagedOutput(
                output.describe("other segments", "those of its record", place)
            )
        return content

    def _is_intact(self, content: memoryview) -> bool:
        ends = np.cumsum(self.places["length"], dtype=np.int64)
        bounds = itertools.pairwise([0, *ends.tolist()])
        found = [crc32(content[start:end]) for start, end in bounds]
        return len(content) == self.num_bytes and found == self.places["crc"].tolist()


@dataclass(frozen=True)
class ExchangedFiles:
    """The files of one artifact, of tasks of one or more runs.

    Attributes:
        tasks: phase folders that are complete, each with ids of its tasks. The files are in this order.
        artifact: the artifact.
    """

    tasks: Sequence[tuple[PhaseFolder, Sequence[str]]]
    artifact: SegmentedArtifact

    @property
    def schema(self) -> pa.Schema:
        """The columns of the files."""
        assert self.artifact.schema is not None
        return self.artifact.schema

    def estimate_rows(self, ranges: Sequence[SegmentRange]) -> float:
        """Return the number of rows of ranges, or somewhat more, from their bytes."""
        header_bytes = join_batches(self.schema, []).serialize().size
        row_bytes = sum(field.type.bit_width // 8 for field in self.schema)
        return sum(
            (each.num_bytes - header_bytes * len(each.places)) / row_bytes
            for each in ranges
        )

    def find(self, first: int, end: int) -> list[SegmentRange]:
        """Return the segments `first` to before `end` of each file."""
        found: list[SegmentRange] = []
        for folder, task_ids in self.tasks:
            places = self._read_places(folder, task_ids, first, end)
            for index, task_id in enumerate(task_ids):
                name = self.artifact.file_name(task_id)
                found.append(SegmentRange(folder, name, places[:, index]))
        return found

    def read_each(self, ranges: Sequence[SegmentRange]) -> Iterator[list[pa.RecordBatch]]:
        """Yield the segments of each range, in order. Remote reads run several at a time."""
        if ranges:
            root = ranges[-1].folder.root
            yield from root.read_each(ranges, lambda each: each.read(self.schema))

    def read_rows(self, ranges: Sequence[SegmentRange]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each range, in order."""
        for segments in self.read_each(ranges):
            yield join_batches(self.schema, segments)

    def _read_places(
        self, folder: PhaseFolder, task_ids: Sequence[str], first: int, end: int
    ) -> NDArray[Any]:
        """Return the places of segments of some tasks, (number of segments, number of tasks) PLACE."""
        name = name_places(self.artifact)
        listed = folder.record(name)["entry"]
        row_bytes = len(listed) * PLACE.itemsize
        with folder.open(f"{name}.bin") as file:
            file.seek(first * row_bytes)
            content = file.read((end - first) * row_bytes)
        places = np.frombuffer(content, PLACE).reshape(-1, len(listed))
        if listed == list(task_ids):
            return places
        # A task of another input may have its done-record only.
        column = {task_id: index for index, task_id in enumerate(listed)}
        chosen = np.zeros((end - first, len(task_ids)), PLACE)
        for index, task_id in enumerate(task_ids):
            if task_id in column:
                chosen[:, index] = places[:, column[task_id]]
            else:
                record = folder.record(task_id)
                found = find_places(record, self.artifact.file_name(task_id))[first:end]
                chosen[: len(found), index] = found
        return chosen


def read_file(
    folder: PhaseFolder, artifact: SegmentedArtifact, task_id: str
) -> Iterator[pa.RecordBatch]:
    """Yield all segments of the file of one task, _SEGMENTS_PER_READ of them by one request."""
    name = artifact.file_name(task_id)
    places = find_places(folder.record(task_id), name)
    assert artifact.schema is not None
    for first in range(0, len(places), _SEGMENTS_PER_READ):
        part = places[first : first + _SEGMENTS_PER_READ]
        yield from SegmentRange(folder, name, part).read(artifact.schema)


def read_batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    """Return one record batch of an Arrow file, and close the file."""
    with source:
        return pa.ipc.open_file(source).get_batch(index)


def read_around(source: pa.NativeFile, number: int) -> pa.RecordBatch:
    """Return the rows of a file by hash that have this hash, and close the file."""
    rows = read_batch(source, number >> 56)
    hashes = rows.column(0).to_numpy()
    start, end = (
        int(np.searchsorted(hashes, np.uint64(number), side)) for side in ("left", "right")
    )
    return rows.slice(start, end - start)


# ---- Sorted rows, read by ranges of their keys ----

# In the metadata of the schema: the key of the first row of each batch.
_FIRST_KEYS = b"first_keys"


def write_sorted(path: Path, rows: pa.RecordBatch, rows_per_batch: int) -> None:
    """Write rows that are sorted by their first column (uint64), so that `read_keys` reads a range of them."""
    first_keys = rows.column(0).to_numpy()[::rows_per_batch]
    schema = rows.schema.with_metadata({_FIRST_KEYS: first_keys.tobytes()})
    with pa.ipc.new_file(path, schema) as file:
        for start in range(0, rows.num_rows, rows_per_batch):
            file.write_batch(rows.slice(start, rows_per_batch))


def read_keys(source: pa.NativeFile, first: int, end: int) -> pa.RecordBatch:
    """Return the rows of sorted rows from key `first` to before `end`, and close the file.

    Args:
        source: the file.
        first: 0 or more.
        end: more than `first`, at most 2**64.
    """
    with source:
        file = pa.ipc.open_file(source)
        first_keys = np.frombuffer(file.schema.metadata[_FIRST_KEYS], np.uint64)
        begin = max(0, int(np.searchsorted(first_keys, np.uint64(first), "right")) - 1)
        stop = int(np.searchsorted(first_keys, np.uint64(end - 1), "right"))
        batches = [file.get_batch(index) for index in range(begin, stop)]
        rows = join_batches(file.schema.remove_metadata(), batches)
    return slice_keys(rows, first, end)


def slice_keys(rows: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """Return the rows, sorted by the first column (uint64), from key `first` to before `end`."""
    start, stop = cut_at(rows, [first, end])
    return rows.slice(start, stop - start)


# ---- Partitions of hashes ----


def count_partitions(
    num_rows: int, bytes_per_row: int, memory_mb: int, num_files: int
) -> int:
    """Return the number of partitions: a power of two, at most NUM_RANGES.

    A partition fits into half the memory of a task: the other half is for the process and its libraries. Where
    that would need more than MAX_READS reads, it fits into MAX_SCRATCH_BYTES.
    """
    num_bytes = num_rows * bytes_per_row
    affordable = max(1, MAX_READS // max(1, num_files)).bit_length() - 1
    on_disk = _count_parts(num_bytes, MAX_SCRATCH_BYTES)
    in_memory = _count_parts(num_bytes, memory_mb * 2**19)
    return min(in_memory, max(2**affordable, on_disk), NUM_RANGES)


def _count_parts(num_bytes: float, part_bytes: int) -> int:
    """Return the smallest power of two of parts that are not larger than that."""
    return 2 ** max(0, math.ceil(math.log2(max(1.0, num_bytes / part_bytes))))


def name_partitions(num_partitions: int) -> list[str]:
    """Return the names of all partitions, such as `p001of004`.

    A name contains the number of partitions, because with another number it is another range.
    """
    return [
        f"p{partition:03d}of{num_partitions:03d}" for partition in range(num_partitions)
    ]


class Partition:
    """The rows of all files in a part of hash space, chunk by chunk.

    Attributes:
        files: the rows of each file, sorted by hash. Equal hashes are in input order.
    """

    def __init__(self, files: Sequence[pa.RecordBatch], first: int, end: int) -> None:
        """Divide the rows into chunks.

        Args:
            files: the rows of each file, all with hashes from `first` to before `end`.
            first: 0 or more.
            end: at most 2**64.
        """
        self.files = files
        num_chunks = 1 + sum(rows.num_rows for rows in files) // ROWS_PER_CHUNK
        edges = [first + (end - first) * i // num_chunks for i in range(num_chunks + 1)]
        self._bounds = np.array([cut_at(rows, edges) for rows in files]).reshape(
            len(files), num_chunks + 1
        )
        self._hashes = [rows["hash"].to_numpy() for rows in files]
        self._records = [_get_records(rows) for rows in files]

    def chunks(self) -> Iterator[list[slice]]:
        """Yield the rows of each file that belong to a chunk. Equal hashes are in the same chunk."""
        for starts, ends in itertools.pairwise(self._bounds.T.tolist()):
            yield list(map(slice, starts, ends))

    def gather(
        self, chunk: Sequence[slice]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the columns `hash` and `record` of a chunk, file after file.

        Returns:
            hashes: (n,) uint64.
            ids: (n,) uint64, index of the file << 32 | record, where files have records. Those of equal
                hashes never decrease.
        """
        counts = [rows.stop - rows.start for rows in chunk]
        file_ids = np.arange(len(chunk), dtype=np.uint64) << np.uint64(32)
        ids = np.repeat(file_ids, counts) | take_rows(self._records, chunk)
        return take_rows(self._hashes, chunk), ids

    def place(
        self, columns: Sequence[NDArray[Any]], chunk: Sequence[slice], values: NDArray[Any]
    ) -> None:
        """Store a value of each row of a chunk, (n,), in one column per file."""
        ends = np.cumsum([rows.stop - rows.start for rows in chunk])[:-1]
        for column, rows, part in zip(columns, chunk, np.split(values, ends), strict=True):
            column[rows] = part


def read_parts(
    files: ExchangedFiles,
    partition: str,
    *,
    bytes_per_row: int,
    memory_mb: int,
    scratch: Callable[[], AbstractContextManager[Path]],
    prepare: Callable[[int, pa.RecordBatch], pa.RecordBatch] | None = None,
) -> Iterator[Partition]:
    """Yield a partition of files by hash, part by part in the order of the hashes.

    Each part takes at most half the memory of a task. Where there are several, the partition is kept in
    scratch meanwhile. The tasks of a phase begin with different files, so that they do not all read the
    same one at the same time.

    Args:
        files: the files.
        partition: its name.
        bytes_per_row: memory that a row takes.
        memory_mb: of the task.
        scratch: provides a local folder, which is deleted afterwards.
        prepare: called with the index and the rows of each file; returns the rows to use.
    """
    index, num_partitions = map(int, partition.removeprefix("p").split("of"))
    segments = [NUM_RANGES * i // num_partitions for i in (index, index + 1)]
    ranges = files.find(*segments)
    num_bytes = files.estimate_rows(ranges) * bytes_per_row
    num_parts = _count_parts(num_bytes, memory_mb * 2**19)
    first, end = (segment << 56 for segment in segments)
    edges = [first + (end - first) * i // num_parts for i in range(num_parts + 1)]
    order = np.roll(
        np.arange(len(ranges)), -(len(ranges) * index // num_partitions)
    ).tolist()
    read = files.read_rows([ranges[i] for i in order])
    if prepare is not None:
        read = map(prepare, order, read)
    # Of each file, in the order of reading.
    position: list[int] = np.argsort(order).tolist()
    if num_parts > 1:
        yield from _divide(read, edges, position, scratch)
    else:
        whole = list(read)
        yield Partition([whole[i] for i in position], first, end)


def _divide(
    files: Iterator[pa.RecordBatch],
    edges: Sequence[int],
    position: Sequence[int],
    scratch: Callable[[], AbstractContextManager[Path]],
) -> Iterator[Partition]:
    """Keep files in scratch, and yield the parts between edges, each with the files at these positions."""
    num_parts = len(edges) - 1
    with scratch() as folder:
        path = folder / "partition.arrow"
        _write_parts(path, files, edges)
        with pa.OSFile(str(path)) as source:
            stored = pa.ipc.open_file(source)
            for part in range(num_parts):
                batches: list[pa.RecordBatch] = [
                    stored.get_batch(i * num_parts + part) for i in position
                ]
                yield Partition(batches, edges[part], edges[part + 1])


def _write_parts(path: Path, files: Iterator[pa.RecordBatch], edges: Sequence[int]) -> None:
    """Write the parts of each file, file after file."""
    first = next(files)
    with pa.ipc.new_file(path, first.schema) as file:
        for rows in itertools.chain([first], files):
            for start, end in itertools.pairwise(cut_at(rows, edges)):
                file.write_batch(rows.slice(start, end - start))


def cut_at(rows: pa.RecordBatch, edges: Sequence[int]) -> list[int]:
    """Return the first of the sorted rows at or above each edge, from 0 to 2**64."""
    wanted = np.array([min(edge, 2**64 - 1) for edge in edges], np.uint64)
    found = np.searchsorted(rows.column(0).to_numpy(), wanted)
    return [
        rows.num_rows if edge == 2**64 else i
        for edge, i in zip(edges, found.tolist(), strict=True)
    ]


def find_bounds(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the start of each range of equal values, and the end of the last."""
    is_start = np.append(True, values[1:] != values[:-1])[: len(values)]
    return np.append(np.flatnonzero(is_start), len(values))


def take_rows(columns: Sequence[NDArray[Any]], chunk: Sequence[slice]) -> NDArray[Any]:
    """Return the rows of a chunk of one column per file, file after file."""
    return np.concatenate(
        [column[rows] for column, rows in zip(columns, chunk, strict=True)]
    )


def join_batches(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of any number of batches as one batch."""
    empty = pa.record_batch([pa.nulls(0, f.type) for f in schema], schema=schema)
    return pa.concat_batches([empty, *batches])


def _get_records(rows: pa.RecordBatch) -> NDArray[np.uint32]:
    if "record" in rows.schema.names:
        return rows["record"].to_numpy()
    return np.broadcast_to(np.uint32(0), rows.num_rows)
