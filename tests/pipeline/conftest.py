"""A small whole run that needs no network: a few pages through all phases, with tiny models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import RunConfig, load
from pipeline.execution.engine import Event, PhaseFinished, run
from pipeline.execution.inline import Engine
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.runs.run_folder import RunFolder
from tests.stages.examples import tiny_lid


@dataclass(frozen=True)
class Small:
    """A config on disk, and runs of it in this process."""

    folder: Path
    tree: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """The config."""
        return self.folder / "small.yaml"

    def config(self, run_name: str = "run", **sections: Any) -> RunConfig:
        """Return the config with these keys of its sections, or these values, replaced."""
        changed = {
            name: {**self.tree.get(name, {}), **keys} if isinstance(keys, Mapping) else keys
            for name, keys in sections.items()
        }
        self.path.write_text(
            yaml.safe_dump({**self.tree, **changed, "run_dir": str(self.folder / run_name)})
        )
        return load(str(self.path))

    def plan(self, run_name: str = "run", **sections: Any) -> RunPlan:
        """Return the plan of that config."""
        return make_plan(self.config(run_name, **sections))

    def run(self, run_name: str = "run", **sections: Any) -> tuple[RunFolder, list[Event]]:
        """Run that config and return the run folder and the events."""
        events = list(run(self.plan(run_name, **sections)))
        return RunFolder.open(self.folder / run_name), events


def run_until(plan: RunPlan, phase: str, engine: Engine | None = None) -> Iterator[Event]:
    """Run a plan until a phase has finished, and yield the events."""
    for event in run(plan, engine):
        yield event
        if isinstance(event, PhaseFinished) and event.phase == phase:
            break


@pytest.fixture(scope="session")
def lid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny language model."""
    return tiny_lid(tmp_path_factory.mktemp("lid") / "lid.bin")


def make_small(folder: Path, tokenizer: Path, lid_file: Path) -> Small:
    """Return the smallest run: every phase, tiny models and all languages. Its input is missing."""
    return Small(
        folder,
        {
            "extract": {"length": {"min_chars": 10}},
            "paragraph_dedup": {"keep": "keep_first"},
            "annotate": {"language": {"model": str(lid_file)}},
            "select": {"language": None},
            "tokenize": {"tokenizer": str(tokenizer)},
            "engine": {"kind": "inline"},
        },
    )


@pytest.fixture
def small(
    tmp_path: Path,
    tiny_tokenizer: Path,
    lid_file: Path,
    wet_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Small:
    """The smallest run over one file, with an empty cache."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    made = make_small(tmp_path, tiny_tokenizer, lid_file)
    return replace(made, tree={"input": {"files": [str(wet_file)]}, **made.tree})
