"""The demo's chain (configs/ccnet.yaml) on a sample crawl of a given size: what the benchmarks measure.

    config = demo_config(100, run_dir)

gives 100 MB of text in 8 files, made once into the cache, and the models beside it.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config import RunConfig, load
from pipeline.planning.prepare import prepare

BYTES_PER_DOCUMENT = 3_800
"""Of the sample crawl's WET files, uncompressed, records' headers included."""

MIN_DOCUMENTS = 800
"""Of the smallest crawl measured: room for every kind of page in each of its files."""

SHARD_TOKENS = 5_000_000


def demo_config(megabytes: float, run_dir: Path, *overrides: str, num_files: int = 8) -> RunConfig:
    """ccnet.yaml with a crawl of about `megabytes`; models and crawl are made where they are missing."""
    documents = max(MIN_DOCUMENTS, round(megabytes * 1e6 / BYTES_PER_DOCUMENT))
    config = load(
        "ccnet",
        [
            f"input.sample_crawl.documents={documents}",
            f"input.sample_crawl.documents_per_file={-(-documents // num_files)}",
            f"write_shards.shard_tokens={SHARD_TOKENS}",
            f"run_dir={run_dir}",
            *overrides,
        ],
    )
    prepare(config)
    return config
