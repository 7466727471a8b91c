"""Configs: which ones load, and the messages for those that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from config_files.reader import ConfigError
from pipeline.config import RunConfig, load
from tests.conftest import REPOSITORY

OPTIONAL_STAGES = [
    ("annotate", "decontamination"),
    ("select", "decontamination"),
    ("extract", "url"),
    ("extract", "unicode"),
    ("annotate", "lines"),
    ("tokenize", "pii"),
]

SHIPPED = sorted(
    path.name
    for path in (REPOSITORY / "configs").glob("*.yaml")
    if not path.name.startswith("train-")
)

MINIMAL = """\
input:
  files: ["*.warc.wet.gz"]
tokenize:
  tokenizer: gpt2-bpe
"""


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


def list_faults(path: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(path, overrides)
    return list(raised.value.faults)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_loads(name: str) -> None:
    """The configs in configs/ are valid, and load by name."""
    assert load(name).run_dir == f"runs/{name.removesuffix('.yaml')}"


# Keys that ccnet.yaml leaves to docs/config.md, because hardly any run sets them.
HIDDEN = {
    "paragraph_dedup.group_splits",
    "tokenize.encoder",
    "tokenize.tiktoken_pattern",
    "engine.advanced",
    "extract.warc.html",
    "extract.warc.advanced",
    "annotate.language.labels",
    "annotate.language.read",
    "annotate.classifiers.wikipedia_reference.model",
    "annotate.classifiers.wikipedia_reference.languages",
    "annotate.classifiers.wikipedia_reference.max_chars",
    "annotate.minhash.recall",
    "annotate.minhash.bands",
    "annotate.minhash.store_ngrams",
    "fuzzy_dedup.threshold",
    "select.classifiers.wikipedia_reference.max",
    "select.classifiers.wikipedia_reference.min",
}


def test_the_default_config_shows_every_common_key() -> None:
    """ccnet.yaml shows every section, every optional stage, and every key but a few named ones."""
    written = yaml.safe_load((REPOSITORY / "configs" / "ccnet.yaml").read_text())
    default = load("ccnet.yaml").model_dump()

    def missing(
        shown: Mapping[str, Any], known: Mapping[str, Any], where: str
    ) -> Iterator[str]:
        for key, value in known.items():
            if key not in shown:
                yield f"{where}{key}"
            elif (
                isinstance(value, dict) and isinstance(shown[key], dict) and key != "models"
            ):
                yield from missing(shown[key], value, f"{where}{key}.")

    sections = (
        "extract",
        "paragraph_dedup",
        "annotate",
        "fuzzy_dedup",
        "select",
        "tokenize",
        "write_shards",
        "engine",
    )
    for section in sections:
        absent = set(missing(written[section], default[section], f"{section}."))
        absent = {key for key in absent if not key.endswith(".length.max_chars")}
        assert absent <= HIDDEN, absent


def test_the_default_config_is_short() -> None:
    """ccnet.yaml fits on two screens, and its lines on one."""
    lines = (REPOSITORY / "configs" / "ccnet.yaml").read_text().splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100


def test_a_minimal_config_has_ccnets_defaults(tmp_path: Path) -> None:
    """Only input and tokenizer are required; all other values are CCNet's."""
    config = load(write(tmp_path, MINIMAL))
    assert config.paragraph_dedup.keep == "drop_all_copies"
    assert config.extract.length is not None
    assert config.extract.length.min_chars == 300
    assert config.select.language is not None
    assert config.select.language.min_score == 0.5


def test_all_faults_are_reported_at_once_with_line_and_nearest_key(tmp_path: Path) -> None:
    """An unknown key, a value out of range and a wrong type are reported together, each with its place."""
    text = (
        MINIMAL
        + "select:\n  language:\n    min_scroe: 0.5\n    min_score: 1.7\nparagraph_dedup:\n  keep: some\n"
    )
    faults = list_faults(write(tmp_path, text))
    assert len(faults) == 3
    assert any(
        "mine.yaml:7: select.language.min_scroe is no known key; did you mean min_score?"
        in f
        for f in faults
    )
    assert any("mine.yaml:8: select.language.min_score is 1.7" in f for f in faults)
    assert any("mine.yaml:10: paragraph_dedup.keep is 'some'" in f for f in faults)


