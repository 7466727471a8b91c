"""The wheel is complete, and the installed command works in any folder and without the optional libraries."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.processes import run_python

PYPROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
TOP_PACKAGES = (
    "config_files",
    "storage",
    "terminal_output",
    "shardwriter",
    "loader",
    "training",
    "stages",
    "pipeline",
)
# Folders without code, of files that packages read.
DATA_PACKAGES = {
    "config_files.configs",
    "config_files.configs.grafana",
    "config_files.configs.kuberay",
    "config_files.configs.prometheus",
    "config_files.configs.systemd",
    "pipeline.reporting.browse.assets",
}
SITE_PACKAGES = Path(pytest.__file__).parent.parent

# Makes the modules in BLOCKED look as if they were not installed.
BLOCK_OTHER_LIBRARIES = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from the files that git tracks or would track."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, source / name)
    out = tmp_path_factory.mktemp("wheel")
    build = [
        "wheel",
        "--verbose",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(out),
    ]
    built = run_python("-m", "pip", *build, str(source), check=True)
    assert "Warning" not in built.stdout + built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment that has the wheel, and the libraries of this one."""
    root = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(root)], check=True)
    python = root / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    # With the checkout on the path, pip would find the metadata of the editable install there.
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), *install],
        env=copy_environment(),
        check=True,
    )
    (site_packages,) = root.glob("lib/python*/site-packages")
    # A folder named in a .pth file joins the path, but the .pth files in it (our editable install) are not read.
    (site_packages / "libraries.pth").write_text(f"{SITE_PACKAGES}\n")
    return root / "bin"


