"""Extract the main content of a page with trafilatura (Barbaresi 2021, ACL system demonstrations).

    extract_main_content("<html><body><p>Bread is made of flour, and of water, ...")

It is an extra, because it brings eight packages and takes four times the time of our rules. Its text
depends on the page alone with the options that are set here: no metadata, which it dates by the
clock, and no deduplication, which remembers earlier pages. The settings are those of the package.
"""

from __future__ import annotations

import importlib.metadata
import logging
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from stages.html.justext import revise_paragraphs

# Output differs by their versions.
LIBRARIES = ("trafilatura", "justext", "lxml")


class ExtraNotInstalled(ModuleNotFoundError):
    """trafilatura is chosen, but not installed. The message names the extra."""


def list_versions() -> dict[str, str]:
    """Return the versions of the libraries that extract.

    Raises:
        ExtraNotInstalled: one of them is missing.
    """
    try:
        return {name: importlib.metadata.version(name) for name in LIBRARIES}
    except importlib.metadata.PackageNotFoundError as error:
        raise _explain_missing(error.name) from error


@cache
def load_library() -> ModuleType:
    """Import trafilatura, which takes half a second.

    Raises:
        ExtraNotInstalled: it or a library that it needs is missing.
    """
    try:
        library = import_module("trafilatura")
        fallbacks: Any = import_module("trafilatura.external")
    except ModuleNotFoundError as error:
        raise _explain_missing(error.name or "trafilatura") from error
    # jusText's own takes quadratic time, 5 s for 8,000 paragraphs. trafilatura calls it for pages
    # of which it has found little text.
    fallbacks.revise_paragraph_classification = revise_paragraphs
    # It logs two lines for each page without text.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    return library


def _explain_missing(library: str) -> ExtraNotInstalled:
    return ExtraNotInstalled(
        f"extract.warc.html.engine: trafilatura needs the library {library!r}: "
        f"pip install 'corpusmill[trafilatura]'",
        name=library,
    )


def extract_main_content(html: str) -> str:
    """Return the main content, one line per paragraph, item or row; "" if there is none.

    Tables are kept and comments are left out, as in trafilatura's own evaluation
    (tests/eval_common.py).

    Args:
        html: the page, decoded.

    Raises:
        ExtraNotInstalled: see `load_library`.
        Exception: any error of lxml for a page that it cannot parse.
    """
    text = load_library().extract(
        html,
        include_comments=False,
        include_tables=True,
        deduplicate=False,
        with_metadata=False,
    )
    return text or ""
