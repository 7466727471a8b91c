"""The models and texts that a config may name, and their files on this machine.

A reference in a config is a name of the registry, or the path of a file or folder.

    resolve("lid.176.ftz")         # ~/.cache/corpusmill/assets/lid.176.ftz/<key>/lid.176.ftz
    resolve("demo-lm-en")          # a folder with the model's files, trained if needed
    resolve("models/my.bin")       # a path resolves to itself
    digest("lid.176.ftz")          # "8f3472cf...", without fetching
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pipeline.models.cache import Asset, Entry, cache_folder, compute_digest, obtain
from pipeline.models.demo.models import TRAINED
from pipeline.models.download import AssetError, download
from pipeline.models.published import PUBLISHED

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

# Name -> model, tokenizer, text or tool.
REGISTRY: Mapping[str, Asset] = MappingProxyType({**PUBLISHED, **TRAINED})


def check(reference: str) -> None:
    """Raise AssetError unless `reference` is a name of the registry or an existing path."""
    _find(reference)


def resolve(reference: str, *, offline: bool | None = None) -> Path:
    """Return the path of a model or text on this machine, after fetching or training it if needed.

    Args:
        reference: a name of the registry, or the path of a file or folder.
        offline: forbid downloads; None: as CORPUSMILL_OFFLINE says. Training from cached texts is
            allowed.

    Returns:
        A file, or a folder for an asset of several files. It is part of the cache: do not
        write to it.

    Raises:
        AssetError: the reference is unknown, cannot be fetched, or has another digest.
    """
    found = _find(reference)
    if isinstance(found, Path):
        return found
    return obtain(found, offline=offline)


def digest(reference: str) -> str | None:
    """Return the SHA-256 of a model or text, without fetching it.

    For a folder it is `combine_digests` of its files. It is None if it is not known yet: the
    model is not trained, or the file has no published digest and was never fetched on this
    machine.

    Raises:
        AssetError: the reference is unknown, or the path cannot be read.
    """
    found = _find(reference)
    if isinstance(found, Path):
        return compute_digest(found)
    return Entry(found).find_known_digest()


def status(name: str) -> Literal["cached", "missing"]:
    """Return whether `resolve(name)` needs neither network nor training.

    Raises:
        AssetError: the name is unknown.
    """
    found = _find(name)
    return "cached" if isinstance(found, Path) or Entry(found).is_present() else "missing"


def _find(reference: str) -> Asset | Path:
    # A name wins over a path: a file called like a model must not replace it silently.
    if reference in REGISTRY:
        return REGISTRY[reference]
    with contextlib.suppress(OSError, RuntimeError):  # a name too long, an unknown ~user
        path = Path(reference).expanduser()
        if path.exists():
            return path
    near = difflib.get_close_matches(reference, REGISTRY, n=3)
    if near:
        hint = f"similar names: {', '.join(near)}"
    else:
        hint = "`python -m pipeline models list` shows all names"
    raise AssetError(
        f"{reference!r} is neither a model or text of the registry nor a path on this machine; "
        f"{hint}"
    )
