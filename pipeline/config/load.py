"""Read a run's config from a YAML file, and change the stored config of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from config_files.reader import KeyPath, read, reread
from pipeline.config.run import RunConfig
from stages.settings.base import list_named_languages
from stages.settings.languages import LID_176, convert_label, read_labels, suggest_language
from stages.settings.quality import QualityFilterSettings


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
    yield from find_unknown_languages(config)


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
    cutoffs = perplexity.cutoffs if perplexity else "run"
    if isinstance(cutoffs, str) and not (
        cutoffs in ("model", "run") or Path(cutoffs).is_file()
    ):
        key = ("select", "perplexity", "cutoffs")
        yield key, "no such file; wanted model, run, or the path of a cutoff.csv"


def find_unknown_languages(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Yield an error for each key with a language for which the language model has no label.

    Nothing is found before the model is on this machine, except for lid.176.
    """
    settings = config.annotate.language
    labels = _list_labels(settings.model)
    if labels is None:
        return
    known = frozenset(map(settings.find_code, labels))
    for key, languages in _list_languages(config):
        faults: list[str] = []
        for language in languages:
            if language not in known:
                hint = _suggest_language(language, known, labels)
                faults.append(f"{language!r} is no language of {settings.model}; {hint}")
        if faults:
            yield key, "; ".join(faults)


def _suggest_language(wrong: str, known: Collection[str], labels: Collection[str]) -> str:
    nearest = suggest_language(wrong, known)
    if nearest is None:
        return f"it has {', '.join(sorted(known))}"
    hint = f"did you mean {nearest!r}?"
    if wrong.startswith(f"{nearest}-"):
        hint += f" {nearest!r} covers all scripts"
        scripts = sorted(each for each in labels if convert_label(each) == nearest)
        if len(scripts) > 1:
            hint += f"; annotate.language.labels can rename {' or '.join(scripts)}"
    return hint


def _list_languages(config: RunConfig) -> Iterator[tuple[KeyPath, Collection[str]]]:
    """Yield the keys that name languages, with the languages."""
    annotate, select = config.annotate, config.select
    if select.language and select.language.keep:
        yield ("select", "language", "keep"), select.language.keep
    yield from _list_limits(config)
    # A default applies to the languages that the model has.
    if select.quality and select.quality.languages != QualityFilterSettings().languages:
        yield ("select", "quality", "languages"), select.quality.languages or ()
    if annotate.perplexity:
        yield ("annotate", "perplexity", "models"), annotate.perplexity.models
    if annotate.quality:
        yield ("annotate", "quality", "stop_words"), annotate.quality.stop_words
        yield ("annotate", "quality", "bad_words"), annotate.quality.bad_words
    classifiers = annotate.classifiers
    for name, classifier in classifiers.by_name.items() if classifiers else ():
        yield ("annotate", "classifiers", name, "models"), classifier.models
        yield ("annotate", "classifiers", name, "languages"), classifier.languages or ()


def _list_limits(config: RunConfig) -> Iterator[tuple[KeyPath, Collection[str]]]:
    """Yield the limits of select that differ by language, with the languages."""
    language, quality = config.select.language, config.select.quality
    if language:
        key = ("select", "language", "min_score")
        yield key, list_named_languages(language.min_score)
    for name, limit in quality or ():
        if name != "languages":
            yield ("select", "quality", name), list_named_languages(limit)


def _list_labels(model: str) -> frozenset[str] | None:
    """Return the labels of a language model, or None if it is not on this machine."""
    from pipeline.models.registry import AssetError, resolve, status

    if model.startswith("lid.176."):
        return frozenset(LID_176)
    try:
        return read_labels(resolve(model)) if status(model) == "cached" else None
    except (AssetError, OSError):
        return None  # reported as a missing file, or by the check before a run
