"""What every store does, on a disk and on a real S3 server."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage import Store, open_store
from storage.errors import NotFound
from tests.conftest import REPOSITORY


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty folder."""
    if request.param == "disk":
        return open_store(tmp_path)
    return request.getfixturevalue("bucket_store")


def test_a_file_reads_as_it_was_written(store: Store) -> None:
    """As a whole, by range, as a seekable file and as a buffer; an empty one too."""
    for content in (b"0123456789", b""):
        store.put("file", content)
        assert store.read_bytes("file") == content
        assert store.get_size("file") == len(content)
        assert bytes(store.map("file")) == content
        with store.open("file") as file:
            assert file.read() == content
            file.seek(4)
            assert file.read(3) == content[4:7]
    store.put("file", b"0123456789")
    assert bytes(store.read_range("file", 2, 5)) == b"234"
    size, version = store.get_size_and_version("file")
    assert bytes(store.read_range("file", 0, size, version)) == b"0123456789"


def test_a_missing_file_is_not_found(store: Store) -> None:
    """The error names the path or address; it is a FileNotFoundError too."""
    actions = (
        store.read_bytes,
        store.read_version,
        store.get_size,
        store.get_size_and_version,
        store.get_modified_time,
        store.open,
        store.map,
    )
    for action in actions:
        with pytest.raises(
            NotFound, match=rf"{store}/missing.*: there is no such"
        ) as caught:
            action("missing")
        assert isinstance(caught.value, FileNotFoundError)
    assert not store.exists("missing")
    assert store.child("nowhere").list_names() == []
    store.delete("missing")


def test_names_are_listed_in_order_without_hidden_and_deeper_ones(store: Store) -> None:
    """A folder lists its own visible files."""
    store.child("deeper").make_folder()
    for name in ("b", "a", ".hidden", "deeper/c"):
        store.put(name, b"x")
    assert store.list_names() == ["a", "b"]
    assert store.child("deeper").list_names() == ["c"]
    assert store.child("deeper").read_bytes("c") == store.read_bytes("deeper/c")


def test_deleted_files_are_gone(store: Store) -> None:
    """A single file, then a folder with all that is in it."""
    store.child("folder").make_folder()
    store.put("folder/a", b"")
    store.put("folder/b", b"")
    store.delete("folder/a")
    assert store.child("folder").list_names() == ["b"]
    store.child("folder").delete_all()
    assert store.child("folder").list_names() == []


def test_of_several_writers_that_create_a_file_one_succeeds(store: Store) -> None:
    """The others learn that the file exists."""
    with ThreadPoolExecutor(8) as threads:
        contents = [str(number).encode() for number in range(8)]
        versions = list(threads.map(lambda content: store.create("x", content), contents))
    winners = [
        content for content, version in zip(contents, versions, strict=True) if version
    ]
    assert winners == [store.read_bytes("x")]


def test_a_file_is_replaced_only_if_it_has_the_expected_version(store: Store) -> None:
    """Of several that replace one version, one succeeds."""
    store.put("x", b"1")
    _, version = store.read_version("x")
    replaced = store.replace("x", b"2", version)
    assert replaced
    assert store.replace("x", b"3", version) is None
    assert store.read_version("x") == (b"2", replaced)
    assert store.replace("x", b"4", replaced)


def test_staged_files_are_stored_and_the_staging_folder_is_removed(store: Store) -> None:
    """Empty files too; a file that was not moved in is dropped."""
    with store.staging_folder("task") as folder:
        (folder / "a").write_bytes(b"content")
        (folder / "empty").touch()
        (folder / "dropped").touch()
        store.move_in(folder / "a", "a")
        store.move_in(folder / "empty", "empty")
    assert not folder.exists()
    assert store.list_names() == ["a", "empty"]
    assert (store.read_bytes("a"), store.read_bytes("empty")) == (b"content", b"")


def test_an_uploaded_file_is_a_copy(store: Store, tmp_path: Path) -> None:
    """The local file stays; a folder of the name is created."""
    source = tmp_path / "source"
    source.write_bytes(b"content")
    store.child("folder").upload(source, "copy")
    store.child("folder").upload(source, "copy")
    assert (store.read_bytes("folder/copy"), source.read_bytes()) == (
        b"content",
        b"content",
    )
    assert store.list_folders() == ["folder"]
    assert store.child("folder").list_names() == ["copy"]


def test_reads_return_in_the_order_of_the_items(store: Store) -> None:
    """On a disk one after another, in a bucket several at a time."""
    names = [f"{number:02d}" for number in range(40)]
    for name in names:
        store.put(name, name.encode())
    assert list(store.read_each(names, store.read_bytes)) == [
        name.encode() for name in names
    ]


def test_a_pickled_store_reads_the_same_files(store: Store) -> None:
    """Ray sends stores to its workers."""
    store.put("file", b"content")
    copy = pickle.loads(pickle.dumps(store.child("")))
    assert copy.read_bytes("file") == b"content"


def test_an_address_chooses_the_store(tmp_path: Path) -> None:
    """Paths and file addresses are local; other addresses are remote."""
    for address in (tmp_path, str(tmp_path), f"file://{tmp_path}"):
        assert open_store(address).get_local_path("x") == tmp_path / "x"
    for address in ("s3://bucket/folder", "https://host/folder"):
        found = open_store(address)
        assert (found.is_remote, str(found), found.name) == (True, address, "folder")
        assert found.locate("x") == f"{address}/x"
    assert open_store(found) is found


def test_importing_storage_needs_the_standard_library_alone() -> None:
    """`import loader` imports it, and must stay light."""
    heavy = ("numpy", "pyarrow", "pydantic", "obstore", "tenacity", "filelock")
    code = f"import sys, storage; print([m for m in {heavy} if m in sys.modules])"
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert found.stdout.strip() == "[]"
