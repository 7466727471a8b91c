"""Imports between packages follow the diagram of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.processes import run_python

PACKAGES = (
    "config_files",
    "storage",
    "terminal_output",
    "pipeline",
    "stages",
    "shardwriter",
    "loader",
    "training",
)
ALLOWED = {
    "config_files": {"config_files"},
    "storage": {"storage"},
    "terminal_output": {"terminal_output"},
    "pipeline": {
        "pipeline",
        "stages",
        "shardwriter",
        "config_files",
        "storage",
        "terminal_output",
    },
    "stages": {"stages"},
    "shardwriter": {"shardwriter"},
    "loader": {"loader", "storage", "terminal_output", "shardwriter.format"},
    "training": {"training", "loader", "storage", "config_files", "terminal_output"},
}
# The `corpusmill` command passes words on to the other command lines; it imports one only
# when asked to.
EXCEPTIONS = {"pipeline/console.py": {"loader", "training"}}

ONLY_IN = {
    "ray": ("pipeline/", "training/ray_launcher.py"),
    "torch": ("loader/", "training/"),
}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}


def _modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((REPOSITORY / package).rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _faults(path: Path, imported: str) -> Iterator[str]:
    place = path.relative_to(REPOSITORY).as_posix()
    package = place.split("/", maxsplit=1)[0]
    top = imported.split(".", maxsplit=1)[0]
    allowed_here = ALLOWED[package] | EXCEPTIONS.get(place, set())
    if top in PACKAGES and not any(
        f"{imported}.".startswith(f"{allowed}.") for allowed in allowed_here
    ):
        yield f"{path}: {package} may not import {imported}"
    if top in ONLY_IN and not place.startswith(ONLY_IN[top]):
        yield f"{path}: {top} is imported in {' and '.join(ONLY_IN[top])} only"


def test_every_import_follows_the_diagram() -> None:
    """Imports inside functions count."""
    faults = [
        fault
        for path in _modules()
        for name in _imports(path)
        for fault in _faults(path, name)
    ]
    # `from shardwriter import format` names the package as well as the module: only the module is an arrow.
    assert [
        fault for fault in faults if not fault.endswith("may not import shardwriter")
    ] == []


def _list_arrows(package: str, root: Path = REPOSITORY) -> set[tuple[str, str]]:
    """Return which parts of a package import which: subpackages, and modules beside them."""
    arrows: set[tuple[str, str]] = set()
    for path in sorted((root / package).rglob("*.py")):
        part = path.relative_to(root / package).parts[0].removesuffix(".py")
        for name in _imports(path):
            top, *rest = name.split(".")
            place = root / package / rest[0] if top == package and rest else None
            is_part = place and (place.is_dir() or place.with_suffix(".py").exists())
            if is_part and rest[0] != part:
                arrows.add((part, rest[0]))
    return arrows


@pytest.mark.parametrize("package", ["loader", "pipeline", "training"])
def test_parts_of_a_package_import_each_other_one_way(package: str) -> None:
    """Parts are subpackages and single modules. What two of them need moves below both."""
    arrows = _list_arrows(package)
    assert not {(a, b) for a, b in arrows if a < b and (b, a) in arrows}


def test_the_rule_finds_a_pair_that_imports_both_ways(tmp_path: Path) -> None:
    """Imports of a module and of a name from a subpackage count."""
    for part, line in (("a", "from x.b import c"), ("b", "import x.a.d")):
        (tmp_path / "x" / part).mkdir(parents=True)
        (tmp_path / "x" / part / "module.py").write_text(line)
    assert _list_arrows("x", tmp_path) == {("a", "b"), ("b", "a")}


def test_the_tree_of_the_docs_has_every_package() -> None:
    """docs/architecture.md lists each folder with Python files, once."""
    text = (REPOSITORY / "docs" / "architecture.md").read_text()
    tree = text.partition("## Tree")[2].partition("\nbenchmarks/")[0]
    listed = Counter(re.findall(r"\b([a-z_]+)/", tree))
    folders = {path.parent for path in _modules()}
    names = Counter(path.name for path in folders)
    assert {name: listed[name] for name in names} == dict(names)


def test_modules_are_named_for_what_they_do() -> None:
    """No module is named utils, helpers or common."""
    assert not [path for path in _modules() if path.stem in BANNED_NAMES]


def test_modules_have_no_import_cycles() -> None:
    """Imports inside functions count."""
    edges = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): set(_imports(path))
        for path in _modules()
    }
    graph = {
        module: {other for other in edges if other in imported}
        for module, imported in edges.items()
    }
    visiting: list[str] = []
    finished: set[str] = set()

    def visit(module: str) -> None:
        assert module not in visiting, (
            f"cycle: {' -> '.join([*visiting[visiting.index(module) :], module])}"
        )
        if module not in finished:
            visiting.append(module)
            for other in sorted(graph[module]):
                visit(other)
            visiting.pop()
            finished.add(module)

    for module in sorted(graph):
        visit(module)


def test_parts_of_the_trainer_import_one_another_one_way() -> None:
    """A part is a subpackage, or a module beside them."""
    graph: dict[str, set[str]] = {}
    for path in sorted((REPOSITORY / "training").rglob("*.py")):
        part = path.relative_to(REPOSITORY / "training").with_suffix("").parts[0]
        imported = {
            name.split(".")[1] for name in _imports(path) if name.startswith("training.")
        }
        graph.setdefault(part, set()).update(imported - {part})
    # Raises an error that names the parts of a circle.
    TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("package", [p for p in PACKAGES if (REPOSITORY / p).is_dir()])
def test_importing_a_package_is_light(package: str) -> None:
    """`import pipeline`, `import loader` need neither ray nor torch."""
    code = f"import sys, {package}; print([m for m in ('ray', 'torch', 'pandas') if m in sys.modules])"
    out = run_python("-c", code, check=True)
    assert out.stdout.strip() == "[]"


def test_only_terminal_output_makes_consoles() -> None:
    """Other packages print through SafeConsole, which escapes control characters of the crawl."""
    users = [
        path.relative_to(REPOSITORY).parts[0]
        for path in _modules()
        if {"rich.console.Console", "rich.print", "rich.get_console"} & {*_imports(path)}
    ]
    assert set(users) == {"terminal_output"}
