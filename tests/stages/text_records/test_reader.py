"""JSONL and Parquet files with a column of texts become documents."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.settings.warc import TextColumns
from stages.text_records import fields, jsonl, parquet, reader
from stages.text_records.fields import Values
from stages.text_records.reader import TextReader

PLAIN = TextColumns()


class Reading:
    """The rows and the report of one file."""

    def __init__(self, path: Path, columns: TextColumns = PLAIN, **options: Any) -> None:
        options = {"split": 0, "batch_bytes": 1 << 20} | options
        self.reader = TextReader(path, columns, **options)
        self.rows: list[dict[str, Any]] = []
        for table in self.reader:
            self.rows += table.to_pylist()
        self.report = self.reader.report

    @property
    def texts(self) -> list[str]:
        return [row["text"] for row in self.rows]

    @property
    def causes(self) -> list[str]:
        return [entry.cause for entry in self.report.quarantine]


def write_lines(path: Path, lines: Iterable[str | bytes]) -> Path:
    encoded = [line.encode() if isinstance(line, str) else line for line in lines]
    path.write_bytes(b"\n".join([*encoded, b""]))
    return path


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]], name: str) -> Path:
    """Write rows as JSONL, compressed JSONL or Parquet."""
    path = folder / name
    if name.endswith(".parquet"):
        pq.write_table(
            pa.Table.from_pylist([dict(row) for row in rows]), path, row_group_size=2
        )
        return path
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    elif name.endswith(".zst"):
        data = pa.compress(data, codec="zstd", asbytes=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_every_column_is_read_from_every_format(tmp_path: Path, name: str) -> None:
    """Columns in objects too. Texts keep their white space."""
    rows = [
        {
            "body": f"First of {number}. \r\n  Second\0.",
            "meta": {"url": f"https://Example.org:80/{number}", "day": "2026-01-02"},
            "head": f"Title {number}",
        }
        for number in range(5)
    ]
    columns = TextColumns(text="body", url="meta.url", date="meta.day", title="head")
    found = Reading(write_rows(tmp_path, rows, name), columns, split=3, first_record=10)
    assert [row["doc_id"] for row in found.rows] == [3 << 32 | 10 + i for i in range(5)]
    last = found.rows[-1]
    assert last["text"] == "First of 4. \n  Second ."
    assert last["url"] == "https://Example.org:80/4"
    assert last["source_domain"] == "example.org"
    assert (last["date"], last["title"]) == ("2026-01-02", "Title 4")
    assert last["warc_file"] == name
    if name != "a.jsonl":
        assert last["warc_offset"] == 4
    assert found.report.num_documents == found.report.num_records == 5


def test_offsets_of_uncompressed_lines_are_bytes(tmp_path: Path) -> None:
    """`tail -c +OFFSET` finds the line."""
    path = write_rows(tmp_path, [{"text": "ä"}, {"text": "b"}], "a.jsonl")
    offset = Reading(path).rows[1]["warc_offset"]
    assert json.loads(path.read_bytes()[offset:]) == {"text": "b"}


def test_a_document_without_url_is_named_by_id_or_place(tmp_path: Path) -> None:
    """So every document can be explained by its name."""
    rows = [{"text": "a", "url": None, "id": 17}, {"text": "b", "url": "", "id": None}]
    path = write_rows(tmp_path, rows, "a.parquet")
    found = Reading(path, TextColumns(url="url", id="id"))
    assert [row["url"] for row in found.rows] == ["17", "a.parquet#1"]
    assert found.rows[1]["source_domain"] == ""


def test_source_files_compile_after_they_were_read(tmp_path: Path) -> None:
    """The module json, whose lines are indented by up to 24 spaces."""
    sources = [path.read_text() for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    found = Reading(write_rows(tmp_path, [{"text": text} for text in sources], "a.jsonl"))
    assert found.texts == sources
    for text in found.texts:
        compile(text, "read", "exec")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("nope", "not_json"),
        ('{"text": "cut of', "not_json"),
        ("[" * 100_000, "not_json"),
        ("9" * 5_000, "not_json"),
        ('["text"]', "not_json"),
        (b'{"text": "\xff"}', "not_utf8"),
        (r'{"text": "\ud800"}', "not_utf8"),
        ('{"txt": "a"}', "column_missing"),
        ('{"text": 3}', "wrong_type"),
        ('{"text": "a", "url": ["b"]}', "wrong_type"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else None,
)
def test_a_broken_line_is_quarantined_alone(
    tmp_path: Path, line: str | bytes, cause: str
) -> None:
    """The lines around it are read, and the entry has its place."""
    path = write_lines(tmp_path / "a.jsonl", ['{"text": "A"}', line, "", '{"text": "B"}'])
    found = Reading(path, TextColumns(url="url"))
    assert found.texts == ["A", "B"]
    assert found.causes == [f"text.{cause}"]
    (entry,) = found.report.quarantine
    assert (entry.record, entry.offset) == (1, len('{"text": "A"}\n'))


def test_null_texts_are_skipped(tmp_path: Path) -> None:
    """They are intact rows without a document."""
    path = write_rows(tmp_path, [{"text": None}, {"text": "a"}], "a.parquet")
    found = Reading(path)
    assert (found.texts, found.causes) == (["a"], [])
    assert found.report.skipped == {"text_null": 1}


def test_a_line_that_is_too_long_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes on after it."""
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 300_000)
    long = json.dumps({"text": "x" * 700_000})
    path = write_lines(tmp_path / "a.jsonl", [long, '{"text": "b"}', long, '{"text": "c"}'])
    found = Reading(path)
    assert found.texts == ["b", "c"]
    assert found.causes == ["text.row_too_large"] * 2


