"""The config that the benchmarks measure: configs/ccnet.yaml on a sample crawl of a given size.

    config = load_demo_config(100, run_dir)

The crawl has 100 MB of text in 8 files. It and the models are created once, in the cache.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.config import RunConfig, load
from pipeline.planning.prepare import prepare

# Uncompressed bytes per document of the sample crawl's WET files, with the headers of the
# records.
BYTES_PER_DOCUMENT = 3_800

# Enough that every file has every kind of page.
MIN_DOCUMENTS_PER_FILE = 100

# Of a crawl with less text than that many full files.
MIN_FILES = 2

SHARD_TOKENS = 5_000_000


def load_demo_config(
    megabytes: float, run_dir: Path | str, *overrides: str, num_files: int = 8
) -> RunConfig:
    """Return ccnet.yaml for a crawl of about that size; create the models and the crawl where they are missing.

    Args:
        megabytes: uncompressed WET text.
        run_dir: the run folder, a path or the URL of a bucket.
        overrides: further settings, `key=value`.
        num_files: WET files of the crawl; fewer if they would have too few documents.
    """
    num_docs = round(megabytes * 1e6 / BYTES_PER_DOCUMENT)
    num_docs = max(MIN_DOCUMENTS_PER_FILE * min(num_files, MIN_FILES), num_docs)
    num_files = min(num_files, num_docs // MIN_DOCUMENTS_PER_FILE)
    settings = [
        f"input.sample_crawl.documents={num_docs}",
        f"input.sample_crawl.documents_per_file={-(-num_docs // num_files)}",
        f"write_shards.shard_tokens={SHARD_TOKENS}",
        f"run_dir={run_dir}",
        *overrides,
    ]
    config = load("ccnet", settings)
    prepare(config)
    return config
