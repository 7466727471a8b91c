"""Repair what software on the way did to a text's characters: mojibake, HTML entities, control characters. By ftfy.

Promises: each text becomes exactly what `ftfy.fix_text` makes of it under these settings (Speer 2019, ftfy,
doi:10.5281/zenodo.2591652); a text in which ftfy could change nothing is found out at once and is not shown to it.
Leaves to others: which charset a page is in (html.py). Titles stay as they were read.

    stage = Unicode(UnicodeSettings())
    stage.open()
    stage.apply(batch).kept       # "schÃ¶n &lt;3" -> "schön <3"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import DOCUMENT, Outcome, Stage, keep_all
from stages.settings.transform import UnicodeSettings

_CONTROLS = r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x{9f}\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]"
"""Those that ftfy removes, or takes for Windows-1252 (C1)."""
_LINE_BREAKS = r"[\r\x{85}\x{2028}\x{2029}]"

_NESTED = re.compile(r"&(?:(?:amp|AMP|#0{0,8}38|#[xX]0{0,8}26);){16}")
"""Entities of entities: ftfy takes off one layer at a time, which for "&amp;amp;amp;..." is quadratic."""


class Unicode(Stage[UnicodeSettings]):
    """Replaces each text by its repaired form. Drops nothing.

    In a text with 16 and more nested ampersand entities no entity is decoded: see `_NESTED`.
    """

    name = "unicode"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])
    adds: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])

    _config: Any
    _suspicious: str

    def open(self) -> None:
        """Build ftfy's configuration, and the pattern of what it could change."""
        import ftfy

        settings = self.settings
        self._config = ftfy.TextFixerConfig(explain=False, **settings.model_dump())
        self._suspicious = "|".join(_what_may_change(settings))

    def apply(self, batch: pa.Table) -> Outcome:
        """Repair the texts in which something is suspicious."""
        texts = batch.column("text").combine_chunks()
        is_suspicious = pc.fill_null(pc.match_substring_regex(texts, self._suspicious), False)
        if not pc.any(is_suspicious).as_py():
            return keep_all(batch)
        repaired = [self._repaired(text) for text in texts.filter(is_suspicious).to_pylist()]
        return keep_all(
            batch,
            {
                "text": pc.replace_with_mask(
                    texts, is_suspicious, pa.array(repaired, pa.large_string())
                )
            },
        )

    def _repaired(self, text: str) -> str:
        import ftfy

        config = (
            self._config._replace(unescape_html=False) if _NESTED.search(text) else self._config
        )
        return ftfy.fix_text(text, config)


def _what_may_change(settings: UnicodeSettings) -> Iterator[str]:
    """RE2 patterns, one of which is in every text that ftfy changes under these settings."""
    from ftfy.badness import BADNESS_RE
    from ftfy.chardata import HTML_ENTITY_RE

    yield f"(?m:{_as_re2(BADNESS_RE.pattern)})"  # ftfy looks at lines, at whose start ^ matches
    yield _CONTROLS
    if settings.unescape_html is not False:
        yield HTML_ENTITY_RE.pattern
    if settings.fix_line_breaks:
        yield _LINE_BREAKS
    if (
        settings.fix_latin_ligatures
        or settings.fix_character_width
        or settings.uncurl_quotes
        or settings.normalization is not None
    ):
        yield r"[^\x00-\x7f]"


def _as_re2(verbose: str) -> str:
    """A pattern of Python's verbose kind, of classes and alternatives only, as RE2 reads it: matches at least as much.

    Blanks and comments go where they are not part of a class; white space and letters are those of all scripts.
    """
    parts = re.findall(r"\[(?:\\.|[^\]\\])*\]|#[^\n]*|\\.|\s+|.", verbose)
    kept = "".join(part for part in parts if not (part.startswith("#") or part.isspace()))
    return kept.replace(r"\s", r"[\s\p{Z}\x{1c}-\x{1f}\x{85}]").replace(
        r"\w", r"[\p{L}\p{N}\p{M}_]"
    )
