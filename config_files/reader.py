"""A YAML file becomes a checked settings object, or a list of all that is wrong with it.

Promises: `read` either returns a model in which every value has been checked, or raises `ConfigError` with *all* faults
at once, each with file, line, key, what was found, what was wanted and the nearest valid key. Keys given twice and
unknown keys are faults.
Leaves to others: which keys there are (pipeline/config.py, training/config.py). Nothing here knows a model.

    config = read(RunConfig, "ccnet.yaml", ["select.language.min_score=0.65"])
"""

from __future__ import annotations

import copy
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)
KeyPath = tuple[str, ...]

_PACKAGED = Path(str(resources.files("config_files"))) / "configs"
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else _PACKAGED.parent.parent / "configs"
"""The shipped configs: inside the installed package, or in the checkout."""


class ConfigError(Exception):
    """The config cannot be run as it stands; `faults` holds one line for each thing wrong with it."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def read(
    model: type[M],
    path_or_name: str,
    overrides: Sequence[str] = (),
    check: Callable[[M], Iterable[tuple[KeyPath, str]]] = lambda _: (),
) -> M:
    """Read, override and check a config.

    Args:
        model: what the file must hold; a `run_dir` of it may name the file as {config}.
        path_or_name: a file, or failing that a name in configs/, with or without .yaml.
        overrides: `key.of.key=value`, the value in YAML; applied in order.
        check: what the model cannot see by itself, such as missing files: (key, what is wrong with its value) each.

    Raises:
        ConfigError: with every fault there is.
    """
    path = find(path_or_name)
    where = str(path_or_name) if path.name == Path(path_or_name).name else str(path)
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.load(text, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader that also refuses repeated keys
        lines = dict(_line_numbers(yaml.compose(text, Loader=yaml.SafeLoader)))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ConfigError([f"{where}: cannot be read as YAML: {error}"]) from error
    if not isinstance(tree, dict):
        sections = ", ".join(f"{name}:" for name in list(model.model_fields)[1:3])
        raise ConfigError(
            [f"{where}: found {type(tree).__name__}, wanted sections such as {sections}"]
        )
    config = _checked(model, tree, overrides, check, where, lines)
    if "run_dir" in model.model_fields:
        return config.model_copy(
            update={"run_dir": _value_at(config, ("run_dir",)).format(config=path.stem)}
        )
    return config


def reread(
    model: type[M],
    tree: Mapping[str, Any],
    where: str,
    overrides: Sequence[str] = (),
    check: Callable[[M], Iterable[tuple[KeyPath, str]]] = lambda _: (),
) -> M:
    """Override and check a config that was read before and kept as JSON; `where` is what faults call it.

    Raises:
        ConfigError: with every fault there is.
    """
    return _checked(model, copy.deepcopy(dict(tree)), overrides, check, where, {})


def _checked(
    model: type[M],
    tree: dict[str, Any],
    overrides: Sequence[str],
    check: Callable[[M], Iterable[tuple[KeyPath, str]]],
    where: str,
    lines: dict[KeyPath, str],
) -> M:
    """The settings in `tree`, which is overridden in place."""
    for override in overrides:
        _override(tree, override, lines)
    try:
        config = model.model_validate(tree)
    except ValidationError as error:
        raise ConfigError([_fault(model, e, where, lines) for e in error.errors()]) from error
    if faults := [
        f"{_place(where, key, lines)}: {'.'.join(key)} is {_value_at(config, key)!r}: {wrong}"
        for key, wrong in check(config)
    ]:
        raise ConfigError(faults)
    return config


def find(path_or_name: str) -> Path:
    """The config file of that path or, failing that, of that name in configs/.

    Raises:
        ConfigError: there is neither; the names in configs/ are listed.
    """
    if (path := Path(path_or_name)).is_file():
        return path
    shipped = {p.name: p for p in CONFIGS.glob("*.yaml")}
    if found := shipped.get(path_or_name) or shipped.get(f"{path_or_name}.yaml"):
        return found
    nearest = difflib.get_close_matches(path_or_name, shipped, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(
        [f"{path_or_name}: no such file, and configs/ has only {', '.join(sorted(shipped))}{hint}"]
    )


class _UniqueKeys(yaml.SafeLoader):
    """YAML that refuses a key given twice, where PyYAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        for key, _ in node.value:
            if keys.count(key.value) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is given twice", key.start_mark
                )
        return super().construct_mapping(node, deep)


def _line_numbers(node: yaml.Node | None, prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """The line, counted from 1, on which every key of the tree stands."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*prefix, str(key.value))
            yield path, str(key.start_mark.line + 1)
            yield from _line_numbers(value, path)


def _override(tree: dict[str, Any], override: str, lines: dict[KeyPath, str]) -> None:
    dotted, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.[\w-]+)*", dotted):
        raise ConfigError(
            [f"--set {override}: wanted key.of.key=value, such as select.language.min_score=0.65"]
        )
    *sections, last = keys = dotted.split(".")
    for section in sections:
        if not isinstance(tree.get(section), dict):
            tree[section] = {}
        tree = tree[section]
    try:
        tree[last] = yaml.load(value, Loader=_UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfigError([f"--set {override}: the value is not YAML: {error}"]) from error
    lines[tuple(keys)] = f"--set {dotted}"


def _fault(
    model: type[BaseModel], error: Mapping[str, Any], where: str, lines: Mapping[KeyPath, str]
) -> str:
    """One line: place, key, found, wanted, and the nearest valid key where a key is unknown."""
    location = tuple(str(part) for part in error["loc"])
    key = ".".join(location) or "the file"
    place = _place(where, location, lines)
    if error["type"] == "extra_forbidden":
        known = list(_model_at(model, location[:-1]).model_fields)
        nearest = difflib.get_close_matches(location[-1], known, 1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"known here: {', '.join(known)}"
        return f"{place}: {key} is no known key; {hint}"
    if error["type"] == "missing":
        return f"{place}: {key} is missing"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    found = "" if error["type"] == "value_error" else f" is {error['input']!r},"
    return f"{place}: {key}{found} {message}" if found else f"{place}: {key}: {message}"


def _place(where: str, location: KeyPath, lines: Mapping[KeyPath, str]) -> str:
    """The file and the line of the key, or of the nearest section around it."""
    for end in range(len(location), 0, -1):
        if line := lines.get(location[:end]):
            return line if line.startswith("--set") else f"{where}:{line}"
    return where


def _model_at(model: type[BaseModel], location: Sequence[str]) -> type[BaseModel]:
    """The settings class of the section at a place of the tree."""
    for part in location:
        each = getattr(model, "each", None)  # of a section whose keys are the user's own names
        annotation = model.model_fields[part].annotation if part in model.model_fields else each
        inner = [a for a in (annotation, *typing.get_args(annotation)) if isinstance(a, type)]
        nested = [a for a in inner if a is not types.NoneType and issubclass(a, BaseModel)]
        if not nested:
            break
        model = nested[0]
    return model


def _value_at(config: Any, key: KeyPath) -> Any:
    """What stands at a place of a config."""
    for part in key:
        config = config[part] if isinstance(config, Mapping) else getattr(config, part)
    return config
