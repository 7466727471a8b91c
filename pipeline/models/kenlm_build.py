"""KenLM's trainer on this machine: built once, without root, into the user's cache.

Promises: lmplz and build_binary of one pinned version, with the libraries they need beside them; they run in silence,
and when they fail their last lines are in the error.
Leaves to others: what they are run on (model_training.py).

    tools = kenlm_tools()                    # the first time: about a minute
    estimate_lm(tools, Path("pieces"), Path("en.arpa.bin"), order=5, structure="probing", sort_memory="1G")
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.models.cache import Asset, Trained, compute_digest, obtain
from pipeline.models.download import AssetError
from pipeline.models.published import PUBLISHED
from pipeline.runs.phase_folder import to_json


class TrainingFailed(RuntimeError):
    """A model cannot be trained: too few texts, or a tool failed; its last lines are in the message."""


log = logging.getLogger(__name__)

KENLM_BIN = "CORPUSMILL_KENLM_BIN"
"""Environment variable: a folder with lmplz and build_binary to use instead of our own build."""
_TOOLS = ("lmplz", "build_binary")
_BOOST_LIBRARIES = ("program_options", "thread", "system", "atomic", "chrono")


def kenlm_tools(*, offline: bool | None = None) -> tuple[Path, Path]:
    """The paths of lmplz and build_binary: of our own build, or in the folder that CORPUSMILL_KENLM_BIN names.

    Built once into the user's cache. Whatever is on PATH is not used: the version has a share in the models.

    Raises:
        AssetError: there is no compiler, an extra is missing, or the sources cannot be had.
        TrainingFailed: the build failed.
    """
    given = os.environ.get(KENLM_BIN)
    folder = Path(given).expanduser() if given else obtain(KENLM_TOOLS, offline=offline)
    lmplz, build_binary = (folder / name for name in _TOOLS)
    for tool in (lmplz, build_binary):
        if not os.access(tool, os.X_OK):
            raise AssetError(
                f"{tool} is not there or cannot be run; {KENLM_BIN} must name a folder that holds it"
            )
    return lmplz, build_binary


def lmplz_version() -> str:
    """The version of our own build; another lmplz goes by its digest.

    Raises:
        AssetError: the folder that CORPUSMILL_KENLM_BIN names holds none.
    """
    given = os.environ.get(KENLM_BIN)
    if given:
        return f"sha256 {compute_digest(Path(given).expanduser() / 'lmplz')}"
    return PUBLISHED["kenlm-sources"].version


@dataclass(frozen=True)
class KenlmTools:
    """Recipe: lmplz and build_binary out of KenLM's sources, with the Boost libraries they need beside them."""

    boost: str = "1.87.0.1"

    def fingerprint(self) -> str:
        """Of the sources, Boost and the kind of machine; not of the compiler, which decides speed alone."""
        machine = [sys.platform, platform.machine()]
        return hashlib.sha256(
            to_json([PUBLISHED["kenlm-sources"].sha256, self.boost, machine])
        ).hexdigest()

    def make(self, folder: Path, *, offline: bool) -> None:
        """Compile. About a minute on two cores."""
        cmake, ninja, boost = _require_build_tools()
        sources = obtain(PUBLISHED["kenlm-sources"], offline=offline)
        log.info("building lmplz and build_binary from KenLM's sources, once: about a minute")
        with tempfile.TemporaryDirectory(prefix="corpusmill-kenlm-") as temporary:
            work = Path(temporary)
            with tarfile.open(sources) as bundle:
                bundle.extractall(work, filter="data")
            (source_folder,) = (path for path in work.iterdir() if path.is_dir())
            run([cmake, "-S", source_folder, "-B", work / "build", *_cmake_options(ninja, boost)])
            run([cmake, "--build", work / "build", "--target", *_TOOLS])
            for tool in _TOOLS:
                shutil.copy2(work / "build" / "bin" / tool, folder / tool)
        for library in _BOOST_LIBRARIES:
            for file in (boost / "lib").glob(f"libboost_{library}.so.*"):
                shutil.copy2(file, folder / file.name)
        _try_out(folder)


