"""The marks that end sentences in the scripts of the world, and the scripts without blanks or marks.

Source: Unicode 17, PropList.txt, property Sentence_Terminal, without !, ? and the full stops of UAX #29's
class ATerm, which are also decimal points and parts of abbreviations.
"""

from __future__ import annotations

# Code points and ranges of them. The first lines hold the marks of Armenian, Arabic and Urdu (61D-61F, 6D4), Hindi
# (964), Burmese (104B), Amharic (1362) and Khmer (17D4); 3002, FF01 and FF1F are those of Chinese and
# Japanese.
_SENTENCE_TERMINAL = """
589 61D-61F 6D4 700-702 7F9 837 839 83D 83E 964 965 104A 104B 1362 1367 1368 166E 1735 1736
17D4 17D5 1803 1809 1944 1945 1AA8-1AAB 1B4E 1B4F 1B5A 1B5B 1B5E 1B5F 1B7D-1B7F 1C3B 1C3C
1C7E 1C7F 203C 203D 2047-2049 2CF9-2CFB 2E2E 2E3C 2E53 2E54 2E60 2E61 3002 A4FF A60E A60F
A6F3 A6F7 A876 A877 A8CE A8CF A92F A9C8 A9C9 AA5D-AA5F AAF0 AAF1 ABEB FE12 FE15 FE16 FE56
FE57 FF01 FF1F FF61 10A56 10A57 10F55-10F59 10F86-10F89 11047 11048 110BE-110C1 11141-11143
111C5 111C6 111CD 111DE 111DF 11238 11239 1123B 1123C 112A9 113D4 113D5 1144B 1144C 115C2
115C3 115C9-115D7 11641 11642 1173C-1173E 11944 11946 11A42 11A43 11A9B 11A9C 11C41 11C42
11EF7 11EF8 11F43 11F44 16A6E 16A6F 16AF5 16B37 16B38 16B44 16D6E 16D6F 16E98 1BC9F 1DA88
"""


def _parse_ranges(text: str) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for entry in text.split():
        first, _, last = entry.partition("-")
        ranges.append((int(first, 16), int(last or first, 16)))
    return tuple(ranges)


_RANGES = _parse_ranges(_SENTENCE_TERMINAL)


def _list_marks() -> str:
    marks: list[str] = []
    for first, last in _RANGES:
        marks += map(chr, range(first, last + 1))
    return "".join(marks)


# Characters that end a sentence wherever they are.
SENTENCE_MARKS = _list_marks()

# The same for a character class of RE2.
SENTENCE_MARKS_CLASS = "".join(
    rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in _RANGES
)

# Quotation marks that can follow the end of a sentence.
CLOSING_QUOTES = '"\u201d\u00bb\u203a\u300d\u300f\ufe42\ufe44\uff63'
