"""Fetches and makes what a run needs before it can be planned in full: models, texts, the sample crawl.

Promises: afterwards every model of the config lies in the user's cache and the sample crawl is whole; what is there
already costs nothing. Once it has run, a run needs no network (but for remote input).
Leaves to others: how a model is fetched or trained (assets.py), how the crawl is made (sample_crawl.py).

    prepare(config, say=print)
    plan = make_plan(config)        # every fingerprint is known now
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline import assets
from pipeline.config import RunConfig, SampleCrawl
from pipeline.inputs import sample_crawl_folder
from pipeline.plan import CHAIN, stages_of

Say = Callable[[str], None]


def prepare(config: RunConfig, say: Say) -> None:
    """Make everything ready.

    Raises:
        AssetError: a model can neither be found nor fetched nor made.
        OSError: the cache cannot be written.
    """
    for reference in references(config):
        assets.resolve(reference, say=say)
    if config.input.sample_crawl:
        _make_sample_crawl(config.input.sample_crawl, say)


def references(config: RunConfig) -> list[str]:
    """Every model and file that the config's stages load, each once, in the order of the chain."""
    specs = [spec for phase in CHAIN for spec in stages_of(phase, config)]
    return list(dict.fromkeys(reference for spec in specs for reference in spec.stage.files_of(spec.settings)))


def is_prepared(config: RunConfig) -> bool:
    """Whether `prepare` would have nothing to do."""
    crawl = config.input.sample_crawl
    return all(assets.digest(r) for r in references(config)) and (crawl is None or sample_crawl_folder(crawl).exists())


def _make_sample_crawl(crawl: SampleCrawl, say: Say) -> None:
    from pipeline.sample_crawl import generate

    folder = sample_crawl_folder(crawl)
    if not folder.exists():
        say(f"making a sample crawl of {crawl.documents:,} pages in {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        generate(
            folder,
            num_documents=crawl.documents,
            seed=crawl.seed,
            format=crawl.format,
            documents_per_file=crawl.documents_per_file,
            say=say,
        )
