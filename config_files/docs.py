"""The keys of a config as tables of Markdown, made from its settings models.

Promises: what the tables say is what the models say, in their order.
Leaves to others: the page around them (pipeline/reporting/config_docs.py, training/config_docs.py).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Lines of Markdown: the table of one section, its keys called by `prefix`, then those inside it."""
    nested = {
        name: inner
        for name, info in model.model_fields.items()
        if (inner := _model_in(info.annotation))
    }
    yield from ("", f"### {prefix.rstrip('.') or 'top level'}", "", _first_line(model), "")
    yield from ("| key | default | means |", "|-|-|-|")
    for name, info in model.model_fields.items():
        yield f"| `{prefix}{name}` | {_default(info)} | {(info.description or '').replace('|', chr(92) + '|')} |"
    if each := getattr(model, "each", None):  # the keys are the user's own names
        yield f"| `{prefix}<name>` | none | {_first_line(each)} |"
        nested["<name>"] = each
    for name, inner in nested.items():
        yield from sections(inner, f"{prefix}{name}.")


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    options = [annotation, *typing.get_args(annotation)]
    models = [o for o in options if isinstance(o, type) and not isinstance(o, types.GenericAlias)]
    return next((m for m in models if issubclass(m, BaseModel)), None)


def _default(info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "must be given"
    if isinstance(default, BaseModel):
        return "as below"
    return f"`{'null' if default is None else str(default).lower() if isinstance(default, bool) else default}`"
