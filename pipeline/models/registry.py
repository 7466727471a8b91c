"""Which models and texts a config may name, and where each lies on this machine.

Promises: a reference is a name of the registry or a path; `resolve` brings what it names here, and `digest` says what
it is without fetching it.
Leaves to others: what is published (published.py), what is trained (model_training.py), the cache (asset_cache.py).

    resolve("lid.176.ftz")         # ~/.cache/corpusmill/assets/lid.176.ftz/<key>/lid.176.ftz
    resolve("demo-lm-en")          # a folder: en.sp.model, en.arpa.bin, record.json; trained here if need be
    resolve("models/my.bin")       # a path stands for itself
    digest("lid.176.ftz")          # "8f3472cf...", without fetching
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.models.cache import (
    Asset,
    cache_folder,
    compute_digest,
    find_known_digest,
    is_present,
    obtain,
)
from pipeline.models.download import AssetError, download
from pipeline.models.published import PUBLISHED
from pipeline.models.training import TRAINED

__all__ = [
    "REGISTRY",
    "AssetError",
    "cache_folder",
    "check",
    "digest",
    "download",
    "resolve",
    "status",
]

REGISTRY: Mapping[str, Asset] = MappingProxyType({**PUBLISHED, **TRAINED})
"""Everything that a config may name instead of a path."""


def check(reference: str) -> None:
    """Raise AssetError unless `reference` is a name of the registry or a path that exists. Fetches nothing."""
    _find(reference)


def resolve(reference: str, *, offline: bool | None = None) -> Path:
    """Where a model or text lies on this machine, after fetching or training it if need be.

    Args:
        reference: a name of the registry, or the path of a file or folder, which stands for itself.
        offline: forbid fetching; None: as CORPUSMILL_OFFLINE says. Training from what is cached is allowed.

    Returns:
        A file; a folder for an asset of several files. It belongs to the cache: do not write to it.

    Raises:
        AssetError: unknown, not to be had, or other bytes than the registry states.
    """
    found = _find(reference)
    if isinstance(found, Path):
        return found
    return obtain(found, offline=offline)


def digest(reference: str) -> str | None:
    """The SHA-256 that identifies the content: of a file its own, of a folder `combine_digests`. Fetches nothing.

    None where it is not known yet: a model that is not trained yet, or a file without a published digest that was never
    fetched on this machine.

    Raises:
        AssetError: unknown, or a path that cannot be read.
    """
    found = _find(reference)
    if isinstance(found, Path):
        return compute_digest(found)
    return find_known_digest(found)


def status(name: str) -> Literal["cached", "missing"]:
    """Whether `resolve(name)` would need neither network nor training.

    Raises:
        AssetError: no such name.
    """
    found = _find(name)
    return "cached" if isinstance(found, Path) or is_present(found) else "missing"


def _find(reference: str) -> Asset | Path:
    if reference in REGISTRY:
        return REGISTRY[reference]
    path = Path(reference).expanduser()
    if path.exists():
        return path
    near = difflib.get_close_matches(reference, REGISTRY, n=3)
    hint = (
        f"near names: {', '.join(near)}"
        if near
        else "`python -m pipeline models list` shows the names there are"
    )
    raise AssetError(
        f"{reference!r} is neither a model or text of the registry nor a path on this machine; {hint}"
    )
