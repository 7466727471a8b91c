"""Read a YAML file into a checked settings object, or raise one error with all its faults.

Each fault names file, line, key, the value found, the value wanted and the nearest valid
key. Unknown keys and keys that are given twice are faults.

    config = read(RunConfig, "ccnet.yaml", ["select.language.min_score=0.65"])
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

M = TypeVar("M", bound=BaseModel)
KeyPath = tuple[str, ...]

_PACKAGED = Path(str(resources.files("config_files"))) / "configs"
# The shipped configs: inside the installed package, or in the checkout.
CONFIGS = _PACKAGED if _PACKAGED.is_dir() else _PACKAGED.parent.parent / "configs"

# Keys and list items with aliases resolved, and levels. A list of all files of a crawl has 90,000 items.
_MAX_KEYS = 200_000
_MAX_DEPTH = 32
_MAX_INTEGER_BITS = 64
# Of Linux, NAME_MAX and PATH_MAX. Paths inside of a run folder have up to 200 bytes.
_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 4096 - 200
_MAX_SHOWN_CHARS = 200
_MAX_FAULTS = 50

_SURROGATE = re.compile("[\ud800-\udfff]")
# PyYAML raises each of these for a tagged value such as `!!int ''` or `!!timestamp x`.
_CONSTRUCTION_ERRORS = (
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
)


class ConfigError(Exception):
    """A config has errors; `faults` has one line for each."""

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
        model: the settings class of the file. In its `run_dir`, {config} stands for the name
            of the file.
        path_or_name: a file, or a name in configs/, with or without .yaml.
        overrides: `key.of.key=value`, the value in YAML; applied in order.
        check: returns the faults that the model cannot find, such as missing files, as (key,
            message).

    Raises:
        ConfigError: with all faults.
    """
    path = find(path_or_name)
    where = str(path_or_name) if path.name == Path(path_or_name).name else str(path)
    try:
        tree, lines = _parse(path.read_text(encoding="utf-8"), where)
    except (UnicodeDecodeError, OSError) as error:
        raise ConfigError([f"{where}: cannot be read as YAML: {error}"]) from error
    if not isinstance(tree, dict):
        first, second = list(model.model_fields)[1:3]
        sections = f"{first}:, {second}:"
        raise ConfigError(
            [f"{where}: found {type(tree).__name__}, wanted sections such as {sections}"]
        )
    config = _validate(model, tree, overrides, check, where, lines)
    if "run_dir" in model.model_fields:
        run_dir = _get_value(config, ("run_dir",)).replace("{config}", path.stem)
        if fault := _find_path_fault(run_dir):
            place = _format_place(where, ("run_dir",), lines)
            raise ConfigError([f"{place}: run_dir is {_show(run_dir)}: {fault}"])
        return config.model_copy(update={"run_dir": run_dir})
    return config


def reread(
    model: type[M],
    tree: Mapping[str, Any],
    where: str,
    overrides: Sequence[str] = (),
    check: Callable[[M], Iterable[tuple[KeyPath, str]]] = lambda _: (),
) -> M:
    """Override and check a config that was read before and stored as JSON.

    Args:
        model: the settings class.
        tree: the stored config.
        where: the place that fault messages name.
        overrides: `key.of.key=value`, applied in order.
        check: as in `read`.

    Raises:
        ConfigError: with all faults.
    """
    return _validate(model, copy.deepcopy(dict(tree)), overrides, check, where, {})


def _validate(
    model: type[M],
    tree: dict[str, Any],
    overrides: Sequence[str],
    check: Callable[[M], Iterable[tuple[KeyPath, str]]],
    where: str,
    lines: dict[KeyPath, str],
) -> M:
    """Return the settings in `tree`, which is overridden in place."""
    for override in overrides:
        _apply_override(tree, override, lines)
    try:
        config = model.model_validate(tree)
    except ValidationError as error:
        found = error.errors()
        shown = [_format_fault(model, e, where, lines) for e in found[:_MAX_FAULTS]]
        if len(found) > _MAX_FAULTS:
            shown.append(f"{where}: {len(found) - _MAX_FAULTS:,} more faults")
        raise ConfigError(shown) from error
    faults: list[str] = []
    # These are found only if the types are right: a model with errors has no values to check.
    for key, message in check(config):
        place = _format_place(where, key, lines)
        value = _show(_get_value(config, key))
        faults.append(f"{place}: {'.'.join(key)} is {value}: {message}")
    if faults:
        raise ConfigError(faults)
    return config


