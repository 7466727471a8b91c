"""The definition of tokens in plain Python."""

from __future__ import annotations

import re
import unicodedata

AFFIXES = r"""…—–,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪'"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉⟦⟧"""


def is_affix(character: str) -> bool:
    """Return whether spaCy splits it from both ends of a word."""
    return character in AFFIXES or unicodedata.category(character) == "So"


def find_prefix(text: str) -> str:
    """Return the first token if it is a mark before a word, else nothing."""
    if is_affix(text[0]) or text[0] in "§%=" or unicodedata.category(text[0]) == "Sc":
        return text[0]
    dots = re.match(r"\.\.+", text)
    return dots[0] if dots else ""


def find_suffix(text: str) -> str:
    """Return the last token if it is a mark after a word, else nothing."""
    last, before = text[-1], text[-2:-1]
    if is_affix(last):
        return last
    if found := re.search(r"\.\.+$|['’][sS]$", text):
        return found[0]
    if last == "." and before:
        is_initial = before.isupper() and not text[-3:-2].isupper()
        is_word = before.isalpha() or before.isnumeric() or is_affix(before)
        return "." if (is_word and not is_initial) or before in "%-+" else ""
    is_measure = last in "%+" or unicodedata.category(last) == "Sc"
    return last if is_measure and re.fullmatch("[0-9]", before) else ""


def find_infix(text: str, i: int) -> str:
    """Return the token at `i` between two others, else nothing."""
    before, after = text[i - 1], text[i + 1]
    if dots := re.match(r"\.\.+", text[i:]):
        return dots[0]
    is_after_word = before.isalpha() or before.isnumeric()
    if text[i] == ",":
        return "," if before.isalpha() and after.isalpha() else ""
    if text[i] in ":<>=/":
        return text[i] if is_after_word and after.isalpha() else ""
    hyphens = re.match(r"(-{1,3}|~{1,3}|–{1,3}|—{1,3})(?=(.))", text[i:], re.DOTALL)
    if hyphens and is_after_word and hyphens[2].isalpha():
        return hyphens[1]
    is_operator = text[i] in "+-*^" and re.fullmatch("[0-9][0-9-]", before + after)
    return text[i] if is_operator else ""


def is_url(text: str) -> bool:
    """Return whether it is a host name with a domain, perhaps with scheme, user and path."""
    address = re.match(r"[^/?#]*://", text) or re.match("", text)
    assert address is not None
    host = re.split("[/?#]", text[address.end() :])[0].rpartition("@")[2].partition(":")[0]
    labels, dot, domain = host.rpartition(".")
    is_name = all(c in "-_." or c.isalpha() or c.isnumeric() for c in host)
    has_domain = len(domain) > 1 and all(map(str.islower, domain))
    has_labels = all(labels.split(".")) and dot
    return bool(is_name and has_labels and has_domain)


def split_inside(text: str) -> list[str]:
    """Split a word without marks around it."""
    tokens, start, i = [], 0, 1
    while i < len(text) - 1 and text:
        infix = find_infix(text, i)
        if infix and is_url(text):
            break
        if infix:
            tokens += [text[start:i], infix]
            start = i + len(infix)
        i += max(1, len(infix))
    return [*tokens, text[start:]]


def split_tokens(text: str) -> list[str]:
    """Return the tokens, by their rules."""
    tokens: list[str] = []
    for raw in text.split():
        word, suffixes = raw, list[str]()
        while word and (prefix := find_prefix(word)):
            tokens.append(prefix)
            word = word[len(prefix) :]
        while word and (suffix := find_suffix(word)):
            suffixes.append(suffix)
            word = word[: -len(suffix)]
        tokens += [*split_inside(word), *reversed(suffixes)]
    return [token for token in tokens if token]