def test_missing_models_and_files_are_reported_at_once(tmp_path: Path) -> None:
    """References that are neither in the registry nor on this disk are faults, with the nearest name."""
    text = (
        MINIMAL.replace("gpt2-bpe", "gpt2-bp")
        + "annotate:\n  language:\n    model: lid.177.ftz\n"
    )
    text += "select:\n  perplexity:\n    cutoffs: nowhere.csv\n"
    faults = list_faults(write(tmp_path, text))
    assert len(faults) == 3
    assert any("tokenize.tokenizer" in f and "gpt2-bpe" in f for f in faults)
    assert any("annotate.language.model" in f and "lid.176.ftz" in f for f in faults)
    assert any("select.perplexity.cutoffs" in f and "no such file" in f for f in faults)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("english", "en"), ("EN", "en"), ("cn", "zh"), ("pt-BR", "pt"), ("zh-Hant", "zh")],
)
def test_languages_that_the_model_does_not_have_are_faults(
    tmp_path: Path, wrong: str, right: str
) -> None:
    """They would drop every document. The nearest code is suggested."""
    path = write(tmp_path, MINIMAL + f"select:\n  language:\n    keep: [fr, {wrong}]\n")
    (fault,) = list_faults(path)
    assert f"mine.yaml:7: select.language.keep is ('fr', {wrong!r}): " in fault
    assert f"{wrong!r} is no language of lid.176.ftz; did you mean {right!r}?" in fault
    load(path, [f"select.language.keep=[fr, {right!r}]"])


def test_one_script_of_several_is_not_all_of_a_language(tmp_path: Path) -> None:
    """Documents of both scripts have the code zh, which lid.176 does not divide."""
    (fault,) = list_faults(write(tmp_path, MINIMAL), "select.language.keep=[zho_Hant]")
    assert fault.endswith("did you mean 'zh'? 'zh' covers all scripts")


def test_codes_of_other_standards_are_understood(tmp_path: Path) -> None:
    """ISO 639-3, labels of GlotLID and old codes mean the same language."""
    codes = "[eng, nob, iw, zho, fra_Latn, als_Latn]"
    config = load(write(tmp_path, MINIMAL), [f"select.language.keep={codes}"])
    assert config.select.language is not None
    assert config.select.language.keep == ("en", "no", "he", "zh", "fr", "sq")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("annotate.perplexity", "{models: {english: lid.176.ftz}}"),
        ("annotate.quality", "{stop_words: {english: words.txt}}"),
        ("annotate.quality", "{bad_words: {english: words.txt}}"),
        ("select.quality", "{languages: [english]}"),
        ("annotate.classifiers.hq", "{label: a, models: {english: lid.176.ftz}}"),
        ("annotate.classifiers.hq", "{label: a, model: lid.176.ftz, languages: [english]}"),
    ],
)
def test_every_key_with_languages_is_checked(tmp_path: Path, key: str, value: str) -> None:
    """A model or list of an unknown language would never be used."""
    needed = ["annotate.quality={}"] if key == "select.quality" else []
    faults = list_faults(write(tmp_path, MINIMAL), *needed, f"{key}={value}")
    (fault,) = [each for each in faults if "is no language of" in each]
    assert fault.startswith(f"--set {key}: {key}.")
    assert "'english' is no language of lid.176.ftz; did you mean 'en'?" in fault


def test_faults_of_limits_by_language_name_key_and_language(tmp_path: Path) -> None:
    """The key is the one of the file, without pydantic's names of a union."""
    path = write(
        tmp_path, MINIMAL + "select:\n  language:\n    min_score: {default: 0.5, de: 2}\n"
    )
    (fault,) = list_faults(path)
    assert "mine.yaml:7: select.language.min_score.de is 2, " in fault
    (fault,) = list_faults(path, "select.language.min_score={default: 0.5, german: 0.6}")
    assert "'german' is no language of lid.176.ftz; did you mean 'de'?" in fault
    (fault,) = list_faults(
        path,
        "select.language.min_score=0.5",
        "select.quality={min_words: {default: 1, qq: 2}}",
    )
    assert (
        "select.quality.min_words is {'default': 1, 'qq': 2}: 'qq' is no language" in fault
    )


def test_the_sample_of_pages_is_stored_and_read_or_neither(tmp_path: Path) -> None:
    """Either half alone has no effect."""
    path = write(tmp_path, MINIMAL)
    stored = "extract.warc.html.page_sample_chars=2000"
    read = "annotate.language.read=page_sample"
    assert load(path, [stored, read]).annotate.language.read == "page_sample"
    for half in (stored, read):
        (fault,) = list_faults(path, half)
        assert "set read to page_sample and page_sample_chars to 2000" in fault


def test_norwegian_without_quotes_is_a_fault_that_names_the_cure(tmp_path: Path) -> None:
    """YAML reads `no` as false."""
    (fault,) = list_faults(write(tmp_path, MINIMAL), "select.language.keep=[no, fr]")
    assert "write 'no' in quotes" in fault


def test_languages_of_renamed_labels_are_known(tmp_path: Path) -> None:
    """`annotate.language.labels` adds the new codes and removes the old ones."""
    path = write(tmp_path, MINIMAL)
    renamed = "annotate.language.labels={en: anglais}"
    load(path, [renamed, "select.language.keep=[anglais, fr]"])
    (fault,) = list_faults(path, renamed, "select.language.keep=[en]")
    assert "--set select.language.keep" in fault
    assert "'en' is no language of lid.176.ftz" in fault