def _cmake_options(ninja: Path, boost: Path) -> tuple[str, ...]:
    return (
        *(
            "-G",
            "Ninja",
            f"-DCMAKE_MAKE_PROGRAM={ninja}",
            "-DCMAKE_BUILD_TYPE=Release",
            "-DBUILD_TESTING=OFF",
        ),
        *(f"-DCMAKE_PREFIX_PATH={boost}", f"-DBOOST_ROOT={boost}"),
        # The tools find Boost beside themselves: the cache outlives the environment that they were built in.
        *("-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"),
    )


def _require_build_tools() -> tuple[Path, Path, Path]:
    """Paths of cmake and ninja and of Boost's folder, out of the extra's wheels."""
    missing = [name for name in ("cmake", "ninja") if importlib.util.find_spec(name) is None]
    try:
        boost = Path(
            str(importlib.metadata.distribution("cmeel-boost").locate_file("cmeel.prefix"))
        )
    except importlib.metadata.PackageNotFoundError:
        boost, missing = Path(), [*missing, "cmeel-boost"]
    if missing:
        raise AssetError(
            f"building KenLM's tools needs {', '.join(missing)}: run `pip install 'corpusmill[train-models]'`, "
            f"or name a folder with lmplz and build_binary in {KENLM_BIN}"
        )
    compilers = [os.environ.get("CXX") or "", "c++", "g++", "clang++"]
    if not any(compiler and shutil.which(compiler) for compiler in compilers):
        raise AssetError(
            "building KenLM's tools needs a C++ compiler, and there is none on PATH: install one (Debian: "
            f"`apt install g++`), or name a folder with lmplz and build_binary in {KENLM_BIN}"
        )
    import cmake
    import ninja

    return Path(cmake.CMAKE_BIN_DIR) / "cmake", Path(ninja.BIN_DIR) / "ninja", boost


def _try_out(tools: Path) -> None:
    """Make a model of one sentence, so that a build that cannot run is not kept."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-kenlm-") as temporary:
        work = Path(temporary)
        (work / "pieces").write_text("a b c\n", encoding="utf-8")
        estimate_lm(
            (tools / "lmplz", tools / "build_binary"),
            work / "pieces",
            work / "arpa.bin",
            2,
            "probing",
            "256M",
        )


KENLM_TOOLS = Asset(
    "kenlm-tools",
    "tool",
    PUBLISHED["kenlm-sources"].version,
    Trained(KenlmTools()),
    "LGPL-2.1-or-later; Boost Software License 1.0 (its libraries)",
    None,
    "lmplz and build_binary, built here in about a minute; needs a C++ compiler and the extra train-models",
)


def estimate_lm(
    tools: tuple[Path, Path],
    pieces_file: Path,
    lm_file: Path,
    order: int,
    structure: str,
    sort_memory: str,
) -> None:
    """Write KenLM's binary file of the n-grams of `pieces_file`: a sentence per line, its pieces between blanks.

    Args:
        tools: lmplz and build_binary.
        pieces_file: the corpus. Beside it lie the temporary files, some times as large.
        lm_file: to write.
        order: pieces per n-gram.
        structure: probing or trie.
        sort_memory: of lmplz, in its notation; changes the speed, not the result.

    Raises:
        TrainingFailed: a tool failed.
    """
    lmplz, build_binary = tools
    work, arpa = pieces_file.parent, pieces_file.with_suffix(".arpa")
    # --discount_fallback acts only where a small corpus has too few counts to estimate Kneser-Ney discounts from.
    # --skip_symbols: a piece that reads like <s> is passed over, where lmplz would stop.
    options = [
        "-o",
        str(order),
        "-S",
        sort_memory,
        "-T",
        work,
        "--discount_fallback",
        "--skip_symbols",
    ]
    run([lmplz, *options, "--text", pieces_file, "--arpa", arpa])
    run([build_binary, "-T", work, structure, arpa, lm_file])


def run(command: Sequence[str | Path]) -> None:
    """Run a tool in silence; its last lines are in the error if it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        last = "\n  ".join(said[-15:])
        raise TrainingFailed(
            f"{Path(command[0]).name} failed with exit code {done.returncode}; it said:\n  {last}"
        )