def find(path_or_name: str) -> Path:
    """Return the config file at a path or, if there is none, the shipped config of that name.

    Raises:
        ConfigError: neither exists; the message lists the shipped names.
    """
    with contextlib.suppress(OSError):  # a name may be too long for a file
        if (path := Path(path_or_name)).is_file():
            return path
    shipped: dict[str, Path] = {}
    for shipped_path in CONFIGS.glob("*.yaml"):
        shipped[shipped_path.name] = shipped_path
    if found := shipped.get(path_or_name) or shipped.get(f"{path_or_name}.yaml"):
        return found
    nearest = difflib.get_close_matches(path_or_name, shipped, 1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    raise ConfigError(
        [
            f"{path_or_name}: no such file, and configs/ has only {', '.join(sorted(shipped))}{hint}"
        ]
    )


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which PyYAML would use the last one silently."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Give the place of a value that cannot be made, or that no setting can have."""
        try:
            value = super().construct_object(node, deep)
        except _CONSTRUCTION_ERRORS as error:
            kind = node.tag.rpartition(":")[2]
            is_clear = isinstance(error, ValueError)
            what = str(error) if is_clear else f"{_show(node.value)} is no {kind}"
            raise _make_yaml_error(what, node) from error
        if fault := _find_value_fault(value):
            raise _make_yaml_error(fault, node)
        return value

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _make_yaml_error("a key is no word", key)
            if key.value in keys:
                raise _make_yaml_error(f"key {key.value!r} is given twice", key)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _find_value_fault(value: object) -> str:
    """Return why a value can be neither printed nor used as a path or number, or nothing."""
    if isinstance(value, int) and value.bit_length() > _MAX_INTEGER_BITS:
        return f"a number has more than {_MAX_INTEGER_BITS} bits"
    if isinstance(value, str) and "\0" in value:
        return f"{_show(value)} has a NUL character"
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        return f"{_show(value)} has half of a surrogate pair"
    return ""


def _make_yaml_error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _parse(text: str, where: str) -> tuple[Any, dict[KeyPath, str]]:
    """Return the values of a YAML document, and the line of each key.

    Raises:
        ConfigError: it is not YAML, or is larger or deeper than any config.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        # The tree with all aliases resolved, which bounds the rest of the work.
        keys = list(islice(_find_keys(node), _MAX_KEYS + 1))
        if len(keys) > _MAX_KEYS:
            raise ConfigError([f"{where}: has more than {_MAX_KEYS:,} keys and list items"])
        if deepest := next((key for key, _ in keys if len(key) > _MAX_DEPTH), None):
            nested = ".".join(deepest[:3])
            raise ConfigError(
                [f"{where}: {nested}... is nested deeper than {_MAX_DEPTH} keys"]
            )
        tree = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = None if where.startswith("--set") else error.problem_mark
        line = "" if mark is None else f":{mark.line + 1}"
        what = error.problem or error.context or "it has another syntax"
        raise ConfigError([f"{where}{line}: cannot be read as YAML: {what}"]) from error
    except yaml.YAMLError as error:
        message = " ".join(str(error).split())
        raise ConfigError([f"{where}: cannot be read as YAML: {message}"]) from error
    except RecursionError as error:
        fault = (
            f"{where}: cannot be read as YAML: it is nested deeper than {_MAX_DEPTH} keys"
        )
        raise ConfigError([fault]) from error
    return tree, dict(keys)


def _find_keys(
    node: yaml.Node | None, prefix: KeyPath = ()
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path and the line number, from 1, of every key and list item of the tree."""
    children: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        children = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = [(str(number), item, item) for number, item in enumerate(node.value)]
    for name, marked, value in children:
        path = (*prefix, name)
        yield path, str(marked.start_mark.line + 1)
        if len(path) <= _MAX_DEPTH:
            yield from _find_keys(value, path)


def _find_path_fault(path: str) -> str:
    """Return what prevents the use of a path, or nothing."""
    if found := re.search(r"[{}]", path):
        return (
            f"has {found[0]}; only {{config}} is replaced, by the name of the config file"
        )
    if len(path.encode()) > _MAX_PATH_BYTES:
        return f"has more than {_MAX_PATH_BYTES} bytes"
    if any(len(name.encode()) > _MAX_NAME_BYTES for name in path.split("/")):
        return f"has a name of more than {_MAX_NAME_BYTES} bytes"
    return ""


def _show(value: object) -> str:
    """Return a value for a message, shortened."""
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}..."


