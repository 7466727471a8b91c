"""The JSON Schema of a config, with which editors complete keys, explain and check them.

The shipped configs name it in their first line, which VS Code, Neovim and IntelliJ read:

    # yaml-language-server: $schema=pipeline.schema.json
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel

from config_files.reader import CONFIGS

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def make_schema(model: type[BaseModel], title: str) -> str:
    """Return the JSON Schema of a settings class, as the text of a file.

    It has names, types, ranges, defaults and descriptions of all keys. Rules between keys are
    checked only when a config is read.
    """
    schema = {"$schema": _DIALECT, **model.model_json_schema(), "title": title}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def locate_schema(name: str) -> Path:
    """Return the file of the shipped schema of `pipeline` or `training` configs."""
    return CONFIGS / f"{name}.schema.json"


def make_schema_line(address: str) -> str:
    """Return the first line of a config whose schema is at a path or URL."""
    return f"# yaml-language-server: $schema={address}\n"
