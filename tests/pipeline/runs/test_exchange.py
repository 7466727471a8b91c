"""Files that all tasks of a phase read in parts: segments, partitions of hashes, and sorted rows."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.phases.artifact import Artifact
from pipeline.runs import exchange
from pipeline.runs.exchange import (
    MAX_READS,
    MAX_SCRATCH_BYTES,
    NUM_RANGES,
    ExchangedFiles,
    Partition,
    SegmentWriter,
    count_partitions,
    name_partitions,
    read_around,
    read_keys,
    read_parts,
    write_by_hash,
    write_places,
    write_sorted,
)
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.verified_file import DamagedOutput
from storage import open_store
from tests.bucket_like_store import BucketLikeStore, read_like_a_bucket

ROWS = pa.schema([pa.field("hash", pa.uint64()), pa.field("record", pa.uint32())])
HASHES = Artifact("hashes.arrow", ROWS, has_segments=True)
SIZES = st.lists(st.sampled_from([0, 1, 7, 300, 2_000]), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**32 - 1)


def make_rows(sizes: list[int], seed: int) -> list[pa.RecordBatch]:
    """Return random hashes in input order, per file. Many hashes are in several files."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 2**64, 500, dtype=np.uint64)
    common[:3] = 0, 2**64 - 1, 2**63
    files: list[pa.RecordBatch] = []
    for size in sizes:
        hashes = np.where(
            rng.random(size) < 0.5,
            rng.choice(common, size),
            rng.integers(0, 2**64, size, np.uint64),
        )
        records = np.sort(rng.integers(0, size + 1, size)).astype(np.uint32)
        files.append(pa.record_batch([hashes, records], schema=ROWS))
    return files


def write_files(folder: PhaseFolder, files: list[pa.RecordBatch]) -> ExchangedFiles:
    """Write each file by hash, by a separate task, and the places of all segments."""
    folder.begin()
    task_ids = [f"{index:06d}" for index in range(len(files))]
    for task_id, rows in zip(task_ids, files, strict=True):
        with (
            folder.commit(task_id) as output,
            SegmentWriter(output, HASHES.file_name(task_id), ROWS) as file,
        ):
            write_by_hash(file, rows)
    write_places(folder, HASHES, task_ids)
    return ExchangedFiles([(folder, task_ids)], HASHES)


def make_folder(path: Path) -> PhaseFolder:
    """Return an empty phase folder."""
    return PhaseFolder(open_store(path))


def read_partition(
    files: ExchangedFiles, name: str, memory_mb: int = 2_000, bytes_per_row: int = 12
) -> list[Partition]:
    """Return the parts of a partition, with their rows in memory."""
    folder, _ = files.tasks[0]
    parts = read_parts(
        files,
        name,
        bytes_per_row=bytes_per_row,
        memory_mb=memory_mb,
        scratch=lambda: folder.scratch(name),
    )
    return list(parts)


