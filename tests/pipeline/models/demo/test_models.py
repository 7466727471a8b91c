"""Fingerprints of the recipes of the demo's models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipeline.models.demo.models import DemoLm, DemoReference


@pytest.mark.parametrize(
    "changed",
    [
        DemoLm("fr"),
        DemoLm("en", vocab_size=1_000),
        DemoLm("en", order=4),
        DemoLm("en", structure="trie"),
        DemoReference("en"),
        DemoReference("en", num_epochs=7),
        DemoReference("en", seed=3),
    ],
)
def test_each_setting_changes_the_fingerprint(
    changed: DemoLm | DemoReference,
) -> None:
    """Equal recipes have equal fingerprints; any other setting gives another one."""
    assert DemoLm("en").fingerprint() == DemoLm("en").fingerprint()
    assert changed.fingerprint() == dataclasses.replace(changed).fingerprint()
    others = {DemoLm("en").fingerprint(), DemoReference("fr").fingerprint()}
    assert changed.fingerprint() not in others


def test_another_lmplz_changes_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other tools are identified by digest, because their version is unknown."""
    before = DemoLm("en").fingerprint()
    (tmp_path / "lmplz").write_bytes(b"one build")
    monkeypatch.setenv("CORPUSMILL_KENLM_BIN", str(tmp_path))
    first = DemoLm("en").fingerprint()
    (tmp_path / "lmplz").write_bytes(b"another build")
    assert len({before, first, DemoLm("en").fingerprint()}) == 3
