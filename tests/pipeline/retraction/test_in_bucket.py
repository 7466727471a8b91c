"""A run in a bucket is retracted and rewritten like one on a disk."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from pipeline.execution.engine import run as run_plan
from pipeline.planning.plan import make_plan
from pipeline.retraction import retract
from pipeline.retraction.apply import find_unretracted
from pipeline.retraction.request import make_request
from pipeline.retraction.rewrite import rewrite
from pipeline.runs.run_folder import RunFolder
from shardwriter.verification.dataset import verify_folder
from tests.pipeline.conftest import Small
from tests.pipeline.retraction.test_retract import IGNORED, WHY, read_rows
from tests.seaweed import BUCKET


@pytest.mark.usefixtures("seaweed_in_environment")
def test_a_run_in_a_bucket_is_retracted(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader gives the rows that it gives for the same run on a disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(small.folder / "cache"))
    on_disk, _ = small.run()
    address = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    config = small.config().model_copy(update={"run_dir": address})
    list(run_plan(make_plan(config)))
    in_bucket = RunFolder.open(address)
    request = make_request(["example.org/1"], [])
    num_docs = [retract(run, request, **WHY).num_docs for run in (on_disk, in_bucket)]
    assert num_docs == [1, 1]
    wanted = read_rows(on_disk)
    assert (wanted["labels"] == IGNORED).any()
    for _ in range(2):
        found = read_rows(in_bucket)
        for name, rows in wanted.items():
            assert np.array_equal(found[name], rows)
        rewritten = rewrite(in_bucket)
    assert (rewritten.shards, rewritten.num_files) == ((), 0)
    assert find_unretracted(in_bucket) == []
    assert verify_folder(in_bucket.dataset) == []
