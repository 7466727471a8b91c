"""Compare other programs with this project: the same pages, the same models, in turns on one core.

    python -m benchmarks.peers.run --work FOLDER --rounds 3 [--compiling] [--save]
    python -m benchmarks.peers.run --work FOLDER --chains ccnet --scale 4
    python -m benchmarks.peers.run --work FOLDER --chains ccnet --files crawl.warc.wet.gz
    python -m benchmarks.peers.run --work FOLDER --chains html --files crawl.warc.gz

FOLDER keeps the packages and pages; the environments of the peers are in the user's cache. The first
run makes both and takes long. CPU seconds are user and system time of a program with all processes
that it starts and waits for, from its start to its end. Figures are medians over rounds. Our kernels
are compiled before; `--compiling` measures this, too. A program that cannot be
installed or fails is reported with its error, and the others go on.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.frame import make_parser, print_table
from benchmarks.peers.bare_calls import ALL_CALLS, ALL_CALLS_WORK, CCNET_LIBRARIES
from benchmarks.peers.chart import draw_bars
from benchmarks.peers.entrants import ENTRANTS, Entrant
from benchmarks.peers.inputs import EVERY, PageSource
from benchmarks.peers.pages import COUNTS
from benchmarks.peers.task import Decisions, Task
from benchmarks.quality.peer_environment import prepare_environment
from benchmarks.result_file import REPOSITORY, save
from pipeline.models import registry

# Languages of the pages for which the demo has a language model.
LANGUAGES = ("en", "es", "fr")

# Perplexities are stored with one decimal; rounding may differ in it.
PERPLEXITY_TOLERANCE = 0.1001

REQUIREMENTS = Path(__file__).with_name("requirements")
OURS = "corpusmill", "engine trafilatura", "blocks"


class PeerError(Exception):
    """A program that cannot be installed, or that failed; the message has its last output."""


def prepare_models(folder: Path) -> Path:
    """Return a folder with links to the models, under the names that cc_net wants."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"lid.bin": registry.resolve("lid.176.ftz")}
    for language in LANGUAGES:
        model = registry.resolve(f"demo-lm-{language}")
        for name in (f"{language}.sp.model", f"{language}.arpa.bin"):
            files[name] = model / name
    for name, target in files.items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    return folder


def find_python(entrant: Entrant) -> Path:
    """Return the Python of an entrant's environment; make the environment if it is missing.

    Raises:
        PeerError: if its packages cannot be installed.
    """
    if entrant.requirements is None:
        return Path(sys.executable)
    try:
        requirements = REQUIREMENTS / f"{entrant.requirements}.txt"
        return prepare_environment(requirements, with_dependencies=False)
    except subprocess.CalledProcessError as error:
        raise PeerError(f"cannot be installed: {_shorten(error.stderr or '')}") from error


def run_entrant(
    entrant: Entrant, python: Path, task: Task, environment: dict[str, str] | None = None
) -> dict[str, float]:
    """Run an entrant in an empty folder and return its CPU and wall seconds.

    Raises:
        PeerError: if it fails.
    """
    shutil.rmtree(task.output, ignore_errors=True)
    task.output.mkdir(parents=True)
    places = [task.pages, task.models, task.output]
    command = [
        python,
        "-m",
        "benchmarks.peers.entrants",
        entrant.chain,
        entrant.name,
        *places,
    ]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | (environment or {})
    # With it, each run would compile the modules that were installed without bytecode, ours for 0.3
    # seconds: no user waits for that twice.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    log = task.output / "log.txt"
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, cwd=task.output, stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise PeerError(f"exit code {process.returncode}: {_shorten(log.read_text())}")
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "wall_s": wall_s}


def _shorten(output: str) -> str:
    return " ".join(output.strip().splitlines()[-3:])[-500:]


def compare_decisions(ours: Decisions, theirs: Decisions) -> dict[str, int]:
    """Return how many pages both keep, and for how many of these the decisions are equal."""
    both = ours.keys() & theirs.keys()
    pairs = [(ours[url], theirs[url]) for url in both]
    counts = {"kept": len(theirs), "kept_by_both": len(both)}
    counts["same_language"] = sum(a[0] == b[0] for a, b in pairs)
    counts["same_perplexity"] = sum(_is_same_perplexity(a[1], b[1]) for a, b in pairs)
    counts["same_text"] = sum(a[2] == b[2] for a, b in pairs)
    return counts


def _is_same_perplexity(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) < PERPLEXITY_TOLERANCE