def test_a_text_that_is_too_long_costs_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of lines holds for the texts of Parquet files too."""
    monkeypatch.setattr(fields, "MAX_TEXT_BYTES", 1000)
    path = write_rows(tmp_path, [{"text": "x" * 1001}, {"text": "b"}], "a.parquet")
    found = Reading(path)
    assert (found.texts, found.causes) == (["b"], ["text.row_too_large"])


@pytest.mark.parametrize("value", ["[]", "{}", "1.5", '"ab"', '"\\","'])
def test_a_line_of_too_many_values_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Python's objects for 60 MB of them took 0.7 to 2 GB. Commas inside of strings are no values."""
    monkeypatch.setattr(jsonl, "_MAX_VALUES", 1000)
    many = f'{{"text": "a", "z": [{",".join([value] * 1001)}]}}'
    enough = f'{{"text": "b", "z": [{",".join([value] * 400)}]}}'
    commas = json.dumps({"text": '[{,"' * 1000})
    found = Reading(write_lines(tmp_path / "a.jsonl", [many, enough, commas]))
    assert found.texts == ["b", '[{,"' * 1000]
    assert found.causes == ["text.row_too_large"]


@pytest.mark.parametrize("blank", ["\n", " \t\r\n", "\r\n"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_millions_of_blank_lines_are_skipped_together(
    tmp_path: Path, name: str, blank: str
) -> None:
    """200 kB can have 200 million. The positions of the rows after them are right."""
    num_lines = 1_000_000
    content = f'{{"text": "a"}}\n{blank * num_lines}{{"text": "b"}}'.encode()
    is_gzip = name.endswith(".gz")
    (tmp_path / name).write_bytes(gzip.compress(content) if is_gzip else content)
    num_calls = 0

    def count_call(*_: object) -> None:
        nonlocal num_calls
        num_calls += 1

    sys.setprofile(count_call)
    try:
        found = Reading(tmp_path / name)
    finally:
        sys.setprofile(None)
    assert num_calls < num_lines / 10
    assert found.texts == ["a", "b"]
    expected = num_lines + 1 if is_gzip else content.index(b'{"text": "b"')
    assert [row["warc_offset"] for row in found.rows] == [0, expected]


def test_rows_that_share_a_long_text_share_its_memory(tmp_path: Path) -> None:
    """A Parquet file of 2 kB made Arrow ask for 16 GB: its dictionary has one text of 60 MB."""
    path = tmp_path / "a.parquet"
    texts = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0, 0] * 50, pa.int32()), pa.array(["x" * (4 << 20), "b"])
    )
    table = {
        "text": texts,
        "same": pa.array(["s"] * 250).dictionary_encode(),
        "n": range(250),
    }
    # Without Arrow's schema, as other writers store it: the reader would copy each text.
    pq.write_table(pa.table(table), path, compression="zstd", store_schema=False)
    before = pa.total_allocated_bytes()
    rows = parquet.read_rows(path, TextColumns(title="same", id="n"))
    held = [row for row in rows if isinstance(row, Values)]
    assert pa.total_allocated_bytes() - before < 64 << 20
    assert [row.columns["text"] and len(row.columns["text"]) for row in held] == [
        4 << 20, 1, None, 4 << 20, 4 << 20,
    ] * 50  # fmt: skip
    assert len({id(row.columns["text"]) for row in held}) == 3
    assert {row.columns["same"] for row in held} == {b"s"}
    assert [row.columns["n"] for row in held] == [*range(250)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nan_is_no_url_and_no_date(tmp_path: Path, name: str) -> None:
    """Pandas writes a missing value as NaN: all such documents had the URL "nan"."""
    nan = float("nan")
    rows = [{"text": "a", "url": nan, "date": nan}, {"text": "b", "url": 5.0, "date": 1.0}]
    found = Reading(
        write_rows(tmp_path, rows, name), TextColumns(url="url", date="date")
    ).rows
    assert [row["url"] for row in found] == [f"{name}#0", "5.0"]
    assert [row["date"] for row in found] == [None, "1.0"]


@pytest.mark.parametrize(
    ("name", "cause"),
    [("a.jsonl.gz", "text.truncated"), ("a.jsonl.zst", "text.compression_corrupt")],
)
def test_the_rows_before_a_truncation_are_kept(
    tmp_path: Path, name: str, cause: str
) -> None:
    """The lost rest is one entry."""
    rows = [{"text": f"{number} " * 500} for number in range(2_000)]
    path = write_rows(tmp_path, rows, name)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    found = Reading(path)
    assert found.causes == [cause]
    assert found.texts == [f"{i} " * 500 for i in range(len(found.texts))]
    assert 1_000 < len(found.texts) < 2_000


def test_a_damaged_row_group_is_one_entry(tmp_path: Path) -> None:
    """Other row groups are read."""
    rows = [{"text": f"Row {number} {'word ' * 50}"} for number in range(8)]
    path = write_rows(tmp_path, rows, "a.parquet")
    metadata = pq.read_metadata(path)
    start = metadata.row_group(1).column(0).dictionary_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 60] = b"\xff" * 60
    path.write_bytes(data)
    found = Reading(path)
    assert [text[:5] for text in found.texts] == [f"Row {i}" for i in (0, 1, 4, 5, 6, 7)]
    assert found.causes == ["text.parquet_corrupt"]


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("a.jsonl", b"", "text.empty_file"),
        ("a.parquet", b"PAR1 cut", "text.parquet_corrupt"),
    ],
)
def test_a_file_without_rows_is_lost(
    tmp_path: Path, name: str, content: bytes, cause: str
) -> None:
    """It is quarantined as a whole."""
    (tmp_path / name).write_bytes(content)
    found = Reading(tmp_path / name)
    assert found.causes == [cause]
    assert found.report.is_lost