def test_a_key_given_twice_is_a_fault(tmp_path: Path) -> None:
    """YAML would use the last value without a message."""
    (fault,) = list_faults(write(tmp_path, MINIMAL + "tokenize:\n  tokenizer: other\n"))
    assert "'tokenize' is given twice" in fault


BOMB = "\n".join(
    ["a0: &a0 {x: 1, y: 1}"]
    + [
        f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}"
        for i in range(1, 15)
    ]
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("input: 2026-02-31", ":1: cannot be read as YAML: day is out of range"),
        (f"\ninput: {'9' * 5000}", ":2: cannot be read as YAML: Exceeds the limit"),
        ("a: &a {b: *a}", ": a.b.b... is nested deeper than 32 keys"),
        ("a: " + "{a: " * 5000 + "1" + "}" * 5000, "nested deeper than 32 keys"),
        ("\n".join(" " * i + "a:" for i in range(3000)), "nested deeper than 32 keys"),
        (BOMB, "has more than 200,000 keys and list items"),
        ("? [a, b]\n: 1", ":1: cannot be read as YAML: a key is no word"),
        ("a: [1,\n", "cannot be read as YAML: "),
        ("input: \0", "cannot be read as YAML: unacceptable character"),
        ("run_dir: runs/{date}\n" + MINIMAL, ":1: run_dir is 'runs/{date}': has {"),
        ("run_dir: runs/{config:>300000000}\n" + MINIMAL, ":1: run_dir is"),
        (
            'run_dir: "runs/\\0a"\n' + MINIMAL,
            ":1: cannot be read as YAML: 'runs/\\x00a' has",
        ),
        (f"run_dir: {'a' * 300}\n" + MINIMAL, "a name of more than 255 bytes"),
        (f"run_dir: {'a/' * 3000}\n" + MINIMAL, "has more than 3896 bytes"),
        (f"input: {'9' * 4000}", ":1: cannot be read as YAML: a number has more than 64"),
        (f"input: 0x{'f' * 9000}", ":1: cannot be read as YAML: a number has more than 64"),
        (f"input: 1{':59' * 9000}.5", ":1: cannot be read as YAML: '1:59"),
        ("input: !!int ''", ":1: cannot be read as YAML: '' is no int"),
        ("input: !!bool maybe", ":1: cannot be read as YAML: 'maybe' is no bool"),
        ("input: !!timestamp x", ":1: cannot be read as YAML: 'x' is no timestamp"),
        ('\ninput: "a\\0b"', r":2: cannot be read as YAML: 'a\x00b' has a NUL"),
        ('\ninput: "\\ud800"', ":2: cannot be read as YAML: '\\ud800' has half of a"),
    ],
)
def test_every_hostile_config_is_one_short_line(
    tmp_path: Path, text: str, fault: str
) -> None:
    """With the line, if the text can be parsed that far."""
    (found,) = list_faults(write(tmp_path, text))
    assert fault in found
    assert "\n" not in found
    assert len(found) < len(str(tmp_path)) + 500


def test_of_thousands_of_faults_the_first_are_printed(tmp_path: Path) -> None:
    """And the number of the others."""
    keys = "".join(f"key{number}: 1\n" for number in range(3000))
    found = list_faults(write(tmp_path, MINIMAL + keys))
    assert len(found) == 51
    assert found[-1].endswith("2,950 more faults")


def test_names_that_are_too_long_for_a_file_are_names_of_no_file(tmp_path: Path) -> None:
    """Of a config and of a model."""
    name = "a" * 5000
    assert "no such file" in list_faults(name)[0]
    path = write(tmp_path, f"{MINIMAL}annotate: {{language: {{model: {name}}}}}")
    assert any("nor a path on this machine" in fault for fault in list_faults(path))


def test_overrides_reach_any_key_and_their_faults_name_them(tmp_path: Path) -> None:
    """--set is checked as the file is, and a fault names the option instead of a line."""
    path = write(tmp_path, MINIMAL)
    config = load(
        path,
        ["select.language.min_score=0.65", "annotate.quality={}", "run_dir=/data/{config}"],
    )
    assert config.select.language is not None
    assert config.select.language.min_score == 0.65
    assert config.annotate.quality is not None
    assert config.run_dir == "/data/mine"
    (fault,) = list_faults(path, "select.language.min_score=high")
    assert fault.startswith(
        "--set select.language.min_score: select.language.min_score is 'high'"
    )
    (fault,) = list_faults(path, "select.language")
    assert "wanted key.of.key=value" in fault