def sort_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows by hash; equal hashes in input order."""
    return rows.take(pa.array(np.argsort(rows["hash"].to_numpy(), kind="stable")))


@settings(max_examples=25, deadline=None)
@given(
    sizes=SIZES,
    num_partitions=st.sampled_from([1, 2, 8, NUM_RANGES]),
    bytes_per_row=st.sampled_from([12, 40_000]),  # one part, or several
    rows_per_chunk=st.sampled_from([3, 100, 10_000]),
    seed=SEEDS,
)
def test_every_row_is_in_one_chunk_with_all_equal_hashes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    num_partitions: int,
    bytes_per_row: int,
    rows_per_chunk: int,
    seed: int,
) -> None:
    """For any partitions, parts and chunks, equal hashes stay in the order of the input."""
    files = make_rows(sizes, seed)
    stored = write_files(make_folder(tmp_path_factory.mktemp("files")), files)
    found: list[list[pa.RecordBatch]] = [[] for _ in files]
    last = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "ROWS_PER_CHUNK", rows_per_chunk)
        for name in name_partitions(num_partitions):
            for part in read_partition(stored, name, 1, bytes_per_row):
                for chunk in part.chunks():
                    hashes, ids = part.gather(chunk)
                    if len(hashes):
                        assert int(hashes.min()) > last  # so no hash is in two chunks
                        last = int(hashes.max())
                    order = np.argsort(hashes, kind="stable")
                    is_equal = np.diff(hashes[order]) == 0
                    assert (np.diff(ids[order].astype(np.int64))[is_equal] >= 0).all()
                    for mine, rows, here in zip(found, part.files, chunk, strict=True):
                        mine.append(rows.slice(here.start, here.stop - here.start))
    for rows, mine in zip(files, found, strict=True):
        assert pa.Table.from_batches(mine).combine_chunks().to_batches() == (
            [sort_rows(rows)] if rows.num_rows else []
        )


def test_a_partition_larger_than_memory_is_read_in_parts(tmp_path: Path) -> None:
    """Each part has half the memory, and nothing is left in the folder."""
    files = write_files(make_folder(tmp_path), make_rows([2_000] * 3, seed=1))
    before = set(tmp_path.rglob("*"))
    parts = read_partition(files, "p000of002", 1, 2_000)
    assert len(parts) == 16
    assert max(sum(rows.num_rows for rows in part.files) for part in parts) * 2_000 < 2**20
    assert set(tmp_path.rglob("*")) == before


def test_values_of_a_chunk_are_stored_file_by_file(tmp_path: Path) -> None:
    """Each row gets its own value."""
    files = write_files(make_folder(tmp_path), make_rows([300, 0, 7], seed=1))
    (part,) = read_partition(files, "p000of001")
    columns = [np.zeros(rows.num_rows, np.uint64) for rows in part.files]
    for chunk in part.chunks():
        hashes, _ = part.gather(chunk)
        part.place(columns, chunk, hashes)
    for column, rows in zip(columns, part.files, strict=True):
        assert (column == rows["hash"].to_numpy()).all()


@settings(max_examples=10, deadline=None)
@given(sizes=SIZES, first=st.integers(0, 250), count=st.integers(0, 6), seed=SEEDS)
def test_segments_are_read_one_by_one_or_together(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    first: int,
    count: int,
    seed: int,
) -> None:
    """A range gives its segments, also empty ones, in their order."""
    files = make_rows(sizes, seed)
    stored = write_files(make_folder(tmp_path_factory.mktemp("files")), files)
    read = list(stored.read_each(stored.find(first, first + count)))
    for segments, rows in zip(read, files, strict=True):
        assert len(segments) == count
        hashes = sort_rows(rows)["hash"].to_numpy()
        for index, segment in enumerate(segments, start=first):
            assert (
                segment["hash"].to_numpy() == hashes[hashes >> np.uint64(56) == index]
            ).all()


def test_a_reader_sends_one_request_per_file(tmp_path: Path) -> None:
    """Beside those for the places, which do not depend on the number of files."""
    rows = make_rows([300] * 40, seed=1)
    files = write_files(make_folder(tmp_path), rows)
    ((_, task_ids),) = files.tasks
    remote = PhaseFolder(BucketLikeStore(tmp_path))
    with read_like_a_bucket() as counts:
        read_partition(ExchangedFiles([(remote, task_ids)], HASHES), "p003of016")
    assert counts["requests of hashes.arrow"] == 40
    assert (
        counts["requests of json"] == 2
    )  # of the places: the list of files, and the digests
    wanted = sum(
        (each["hash"].to_numpy() >> np.uint64(60) == 3).sum() * 12 for each in rows
    )
    assert counts["bytes of hashes.arrow"] < wanted + 40 * 16 * 400  # and their headers


def test_tasks_begin_with_different_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that not all tasks of a phase read the same file at the same time."""
    files = write_files(make_folder(tmp_path), make_rows([7] * 8, seed=1))
    first_names: list[str] = []
    read_each = ExchangedFiles.read_each

    def note(self: ExchangedFiles, ranges: list[exchange.SegmentRange]) -> object:
        first_names.append(ranges[0].name)
        return read_each(self, ranges)

    monkeypatch.setattr(ExchangedFiles, "read_each", note)
    for name in name_partitions(4):
        read_partition(files, name)
    assert len(set(first_names)) == 4


