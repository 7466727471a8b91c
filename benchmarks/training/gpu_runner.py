"""Runs entrants of the GPU suite in processes, within a time budget."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.training.gpu_sizes import Size

# An entrant starts beside others if this multiple of its peak memory is free.
ROOM = 1.08

# Of a CUDA context without tensors.
CONTEXT_GIB = 1.0


class Skipped(Exception):
    """A part or entrant is skipped; the message is the reason."""


class Entrant:
    """A process that serves one entrant (benchmarks/training/entrant.py)."""

    def __init__(self, name: str, spec: dict[str, Any], suite: Suite) -> None:
        from benchmarks.training.entrant import serve

        self.name, self._suite = name, suite
        self._log = suite.folder / f"{name.replace('/', '-').replace(' ', '-')}.log"
        self._pipe, other_end = suite.processes.Pipe()
        self._process = suite.processes.Process(
            target=serve, args=(other_end, spec, str(self._log)), name=name
        )
        self._process.start()
        other_end.close()

    def wait_until_ready(self) -> dict[str, Any]:
        """Return the figures of the warm-up."""
        return self._receive("ready")

    def ask(self, command: Any, limit_s: float = math.inf) -> dict[str, Any]:
        """Return the figures of one round, which may take a limited time."""
        # If it died, receiving says why.
        with contextlib.suppress(OSError):
            self._pipe.send(command)
        return self._receive("round", limit_s)

    def close(self) -> None:
        """End the process."""
        if self._process.is_alive():
            try:
                self._pipe.send("close")
                self._process.join(5)
            except OSError:
                pass
            self._process.kill()
        self._process.join()

    def _receive(self, wanted: str, limit_s: float = math.inf) -> dict[str, Any]:
        try:
            if not self._pipe.poll(max(0.0, min(limit_s, self._suite.left_s()))):
                raise Skipped("the time was over")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            lines = self._log.read_text(errors="replace").splitlines()[-3:]
            answer = {"error": f"it died: {' / '.join(lines)}"}
        if "error" in answer:
            raise Skipped(answer["error"])
        return answer[wanted]


@dataclass
class Suite:
    """State shared by all parts.

    Attributes:
        budget_s: seconds for all parts.
        folder: dataset, logs of entrants, and the cache of the compiler.
        entrants: figures by the entrant's name.
        skipped: reasons by the name of a part or entrant.
        findings: other figures, by name.
        checks: verdicts by the name of a check.
    """

    size: Size
    budget_s: float
    folder: Path
    began: float = field(default_factory=time.monotonic)
    entrants: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.processes = multiprocessing.get_context("forkserver")
        # torch is imported once, not by each of a dozen processes: that takes 6 s.
        self.processes.set_forkserver_preload(["benchmarks.training.ours"])
        self.dataset = str(self.folder / "dataset")

    def left_s(self) -> float:
        """Return the seconds left of the budget."""
        return self.budget_s - (time.monotonic() - self.began)

    def make_spec(self, kind: str, seq_len: int, **more: Any) -> dict[str, Any]:
        """Return the description of an entrant, as `serve` takes it."""
        rows = self.size.micro_batch_tokens // seq_len
        return {
            "kind": kind,
            "shape": dict(self.size.shape),
            "vocab_size": self.size.vocab_size,
            "dataset": self.dataset,
            "seq_len": seq_len,
            "micro_batch_rows": rows,
            "global_batch_rows": rows * self.size.micro_batches,
            "warmup_steps": self.size.warmup_steps,
            "compile": self.size.compile,
            "port": _find_free_port(),
            "environment": {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")},
            **more,
        }

    def measure(
        self,
        specs: Mapping[str, dict[str, Any]],
        then: Callable[[str, Entrant], None] | None = None,
    ) -> None:
        """Measure rounds of several entrants, which take turns if they fit side by side.

        Args:
            specs: by the entrant's name.
            then: called with each entrant after its rounds.
        """
        waiting, running = list(specs), dict[str, Entrant]()
        with ExitStack() as closing:
            peak_gib = 0.0
            while waiting:
                if running and not _fits(self.entrants, list(running), peak_gib):
                    self._take_turns(running, then)
                    for name in list(running):
                        running.pop(name).close()
                name = waiting.pop(0)
                ready = self._start(name, specs[name], running, closing)
                if ready is not None:
                    peak_gib = max(peak_gib, ready.get("reserved_peak_gib", 0.0))
            self._take_turns(running, then)

    def measure_kernels(self, name: str, command: dict[str, Any]) -> None:
        """Add what one command to a process without a model finds, under a name."""
        lengths = self.size.seq_lens
        spec = self.make_spec("kernels", lengths[0], seq_lens=lengths)
        entrant = Entrant(name, spec, self)
        try:
            entrant.wait_until_ready()
            self.findings[name] = entrant.ask(command)
        except Skipped as skipped:
            self.skipped[name] = str(skipped)
        finally:
            entrant.close()

    def median_tokens_per_s(self, name: str) -> float | None:
        """Return the median speed of an entrant's rounds."""
        rounds = self.entrants.get(name, {}).get("rounds", [])
        return statistics.median(r["tokens_per_s"] for r in rounds) if rounds else None

    def median_step_s(self, name: str) -> float | None:
        """Return the median step time of an entrant."""
        seconds: list[float] = []
        for figures in self.entrants.get(name, {}).get("rounds", []):
            seconds += figures["step_s"]
        return statistics.median(seconds) if seconds else None

    def _start(
        self,
        name: str,
        spec: dict[str, Any],
        running: dict[str, Entrant],
        closing: ExitStack,
    ) -> dict[str, Any] | None:
        """Start an entrant and add it to `running`; return None if it is skipped."""
        if self.left_s() < self.size.start_s + self.size.round_s:
            self.skipped[name] = f"{self.left_s():.0f} s left"
            return None
        entrant = Entrant(name, spec, self)
        closing.callback(entrant.close)
        try:
            ready = entrant.wait_until_ready()
        except Skipped as skipped:
            self.skipped[name] = str(skipped)
            entrant.close()
            return None
        running[name] = entrant
        is_planned = spec["kind"] == "ours" and not spec.get("save_on_cpu")
        self.entrants[name] = {
            "seq_len": spec["seq_len"],
            "rounds": [],
            **ready,
            "planned": _plan(spec) if is_planned else {},
        }
        report(
            f"  {name}: ready after {ready['start_s']:.0f} s, {self.left_s():.0f} s left"
        )
        return ready

    def _take_turns(
        self, running: dict[str, Entrant], then: Callable[[str, Entrant], None] | None
    ) -> None:
        for number in range(self.size.rounds):
            # Every second round in reverse: the GPU's temperature changes slowly.
            for name in list(running) if number % 2 == 0 else list(running)[::-1]:
                try:
                    figures = running[name].ask({"steps": self.size.steps})
                except Skipped as skipped:
                    self.skipped[name] = f"in round {number}: {skipped}"
                    running.pop(name).close()
                    continue
                figures["beside"] = len(running) - 1
                self.entrants[name]["rounds"].append(figures)
        for name, entrant in running.items():
            if then is None:
                continue
            try:
                then(name, entrant)
            except Skipped as skipped:
                self.skipped[f"{name}: further figures"] = str(skipped)


def _plan(spec: Mapping[str, Any]) -> dict[str, Any]:
    # Its libraries may be missing, which the suite says before anything is started.
    from benchmarks.training.ours import plan

    return plan(spec)


def report(line: str) -> None:
    """Print a line about the progress."""
    print(line, file=sys.stderr, flush=True)


def _fits(
    entrants: Mapping[str, Mapping[str, Any]], running: Sequence[str], peak_gib: float
) -> bool:
    """Return whether another entrant, as large as the largest so far, fits beside the others."""
    import torch

    if not torch.cuda.is_available():
        return True
    total_gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    needed_gib = peak_gib * ROOM + CONTEXT_GIB
    for name in running:
        needed_gib += entrants[name].get("resident_gib", 0.0) + CONTEXT_GIB
    return needed_gib < total_gib


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
