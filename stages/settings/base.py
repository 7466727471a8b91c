"""The base of all settings of stages, and types of their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
)

from stages.settings.languages import LanguageCode

Share = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Base class of the settings of a stage: immutable, validated, unknown keys are an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, defer_build=True
    )


T = TypeVar("T")

# The key of the limit of all languages that are not named.
DEFAULT = "default"


def _find_kind(value: object) -> str:
    # Tags that begin with "|" are left out of the keys in error messages (config_files/reader.py).
    return "|by_language" if isinstance(value, Mapping) else "|one"


def _check_default(limits: Mapping[str, T]) -> Mapping[str, T]:
    if DEFAULT not in limits:
        raise ValueError(
            f"no limit for other languages than {', '.join(limits) or 'none'}; add {DEFAULT}"
        )
    return limits


# One limit for all languages, or one per language: 0.5 or {default: 0.5, de: 0.65}.
ByLanguage: TypeAlias = Annotated[
    Annotated[T, Tag("|one")]
    | Annotated[
        Mapping[LanguageCode, T], AfterValidator(_check_default), Tag("|by_language")
    ],
    Discriminator(_find_kind),
]


def find_limit(limit: T | Mapping[str, T], language: str | None) -> T:
    """Return the limit in a language. None: the language is not known.

    >>> find_limit({"default": 0.5, "de": 0.65}, "de"), find_limit(0.5, "de")
    (0.65, 0.5)
    """
    if isinstance(limit, Mapping):
        return limit.get(language or DEFAULT, limit[DEFAULT])
    return limit


def list_named_languages(limit: object) -> tuple[str, ...]:
    """Return the languages that have a limit of their own."""
    if not isinstance(limit, Mapping):
        return ()
    return tuple(language for language in limit if language != DEFAULT)
