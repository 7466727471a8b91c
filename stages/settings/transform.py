"""Settings of the stages in `stages.transform`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stages.settings.base import Settings


class UnicodeSettings(Settings):
    """What is repaired, in ftfy's words. Mojibake, control characters and terminal escapes always are.

    The defaults are those of FineWeb's tool (datatrove's `formatters/ftfy.py`): what was broken is mended; how people
    write (curly quotes, full-width punctuation, ligatures) stays, so that a model learns to read it.
    """

    unescape_html: Literal["auto"] | bool = Field(
        default="auto",
        description='Decode entities such as &eacute;; auto: until a line has a "<", which may be code.',
    )
    fix_latin_ligatures: bool = Field(
        default=False, description="Write the ligature ﬁ as the letters fi."
    )
    fix_character_width: bool = Field(
        default=False,
        description="Write full-width Latin letters and half-width katakana in their usual width.",
    )
    uncurl_quotes: bool = Field(default=False, description="Write curly quotes as straight ones.")
    fix_line_breaks: bool = Field(
        default=False, description="Write every kind of line break as \\n."
    )
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = Field(
        default=None,
        description="Unicode normal form; ftfy's own default is NFC; null leaves the text's.",
    )


class PiiSettings(Settings):
    """What stands in the place of each kind; null leaves the kind alone.

    The defaults are Dolma's (Soldaini et al. 2024, arXiv:2402.00159, section on PII), and one alike for cards. FineWeb
    writes `email@example.com` and addresses that answer nobody: any text will do.
    """

    email: str | None = Field(
        default="|||EMAIL_ADDRESS|||", description="In the place of an e-mail address."
    )
    ip: str | None = Field(
        default="|||IP_ADDRESS|||", description="In the place of a public IP address, v4 or v6."
    )
    phone: str | None = Field(
        default="|||PHONE_NUMBER|||", description="In the place of a phone number."
    )
    card: str | None = Field(
        default="|||CARD_NUMBER|||", description="In the place of a payment card's number."
    )


class TokenizeSettings(Settings):
    """Settings of `Tokenize`."""

    tokenizer: str = Field(
        description="Reference of a tokenizer.json (or a folder with one), a folder with GPT-2's encoder.json and "
        "vocab.bpe, a *.tiktoken rank file or a SentencePiece *.model."
    )
    end_of_document: str | int | None = Field(
        default="auto",
        description="Token or id put after each document; auto: the tokenizer's own; null: none.",
    )
    encoder: Literal["auto", "gigatoken", "tokenizers", "sentencepiece"] = Field(
        default="auto",
        description="Library that encodes; all give the same ids. auto: the fastest that agrees.",
    )
    tiktoken_pattern: Literal["r50k", "cl100k", "o200k"] | None = Field(
        default=None,
        description="How a *.tiktoken file's encoding splits text; null: determined by the name of the file.",
    )