def _apply_override(tree: dict[str, Any], override: str, lines: dict[KeyPath, str]) -> None:
    dotted, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.[\w-]+)*", dotted):
        raise ConfigError(
            [
                f"--set {override}: wanted key.of.key=value, such as select.language.min_score=0.65"
            ]
        )
    *sections, last = keys = dotted.split(".")
    for section in sections:
        if not isinstance(tree.get(section), dict):
            tree[section] = {}
        tree = tree[section]
    tree[last], _ = _parse(value, f"--set {dotted}")
    # A fault of this key now names the option and not a line of the file.
    lines[tuple(keys)] = f"--set {dotted}"


def _format_fault(
    model: type[BaseModel],
    error: Mapping[str, Any],
    where: str,
    lines: Mapping[KeyPath, str],
) -> str:
    """Return one line with place, key, value found and value wanted.

    For an unknown key it has the nearest valid key.
    """
    # "|" begins the tag of a union (stages/settings/base.py), which is no key of the file.
    parts = map(str, error["loc"])
    location = tuple(part for part in parts if not part.startswith("|"))
    key = ".".join(location) or "the file"
    place = _format_place(where, location, lines)
    if error["type"] == "extra_forbidden":
        known = list(_find_model(model, location[:-1]).model_fields)
        return f"{place}: {key} is no known key; {suggest(location[-1], known)}"
    if error["type"] == "missing":
        return f"{place}: {key} is missing"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
    found = "" if error["type"] == "value_error" else f" is {_show(error['input'])},"
    return f"{place}: {key}{found} {message}" if found else f"{place}: {key}: {message}"


def suggest(name: str, known: Collection[str]) -> str:
    """Return a hint at the nearest known name."""
    nearest = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    if nearest:
        return f"did you mean {nearest[0]}?"
    return f"known here: {', '.join(sorted(known))}"


def _format_place(where: str, location: KeyPath, lines: Mapping[KeyPath, str]) -> str:
    """Return file and line of the key, or of the nearest section around it."""
    for end in range(len(location), 0, -1):
        if line := lines.get(location[:end]):
            return line if line.startswith("--set") else f"{where}:{line}"
    return where


def _find_model(model: type[BaseModel], location: Sequence[str]) -> type[BaseModel]:
    """Return the settings class of the section at a location of the tree."""
    for part in location:
        # the section's keys are names that the user chose
        each = getattr(model, "each", None)
        annotation = (
            model.model_fields[part].annotation if part in model.model_fields else each
        )
        nested = _find_nested_model(annotation)
        if nested is None:
            break
        model = nested
    return model


def _find_nested_model(annotation: Any) -> type[BaseModel] | None:
    """Return the settings class in an annotation, such as that of `Settings | None`."""
    for option in (annotation, *typing.get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _get_value(config: Any, key: KeyPath) -> Any:
    """Return the value at a location of a config."""
    for part in key:
        config = config[part] if isinstance(config, Mapping) else getattr(config, part)
    return config
