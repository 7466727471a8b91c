"""Build KenLM's programs lmplz and build_binary, once per machine, without root.

The programs of one pinned version are kept in the user's cache, with the libraries that they need
beside them. Their output is shown only if they fail.

    tools = kenlm_tools()                    # the first time: about a minute
    estimate_lm(tools, Path("pieces"), Path("en.arpa.bin"))
"""

from __future__ import annotations

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
from pathlib import Path
from typing import Any

from pipeline.models.cache import Asset, Trained, compute_digest, obtain
from pipeline.models.corpus import TrainingFailed
from pipeline.models.download import AssetError
from pipeline.models.published import KENLM_SHA256, PUBLISHED

log = logging.getLogger(__name__)


# Environment variable: a folder with lmplz and build_binary. They are used instead of building
# kenlm here.
KENLM_BIN = "CORPUSMILL_KENLM_BIN"

# Pieces per n-gram, as in CCNet.
ORDER = 5

# Of the binary file. A trie has half the size and 45 % of the speed.
STRUCTURE = "probing"

# Memory of lmplz for sorting, in its notation. It changes the speed, not the result.
_SORT_MEMORY = "1G"

_TOOLS = ("lmplz", "build_binary")
_SHOWN_LINES = 15
_BOOST = "1.87.0.1"
_BOOST_LIBRARIES = ("program_options", "thread", "system", "atomic", "chrono")


def kenlm_tools(*, offline: bool | None = None) -> tuple[Path, Path]:
    """Return the paths of lmplz and build_binary, after building them if needed.

    CORPUSMILL_KENLM_BIN names another folder with them. Programs on PATH are not used,
    because their version influences the models.

    Args:
        offline: forbid downloads; None: as CORPUSMILL_OFFLINE says.

    Raises:
        AssetError: there is no compiler, an extra is missing, or the sources cannot be fetched.
        TrainingFailed: the build failed.
    """
    given = os.environ.get(KENLM_BIN)
    folder = Path(given).expanduser() if given else obtain(KENLM_TOOLS, offline=offline)
    lmplz, build_binary = folder / "lmplz", folder / "build_binary"
    for tool in (lmplz, build_binary):
        if not os.access(tool, os.X_OK):
            raise AssetError(
                f"{tool} does not exist or cannot be run; {KENLM_BIN} must name a folder that "
                "contains it"
            )
    return lmplz, build_binary


def lmplz_version() -> str:
    """Return the version of lmplz, or its digest if CORPUSMILL_KENLM_BIN names another one.

    Raises:
        AssetError: the folder in CORPUSMILL_KENLM_BIN has no lmplz.
    """
    given = os.environ.get(KENLM_BIN)
    if given:
        return f"sha256 {compute_digest(Path(given).expanduser() / 'lmplz')}"
    return PUBLISHED["kenlm-sources"].version


def _identify_tools() -> list[Any]:
    """Return sources, Boost and machine type. The compiler changes only the speed."""
    machine = [sys.platform, platform.machine()]
    return [KENLM_SHA256, _BOOST, machine]


def build_tools(folder: Path, offline: bool) -> None:
    """Compile KenLM's sources into `folder`, with their Boost libraries: a minute on two cores."""
    cmake, ninja, boost = _require_build_tools()
    archive = obtain(PUBLISHED["kenlm-sources"], offline=offline)
    log.info("building lmplz and build_binary from KenLM's sources, once: about a minute")
    with tempfile.TemporaryDirectory(prefix="corpusmill-kenlm-") as temporary:
        scratch = Path(temporary)
        build = scratch / "build"
        with tarfile.open(archive) as bundle:
            bundle.extractall(scratch, filter="data")
        (sources,) = filter(Path.is_dir, scratch.iterdir())
        run([cmake, "-S", sources, "-B", build, *_list_cmake_options(ninja, boost)])
        run([cmake, "--build", build, "--target", *_TOOLS])
        for tool in _TOOLS:
            shutil.copy2(build / "bin" / tool, folder / tool)
    for library in _BOOST_LIBRARIES:
        for file in (boost / "lib").glob(f"libboost_{library}.so.*"):
            shutil.copy2(file, folder / file.name)
    _try_out(folder)


