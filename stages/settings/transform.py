"""Settings of the stages in `stages.transform`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stages.settings.base import Settings


class UnicodeSettings(Settings):
    """Options of ftfy. Mojibake, control characters and terminal escapes are always repaired.

    The defaults are FineWeb's (datatrove's `formatters/ftfy.py`). They repair damage, and
    keep curly quotes, full-width punctuation and ligatures, because people write them.
    """

    unescape_html: Literal["auto"] | bool = Field(
        default="auto",
        description='Decode entities such as &eacute;. auto: only in lines without "<", which may '
        "be code.",
    )
    fix_latin_ligatures: bool = Field(
        default=False, description="Write the ligature ﬁ as the letters fi."
    )
    fix_character_width: bool = Field(
        default=False,
        description="Write full-width Latin letters and half-width katakana in their usual width.",
    )
    uncurl_quotes: bool = Field(
        default=False, description="Write curly quotes as straight ones."
    )
    fix_line_breaks: bool = Field(
        default=False, description="Write every kind of line break as \\n."
    )
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = Field(
        default=None,
        description="Unicode normal form; ftfy's own default is NFC; null leaves the text's.",
    )


class PiiSettings(Settings):
    """The placeholder of each kind; null does not replace the kind.

    The defaults are Dolma's (Soldaini et al. 2024, arXiv:2402.00159, section on PII), with
    similar ones for cards and bank accounts. FineWeb uses `email@example.com` and unused IP addresses.
    """

    email: str | None = Field(
        default="|||EMAIL_ADDRESS|||", description="Replaces an e-mail address."
    )
    iban: str | None = Field(
        default="|||IBAN|||",
        description="Replaces the number of a bank account (IBAN, ISO 13616).",
    )
    ip: str | None = Field(
        default="|||IP_ADDRESS|||", description="Replaces a public IP address, v4 or v6."
    )
    phone: str | None = Field(
        default="|||PHONE_NUMBER|||", description="Replaces a phone number."
    )
    card: str | None = Field(
        default="|||CARD_NUMBER|||", description="Replaces the number of a payment card."
    )


class TokenizeSettings(Settings):
    """Settings of `Tokenize`."""

    tokenizer: str = Field(
        description="Reference of a tokenizer.json (or a folder with one), a folder with "
        "GPT-2's encoder.json and vocab.bpe, a *.tiktoken rank file or a SentencePiece *.model."
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
        description="How a *.tiktoken file's encoding splits text; null: determined by the name "
        "of the file.",
    )
