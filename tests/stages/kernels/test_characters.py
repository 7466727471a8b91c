"""Tables of actions by code point."""

from __future__ import annotations

import unicodedata

import numpy as np

from stages.kernels.characters import (
    DELETE,
    EXACT,
    NUM_CODE_POINTS,
    PAGE,
    PAGE_BITS,
    build_character_table,
    list_categories,
)


def test_each_code_point_has_its_action() -> None:
    """A change is found at both ends of pages, of blocks and of the surrogates."""
    changed = {0x41, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xE0100, 0x10FFFF}
    deleted = frozenset(map(chr, changed))
    table = build_character_table(
        lambda character: DELETE if character in deleted else ord(character),
        deleted.isdisjoint,
    )
    codes = np.arange(NUM_CODE_POINTS)
    actions = table.actions[table.pages[codes >> PAGE_BITS], codes & (PAGE - 1)]
    assert set(np.flatnonzero(actions == DELETE)) == changed | {0}
    assert set(np.flatnonzero(actions == EXACT)) == {2, *range(0xD800, 0xE000)}


def test_categories_are_those_of_unicodedata() -> None:
    """Surrogates are left out, other code points have the category of their character."""
    codes, categories = list_categories(0xD000, 0xF000)
    assert codes.tolist() == [*range(0xD000, 0xD800), *range(0xE000, 0xF000)]
    expected = [unicodedata.category(chr(code)).encode() for code in codes.tolist()]
    assert categories.tolist() == expected
