"""Find the columns of text, URL, id, date and title by their usual names."""

from __future__ import annotations

from collections.abc import Sequence

from config_files.reader import ConfigError
from pipeline.inputs.recognize import Recognized
from stages.settings.warc import TextColumns

# Of published corpora: C4, Dolma, FineWeb, RedPajama, CulturaX, HPLT, OSCAR, CCNet.
_USUAL_NAMES = {
    "text": ("text", "raw_content", "content", "document", "body", "page_content"),
    "url": ("url", "metadata.url", "meta.url", "u", "source_url", "link"),
    "id": ("id", "doc_id", "uuid", "_id", "metadata.id", "meta.id"),
    "date": ("date", "timestamp", "date_download", "crawl_date", "created", "ts", "added"),
    "title": ("title", "metadata.title", "meta.title"),
}


def find_columns(files: Sequence[Recognized]) -> TextColumns:
    """Return the columns that all of the files have.

    Raises:
        ConfigError: no usual name of a column of texts is in all of them.
    """
    known = set(files[0].columns)
    for file in files[1:]:
        known &= set(file.columns)
    found: dict[str, str | None] = {}
    for purpose, names in _USUAL_NAMES.items():
        found[purpose] = next((name for name in names if name in known), None)
    if found["text"] is None:
        raise ConfigError([_describe(files, known)])
    return TextColumns.model_validate(found)


def _describe(files: Sequence[Recognized], known: set[str]) -> str:
    first = files[0]
    if not known:
        other = next(file for file in files if not known & set(file.columns))
        return (
            f"{first.location} and {other.location} have no column in common; name the files "
            "of one corpus"
        )
    return (
        f"{first.location}: no column is called {', '.join(_USUAL_NAMES['text'])}; it has "
        f"{', '.join(first.columns)}; write a config and name the column in input.text.text"
    )
