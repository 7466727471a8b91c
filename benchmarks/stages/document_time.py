"""Measure what the limits on the time of a document cost, and how the time grows with hostile pages.

    python -m benchmarks.stages.document_time               # both tables, about ten minutes
    python -m benchmarks.stages.document_time --documents 500 --tags 2000 --rounds 1 --families 4

Cost: CPU of a whole run in process on HTML pages, with `engine.document_timeout_s` and without, in
turns; the watching process is included. Growth: CPU of the extraction of one page with n, 2n and 4n
tags. The exponent is log2 of the last ratio: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.demo_chain import BYTES_PER_DOCUMENT, load_demo_config
from benchmarks.frame import finish, make_parser, print_table
from pipeline.execution import watchdog
from pipeline.execution.engine import run
from pipeline.planning.plan import make_plan
from stages.html.extraction import Unusable, extract
from stages.settings.warc import HtmlSettings

# CPU time after which the extraction of a page is given up.
GIVEN_UP_S = 30

# Shorter times say nothing about growth: the clock has steps of a few milliseconds.
MEASURABLE_S = 0.01

MODES = {"text": HtmlSettings(), "main content": HtmlSettings(main_content=True)}

# Name -> how the page is made. `{}` is a different number in each repetition.
FAMILIES: dict[str, tuple[str, str]] = {
    "<i a{}>": ("<i a{}=1>", ""),
    "<i a{}><p>": ("<i a{}=1><p>", ""),
    "<p><b a{}>x": ("<p><b a{}>x", ""),
    "<table><b a{}>x": ("<b a{}>x", "<table>"),
    "attribute names": ("<p x{} y{} z{}>", ""),
    "<html a{}>": ("<html a{}=1>", ""),
    "<select><option>": ("<option>x", "<select>"),
    "<div>x": ("<div>x", ""),
    "<article>x": ("<article>x", ""),
    "<rt>": ("<rt>", ""),
    "<ul><li>": ("<ul><li>x", ""),
    "<div><div><p></div>": ("<div><div><p>word</div>", ""),
    "<svg><g></x>": ("<g></x>", "<svg>"),
    "<a><div>": ("<a><div>", ""),
    "<table><tr><td>": ("<table><tr><td>", ""),
    "<tr><td>x": ("<tr><td>x", "<table>"),
    "<p>x": ("<p>x", ""),
    "<span>x</span>": ("<span>x</span>", ""),
    "<b><p>x</b>": ("<b><p>x</b>", ""),
    "&amp;": ("<p>" + "&amp;" * 40, ""),
    "text": ("<p>" + "words of a sentence " * 20, ""),
}


def make_page(family: str, num_tags: int) -> bytes:
    """Return a page of a family with about that many tags."""
    repeated, head = FAMILIES[family]
    times = num_tags // repeated.count("<")
    return (head + "".join(repeated.replace("{}", str(i)) for i in range(times))).encode()


def measure_page(page: bytes, settings: HtmlSettings) -> tuple[float, str]:
    """Return the CPU time to extract a page in another process, and the cause if it is refused."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_extract, args=(page, settings, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:  # killed by the limit
        return math.inf, ""
    finally:
        process.join()


def _extract(page: bytes, settings: HtmlSettings, sender: object) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (GIVEN_UP_S, GIVEN_UP_S))
    started = time.process_time()
    found = extract(page, "text/html; charset=utf-8", settings)
    cause = found.cause if isinstance(found, Unusable) else ""
    sender.send((time.process_time() - started, cause))  # type: ignore[attr-defined]


def measure_growth(num_tags: int, num_families: int) -> list[dict[str, object]]:
    """Return a row per mode of the first families."""
    extract(b"<p>x" * 9_000, "text/html; charset=utf-8", MODES["main content"])  # compile
    rows: list[dict[str, object]] = []
    for family in list(FAMILIES)[:num_families]:
        for mode, settings in MODES.items():
            sizes = (num_tags, 2 * num_tags, 4 * num_tags)
            found = [measure_page(make_page(family, size), settings) for size in sizes]
            seconds = [cpu_s for cpu_s, _ in found]
            is_measured = MEASURABLE_S < seconds[1] < seconds[2] < math.inf
            exponent = math.log2(seconds[2] / seconds[1]) if is_measured else None
            rows.append(
                {
                    "family": family,
                    "mode": mode,
                    "seconds": [round(value, 4) for value in seconds],
                    "exponent": exponent and round(exponent, 2),
                    "refused": found[-1][1],
                }
            )
    return rows


def measure_run(num_documents: int, limit_s: int | None, run_dir: Path) -> float:
    """Return the CPU seconds of a run in this process, with those of the watching process."""
    config = load_demo_config(
        num_documents * BYTES_PER_DOCUMENT / 1e6,
        run_dir,
        "engine.kind=inline",
        "input.sample_crawl.format=warc",
        f"engine.document_timeout_s={'null' if limit_s is None else limit_s}",
        num_files=4,
    )
    plan = make_plan(config)
    started = _read_cpu_s()
    watchdog.enable()
    try:
        for _ in run(plan):
            pass
    finally:
        watchdog.close()
        watchdog.enable(False)
    return _read_cpu_s() - started


def _read_cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure_cost(num_documents: int, rounds: int) -> dict[str, Any]:
    """Return the CPU seconds with and without a limit, and the ratio of each round."""
    with_limit: list[float] = []
    without: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        measure_run(num_documents, None, Path(folder) / "first")  # compile, load models
        for number in range(rounds):
            without.append(measure_run(num_documents, None, Path(folder) / f"a{number}"))
            with_limit.append(measure_run(num_documents, 300, Path(folder) / f"b{number}"))
    ratios = [a / b for a, b in zip(with_limit, without, strict=True)]
    return {
        "documents": num_documents,
        "with_limit_s": with_limit,
        "without_s": without,
        "ratios": ratios,
        "median_ratio": statistics.median(with_limit) / statistics.median(without),
    }


def main() -> None:
    """Measure, print, and save on request."""
    parser = make_parser(__doc__, rounds=5)
    parser.add_argument("--documents", type=int, default=4_000, help="pages of the run")
    parser.add_argument("--tags", type=int, default=6_000, help="tags of the smallest page")
    parser.add_argument(
        "--families",
        type=int,
        default=len(FAMILIES),
        help="kinds of pages that are measured",
    )
    args = parser.parse_args()
    growth = measure_growth(args.tags, args.families)
    rows = [["" if value is None else value for value in row.values()] for row in growth]
    print_table(("family", "mode", "seconds", "exponent", "refused"), rows)
    cost = measure_cost(args.documents, args.rounds)
    print(f"CPU with a limit against without: {cost['median_ratio']:.4f}, by round:")
    print(", ".join(f"{ratio:.3f}" for ratio in cost["ratios"]))
    finish(args, "document_time", {"cost": cost, "growth": growth})


if __name__ == "__main__":
    main()
