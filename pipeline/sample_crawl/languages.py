"""Languages of the sample crawl and their charsets before UTF-8."""

from __future__ import annotations

_LANGUAGE_CODES = (
    "en=eng fr=fra es=spa de=deu it=ita pt=por nl=nld pl=pol ru=rus ja=jpn ar=ara sv=swe "
    "tr=tur cs=ces el=ell hu=hun uk=ukr zh=zho ko=kor ro=ron he=heb fi=fin vi=vie"
)
# ISO 639-1 -> ISO 639-3, for WARC-Identified-Content-Language.
#
# Foreign pages use these languages in this order, except those of the good pages.
ISO_639_3 = {code[:2]: code[3:] for code in _LANGUAGE_CODES.split()}

_LANGUAGES_BY_CHARSET = {
    "windows-1252": "en es de nl sv fi",
    "iso-8859-1": "fr pt it",
    "iso-8859-2": "pl cs hu ro",
    "windows-1251": "ru uk",
    "windows-1255": "he",
    "iso-8859-7": "el",
    "iso-8859-9": "tr",
    "shift_jis": "ja",
    "gb18030": "zh",
    "euc-kr": "ko",
}


def _invert_charsets() -> dict[str, str]:
    charsets: dict[str, str] = {}
    for charset, languages in _LANGUAGES_BY_CHARSET.items():
        for language in languages.split():
            charsets[language] = charset
    return charsets


# Language -> the charset of its old pages.
LEGACY_CHARSETS = _invert_charsets()
