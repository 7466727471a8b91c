"""Write a config for the files of a user: a shipped recipe with another input.

text = make_config(inspect_files(["crawl/"]), "ccnet", "first.yaml")
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

from config_files.editor_schema import locate_schema, make_schema_line
from config_files.reader import CONFIGS, ConfigError
from pipeline.inputs.inspect_files import Inspection

# ccnet.yaml itself makes a sample crawl, and models that suit this crawl alone.
_FILES = {"ccnet": "ccnet-common-crawl.yaml"}

_SECTION = re.compile(r"^(?P<name>[a-z_]+):", re.MULTILINE)

# WARC and ARC files have whole pages. Recipes without this section are written for WET files.
_HTML_SECTION = """\
extract:
  warc:
    html: {main_content: true}      # omit navigation and footers
"""


# Keys of input.text, with their comments.
_COLUMNS = {
    "text": "column of the texts; metadata.text is in an object",
    "url": "null: documents have no URL",
    "id": "stands in for a missing URL",
    "date": "null: not known",
    "title": "null: none",
}


def list_recipes() -> list[str]:
    """Return the names of the recipes."""
    names = [path.stem for path in CONFIGS.glob("*.yaml")]
    return sorted(
        name
        for name in names
        if not name.startswith("train-") and "common-crawl" not in name
    )


def make_config(found: Inspection, recipe: str, file_name: str) -> str:
    """Return the text of a config that reads the files that were found.

    Args:
        found: the files.
        recipe: a name of `list_recipes`, whose other sections are used as they are.
        file_name: of the new config, for the commands in its first lines.

    Raises:
        ConfigError: there is no such recipe.
    """
    if recipe not in list_recipes():
        raise ConfigError(
            [f"--recipe is {recipe!r}, expected one of {', '.join(list_recipes())}"]
        )
    source = CONFIGS / _FILES.get(recipe, f"{recipe}.yaml")
    sections = dict(_split_sections(source.read_text(encoding="utf-8")))
    del sections["run_dir"], sections["input"]
    if found.content == "HTML" and "extract" not in sections:
        sections = {"extract": _HTML_SECTION, **sections}
    texts = [_make_head(found, recipe, file_name), _make_input(found), *sections.values()]
    return "\n".join(f"{text.rstrip()}\n" for text in texts)


def _split_sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each top-level section of a YAML file."""
    starts = list(_SECTION.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    for match, end in zip(starts, ends, strict=True):
        yield match["name"], text[match.start() : end]


def _make_head(found: Inspection, recipe: str, file_name: str) -> str:
    name = shlex.quote(file_name)
    return (
        f"{make_schema_line(str(locate_schema('pipeline')))}"
        f"# {found.summary}, with the recipe {recipe} (docs/recipes.md).\n"
        "#\n"
        f"#   python -m pipeline plan {name}     what a run does, takes and costs\n"
        f"#   python -m pipeline run  {name}\n"
        "#\n"
        "# docs/config.md has every key, and the defaults of those that are not shown.\n"
        "\n"
        "run_dir: runs/{config}            # {config}: name of this file without .yaml\n"
    )


def _make_input(found: Inspection) -> str:
    """Return the section `input`."""
    # A JSON string is a YAML string.
    entries = [json.dumps(entry, ensure_ascii=False) for entry in found.entries]
    limit = (
        "  max_quarantined_share: 0.01     # exit code 3 above this share of broken records"
    )
    files = "files:                          # paths, patterns, folders, addresses"
    if found.columns is None:
        return "\n".join(
            ["input:", f"  {files}", *(f"    - {each}" for each in entries), limit]
        )
    lines = ["input:", "  text:", f"    {files}", *(f"      - {each}" for each in entries)]
    for purpose, comment in _COLUMNS.items():
        name = json.dumps(getattr(found.columns, purpose), ensure_ascii=False)
        lines.append(f"    {purpose + ': ' + name:<30}# {comment}")
    return "\n".join([*lines, limit])
