"""Whole runs of ccnet.yaml with quality bins on a small crawl, and their comparison."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from pipeline.config import RunConfig, load
from pipeline.execution.engine import Event, run
from pipeline.planning.plan import make_plan
from pipeline.planning.prepare import prepare
from pipeline.runs.run_folder import RunFolder
from tests.conftest import REPOSITORY

LANGUAGES = ("en", "fr", "es")
NUM_DOCUMENTS = 900


@dataclass(frozen=True)
class Chain:
    """ccnet.yaml on a small crawl."""

    folder: Path

    def config(self, name: str, *overrides: str) -> RunConfig:
        """Return the config of a run, after preparing its models and its crawl."""
        tree = yaml.safe_load((REPOSITORY / "configs" / "ccnet.yaml").read_text())
        tree["input"] |= {
            "sample_crawl": {
                "documents": NUM_DOCUMENTS,
                "documents_per_file": 300,
                "seed": 5,
                "format": "wet",
            },
            "max_quarantined_share": 0.05,
        }
        tree["annotate"]["minhash"]["threshold"] = (
            0.5  # the edited copies of the crawl are 0.6 to 0.75 like their sources
        )
        tree["select"]["mix"] = {
            "by": "perplexity",
            "bins": [
                {"from_percentile": 0, "num_copies": 0.5},
                {"from_percentile": 40, "num_copies": 1},
                {"from_percentile": 80, "num_copies": 2.5},
            ],
            "budget": {
                "num_tokens": 300_000,
                "max_language_share": {"default": 1, "fr": 0.2},
            },
        }
        tree["write_shards"]["shard_tokens"] = 100_000
        tree["engine"] |= {"kind": "inline", "workers": 2}
        tree["run_dir"] = str(self.folder / "{config}")
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(tree))
        config = load(str(path), overrides)
        prepare(config)
        return config

    def run(self, name: str, *overrides: str) -> tuple[Path, list[Event]]:
        """Run in this process and return the run folder and the events."""
        config = self.config(name, *overrides)
        return Path(config.run_dir), list(run(make_plan(config)))

    def copy(self, run_dir: Path, name: str) -> Path:
        """Return a copy of a finished run, which `run` with this name continues."""
        return Path(shutil.copytree(run_dir, self.folder / name, symlinks=True))

    def command(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        """Start the same run as a process, by the command line."""
        self.config(name)
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pipeline",
                "run",
                str(self.folder / f"{name}.yaml"),
                *arguments,
            ],
            cwd=REPOSITORY,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """ccnet.yaml on a small crawl. Models and crawl are cached."""
    return Chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="session")
def reference_run(chain: Chain) -> Path:
    """An uninterrupted run in one process, with which others are compared."""
    return chain.run("reference")[0]


def digests(run_dir: Path) -> dict[str, str]:
    """Return the digests of all reproducible files: all but logs, locks and reports."""
    folders = [run_dir / name for name in RunFolder.open(run_dir).folders.values()]
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