def test_exactly_one_input_is_wanted(tmp_path: Path) -> None:
    """Two kinds of input, or none, are refused."""
    (fault,) = list_faults(write(tmp_path, MINIMAL), "input.sample_crawl={documents: 200}")
    assert (
        "exactly one of sample_crawl, files, text, common_crawl; found sample_crawl, files"
        in fault
    )


def test_an_unknown_config_lists_those_there_are() -> None:
    """A misspelt name is answered with the nearest."""
    (fault,) = list_faults("ccnett.yaml")
    assert "did you mean ccnet.yaml?" in fault


def test_optional_stages_are_off_by_default() -> None:
    """ccnet.yaml runs CCNet's stages alone."""
    config = load("ccnet.yaml")
    for section, stage in OPTIONAL_STAGES:
        assert getattr(getattr(config, section), stage) is None
    assert config.annotate.classifiers is not None
    assert config.select.classifiers is not None
    assert [*config.annotate.classifiers.by_name] == ["wikipedia_reference"]
    assert [*config.select.classifiers.limits] == ["wikipedia_reference"]


def test_classifiers_are_off_by_default(tmp_path: Path) -> None:
    """A config that names no classifier has none."""
    config = load(write(tmp_path, MINIMAL))
    assert config.annotate.classifiers is None
    assert config.select.classifiers is None


def test_fuzzy_dedup_has_one_of_three_rules_or_none(tmp_path: Path) -> None:
    """Other words are refused."""
    path = write(tmp_path, MINIMAL)
    for value in ("null", "jaccard"):
        dedup = load(path, ["annotate.minhash={}", f"fuzzy_dedup={{rule: {value}}}"])
        assert dedup.fuzzy_dedup is not None
        assert dedup.fuzzy_dedup.rule == (None if value == "null" else value)
    for value in ("true", "off", "none"):
        (fault,) = list_faults(path, f"fuzzy_dedup={{rule: {value}}}")
        assert "fuzzy_dedup.rule" in fault


def test_limits_of_unknown_evaluation_sets_are_faults(tmp_path: Path) -> None:
    """A rule without scores and a set whose file is missing are faults too."""
    path = write(tmp_path, MINIMAL)
    (fault,) = list_faults(path, "select.decontamination={}")
    assert "annotate.decontamination is null" in fault
    (fault,) = list_faults(
        path,
        f"annotate.decontamination={{sets: {{a: {path}}}}}",
        "select.decontamination={max_share: {b: 0.1}}",
    )
    assert "max_share names b; the sets of annotate.decontamination are a" in fault
    faults = list_faults(
        path,
        "annotate.decontamination={sets: {a: no.jsonl}}",
        "extract.url={domains: [no/list]}",
    )
    assert [
        "'no.jsonl' is neither" in fault or "'no/list' is neither" in fault
        for fault in faults
    ] == [True, True]


def test_sections_with_names_chosen_by_the_user_are_checked(tmp_path: Path) -> None:
    """Errors name the nearest key, the place of a missing model, and the known classifiers."""
    text = (
        MINIMAL
        + "annotate:\n  classifiers:\n    hq: {modle: no.bin, model: no.bin, label: __label__hq}\n"
    )
    (fault,) = list_faults(write(tmp_path, text))
    assert (
        "mine.yaml:7: annotate.classifiers.hq.modle is no known key; did you mean model?"
        in fault
    )
    path = write(tmp_path, text.replace("modle: no.bin, ", ""))
    (fault,) = list_faults(path)
    assert "annotate.classifiers.hq.model is 'no.bin': 'no.bin' is neither" in fault
    (fault,) = list_faults(path, "select.classifiers={toxic: {max: 0.5}}")
    assert "select.classifiers names toxic; annotate.classifiers has hq" in fault


def test_every_key_is_described() -> None:
    """Each field of each section has a description: the config reference is made of them."""

    def check(model: type, where: str) -> None:
        for name, info in model.model_fields.items():  # type: ignore[attr-defined]
            assert info.description, f"{where}{name} has no description"
            if hasattr(info.annotation, "model_fields"):
                check(info.annotation, f"{where}{name}.")

    check(RunConfig, "")


def test_reading_a_config_loads_no_heavy_module(tmp_path: Path) -> None:
    """`import pipeline.config` loads fewer than 20 of our modules, and neither Arrow nor numba nor numpy."""
    code = (
        "import sys, pipeline.config\n"
        "packages = ('pipeline', 'stages', 'storage', 'config_files')\n"
        "print(sum(name.split('.')[0] in packages for name in sys.modules))\n"
        "print([name for name in ('numba', 'numpy', 'pyarrow', 'ray') if name in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    num_modules, heavy = ended.stdout.splitlines()
    assert int(num_modules) < 20
    assert heavy == "[]"