class Chain:
    """The entrants of a chain, with what was measured."""

    def __init__(self, name: str, pages: Path, models: Path, folder: Path) -> None:
        """Make the environments; an entrant that cannot be installed is left out."""
        self.name = name
        self.failed: dict[str, str] = {}
        self.entrants: dict[str, tuple[Entrant, Path, Task]] = {}
        self._measures_html = name in ("html", "main content")
        self._counts = json.loads((pages / COUNTS).read_text())
        task = Task(pages, models, folder)
        source = task.warc if self._measures_html else task.wet
        self._counts["file_bytes"] = source.stat().st_size
        if self._measures_html and not self._counts["html_bytes"]:
            raise SystemExit(f"chain {name}: the files have no HTML pages: give WARC files")
        self._seconds: dict[str, list[dict[str, float]]] = {}
        self._calls: list[dict[str, float]] = []
        self._decisions: dict[str, Decisions] = {}
        for entrant in ENTRANTS:
            if entrant.chain == name:
                output = folder / f"{name}-{entrant.name}".replace(" ", "-")
                try:
                    python = find_python(entrant)
                except PeerError as error:
                    self.failed[entrant.name] = str(error)
                else:
                    task = Task(pages, models, output)
                    self.entrants[entrant.name] = entrant, python, task

    def run_round(self) -> None:
        """Run each entrant once; one that fails is left out from then on."""
        for name, (entrant, python, task) in list(self.entrants.items()):
            try:
                seconds = run_entrant(entrant, python, task)
            except PeerError as error:
                if entrant.requirements is None:
                    raise
                self.failed[name] = str(error)
                del self.entrants[name]
                continue
            if entrant.read_decisions is None:
                calls = json.loads((task.output / "cpu_seconds.json").read_text())
                self._calls.append(calls)
                whole = seconds | {"cpu_s": sum(calls.values())}
                self._seconds.setdefault(ALL_CALLS, []).append(whole)
                seconds["cpu_s"] = sum(calls[library] for library in CCNET_LIBRARIES)
            elif name not in self._decisions:
                self._decisions[name] = entrant.read_decisions(task)
            self._seconds.setdefault(name, []).append(seconds)
            print(self.name, name, f"{seconds['cpu_s']:.1f} CPU seconds", flush=True)

    def measure_compiling(self, pages: Path) -> float:
        """Return the CPU seconds that our program takes longer if it compiles its kernels.

        Args:
            pages: a few.
        """
        compiled = self.compile_kernels(pages)
        with tempfile.TemporaryDirectory() as cache:
            return self.compile_kernels(pages, {"NUMBA_CACHE_DIR": cache}) - compiled

    def compile_kernels(
        self, pages: Path, environment: dict[str, str] | None = None
    ) -> float:
        """Run our program on a few pages and return its CPU seconds."""
        entrant, python, task = next(iter(self.entrants.values()))
        few = Task(pages, task.models, task.output)
        return run_entrant(entrant, python, few, environment)["cpu_s"]

    def summarize(self) -> dict[str, Any]:
        """Return the figures of all entrants; the first one is ours."""
        ours = next(iter(self.entrants))
        our_seconds = [each["cpu_s"] for each in self._seconds[ours]]
        measured = "html_bytes" if self._measures_html else "text_bytes"
        megabytes = self._counts[measured] / 1e6
        rows: dict[str, Any] = {}
        works = {name: entrant.work for name, (entrant, _, _) in self.entrants.items()}
        if self._calls:
            works[ALL_CALLS] = ALL_CALLS_WORK
        for name, work in works.items():
            cpu = [each["cpu_s"] for each in self._seconds[name]]
            wall = [each["wall_s"] for each in self._seconds[name]]
            ratios = [a / b for a, b in zip(cpu, our_seconds, strict=True)]
            rows[name] = {
                "work": work,
                "cpu_s": round(statistics.median(cpu), 2),
                "wall_s": round(statistics.median(wall), 2),
                "cpu_s_by_round": [round(each, 2) for each in cpu],
                "mb_per_cpu_s": float(f"{megabytes / statistics.median(cpu):.3g}"),
                "ratio": round(statistics.median(cpu) / statistics.median(our_seconds), 2),
                "ratio_by_round": [round(each, 2) for each in ratios],
            }
            if name in self._decisions:
                decisions = self._decisions[ours], self._decisions[name]
                rows[name]["decisions"] = compare_decisions(*decisions)
        if self._calls:
            rows["bare calls"]["cpu_s_by_library"] = {
                library: round(statistics.median(call[library] for call in self._calls), 2)
                for library in self._calls[0]
            }
        return {
            "pages": self._counts,
            "speed_of": measured,
            "entrants": rows,
            "failed": self.failed,
        }