def test_an_intact_file_without_rows_is_not_lost(tmp_path: Path) -> None:
    """Programs that write partitions leave such files."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    report = Reading(path).report
    assert (report.skipped, report.is_lost) == ({"no_rows": 1}, False)


def test_a_file_of_broken_rows_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of broken rows is bounded; a small share of broken rows is not."""
    monkeypatch.setattr(reader, "_MAX_FAULTS", 10)
    bad = Reading(write_lines(tmp_path / "bad.jsonl", ["x"] * 100))
    assert bad.causes == ["text.not_json"] * 11 + ["text.too_many_faults"]
    good = Reading(write_lines(tmp_path / "a.jsonl", (['{"text":"a"}'] * 19 + ["x"]) * 20))
    assert good.report.num_documents == 380


def make_binary_strings(kind: pa.DataType) -> pa.Array:
    """Return "a" and two bytes that are no UTF-8."""
    offsets = pa.array([0, 1, 3], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), 2, [None, offsets, pa.py_buffer(b"a\xff\xfe")]
    ).cast(kind)


DAY_US = 24 * 60 * 60 * 1_000_000
FAR_US = 253_402_300_800 * 1_000_000  # of the year 10000, after Python's last
IDENTIFIER = UUID("cd996530-81c1-4952-8a63-7e462162c1a0")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (pa.array([5, 2**64 - 1], pa.uint64()), ["5", "18446744073709551615"]),
        (pa.array([Decimal("12.50"), None], pa.decimal128(9, 2)), ["12.50", None]),
        (pa.array([IDENTIFIER.bytes, None], pa.uuid()), [str(IDENTIFIER), None]),
        (pa.array(["T", "U"], pa.string_view()), ["T", "U"]),
        (pa.array(['{"a": 1}', None], pa.json_()), ['{"a": 1}', None]),
        (pa.array([0, 20_000], pa.date32()), ["1970-01-01", "2024-10-04"]),
        (pa.array([0, 2**31 - 1], pa.date32()), ["1970-01-01", "5881580-07-11"]),
        (
            pa.array([-1, FAR_US], pa.timestamp("us")),
            ["1969-12-31T23:59:59", "10000-01-01T00:00:00"],
        ),
        (pa.array([DAY_US, None], pa.timestamp("ns")), ["1970-01-01T00:01:26", None]),
        (
            pa.array([0, -62_135_596_800], pa.timestamp("s", "America/New_York")),
            ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"],
        ),
        (
            pa.array([0, FAR_US], pa.timestamp("us", "No/Such")),
            ["1970-01-01T00:00:00Z", "10000-01-01T00:00:00Z"],
        ),
        (
            pa.array([0, FAR_US], pa.timestamp("us")).dictionary_encode(),
            ["1970-01-01T00:00:00", "10000-01-01T00:00:00"],
        ),
        (make_binary_strings(pa.string()), ["a", "\ufffd\ufffd"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_values_of_other_types_become_text(
    tmp_path: Path, values: pa.Array, texts: list[str | None]
) -> None:
    """Times are in UTC and in ISO 8601, of any year; numbers are in digits."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "value": values}), path)
    found = Reading(path, TextColumns(date="value"))
    assert [row["date"] for row in found.rows] == texts
    assert found.causes == []


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, [FAR_US]], pa.list_(pa.timestamp("us"))),
        pa.ListArray.from_arrays(
            pa.array([None, 0, 2], pa.int32()), make_binary_strings(pa.string())
        ),
        pa.array([None, 2**62], pa.duration("ns")),
        pa.array([None, 5], pa.time64("ns")),
    ],
    ids=lambda value: str(value.type),
)
@pytest.mark.parametrize("purpose", ["text", "date"])
def test_a_value_without_a_text_costs_its_row(
    tmp_path: Path, values: pa.Array, purpose: str
) -> None:
    """The entry names the type; Arrow's values are not made, as that could fail for all rows."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "value": values}), path)
    found = Reading(path, TextColumns(**{purpose: "value"}))
    assert found.texts == ([] if purpose == "text" else ["a"])
    (entry,) = found.report.quarantine
    assert (entry.record, entry.cause) == (1, "text.wrong_type")
    assert str(values.type).split("[")[0].split("<")[0] in entry.detail


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str
)
def test_a_text_that_is_not_utf8_costs_its_row(tmp_path: Path, kind: pa.DataType) -> None:
    """Also in dictionaries and in structs."""
    texts = make_binary_strings(kind)
    path = tmp_path / "a.parquet"
    table = {"text": texts, "in": pa.StructArray.from_arrays([texts], ["text"])}
    names = ["text", "in.text"]
    if kind == pa.string():
        indices = pa.array([0, 1], pa.int32())
        table["dictionary"] = pa.DictionaryArray.from_arrays(indices, texts, safe=False)
        names.append("dictionary")
    pq.write_table(pa.table(table), path)
    for name in names:
        found = Reading(path, TextColumns(text=name))
        assert (found.texts, found.causes) == (["a"], ["text.not_utf8"])


@given(
    lengths=st.lists(st.integers(0, 60), max_size=30),
    part_bytes=st.integers(1, 200),
    batch_bytes=st.integers(1, 100),
)
def test_parts_of_a_file_have_each_line_once(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    part_bytes: int,
    batch_bytes: int,
) -> None:
    """For parts of any size: a line belongs to the part in which it begins."""
    path = tmp_path_factory.mktemp("parts") / "a.jsonl"
    texts = [f"{number}{'x' * length}" for number, length in enumerate(lengths)]
    write_lines(path, [json.dumps({"text": text}) for text in texts])
    size = path.stat().st_size
    found: list[str] = []
    for start in range(0, size, part_bytes):
        stop = min(start + part_bytes, size)
        found += Reading(path, start=start, stop=stop, batch_bytes=batch_bytes).texts
    assert found == texts


def test_row_groups_are_read_in_parts(tmp_path: Path) -> None:
    """Rows keep their numbers in the file."""
    rows = [{"text": str(number)} for number in range(7)]
    path = write_rows(tmp_path, rows, "a.parquet")
    found = Reading(path, start=1, stop=3)
    assert found.texts == ["2", "3", "4", "5"]
    assert [row["warc_offset"] for row in found.rows] == [2, 3, 4, 5]