def copy_environment() -> dict[str, str]:
    """Return the environment variables without the one that puts the checkout on the path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def run_installed(
    environment: Path, *command: str, folder: Path, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program of the environment in a folder, without the checkout on the path."""
    return subprocess.run(
        [str(environment / command[0]), *command[1:]],
        cwd=folder,
        env={**copy_environment(), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_package_list_names_every_package() -> None:
    """Each folder with an __init__.py is listed in pyproject.toml, and nothing else but the shipped configs."""
    found = {
        path.parent.relative_to(REPOSITORY).as_posix().replace("/", ".")
        for package in TOP_PACKAGES
        for path in (REPOSITORY / package).rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == found | DATA_PACKAGES


def test_the_wheel_holds_every_module_and_every_shipped_config(wheel: Path) -> None:
    """All .py files, type markers, data files, and every file below configs/ are in the wheel."""
    expected = {f"{package}/py.typed" for package in TOP_PACKAGES}
    expected.add("pipeline/capacity/calibration.json")
    expected.add("pipeline/capacity/calibration-warc.json")
    for package in TOP_PACKAGES:
        for path in (REPOSITORY / package).rglob("*.py"):
            expected.add(path.relative_to(REPOSITORY).as_posix())
    for path in (REPOSITORY / "pipeline/reporting/browse/assets").iterdir():
        expected.add(path.relative_to(REPOSITORY).as_posix())
    for path in (REPOSITORY / "configs").rglob("*"):
        if path.is_file():
            expected.add(f"config_files/{path.relative_to(REPOSITORY).as_posix()}")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert expected - names == set()
    top_level = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top_level == set(TOP_PACKAGES)


def test_the_metadata_names_extras_addresses_and_typing() -> None:
    """The light installation is small, and the project is classified and has addresses."""
    project = PYPROJECT["project"]
    assert LIGHT == ["numpy", "isal", "typer"]
    extras = {
        "pipeline",
        "s3",
        "trafilatura",
        "train-models",
        "demo",
        "train",
        "docs",
        "test",
    }
    assert set(project["optional-dependencies"]) == extras
    assert {"Homepage", "Documentation", "Changelog"} <= project["urls"].keys()
    assert "Typing :: Typed" in project["classifiers"]


def test_checkout_and_wheel_find_the_same_configs(
    environment: Path, tmp_path: Path
) -> None:
    """The shipped configs are found by name, from any folder."""
    code = "import json; from config_files.reader import CONFIGS; print(json.dumps([str(CONFIGS), sorted(p.name for p in CONFIGS.rglob('*'))]))"
    installed = run_installed(environment, "python", "-P", "-c", code, folder=tmp_path)
    folder, names = json.loads(installed.stdout)
    assert str(REPOSITORY) not in folder
    assert names == sorted(path.name for path in (REPOSITORY / "configs").rglob("*"))


def test_the_editable_install_finds_the_configs_of_the_checkout(tmp_path: Path) -> None:
    """`pip install -e .` reads configs/ of the checkout."""
    code = "from config_files.reader import CONFIGS; print(CONFIGS)"
    out = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(out.stdout.strip()) == REPOSITORY / "configs"


def test_the_command_ignores_packages_of_the_working_folder(
    environment: Path, tmp_path: Path
) -> None:
    """A user's own configs.py, training/ or loader/ is not imported in place of ours."""
    (tmp_path / "configs.py").write_text("raise SystemExit('imported the wrong module')")
    for package in ("training", "loader", "pipeline", "stages"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('wrong package')")
    for words in (
        ["--version"],
        ["loader", "--help"],
        ["training", "--help"],
        ["plan", "--help"],
    ):
        ended = run_installed(environment, "corpusmill", *words, folder=tmp_path)
        assert (ended.returncode, ended.stderr) == (0, ""), words
    missing = run_installed(environment, "corpusmill", "plan", "ccnett", folder=tmp_path)
    assert missing.returncode == 2
    assert "did you mean ccnet.yaml?" in missing.stderr


def test_the_command_completes_words(environment: Path, tmp_path: Path) -> None:
    """The shell is given the commands of the pipeline, and those of `loader` and `training`."""

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        answered = run_installed(
            environment,
            "corpusmill",
            folder=tmp_path,
            _CORPUSMILL_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(len(words) - 1),
        )
        return answered.stdout.split()

    assert {"status", "sample-crawl"} <= set(complete("corpusmill s"))
    assert complete("corpusmill loa") == ["loader"]
    assert complete("corpusmill training pl") == ["plan"]


LIGHT = [re.split(r"[<>=~]", need)[0] for need in PYPROJECT["project"]["dependencies"]]


def collect_needs(names: list[str]) -> set[str]:
    """Return the distributions that `pip install` brings for these names, without extras."""
    waiting = list(names)
    found: set[str] = set()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        found.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on another platform
        unconditional = [need for need in needs if ";" not in need]
        waiting += [re.split(r"[^\w.-]", need)[0] for need in unconditional]
    return found


def block_other_libraries(names: list[str]) -> str:
    """Return code that hides every library that these distributions do not bring."""
    allowed = collect_needs(names)
    blocked: list[str] = []
    for module, distributions in importlib.metadata.packages_distributions().items():
        names = {name.lower().replace("_", "-") for name in distributions}
        if not names & (allowed | {"corpusmill"}):
            blocked.append(module)
    return f"BLOCKED = {set(blocked)!r}\n{BLOCK_OTHER_LIBRARIES}"


def run_light(
    code: str, folder: Path, libraries: list[str] = LIGHT
) -> subprocess.CompletedProcess[str]:
    """Run code with only these libraries; the default is the light installation."""
    return subprocess.run(
        [sys.executable, "-P", "-c", f"{block_other_libraries(libraries)}\n{code}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_light_installation_imports_the_loader(tmp_path: Path) -> None:
    """`import loader` needs numpy and isal alone; its command line needs typer as well."""
    ended = run_light("import loader", tmp_path, ["numpy", "isal"])
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = run_light("import loader.cli", tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["run", "ccnet.yaml"], "pipeline"),
        (["models", "list"], "pipeline"),
        (["training", "run", "train-tiny.yaml"], "train"),
    ],
)
def test_the_light_installation_names_the_extra_to_install(
    words: list[str], extra: str, tmp_path: Path
) -> None:
    """A command whose libraries are missing says which extra brings them, and exits with 2."""
    code = f"import sys; sys.argv = ['corpusmill', *{words!r}]\nfrom pipeline.console import main; main()"
    ended = run_light(code, tmp_path)
    assert ended.returncode == 2
    assert f"pip install 'corpusmill[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_light_installation_shows_help_and_version(tmp_path: Path) -> None:
    """Help and version need no extra."""
    for option in ("--help", "--version"):
        code = f"import sys; sys.argv = ['corpusmill', '{option}']\nfrom pipeline.console import main; main()"
        assert run_light(code, tmp_path).returncode == 0