def print_chains(chains: dict[str, Any]) -> None:
    """Print the figures.

    `equal` has the pages that both keep: all; with the same language, perplexity and text.
    """
    rows: list[tuple[object, ...]] = []
    for chain, figures in chains.items():
        pages = figures["pages"]
        sizes = {name: f"{size / 1e6:.2f} MB" for name, size in pages.items()}
        print(
            f"{chain}: {pages['num_pages']:,} pages, a file of {sizes['file_bytes']}, "
            f"{sizes['text_bytes']} of text, {sizes['html_bytes']} of HTML"
        )
        for name, row in figures["entrants"].items():
            seconds = [row[key] for key in ("cpu_s", "wall_s", "mb_per_cpu_s", "ratio")]
            kept, *equal = row.get("decisions", {"kept": ""}).values()
            rows.append((chain, name, *seconds, kept, ", ".join(map(str, equal))))
        for name, why in figures["failed"].items():
            print(f"{chain}, {name}: {why}")
    names = ("CPU s", "wall s", "MB/CPU s", "CPU / ours", "kept", "equal")
    print_table(("chain", "program", *names), rows)


def draw_chart(chains: dict[str, Any]) -> str:
    """Return a bar per program, MB per CPU second, as SVG."""
    panels: dict[str, dict[str, float]] = {}
    for chain, figures in chains.items():
        kind = "HTML" if figures["speed_of"] == "html_bytes" else "text"
        title = f"{chain}: MB of {kind} per CPU second"
        rows = figures["entrants"].items()
        panels[title] = {name: row["mb_per_cpu_s"] for name, row in rows}
    return draw_bars("The same pages and models, on one core", panels, OURS)


def compare(
    work: Path,
    source: PageSource,
    rounds: int,
    chains: Sequence[str],
    *,
    with_compiling: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the figures after each round.

    Args:
        work: folder of the models and outputs.
        source: of the pages.
        rounds: how often each program runs.
        chains: names in EVERY.
        with_compiling: measure how long our program takes to compile its kernels.
    """
    models = prepare_models(work / "models")
    few = source.prepare_few()
    with tempfile.TemporaryDirectory(prefix="peers-", dir=work) as name:
        found = [
            Chain(chain, source.prepare(chain), models, Path(name)) for chain in chains
        ]
        for chain in found:
            chain.compile_kernels(few)
        compiling = found[0].measure_compiling(few) if with_compiling else None
        for i in range(rounds):
            for chain in found:
                chain.run_round()
            by_chain = {chain.name: chain.summarize() for chain in found}
            yield {
                "rounds": i + 1,
                "compiling_cpu_s": compiling,
                "chains": by_chain,
            }


def save_with_chart(figures: dict[str, Any], suffix: str) -> None:
    """Write result file and chart; both are named after the chains if these are not all."""
    chains = figures["chains"]
    name = "peers" if chains.keys() == EVERY.keys() else "_".join(["peers", *chains])
    name += suffix
    path = save(name.replace(" ", "_"), figures)
    path.with_suffix(".svg").write_text(draw_chart(chains), encoding="utf-8")
    print(path)


def main() -> None:
    """Compare, print the table, and save the figures and the chart with `--save`."""
    parser = make_parser(__doc__, rounds=3)
    parser.add_argument("--work", type=Path, required=True, help="folder of the pages")
    parser.add_argument("--packages", type=Path, help="folder with the .deb files")
    parser.add_argument("--chains", nargs="+", choices=EVERY, default=list(EVERY))
    parser.add_argument("--scale", type=float, default=1, help="0.1: a tenth of the pages")
    parser.add_argument(
        "--files", type=Path, nargs="+", help="WET or WARC files instead of Debian's pages"
    )
    parser.add_argument(
        "--compiling", action="store_true", help="also measure how long kernels compile"
    )
    args = parser.parse_args()
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})  # also of all programs that this process starts
    work = args.work.resolve()
    source = PageSource(work, args.packages, args.scale, tuple(args.files or ()))
    figures: dict[str, Any] = {}
    for figures in compare(
        work, source, args.rounds, args.chains, with_compiling=args.compiling
    ):
        if args.save:  # after each round, because a long run can be interrupted
            save_with_chart(figures, source.suffix)
    print_chains(figures["chains"])
    if args.compiling:
        print(
            f"CPU seconds of compiling our kernels, once: {figures['compiling_cpu_s']:.1f}"
        )


if __name__ == "__main__":
    main()
