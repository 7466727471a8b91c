"""Document the keys of a config as Markdown tables, generated from the settings classes."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the lines of Markdown for a section and for the sections in it.

    Args:
        model: the settings class of the section.
        prefix: the start of its keys, such as "select.language.".
    """
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
    for option in (annotation, *typing.get_args(annotation)):
        # isinstance(tuple[str, ...], type) is true, but issubclass refuses it.
        is_class = isinstance(option, type) and not isinstance(option, types.GenericAlias)
        if is_class and issubclass(option, BaseModel):
            return option
    return None


def _format_default(info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "must be given"
    if isinstance(default, BaseModel):
        return "as below"
    if default is None:
        return "`null`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
