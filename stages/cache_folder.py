"""The folder of this machine's cache of models, texts and findings about them."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return $CORPUSMILL_CACHE, or $XDG_CACHE_HOME/corpusmill, or ~/.cache/corpusmill.

    The folder may not exist yet.
    """
    if own := os.environ.get("CORPUSMILL_CACHE"):
        return Path(own).expanduser().absolute()
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute()
    return home / "corpusmill"