def _list_cmake_options(ninja: Path, boost: Path) -> tuple[str, ...]:
    return (
        "-G",
        "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={ninja}",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_TESTING=OFF",
        f"-DCMAKE_PREFIX_PATH={boost}",
        f"-DBOOST_ROOT={boost}",
        # The programs find Boost in their own folder: the cache may outlive the environment that
        # they were built in.
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",
    )


def _require_build_tools() -> tuple[Path, Path, Path]:
    """Return the paths of cmake, ninja and Boost's folder, from the wheels of the extra."""
    missing = [
        name for name in ("cmake", "ninja") if importlib.util.find_spec(name) is None
    ]
    boost = Path()
    try:
        distribution = importlib.metadata.distribution("cmeel-boost")
        boost = Path(str(distribution.locate_file("cmeel.prefix")))
    except importlib.metadata.PackageNotFoundError:
        missing.append("cmeel-boost")
    if missing:
        raise AssetError(
            f"building KenLM's tools needs {', '.join(missing)}: run `pip install "
            "'corpusmill[train-models]'`, or name a folder with lmplz and build_binary in "
            f"{KENLM_BIN}"
        )
    compilers = [os.environ.get("CXX") or "", "c++", "g++", "clang++"]
    if not any(compiler and shutil.which(compiler) for compiler in compilers):
        raise AssetError(
            "building KenLM's tools needs a C++ compiler, and there is none on PATH: install "
            "one (Debian: `apt install g++`), or name a folder with lmplz and build_binary in "
            f"{KENLM_BIN}"
        )
    import cmake
    import ninja

    return Path(cmake.CMAKE_BIN_DIR) / "cmake", Path(ninja.BIN_DIR) / "ninja", boost


def _try_out(tools: Path) -> None:
    """Train a model of one sentence: a build that cannot run must not be cached."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-kenlm-") as temporary:
        pieces_file, lm_file = Path(temporary) / "pieces", Path(temporary) / "arpa.bin"
        pieces_file.write_text("a b c\n", encoding="utf-8")
        programs = (tools / "lmplz", tools / "build_binary")
        estimate_lm(programs, pieces_file, lm_file)


KENLM_TOOLS = Asset(
    name="kenlm-tools",
    kind="tool",
    version=PUBLISHED["kenlm-sources"].version,
    source=Trained(_identify_tools, build_tools),
    licence="LGPL-2.1-or-later; Boost Software License 1.0 (its libraries)",
    description="lmplz and build_binary, built here in about a minute; needs a C++ compiler and "
    "the extra train-models",
)


def estimate_lm(tools: tuple[Path, Path], pieces_file: Path, lm_file: Path) -> None:
    """Train a KenLM model and write its binary file.

    Args:
        tools: paths of lmplz and build_binary.
        pieces_file: the corpus: one sentence per line, blanks between the pieces. Temporary files
            are written next to it, several times as large.
        lm_file: the file to write.

    Raises:
        TrainingFailed: a tool failed.
    """
    # Two programs, as in cc_net's Makefile: counts to ARPA text, then ARPA text to binary.
    lmplz, build_binary = tools
    temporary, arpa = pieces_file.parent, pieces_file.with_suffix(".arpa")
    options = ["-o", str(ORDER), "-S", _SORT_MEMORY, "-T", temporary]
    # Has an effect only if a small corpus has too few counts to estimate Kneser-Ney discounts.
    options.append("--discount_fallback")
    # Skip a piece that reads like <s>; without this, lmplz stops.
    options.append("--skip_symbols")
    run([lmplz, *options, "--text", pieces_file, "--arpa", arpa])
    run([build_binary, "-T", temporary, STRUCTURE, arpa, lm_file])


def run(command: Sequence[str | Path]) -> None:
    """Run a program without showing its output.

    Raises:
        TrainingFailed: the program failed; its last lines are in the message.
    """
    done = subprocess.run(list(map(str, command)), capture_output=True, check=False)
    if done.returncode:
        output = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        last = "\n  ".join(output[-_SHOWN_LINES:])
        raise TrainingFailed(
            f"{Path(command[0]).name} failed with exit code {done.returncode}; its last "
            f"lines:\n  {last}"
        )
