"""Fetch and make the models and the sample crawl of a run, which its plan needs.

Afterwards the run needs no network, except for remote input and a run folder in a bucket.

    prepare(config)
    plan = make_plan(config)        # every fingerprint is known now
"""

from __future__ import annotations

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import locate_sample_crawl, make_sample_crawl
from pipeline.models import registry as model_registry
from pipeline.models.demo.models import DEMO_NAMES
from pipeline.phases import registry
from pipeline.phases.phase import list_model_references
from storage import open_store


def prepare(config: RunConfig) -> None:
    """Fetch and make what is missing.

    Raises:
        AssetError: a model can neither be found nor fetched nor made.
        OSError: the cache cannot be written.
        StorageError: the run folder is in a bucket that cannot be listed.
    """
    # First, because models may take minutes.
    open_store(config.run_dir, config.storage.to_settings()).check()
    for reference in list_references(config):
        model_registry.resolve(reference)
    if config.input.sample_crawl:
        make_sample_crawl(config.input.sample_crawl)


def list_references(config: RunConfig) -> list[str]:
    """Return the models and files that the stages load, each once, in the order of the stages."""
    phases = registry.PHASES
    return list_model_references(
        spec for phase in phases for spec in phase.plan_stages(config)
    )


def describe_demo_models(config: RunConfig) -> str | None:
    """Return a note if models of the demo will score another input than the sample crawl."""
    names = [name for name in list_references(config) if name in DEMO_NAMES]
    if not names or config.input.sample_crawl is not None:
        return None
    return (
        f"Note: {', '.join(names)} are demo models for the sample crawl; their scores of this input "
        f"mean little. Use published models, or your own (docs/recipes.md)."
    )


def is_prepared(config: RunConfig) -> bool:
    """Return whether `prepare` has nothing to do."""
    crawl = config.input.sample_crawl
    if crawl is not None and not locate_sample_crawl(crawl).exists():
        return False
    return all(model_registry.digest(reference) for reference in list_references(config))
