"""Read a run's config from a YAML file, and change the stored config of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from config_files.reader import KeyPath, read, reread
from pipeline.config.run import RunConfig
from stages.settings.filters import LanguageSettings
from stages.settings.languages import LID_176, read_labels, suggest_language


def load(path_or_name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and check a config, given its path or the name of a shipped one.

    Args:
        path_or_name: a file, or a name in configs/, with or without .yaml.
        overrides: `key.of.key=value`, applied in order.

    Raises:
        ConfigError: with all errors of the file.
    """
    return read(RunConfig, path_or_name, overrides, _find_faults)


def change(tree: Mapping[str, Any], where: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Change and check the config that a run has stored.

    Models may be missing: their scores are stored.

    Args:
        tree: the stored config.
        where: the place that error messages name.
        overrides: `key.of.key=value`, applied in order.

    Raises:
        ConfigError: with all errors.
    """
    return reread(RunConfig, tree, where, overrides, _find_faults_of_select)


def _find_faults(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    yield from _find_missing_files(config)
    yield from _find_faults_of_select(config)


def _find_faults_of_select(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    yield from _find_missing_cutoffs(config)
    yield from _find_unknown_languages(config)


def _find_missing_files(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield an error for each model or file that is neither registered nor on this disk."""
    # The registry imports the training of language models, which no other part of a config needs.
    from pipeline.models.registry import AssetError, check

    for key, reference in _list_references(config):
        try:
            check(reference)
        except AssetError as error:
            yield key, str(error)


def _list_references(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield key and value of everything that names a model or a file."""
    annotate = config.annotate
    yield ("annotate", "language", "model"), annotate.language.model
    yield ("tokenize", "tokenizer"), config.tokenize.tokenizer
    if annotate.perplexity:
        for language, model in annotate.perplexity.models.items():
            yield ("annotate", "perplexity", "models", language), model
    yield from _list_classifiers(config)
    if config.extract.url:
        from stages.filters.url import Url

        for path in Url.required_files(config.extract.url):
            yield ("extract", "url"), path
    if annotate.decontamination:
        for name, path in annotate.decontamination.sets.items():
            yield ("annotate", "decontamination", "sets", name), path


def _list_classifiers(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield key and value of each model of each classifier."""
    classifiers = config.annotate.classifiers
    for name, classifier in classifiers.by_name.items() if classifiers else ():
        key: KeyPath = ("annotate", "classifiers", name)
        if classifier.model is not None:
            yield (*key, "model"), classifier.model
        for language, model in classifier.models.items():
            yield (*key, "models", language), model


def _find_missing_cutoffs(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield an error if the cutoffs are in a file that does not exist."""
    perplexity = config.select.perplexity
    if perplexity is None or perplexity.cutoffs in ("model", "run"):
        return
    if not Path(perplexity.cutoffs).is_file():
        key = ("select", "perplexity", "cutoffs")
        yield key, "no such file; wanted model, run, or the path of a cutoff.csv"


def _find_unknown_languages(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield an error if the language model has no label for a language to keep."""
    wanted = config.select.language.keep if config.select.language else None
    known = _list_languages(config.annotate.language) if wanted else None
    if not wanted or not known:
        return
    faults: list[str] = []
    for language in wanted:
        if language not in known:
            nearest = suggest_language(language, known)
            hint = (
                f"did you mean {nearest!r}?"
                if nearest
                else f"it has {', '.join(sorted(known))}"
            )
            faults.append(f"{language!r} is no language of the model; {hint}")
    if faults:
        yield ("select", "language", "keep"), "; ".join(faults)


def _list_languages(settings: LanguageSettings) -> frozenset[str] | None:
    """Return the codes that the language model can give, or None if its file is not here."""
    path = Path(settings.model)
    if path.is_file():
        labels = read_labels(path)
    else:
        labels = frozenset(LID_176) if settings.model.startswith("lid.176.") else None
    if labels is None:
        return None
    return frozenset(settings.labels.get(label, label) for label in labels)
