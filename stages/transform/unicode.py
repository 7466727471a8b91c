"""Repair mojibake, HTML entities and control characters in texts with ftfy.

Each text becomes what `ftfy.fix_text` returns with these settings (Speer 2019, ftfy,
doi:10.5281/zenodo.2591652). A regular expression finds the texts that ftfy can change; the others are
not passed to it. Titles are not repaired.

    stage = Unicode(UnicodeSettings())
    stage.open()
    stage.apply(batch).kept       # "schÃ¶n &lt;3" -> "schön <3"
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import DOCUMENT, Outcome, Stage, keep_all
from stages.kernels.characters import bound_marks
from stages.settings.transform import UnicodeSettings

# The control characters that ftfy removes, or reads as Windows-1252 (C1).
_CONTROLS = r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x{9f}\x{206a}-\x{206f}\x{feff}\x{fff9}-\x{fffc}]"
_LINE_BREAKS = r"[\r\x{85}\x{2028}\x{2029}]"

# Nested entities: ftfy decodes one level at a time, which is quadratic for
# "&amp;amp;amp;...".
_NESTED = re.compile(r"&(?:(?:amp|AMP|#0{0,8}38|#[xX]0{0,8}26);){16}")


class Unicode(Stage[UnicodeSettings]):
    """Repairs texts. Drops nothing.

    In a text with 16 or more nested ampersand entities no entity is decoded, see `_NESTED`. With
    `normalization`, a grapheme joiner follows each 30 combining marks in a row.
    """

    name = "unicode"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])
    adds: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])

    _config: Any
    _suspicious: str

    def open(self) -> None:
        """Build ftfy's configuration, and the pattern that finds texts which it can change."""
        import ftfy

        settings = self.settings
        # `_repair` normalizes: ftfy does not bound the marks of a character.
        values = settings.model_copy(update={"normalization": None})
        self._config = ftfy.TextFixerConfig(explain=False, **values.model_dump())
        self._suspicious = "|".join(_yield_patterns(settings))

    def apply(self, batch: pa.Table) -> Outcome:
        """Repair the texts that the pattern matches."""
        texts = batch.column("text").combine_chunks()
        is_suspicious = pc.fill_null(
            pc.match_substring_regex(texts, self._suspicious), False
        )
        if not pc.any(is_suspicious).as_py():
            return keep_all(batch)
        repaired = [self._repair(text) for text in texts.filter(is_suspicious).to_pylist()]
        new_texts = pa.array(repaired, pa.large_string())
        return keep_all(
            batch, {"text": pc.replace_with_mask(texts, is_suspicious, new_texts)}
        )

    def _repair(self, text: str) -> str:
        import ftfy

        config = (
            self._config._replace(unescape_html=False)
            if _NESTED.search(text)
            else self._config
        )
        repaired = ftfy.fix_text(text, config)
        if self.settings.normalization is None:
            return repaired
        return unicodedata.normalize(self.settings.normalization, bound_marks(repaired))


def _yield_patterns(settings: UnicodeSettings) -> Iterator[str]:
    """Yield RE2 patterns. Each text that ftfy changes with these settings matches at least one."""
    from ftfy.badness import BADNESS_RE
    from ftfy.chardata import HTML_ENTITY_RE

    yield f"(?m:{_translate_to_re2(BADNESS_RE.pattern)})"  # (?m): ftfy searches line by line
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


def _translate_to_re2(verbose: str) -> str:
    """Translate a verbose Python pattern of classes and alternatives into RE2's syntax.

    Blanks and comments outside classes are removed. White space and letters become those of all
    scripts, so the result matches at least as much.
    """
    parts = re.findall(r"\[(?:\\.|[^\]\\])*\]|#[^\n]*|\\.|\s+|.", verbose)
    kept = "".join(part for part in parts if not (part.startswith("#") or part.isspace()))
    return kept.replace(r"\s", r"[\s\p{Z}\x{1c}-\x{1f}\x{85}]").replace(
        r"\w", r"[\p{L}\p{N}\p{M}_]"
    )
