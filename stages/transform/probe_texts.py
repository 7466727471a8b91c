"""Texts on which a fast encoder must give the same ids as the reference library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stages.kernels.characters import list_categories

_DIFFICULT_TEXTS = (
    "",
    " ",
    "\n",
    "\r\n\r\n",
    "  leading, trailing  ",
    "tabs\t\tand   runs    of     blanks \n \n\n  \t\n x",
    "\x00nul\x00 \x01\x02\x1f\x7f\x80\x9f control \ufeff bom \u200b\u200d zero width",
    "\u00a0no-break\u2028line\u2029paragraph\u3000ideographic\u0085next",
    "I'm you're they'll we'd it's don't I'VE HE'S 'tis ''quoted'' ’s",
    "1 12 123 1234 12345678901234567890 3.14 1,000,000 ١٢٣ ४५६ Ⅷ ½ x²",
    "Hello World hELLO CamelCaseWord snake_case kebab-case ALLCAPS iPhone",
    "...!!!???---===###@@@ :-) ;;{}[]<>|\\/ ~`^ <b>html</b> &amp; https://example.org/a?b=c#d",
    "def f(x):\n    return x  # code\n\n\n\tif y:\r\n\t\tpass",
    "Straße ŒUVRE İstanbul ΣΑΣ naïve cafe\u0301 Å A\u030a ﬁ ﬀ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "我能吞下玻璃而不伤身体。日本語のテキスト、カタカナ。한국어 텍스트",
    "مرحبا بالعالم שלום עולם สวัสดีชาวโลก नमस्ते दुनिया ஆத்திசூடி ሰላም ခင်ဗျား",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 😀😀 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0010ffff \uffff \ue000 \ufffd",
    "<|endoftext|> <|im_start|>user <s> </s> <unk> <pad> [CLS] [MASK] <0x0A> ▁ ▁▁a Ġ Ċ ##ing",
    "a" * 3000 + " " * 300 + "ab" * 500 + "\n" * 300 + "?!" * 200 + "好" * 300,
)

# A token at the start, after a blank, before a blank, inside a word, repeated, and between lines.
_SURROUNDINGS = ("{0}", " {0}", "{0} ", "a{0}b", "a {0} b{0}{0}\n{0}\n\n{0}")

_CHARACTERS_PER_TEXT = 64

# Of planes 2 and 3.
_FIRST_IDEOGRAPH = 0x20000


def build_probe_texts(spec: Mapping[str, Any]) -> pa.Array:
    """Return difficult texts, the added tokens in various contexts, and samples of Unicode.

    Args:
        spec: the content of a tokenizer.json.

    Returns:
        (num_texts,) large_string.
    """
    spelled: list[str] = []
    for token in spec.get("added_tokens") or []:
        spelled += [surrounding.format(token["content"]) for surrounding in _SURROUNDINGS]
    texts = [*_DIFFICULT_TEXTS, *spelled, *_sample_unicode()]
    return pa.array(texts, pa.large_string())


def _sample_unicode() -> Iterator[str]:
    """Yield texts with each sampled character after a letter, a blank, a digit and itself."""
    sample = _sample_characters()
    for start in range(0, len(sample), _CHARACTERS_PER_TEXT):
        characters = sample[start : start + _CHARACTERS_PER_TEXT]
        yield "".join(f"a{c} {c}1{c}{c}\n" for c in characters)


def _sample_characters() -> str:
    """Return both sides of each change of category, and every 16th code point.

    Libraries differ where their Unicode tables differ, which is mostly at the ends of ranges.
    Planes 0 to 3 are covered, up to the last assigned code point; surrogates are not characters.
    Planes 2 and 3 have only ideographs, in ranges of hundreds: every 64th is enough.
    """
    codes, categories = list_categories(0, 0x32000)
    is_sampled = codes % np.where(codes < _FIRST_IDEOGRAPH, 16, 64) == 0
    is_seam = categories[1:] != categories[:-1]
    is_sampled[:-1] |= is_seam
    is_sampled[1:] |= is_seam
    is_sampled[-1] = True
    return codes[is_sampled].tobytes().decode("utf-32-le")
