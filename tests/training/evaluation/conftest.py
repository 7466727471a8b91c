"""The dataset of sentences."""

from __future__ import annotations

import pytest

from tests.training.evaluation.texts import TextDataset, write_texts


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> TextDataset:
    """Return 30 documents in three languages."""
    return write_texts(tmp_path_factory.mktemp("texts") / "texts")