def test_a_file_that_the_places_leave_out_is_found_by_its_record(tmp_path: Path) -> None:
    """A folder may have been completed for other input splits since."""
    folder = make_folder(tmp_path)
    files = write_files(folder, make_rows([300] * 4, seed=1))
    expected = [part.files for part in read_partition(files, "p001of002")]
    write_places(folder, HASHES, ["000003", "000001"])
    assert [part.files for part in read_partition(files, "p001of002")] == expected


@pytest.mark.parametrize("file", ["000001.hashes.arrow", "places_of_hashes.bin"])
def test_a_changed_byte_is_named(tmp_path: Path, file: str) -> None:
    """Of a segment, and of the places of segments."""
    files = write_files(make_folder(tmp_path), make_rows([2_000] * 3, seed=1))
    path = tmp_path / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedOutput) as error:
        read_partition(files, "p000of001")
    assert error.value.damage.file == file


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A done-record says that it was there."""
    files = write_files(make_folder(tmp_path), make_rows([300] * 3, seed=1))
    (tmp_path / "000001.hashes.arrow").unlink()
    with pytest.raises(DamagedOutput, match=r"000001\.hashes\.arrow.*no file"):
        read_partition(files, "p000of001")


def test_rows_around_a_hash_are_all_rows_with_it(tmp_path: Path) -> None:
    """And no others."""
    (rows,) = make_rows([2_000], seed=1)
    files = write_files(make_folder(tmp_path), [rows])
    folder, _ = files.tasks[0]
    hashes = rows["hash"].to_numpy()
    for number in {0, 2**64 - 1, *map(int, hashes[:50])}:
        near = read_around(folder.open("000000.hashes.arrow"), number)
        assert near["hash"].to_pylist() == [number] * (hashes == np.uint64(number)).sum()


def test_more_rows_have_more_partitions() -> None:
    """A partition fits into half the memory of a task, as long as there are not too many reads."""
    for num_rows, memory_mb in [(10**6, 100), (10**9, 1000)]:
        in_each = num_rows / count_partitions(num_rows, 32, memory_mb, num_files=10)
        assert in_each * 32 <= memory_mb * 2**19
    assert count_partitions(0, 32, 1000, num_files=0) == 1
    assert count_partitions(10**13, 32, 1000, num_files=10) == NUM_RANGES
    for num_files in (10_000, 200_000, 10**7):
        num_partitions = count_partitions(10**9, 32, 100, num_files)
        assert num_partitions * num_files <= max(MAX_READS, num_files)
        assert num_partitions == 1 or 2 * num_partitions * num_files > MAX_READS
    on_disk = count_partitions(10**11, 32, 100, num_files=10**7)
    assert on_disk // 2 * MAX_SCRATCH_BYTES < 32 * 10**11 <= on_disk * MAX_SCRATCH_BYTES


@settings(max_examples=25, deadline=None)
@given(
    num_rows=st.integers(0, 500),
    rows_per_batch=st.sampled_from([1, 7, 1024]),
    num_ranges=st.integers(1, 9),
    seed=SEEDS,
)
def test_sorted_rows_are_read_by_exact_ranges(
    tmp_path_factory: pytest.TempPathFactory,
    num_rows: int,
    rows_per_batch: int,
    num_ranges: int,
    seed: int,
) -> None:
    """The ranges of all shards together give every row once, in order."""
    keys = np.random.default_rng(seed).integers(0, 2**64, num_rows, dtype=np.uint64)
    keys[: min(2, num_rows)] = [0, 2**64 - 1][:num_rows]
    keys.sort()
    numbers = np.arange(num_rows, dtype=np.uint32)
    path = tmp_path_factory.mktemp("keys") / "keys"
    write_sorted(path, pa.record_batch([keys, numbers], schema=ROWS), rows_per_batch)
    found: list[int] = []
    bounds = [2**64 * i // num_ranges for i in range(num_ranges + 1)]
    for first, end in itertools.pairwise(bounds):
        rows = read_keys(pa.OSFile(str(path)), first, end)
        assert rows.schema == ROWS
        assert all(first <= key < end for key in rows["hash"].to_pylist())
        found += rows["record"].to_pylist()
    assert found == numbers.tolist()
