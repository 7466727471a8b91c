"""Documents the keys of a config as Markdown tables, made from the settings classes in their order."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the lines of Markdown for one section, whose keys start with `prefix`, and for the sections in it."""
    nested: dict[str, type[BaseModel]] = {}
    for name, info in model.model_fields.items():
        inner = _find_model(info.annotation)
        if inner is not None:
            nested[name] = inner
    yield from ("", f"### {prefix.rstrip('.') or 'top level'}", "", _first_line(model), "")
    yield from ("| key | default | means |", "|-|-|-|")
    for name, info in model.model_fields.items():
        description = (info.description or "").replace("|", r"\|")
        yield f"| `{prefix}{name}` | {_format_default(info)} | {description} |"
    each = getattr(model, "each", None)
    if each is not None:  # the keys are names that the user chooses
        yield f"| `{prefix}<name>` | none | {_first_line(each)} |"
        nested["<name>"] = each
    for name, inner in nested.items():
        yield from sections(inner, f"{prefix}{name}.")


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _find_model(annotation: Any) -> type[BaseModel] | None:
    options = [annotation, *typing.get_args(annotation)]
    models = [o for o in options if isinstance(o, type) and not isinstance(o, types.GenericAlias)]
    return next((m for m in models if issubclass(m, BaseModel)), None)


def _format_default(info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "must be given"
    if isinstance(default, BaseModel):
        return "as below"
    if default is None:
        return "`null`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
