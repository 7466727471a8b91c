r"""Count pages without a declared charset that are decoded right, beside trafilatura.

    python -m benchmarks.quality.charsets --texts FILE.tsv.xz [--save]

FILE has lines of language, tab and sentence: eld_big-test of nitotm/efficient-language-detector, or
others. A page is 12 sentences of one language in markup; it is right if every character is.
U+FF5E and U+301C count as equal, because Shift_JIS has one code for both (WHATWG: U+FF5E).
"""

from __future__ import annotations

import lzma
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.frame import finish, make_parser
from stages.html.charset import decode_page

# Codec -> languages whose pages it is used for.
CHARSETS: Mapping[str, str] = {
    "utf_8": "de ko",
    "cp949": "ko",
    "gb18030": "zh",
    "shift_jis": "ja",
    "euc_jp": "ja",
    "iso2022_jp": "ja",
    "koi8_u": "uk",
    "koi8_r": "ru",
    "iso8859_5": "ru",
    "cp866": "ru",
    "cp1251": "uk ru bg be sr",
    "cp1257": "lt lv et",
    "iso8859_13": "lt",
    "iso8859_2": "pl cs hu sk sl ro",
    "cp1250": "pl cs hu sk sl hr ro",
    "cp1254": "tr az",
    "cp1253": "el",
    "iso8859_7": "el",
    "cp1255": "he",
    "cp1256": "ar fa",
    "cp874": "th",
    "cp1252": "de fr es pt sv da no fi is it nl en ca eu sq",
    "iso8859_15": "fr",
}
SENTENCES_PER_PAGE = 12
MARKUP = "<!doctype html><html><head><title>{}</title><style>" + "p {{margin: 0}} " * 100
MAX_UNDECODABLE_SHARE = 0.01  # as in stages.html.extraction


def read_sentences(path: Path) -> dict[str, list[str]]:
    """Return language -> its sentences."""
    sentences: defaultdict[str, list[str]] = defaultdict(list)
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            language, _, sentence = line.rstrip("\n").partition("\t")
            sentences[language].append(sentence)
    return sentences


def make_pages(sentences: Sequence[str], codec: str, num_pages: int) -> Iterator[str]:
    """Yield pages of sentences that the codec can write."""
    usable = [
        each for each in sentences if each.encode(codec, "ignore").decode(codec) == each
    ]
    draw = random.Random(codec)
    for _ in range(num_pages):
        chosen = draw.sample(usable, SENTENCES_PER_PAGE)
        yield MARKUP.format(chosen[0]) + "</style><p>" + "</p>\n<p>".join(chosen)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table by charset and language."""
    parser = make_parser(__doc__)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=40, help="of a charset and language")
    options = parser.parse_args(arguments)
    from trafilatura.utils import decode_file

    sentences = read_sentences(options.texts)
    figures: dict[str, dict[str, int]] = {}
    for codec, languages in CHARSETS.items():
        for language in filter(sentences.__contains__, languages.split()):
            pages = list(make_pages(sentences[language], codec, options.pages))
            bodies = [page.encode(codec) for page in pages]
            ours = [decode_page(body, "", MAX_UNDECODABLE_SHARE).text for body in bodies]
            found = {
                "ours": _count_equal(pages, ours),
                "trafilatura": _count_equal(pages, [decode_file(body) for body in bodies]),
            }
            print(f"{codec:12} {language:3} {found['ours']:4} {found['trafilatura']:4}")
            figures[f"{codec} {language}"] = found
    libraries = ("resiliparse", "trafilatura", "charset-normalizer")
    finish(options, "charsets", {"pages": options.pages, "right": figures}, libraries)


def _count_equal(pages: Sequence[str], texts: Sequence[str]) -> int:
    same = str.maketrans("〜", "～")
    both = zip(pages, texts, strict=True)
    return sum(page.translate(same) == text.translate(same) for page, text in both)


if __name__ == "__main__":
    main()
