"""The requests that the estimate counts, compared with those of a run in a bucket of a real S3 server."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.capacity.estimate import estimate
from pipeline.capacity.fit import fit
from pipeline.capacity.model import Cluster
from pipeline.config import RunConfig
from pipeline.execution.engine import PhaseFinished, TaskFinished, run
from pipeline.planning.plan import make_plan
from pipeline.runs.phase_folder import read_digests
from pipeline.runs.run_folder import RunFolder
from storage.object_store import ObjectStore
from storage.retries import requests
from tests.conftest import wet_record

NUM_SPLITS = 8
NUM_SIMILAR = 50

# Reads of records of the parents, which are not estimated: a few per phase and task.
MAX_FIXED = 12

# Phases whose requests are as estimated, within 20 %.
COUNTED = (
    "extract",
    "paragraph_dedup",
    "annotate",
    "fuzzy_candidates",
    "fuzzy_ngrams",
    "fuzzy_clusters",
    "fuzzy_merge",
    "fuzzy_members",
    "fuzzy_member_ngrams",
    "fuzzy_dedup",
    "select",
    "tokenize",
    "write_shards",
)


@pytest.fixture
def config(
    bucket_store: ObjectStore,
    tiny_tokenizer: Path,
    lid_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> RunConfig:
    """A run in the bucket over files there, of which one of a split takes several requests."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    words = (
        np.random.default_rng(0).integers(0, 50_000, (NUM_SPLITS, 700, 25, 20)).astype(str)
    )
    # The first pages of all splits are near-duplicates: one word of each line differs.
    words[:, :NUM_SIMILAR, :, 1:] = words[0, :NUM_SIMILAR, :, 1:]
    for split, texts in enumerate(words):
        records: list[bytes] = []
        for number, lines in enumerate(texts):
            text = "\n".join(" ".join(line) for line in lines)
            records.append(wet_record(f"http://e.org/{number}", text, number=number))
        content = gzip.compress(b"".join(records), 1)
        bucket_store.put(f"input/{split}.warc.wet.gz", content)
    tree: dict[str, Any] = {
        "input": {"files": [f"{bucket_store}/input/*.warc.wet.gz"]},
        "run_dir": f"{bucket_store}/run",
        "paragraph_dedup": {"keep": "keep_first"},
        "annotate": {"language": {"model": str(lid_file)}, "minhash": {"threshold": 0.4}},
        "fuzzy_dedup": {},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(tiny_tokenizer)},
        "engine": {"kind": "inline"},
    }
    return RunConfig.model_validate(tree)


def count_requests(config: RunConfig) -> dict[str, Counter[str]]:
    """Run the config; return phase -> its requests, as if each task ran in another process."""
    counts: dict[str, Counter[str]] = {}
    before = requests.copy()
    for event in run(make_plan(config)):
        if isinstance(event, TaskFinished):
            read_digests.cache_clear()
        if isinstance(event, PhaseFinished):
            counts[event.phase] = requests.copy() - before
            before = requests.copy()
    return counts


def test_a_run_in_a_bucket_sends_the_requests_of_its_estimate(config: RunConfig) -> None:
    """Reads and writes of each phase are within 20 % of the estimate, or a dozen reads."""
    sent = count_requests(config)
    rates = fit([RunFolder.open(config.run_dir)])
    expected = estimate(
        config,
        rates,
        Cluster(nodes=1, cores=1, memory_gb=64),
        num_files=NUM_SPLITS,
        input_bytes=rates.amounts["input"],
    )
    for phase in expected.phases:
        if phase.name in COUNTED:
            gets, puts = sent[phase.name]["get"], sent[phase.name]["put"]
            assert phase.num_gets == pytest.approx(gets, rel=0.2, abs=MAX_FIXED), phase.name
            assert phase.num_puts == pytest.approx(puts, rel=0.2), phase.name
