"""Fetches and makes what a run needs before it can be planned in full: models, texts, the sample crawl.

Promises: a bucket that cannot be reached is told before anything is made; afterwards every model of the config lies in
the user's cache and the sample crawl is whole; what is there already costs nothing. Once it has run, a run needs no
network (but for remote input, and a run folder in a bucket).
Leaves to others: how a model is fetched or trained (assets.py), how the crawl is made (sample_crawl.py).

    prepare(config, say=print)
    plan = make_plan(config)        # every fingerprint is known now
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.config import RunConfig
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.planning.input_splits import locate_sample_crawl, make_sample_crawl
from storage import open_store

Say = Callable[[str], None]


def prepare(config: RunConfig, say: Say) -> None:
    """Make everything ready.

    Raises:
        AssetError: a model can neither be found nor fetched nor made.
        OSError: the cache cannot be written.
        StorageError: the run folder lies in a bucket that cannot be listed.
    """
    open_store(config.run_dir, config.storage.to_settings()).check()
    for reference in references(config):
        model_registry.resolve(reference)
    if config.input.sample_crawl:
        make_sample_crawl(config.input.sample_crawl, say)


def references(config: RunConfig) -> list[str]:
    """Every model and file that the config's stages load, each once, in the order of the chain."""
    found: dict[str, None] = {}
    for phase in registry.PHASES:
        for spec in phase.plan_stages(config):
            found |= dict.fromkeys(spec.stage.required_files(spec.settings))
    return list(found)


def is_prepared(config: RunConfig) -> bool:
    """Whether `prepare` would have nothing to do."""
    crawl = config.input.sample_crawl
    return all(model_registry.digest(r) for r in references(config)) and (
        crawl is None or locate_sample_crawl(crawl).exists()
    )
