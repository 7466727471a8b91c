"""Texts are normalized as by CCNet's rules and then by SentencePiece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from stages.filters.language_model import normalize_for_lm
from stages.kernels.language_model.normalization import (
    UNSUPPORTED,
    build_normalization,
    load_normalization,
    measure_normal_form,
    normalize_text,
)
from stages.string_buffers import make_read_only
from tests.stages.kernels.language_model.piece_models import (
    CHARACTERS,
    find_characters_in_context,
    train_pieces,
)


class Rules:
    """The table of a model, and the library with the same model."""

    def __init__(self, **options: Any) -> None:
        content = train_pieces(**options)
        formats: Any = sentencepiece_model_pb2
        model = formats.ModelProto.FromString(content)
        charsmap = model.normalizer_spec.precompiled_charsmap
        self.table = build_normalization(charsmap, normalize_for_lm)
        self.library = sentencepiece.SentencePieceProcessor(model_proto=content)

    def normalize(self, utf8: bytes) -> bytes | None:
        """Return the normal form, or None if it is left to the libraries."""
        text = make_read_only(np.frombuffer(utf8, np.uint8))
        line, run = np.empty((2, measure_normal_form.py_func(len(text))), np.uint8)
        size = normalize_text(text, self.table, line, run)
        return None if size == UNSUPPORTED else line[:size].tobytes()

    def check(self, text: str) -> None:
        """Compare the normal form with that of the libraries."""
        assert self.normalize(text.encode()) == self.expect(text)

    def expect(self, text: str) -> bytes:
        """Return the normal form by the libraries."""
        return self.library.normalize(normalize_for_lm(text).encode())


@pytest.fixture(scope="module")
def ccnet() -> Rules:
    """The rules of CCNet's models."""
    return Rules(normalization_rule_name="nmt_nfkc")


@pytest.fixture(scope="module", params=["nmt_nfkc", "nmt_nfkc_cf", "identity"])
def rules(request: pytest.FixtureRequest) -> Rules:
    """The rules of CCNet's models, and others."""
    return Rules(normalization_rule_name=request.param)


@pytest.mark.parametrize("separator", ["", "a", " ", "\u1100"])
def test_all_characters_are_normalized_as_by_the_libraries(ccnet: Rules, separator: str):
    """Each character is next to its neighbour, a letter, a space, or a letter of a syllable."""
    ccnet.check(separator.join(sorted({*CHARACTERS} - find_characters_in_context())))


def test_what_depends_on_the_context_is_left_to_the_libraries(ccnet: Rules):
    """These are final sigmas, and combining characters that CCNet's rules keep."""
    for character in find_characters_in_context():
        assert ccnet.normalize(f"a{character}b".encode()) is None
    assert ccnet.normalize(b"a\xff") is None
    assert ccnet.normalize("é".encode()[:1]) is None


# Parts of syllables, signs that join others, spaces, characters that are deleted, rules with spaces.
PARTS = "가각ㄱㅏ각 \u3000\xa0\u2028\0\x1f\x85\u0301\u0327ে\u09beา\u0e4dか\u3099ﷺ´…—．▁½IİéA1١日𝐀"


@settings(deadline=None)
@example("  ")
@example("\u2581")
@example("\0 a \0")
@example("ᄀ\u0301ᅡ")
@given(st.text(PARTS) | st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_is_normalized_as_by_the_libraries(rules: Rules, text: str):
    """Texts of any characters are equal, or left to the libraries."""
    found = rules.normalize(text.encode())
    if found is not None:
        assert found == rules.expect(text)
    else:
        assert not (find_characters_in_context() | {"ﷺ"}).isdisjoint(text)


@pytest.fixture(scope="module")
def own_rules(tmp_path_factory: pytest.TempPathFactory) -> Rules:
    """Rules that CCNet's models do not have."""
    table = tmp_path_factory.mktemp("rules") / "rules.tsv"
    lines = {
        "ab": "x",
        "abca": "  y ",
        "c": "",
        "d": " ",
        "e": " z",
        "f": "long target",
        "h": "▁",
    }
    table.write_text(
        "".join(
            f"{' '.join(f'{ord(c):X}' for c in source)}\t"
            f"{' '.join(f'{ord(c):X}' for c in target)}\n"
            for source, target in lines.items()
        )
    )
    return Rules(normalization_rule_tsv=str(table))


@settings(deadline=None)
@given(st.text("abcdeghAé\0 ") | st.text("abcdefgh ", min_size=30))
def test_rules_of_any_kind_are_applied(own_rules: Rules, text: str):
    """The longest rule wins; targets may be empty, or begin and end with spaces."""
    found = own_rules.normalize(text.encode())
    if found is not None:
        assert found == own_rules.expect(text)
    else:
        assert "f" in text, "only long targets need more room"


def test_texts_that_grow_are_left_to_the_libraries(ccnet: Rules):
    """The normal form has at most MAX_GROWTH times the bytes."""
    assert ccnet.normalize("ﷺ".encode()) is None
    ccnet.check("enough room: ﷺ")


def test_the_stored_table_equals_the_built_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A second process reads what the first one has built."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path))
    content = train_pieces(normalization_rule_name="nmt_nfkc")
    formats: Any = sentencepiece_model_pb2
    charsmap = formats.ModelProto.FromString(content).normalizer_spec.precompiled_charsmap
    expected = build_normalization(charsmap, normalize_for_lm)
    for _ in range(2):
        load_normalization.cache_clear()
        found = load_normalization(charsmap, normalize_for_lm)
        for field, array in zip(found._fields, found, strict=True):
            assert array.dtype == getattr(expected, field).dtype, field
            assert np.array_equal(array, getattr(expected, field)), field
    assert len(list(tmp_path.rglob("normalization-*"))) == 1
