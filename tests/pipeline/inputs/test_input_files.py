"""Paths, patterns, folders and addresses of `input.files`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from config_files.reader import ConfigError
from pipeline.inputs.input_files import InputFile, find_files, local_copy
from storage import StorageSettings
from storage.object_store import ObjectStore

SETTINGS = StorageSettings()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def crawl_files(tmp_path: Path) -> Path:
    """A folder of small files on three levels."""
    folder = tmp_path / "crawl"
    names = ("b.wet.gz", "a.wet.gz", "deep/c.wet.gz", "deep/deeper/d.wet.gz", "notes.txt")
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return folder


def find_names(*entries: str | Path) -> list[str]:
    return [file.name for file in find_files([str(entry) for entry in entries], SETTINGS)]


def identify(path: Path) -> InputFile:
    content = path.read_bytes()
    return InputFile(str(path), len(content), hashlib.sha256(content).hexdigest())


# ---- local files ----


def test_patterns_give_files_in_order(crawl_files: Path) -> None:
    """Files are sorted within a pattern, and patterns keep their order."""
    assert find_names(crawl_files / "*.wet.gz") == ["a.wet.gz", "b.wet.gz"]
    everywhere = find_names(crawl_files / "**" / "*.wet.gz")
    assert everywhere == ["a.wet.gz", "b.wet.gz", "c.wet.gz", "d.wet.gz"]
    two_patterns = find_names(crawl_files / "deep" / "*", crawl_files / "[ab].wet.gz")
    assert two_patterns == ["c.wet.gz", "a.wet.gz", "b.wet.gz"]


def test_a_folder_gives_the_crawl_files_below_it(crawl_files: Path) -> None:
    """Other files, hidden files and hidden folders are left out."""
    for name in (".hidden.wet.gz", ".cache/e.wet.gz", "deep/f.warc", "deep/g.arc.gz"):
        path = crawl_files / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    wanted = ["a.wet.gz", "b.wet.gz", "c.wet.gz", "d.wet.gz", "f.warc", "g.arc.gz"]
    assert find_names(crawl_files) == wanted
    assert find_names(f"{crawl_files}/") == wanted


def test_a_folder_without_crawl_files_is_refused(tmp_path: Path) -> None:
    """The message names the wanted endings."""
    (tmp_path / "notes.txt").write_text("no crawl")
    message = r"the folder .* has no crawl file; its files must end in \.warc, \.wet"
    with pytest.raises(ConfigError, match=message):
        find_names(tmp_path)


def test_home_is_expanded(crawl_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is replaced by the folder of the user."""
    monkeypatch.setenv("HOME", str(crawl_files))
    assert find_names("~/a.wet.gz") == ["a.wet.gz"]


def test_a_file_name_with_brackets_is_not_a_pattern(crawl_files: Path) -> None:
    """An existing file is used under its exact name."""
    (crawl_files / "page[1].wet").write_bytes(b"")
    assert find_names(crawl_files / "page[1].wet") == ["page[1].wet"]


def test_all_faults_of_entries_are_reported_at_once(crawl_files: Path) -> None:
    """One line per entry without a file, and per file that is matched twice."""
    (crawl_files / "link.wet.gz").symlink_to(crawl_files / "b.wet.gz")
    first, second = str(crawl_files / "a.wet.gz"), str(crawl_files / "b.wet.gz")
    with pytest.raises(ConfigError) as caught:
        find_names(
            "no*.warc", first, f"{crawl_files}/deep/../a.*", crawl_files / "[bl]*.gz"
        )
    assert list(caught.value.faults) == [
        f"input.files: 'no*.warc' matches no file in {Path.cwd()}",
        f"input.files: {first!r} is matched more than once",
        f"input.files: {second!r} is matched more than once",
    ]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """It could be written neither into records nor into messages."""
    (tmp_path / os.fsdecode(b"caf\xe9.warc")).write_bytes(b"")
    message = r"the name of '.*caf\\udce9\.warc' is not UTF-8; rename the file"
    with pytest.raises(ConfigError, match=message):
        find_names(tmp_path / "*")


def test_a_local_file_is_read_in_place(crawl_files: Path) -> None:
    """Nothing is copied or removed."""
    path = crawl_files / "a.wet.gz"
    with local_copy(identify(path)) as copy:
        assert copy == path
    assert path.exists()


def test_a_local_file_of_another_size_is_refused(crawl_files: Path) -> None:
    """Another machine may have no file, or another file, under this path."""
    path = crawl_files / "a.wet.gz"
    planned = identify(path)
    path.write_bytes(b"another")
    changed = (
        r"a\.wet\.gz on \S+ has changed since .*: found 7 bytes, wanted 8; run the same"
    )
    with pytest.raises(OSError, match=changed), local_copy(planned):
        pass
    path.unlink()
    missing = r"No such file on \S+: .*a\.wet\.gz"
    with pytest.raises(FileNotFoundError, match=missing), local_copy(planned):
        pass


# ---- remote files ----


def test_a_bucket_gives_the_same_files_as_a_disk(
    bucket_store: ObjectStore, crawl_files: Path
) -> None:
    """A folder gives all crawl files below it; a pattern, the files of one folder."""
    for path in crawl_files.rglob("*.*"):
        bucket_store.put(str(path.relative_to(crawl_files)), path.read_bytes())
    assert find_names(f"{bucket_store}/") == find_names(crawl_files)
    assert find_names(str(bucket_store)) == find_names(crawl_files)
    assert find_names(f"{bucket_store}/[a-b].*") == ["a.wet.gz", "b.wet.gz"]
    (file,) = find_files([f"{bucket_store}/deep/c.wet.gz"], SETTINGS)
    with local_copy(file) as copy:
        assert copy.read_bytes() == b"deep/c.wet.gz"


def test_addresses_without_files_are_refused(bucket_store: ObjectStore) -> None:
    """The faults of all entries are listed."""
    with pytest.raises(ConfigError) as caught:
        find_names(
            f"{bucket_store}/none/",
            f"{bucket_store}/*/x.warc",
            "https://example.org/crawl/*.warc.gz",
            "https://example.org/crawl/",
        )
    nothing, folder_pattern, http_pattern, http_folder = caught.value.faults
    assert "none/' matches no object; its files must end in .warc" in nothing
    assert "only the last part can be one" in folder_pattern
    assert "cannot be listed over http" in http_pattern
    assert "cannot be listed over http" in http_folder


def test_a_bucket_that_cannot_be_listed_is_one_fault(
    bucket_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of the storage layer says why."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(
        ConfigError, match=r"'s3://.*' cannot be listed: .*SignatureDoesNotMatch"
    ):
        find_names(f"{bucket_store}/")


def test_addresses_of_files_need_no_request() -> None:
    """They are identified by their URL."""
    url = "https://example.org/crawl/a.warc.gz"
    (file,) = find_files([url], SETTINGS)
    assert file == InputFile(url, None, hashlib.sha256(url.encode()).hexdigest())
