"""The fork server has the modules of the test that uses it, and no others."""

from __future__ import annotations

import multiprocessing
import sys

from tests.fork_server import Preload


def exit_with_count(*modules: str) -> None:
    """End with the number of these modules that were imported before this process began."""
    sys.exit(sum(module in sys.modules for module in modules))


def switch_between_servers() -> None:
    one, other = Preload("colorsys"), Preload("quopri", "nturl2path")
    for preload, wanted in ((one, 1), (one, 1), (other, 2), (one, 1)):
        process = preload.start_process(exit_with_count, "colorsys", "quopri", "nturl2path")
        process.join()
        assert process.exitcode == wanted


def test_a_process_has_only_the_modules_of_its_server() -> None:
    """One server for the trainer and the pipeline compiled all kernels before it forked a rank."""
    process = multiprocessing.get_context("spawn").Process(target=switch_between_servers)
    process.start()
    process.join()
    assert process.exitcode == 0
