"""Hostile strings of the crawl in the output of every command: they are shown, never obeyed."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import yaml

from pipeline.runs.run_folder import RunFolder
from tests.conftest import wet_record
from tests.faults.runs.small_run import start_driver
from tests.pipeline.conftest import Small

# Clipboard, clear screen, C1, bidirectional override, zero width; brackets are markup for rich.
HOSTILE = "\x1b]52;c;x\x1b\\\x1b[2J\x9b2J\u202e\u200b[/red]"

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e]")


def run_each(commands: Sequence[Sequence[str]]) -> None:
    """Run commands one after another. The work of a driver process."""
    for module, *words in commands:
        sys.argv = [f"python -m {module}", *words]
        name = words[0] if "--json" not in words else f"{words[0]} --json"
        print("====", module, name, flush=True)
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            print("==== exit code", end.code, flush=True)


def run_commands(messages: Path, *commands: Sequence[str]) -> dict[str, str]:
    """Run commands (module, verb, words); return "module verb" -> stdout and stderr.

    All run in one process, because starting one takes a second.
    """
    driver = start_driver(run_each, commands, messages=messages)
    driver.join()
    assert driver.exitcode == 0, messages.read_text()
    parts = messages.read_bytes().decode().split("==== ")
    shown: dict[str, str] = {}
    for part, code in zip(parts[1::2], parts[2::2], strict=True):
        name, _, output = part.partition("\n")
        shown[name] = output + code
    return shown


@pytest.fixture
def hostile(small: Small) -> Small:
    """A config whose file name, URLs, titles, texts and languages are hostile."""
    folder = small.folder / f"crawl{HOSTILE.replace('/', '')}"
    folder.mkdir()
    file = folder / f"a{HOSTILE.replace('/', '')}.warc.wet"
    records: list[bytes] = []
    for number in range(4):
        url = f"https://example.org/{number}?{HOSTILE}"
        same = f"the treaty {HOSTILE} was signed by all of them in the museum\n" * 2
        own = f"the treaty {HOSTILE} of page {chr(97 + number) * 9}\n" * 3
        records.append(wet_record(url, f"Title {HOSTILE}\n{same}{own}"))
    broken = f"WARC/1.0\r\nWARC-Type: {HOSTILE}\r\nContent-Length: {HOSTILE}\r\n\r\n"
    file.write_bytes(b"".join(records) + broken.encode())
    labels = {"en": f"en{HOSTILE}", "fr": f"fr{HOSTILE}"}
    small.config(
        input={"files": [str(file)], "max_quarantined_share": 0.0},
        annotate={"language": {**small.tree["annotate"]["language"], "labels": labels}},
        select={"language": {"min_score": 0.0}},
    )
    return small


def test_no_command_prints_a_control_character(hostile: Small) -> None:
    """Every command that shows something of a run, a config or a dataset, errors included."""
    config, run = str(hostile.path), str(hostile.folder / "run")
    missing = str(hostile.folder / f"{HOSTILE}.yaml")
    shown = run_commands(
        hostile.folder / "printed",
        ["pipeline", "plan", config],
        ["pipeline", "run", config],
        ["pipeline", "status", run],
        ["pipeline", "report", run],
        ["pipeline", "report", run, "--json"],
        ["pipeline", "explain", run, "0"],
        ["pipeline", "preview", run, "--set", "select.language.min_score=0.999"],
        ["pipeline", "verify", run],
        ["pipeline", "export", run, str(hostile.folder / f"out{HOSTILE}")],
        ["pipeline", "models", "fetch", HOSTILE],
        ["loader", "inspect", f"{run}/dataset/manifest.json"],
        ["loader", "check", missing],
        ["training", "run", missing],
        ["training", "plan", f"{HOSTILE}"],
    )
    for command, output in shown.items():
        assert FORBIDDEN.findall(output) == [], f"{command}: {output!r}"
        assert "Traceback" not in output, output
    for verb in ("report", "explain", "preview"):
        assert "\\u001b[2J" in shown[f"pipeline {verb}"], shown[f"pipeline {verb}"]
    assert "title 'Title \\x1b]52" in shown["pipeline explain"]
    assert "https://example.org/0?\\u001b]52;c;x\\u001b\\" in shown["pipeline explain"]
    assert "[/red]" in shown["loader inspect"]
    page = (hostile.folder / "run/report.html").read_text()
    assert FORBIDDEN.findall(page) == []
    check_json(hostile, run, shown["pipeline report --json"])


def check_json(hostile: Small, run: str, shown: str) -> None:
    """Check that a reader of the output of `--json` gets the crawl's strings."""
    text = shown.partition("exit code")[0]
    languages = json.loads(text)["languages"]
    labels = yaml.safe_load(hostile.path.read_text())["annotate"]["language"]["labels"]
    assert languages
    assert set(languages) <= set(labels.values())
    assert json.loads(Path(f"{run}/report.json").read_text())["languages"] == languages


def test_a_run_whose_input_is_all_broken_names_no_dataset(small: Small) -> None:
    """It says that the dataset is empty and that all is quarantined, and exits with 3."""
    file = small.folder / "page.warc.gz"
    file.write_bytes(b"<html>404 Not Found</html>" * 100)
    small.config(input={"files": [str(file)]})
    command = ["pipeline", "run", str(small.path)]
    shown = run_commands(small.folder / "printed", command)["pipeline run"]
    assert "The dataset is empty: no document was kept" in shown
    assert "100.00% of the records are quarantined" in shown
    assert "exit code 3" in shown
    assert "verify" not in shown
    assert "manifest.json" not in shown
    assert RunFolder.open(small.folder / "run").dataset.exists("manifest.json")


def test_browse_serves_a_run_until_it_is_interrupted(small: Small) -> None:
    """It prints an address with a random token, answers there, and ends without an error."""
    run, _ = small.run()
    messages = small.folder / "printed"
    command = ("pipeline", "browse", str(run.run_dir))
    driver = start_driver(run_interruptibly, [command], messages=messages)
    address = wait_for_line(
        messages, driver, r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n"
    ).strip()
    with urllib.request.urlopen(f"{address}api/run", timeout=600) as answer:  # noqa: S310
        assert json.load(answer)["run_dir"] == str(run.run_dir)
    assert driver.pid is not None
    os.kill(driver.pid, signal.SIGINT)
    driver.join(600)
    printed = messages.read_text().partition(address)[2]
    assert (driver.exitcode, printed) == (0, "\n==== exit code 0\n")


def run_interruptibly(commands: Sequence[Sequence[str]]) -> None:
    """Run commands in a process that does not ignore SIGINT, as one in background would."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_each(commands)


def wait_for_line(messages: Path, driver: BaseProcess, pattern: str) -> str:
    """Wait until a driver has printed a pattern, and return what matches."""
    while driver.is_alive():
        printed = messages.read_text() if messages.exists() else ""
        if found := re.search(pattern, printed):
            return found[0]
        time.sleep(0.05)
    raise AssertionError(messages.read_text())
