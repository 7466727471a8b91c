"""The bytes of small datasets, and the order in which the loader reads them, are pinned by digest.

A change of these digests is a change of format, order or decisions. It belongs in a separate commit with a marked
line in CHANGELOG.md. To record new digests: ``UPDATE_GOLDEN=1 python -m pytest tests/e2e/test_golden.py``.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from loader import TokenLoader
from pipeline.config import load
from pipeline.execution.engine import run
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.models

GOLDEN = REPOSITORY / "tests" / "golden" / "datasets.json"


def _golden_config(folder: Path, format_: str) -> Path:
    """ccnet.yaml on a crawl of 300 pages."""
    tree = yaml.safe_load((REPOSITORY / "configs" / "ccnet.yaml").read_text())
    crawl = {"documents": 300, "documents_per_file": 100, "seed": 5, "format": format_}
    tree["input"] |= {"sample_crawl": crawl, "max_quarantined_share": 0.1}
    tree["annotate"]["minhash"]["threshold"] = 0.5
    tree["write_shards"]["shard_tokens"] = 30_000
    tree["engine"] |= {"kind": "inline"}
    tree["run_dir"] = str(folder / "run")
    path = folder / "golden.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digests(dataset: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, and of the manifest without its fingerprints."""
    files = sorted(path for path in dataset.iterdir() if path.suffix in (".tar", ".idx"))
    digests = {path.name: _sha256(path.read_bytes()) for path in files}
    text = (dataset / "manifest.json").read_bytes()
    manifest: dict[str, Any] = json.loads(text)
    del manifest["fingerprint"], manifest["digest"]
    digests["manifest.json"] = _sha256(text)
    digests["manifest.json without fingerprint and digest"] = _sha256(
        json.dumps(manifest, sort_keys=True).encode()
    )
    return digests


def _row_order(dataset: Path) -> str:
    """Return the SHA-256 of all tokens of an epoch, as rank 0 of 2 and then as rank 1."""
    digest = hashlib.sha256()
    for rank in range(2):
        loader = TokenLoader(
            dataset,
            seq_len=64,
            global_batch_rows=8,
            seed=7,
            rank=rank,
            world_size=2,
            tokens="stored",
            epochs=1,
        )
        for batch in loader:
            digest.update(np.asarray(batch["tokens"]).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("format_", ["wet", "warc"])
def test_a_dataset_has_the_recorded_bytes(format_: str, tmp_path: Path) -> None:
    """Shards, indexes, manifest and the loader's row order equal the recorded digests."""
    config = load(str(_golden_config(tmp_path, format_)))
    prepare(config)
    list(run(make_plan(config)))
    dataset = tmp_path / "run" / "dataset"
    found = {**_digests(dataset), "row order": _row_order(dataset)}
    recorded: dict[str, dict[str, str]] = (
        json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    )
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(
            json.dumps({**recorded, format_: found}, indent=1, sort_keys=True) + "\n"
        )
        recorded = json.loads(GOLDEN.read_text())
    assert found == recorded[format_]
