"""--json, --quiet and --verbose of all commands, and NO_COLOR."""

from __future__ import annotations

import gc
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pipeline import cli
from pipeline.runs.run_folder import RunFolder
from pipeline.terminal import WRONG_USAGE
from tests.conftest import REPOSITORY
from tests.pipeline.conftest import Small
from tests.processes import run_command

OPTIONS = {"--json", "--quiet", "--verbose"}

# webdataset leaves shards open
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def list_commands(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Yield each command with its options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, *names, name)
        else:
            yield (*names, name), {word for p in command.params for word in p.opts}


def invoke(*words: object) -> Any:
    """Run a command in this process."""
    result = CliRunner().invoke(cli.app, list(map(str, words)))
    gc.collect()
    return result


@pytest.fixture
def found(small: Small) -> RunFolder:
    return small.run()[0]


def test_every_command_has_the_options() -> None:
    """Those of groups too."""
    commands = dict(list_commands(get_command(cli.make_program())))
    assert len(commands) > 15
    assert ("models", "train", "lm") in commands
    missing = [name for name, options in commands.items() if not options >= OPTIONS]
    assert missing == []


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["status", "RUN"], "state"),
        (["report", "RUN"], "steps"),
        (["explain", "RUN", "0"], None),
        (["samples", "RUN", "-n", "1"], "decision"),
        (["diff", "RUN", "RUN"], "num_changed"),
        (["plan", "CONFIG"], "num_files"),
        (["plan", "CONFIG", "--preflight"], "num_files"),
        (["verify", "RUN"], "faults"),
        (["export", "RUN", "--to", "OUT"], "files"),
        (["models", "list"], "models"),
        (["schema"], "properties"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
def test_the_answer_is_the_only_text_on_stdout(
    small: Small, found: RunFolder, words: list[str], key: str | None
) -> None:
    """It is JSON, also if messages are printed; as text it is the same answer."""
    places = {
        "RUN": str(found.run_dir),
        "CONFIG": str(small.path),
        "OUT": str(small.folder / "out"),
    }
    words = [places.get(word, word) for word in words]
    result = invoke(*words, "--json")
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    assert key is None or key in value
    if "--to" not in words:
        as_text = invoke(*words, "--quiet")
        assert as_text.exit_code == 0
        assert as_text.stdout
        assert as_text.stdout != result.stdout or words == ["schema"]


def test_models_are_listed_with_licences() -> None:
    """As JSON for programs that collect notices."""
    models = json.loads(invoke("models", "list", "--json").stdout)["models"]
    (lid,) = [model for model in models if model["name"] == "lid.176.ftz"]
    assert lid["licence"].startswith("CC BY-SA")


def test_an_error_leaves_stdout_empty(tmp_path: Path) -> None:
    """The message is on stderr, with --json too; --verbose adds the traceback."""
    done = run_command("status", str(tmp_path), "--json")
    assert (done.returncode, done.stdout) == (WRONG_USAGE, "")
    assert "no run here" in done.stderr
    assert "Traceback" not in done.stderr
    done = run_command("status", str(tmp_path), "--verbose")
    assert done.returncode == WRONG_USAGE
    assert "Traceback" in done.stderr
    assert "RunNotFound" in done.stderr


def test_a_run_answers_with_its_dataset_and_report(small: Small) -> None:
    """Progress is on stderr; with --verbose, each event has a line with its time."""
    small.config()
    done = run_command("run", str(small.path), "--json", "--verbose")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["run_dir"] == str(small.folder / "run")
    assert answer["dataset"].endswith("/dataset/manifest.json")
    assert answer["report"]["num_tokens"] > 0
    assert answer["faults"] == []
    assert answer["num_tasks"] > 3
    assert "extract: 1 task" in done.stderr
    assert '"event": "TaskFinished"' in done.stderr
    assert "pipeline.runs.event_log: event:" in done.stderr


@pytest.mark.parametrize("is_off", [False, True], ids=["colours", "no-colour"])
def test_no_color_is_honoured(tmp_path: Path, is_off: bool) -> None:
    """On a terminal, an error is red unless NO_COLOR is set (no-color.org)."""
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    if is_off:
        environment["NO_COLOR"] = "1"
    terminal, other_end = pty.openpty()
    command = [sys.executable, "-m", "pipeline", "status", str(tmp_path)]
    subprocess.run(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=other_end,
        check=False,
    )
    os.close(other_end)
    printed = os.read(terminal, 65536)
    os.close(terminal)
    assert b"no run here" in printed
    assert (b"\x1b[31m" in printed) != is_off
