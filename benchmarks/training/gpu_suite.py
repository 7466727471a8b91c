"""The trainer on one GPU: speed, memory, and what each of its mechanisms costs or saves, in under nine minutes.

    python -m benchmarks.training.gpu_suite --save           # on an H100 or H200; writes benchmarks/results/
    python -m benchmarks.training.gpu_suite --save FOLDER    # writes there; also after every part, should it be cut off
    python -m benchmarks.training.gpu_suite --tiny           # all of it on a processor, in seconds, to see it run

The model has 1.2 B parameters in Llama 3's shape, in bf16 and compiled. Its shards are generated. Each entrant is a
separate process, whose warm-up (compiling) is not measured. Two entrants that fit into the GPU's memory together take
turns, round by round; otherwise they run one after the other. A part for which too little time is left is skipped and
listed. Run it from the root of a copy of the repository. It needs torch, numpy, pydantic and pyyaml; torchao and
torchtitan are measured if they are installed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NEEDED = {"torch": "torch", "numpy": "numpy", "pydantic": "pydantic", "yaml": "pyyaml"}
OPTIONAL = {"torchao": "torchao", "torchtitan": "torchtitan"}

# Dense bf16 FLOP/s of an H100 SXM or H200 (NVIDIA's data sheets, without sparsity).
PEAK_FLOPS = 989e12

# MFU by length of rows.
GOALS = {2048: 0.50, 8192: 0.45}

# How much more memory than its peak an entrant is given, before another one stays beside
# it.
ROOM = 1.08


class Skipped(Exception):
    """A part or entrant is skipped; the message is the reason."""


@dataclass(frozen=True)
class Size:
    """The model, rows and steps to measure, and the time to plan for them."""

    shape: Mapping[str, int]
    vocab_size: int
    seq_lens: tuple[int, int]
    micro_batch_tokens: int
    micro_batches: int
    num_tokens: int
    warmup_steps: int
    steps: int
    rounds: int
    compile: bool
    # An entrant's start and warm-up, compiled before by another; the first one takes twice
    # as long.
    start_s: float
    round_s: float


FULL = Size(
    shape={
        "dim": 2048,
        "num_layers": 16,
        "num_heads": 32,
        "num_kv_heads": 8,
        "ffn_dim": 8192,
    },
    vocab_size=50_304,
    seq_lens=(2048, 8192),
    micro_batch_tokens=16_384,
    micro_batches=2,
    num_tokens=12_000_000,
    warmup_steps=4,
    steps=10,
    rounds=2,
    compile=True,
    start_s=25,
    round_s=8,
)
TINY = Size(
    shape={"dim": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 64},
    vocab_size=256,
    seq_lens=(16, 32),
    micro_batch_tokens=64,
    micro_batches=2,
    num_tokens=20_000,
    warmup_steps=1,
    steps=1,
    rounds=1,
    compile=False,
    start_s=0,
    round_s=0,
)


# ------------------------------------------------------------------------------------------------------------- entrants


class Entrant:
    """The parent's handle of an entrant's process."""

    def __init__(self, name: str, spec: dict[str, Any], suite: Suite) -> None:
        from benchmarks.training.entrant import serve

        self.name, self._suite = name, suite
        self._log = suite.folder / f"{name.replace('/', '-').replace(' ', '-')}.log"
        self._pipe, theirs = suite.processes.Pipe()
        self._process = suite.processes.Process(
            target=serve, args=(theirs, spec, str(self._log)), name=name
        )
        self._process.start()
        theirs.close()

    def ready(self) -> dict[str, Any]:
        """Return the figures of the warm-up."""
        return self._answer("ready")

    def ask(self, command: Any) -> dict[str, Any]:
        """Return the figures of one round."""
        self._pipe.send(command)
        return self._answer("round")

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

    def _answer(self, wanted: str) -> dict[str, Any]:
        try:
            if not self._pipe.poll(max(0.0, self._suite.left_s())):
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
    """State shared by all parts: time budget, dataset, figures."""

    size: Size
    budget_s: float
    folder: Path
    out: Path | None
    began: float = field(default_factory=time.monotonic)
    entrants: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    findings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.processes = multiprocessing.get_context("forkserver")
        # torch is imported once, not by each of a dozen processes: 6 s each on the machines this is for
        self.processes.set_forkserver_preload(
            ["benchmarks.training.entrant", "training.trainer"]
        )
        self.dataset = str(self.folder / "dataset")

    def left_s(self) -> float:
        """Return the seconds left of the budget."""
        return self.budget_s - (time.monotonic() - self.began)

    def spec(self, kind: str, seq_len: int, **more: Any) -> dict[str, Any]:
        """Return the spec of an entrant."""
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
            "port": _free_port(),
            "environment": {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")},
            **more,
        }

    def measure(
        self,
        specs: Mapping[str, dict[str, Any]],
        then: Callable[[str, Entrant], None] | None = None,
    ) -> None:
        """Rounds of all these entrants, in turns where they fit beside one another.

        Args:
            specs: by the entrant's name.
            then: what else to ask of each while it is there.
        """
        waiting, there = list(specs), dict[str, Entrant]()
        with ExitStack() as closing:
            peak_gib = 0.0
            while waiting:
                if there and not _fits(self.entrants, list(there), peak_gib):
                    self._take_turns(there, then)
                    for name in list(there):
                        there.pop(name).close()
                name = waiting.pop(0)
                if (ready := self._start(name, specs[name], there, closing)) is None:
                    continue
                peak_gib = max(peak_gib, ready.get("reserved_peak_gib", 0.0))
            self._take_turns(there, then)

    def _start(
        self, name: str, spec: dict[str, Any], there: dict[str, Entrant], closing: ExitStack
    ) -> dict[str, Any] | None:
        if self.left_s() < self.size.start_s + self.size.round_s:
            self.skipped[name] = f"{self.left_s():.0f} s left"
            return None
        entrant = Entrant(name, spec, self)
        closing.callback(entrant.close)
        try:
            ready = entrant.ready()
        except Skipped as skipped:
            self.skipped[name] = str(skipped)
            entrant.close()
            return None
        there[name] = entrant
        planned = {} if spec["kind"] != "ours" or spec.get("save_on_cpu") else plan(spec)
        self.entrants[name] = {
            "seq_len": spec["seq_len"],
            "rounds": [],
            **ready,
            "planned": planned,
        }
        _say(f"  {name}: ready after {ready['start_s']:.0f} s, {self.left_s():.0f} s left")
        return ready

    def _take_turns(
        self, there: dict[str, Entrant], then: Callable[[str, Entrant], None] | None
    ) -> None:
        for number in range(self.size.rounds):
            for name in list(there) if number % 2 == 0 else list(there)[::-1]:
                try:
                    figures = there[name].ask({"steps": self.size.steps})
                    self.entrants[name]["rounds"].append(
                        {**figures, "beside": len(there) - 1}
                    )
                except Skipped as skipped:
                    self.skipped[name] = f"in round {number}: {skipped}"
                    there.pop(name).close()
        for name, entrant in there.items():
            if then is not None:
                try:
                    then(name, entrant)
                except Skipped as skipped:
                    self.skipped[f"{name}: further figures"] = str(skipped)

    def tokens_per_s(self, name: str) -> float | None:
        """Return the median speed of an entrant's rounds."""
        rounds = self.entrants.get(name, {}).get("rounds", [])
        return statistics.median(r["tokens_per_s"] for r in rounds) if rounds else None

    def step_s(self, name: str) -> float | None:
        """Return the median step time."""
        seconds = [
            s for r in self.entrants.get(name, {}).get("rounds", []) for s in r["step_s"]
        ]
        return statistics.median(seconds) if seconds else None


def _fits(
    entrants: Mapping[str, Mapping[str, Any]], there: Sequence[str], peak_gib: float
) -> bool:
    """Return whether another entrant, as large as the largest so far, fits beside the waiting ones."""
    import torch

    if not torch.cuda.is_available():
        return True
    total_gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    # 1: of CUDA itself
    resident_gib = sum(entrants[name].get("resident_gib", 0.0) + 1 for name in there)
    return resident_gib + peak_gib * ROOM + 1 < total_gib


def plan(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planner's estimate of the allocator's peak, without the CUDA context."""
    from benchmarks.training.entrant import make_config
    from training.planning.gpus import GIB
    from training.planning.memory import estimate_footprint

    planned = estimate_footprint(make_config(spec, "planned"), spec["vocab_size"], 1)
    peak = planned.peak
    return {
        "gib": (peak.total - peak.context) / GIB,
        "activations_gib": peak.activations / GIB,
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# ---------------------------------------------------------------------------------------------------------------- parts


def ours(seq_len: int, variant: str = "") -> str:
    return f"ours, {seq_len}{', ' + variant if variant else ''}"


def throughput(suite: Suite, seq_len: int) -> None:
    """Measure our trainer (also with float8), the bare loop, and torchtitan if it is installed."""
    specs = {
        ours(seq_len): suite.spec("ours", seq_len),
        f"bare, {seq_len}": suite.spec("bare", seq_len),
    }
    if seq_len == suite.size.seq_lens[0]:
        for module, name, spec in (
            ("torchtitan", f"torchtitan, {seq_len}", suite.spec("torchtitan", seq_len)),
            (
                "torchao",
                ours(seq_len, "float8"),
                suite.spec("ours", seq_len, settings={"precision": {"float8": "rowwise"}}),
            ),
        ):
            if find_spec(module) is None:
                suite.skipped[name] = f"{module} is not installed"
            else:
                specs[name] = spec
    suite.measure(specs, garbage(suite) if seq_len == suite.size.seq_lens[0] else None)


def garbage(suite: Suite) -> Callable[[str, Entrant], None]:
    """Compare automatic and scheduled garbage collection in turns, in one process."""

    def compare(name: str, entrant: Entrant) -> None:
        if name != ours(suite.size.seq_lens[0]) or suite.left_s() < 4 * suite.size.round_s:
            return
        found: dict[str, list[float]] = {"controlled": [], "python's": []}
        for _ in range(suite.size.rounds):
            for who, every in (("controlled", 50), ("python's", None)):
                found[who] += entrant.ask(
                    {"steps": suite.size.steps, "gc_every_steps": every}
                )["step_s"]
        suite.findings["garbage"] = {
            who: {
                "median_step_s": statistics.median(seconds),
                "longest_step_s": max(seconds),
            }
            for who, seconds in found.items()
        }

    return compare


def checkpointing(suite: Suite) -> None:
    """Measure what activation checkpointing costs and saves."""
    seq_len = suite.size.seq_lens[0]
    for mode in ("selective", "full"):
        suite.measure(
            {
                ours(seq_len, f"checkpointing {mode}"): suite.spec(
                    "ours",
                    seq_len,
                    settings={"parallel": {"activation_checkpointing": mode}},
                )
            }
        )


def offload(suite: Suite) -> None:
    """Measure activation offload: ours, torch's save_on_cpu, and ours with full checkpointing."""
    seq_len = suite.size.seq_lens[0]

    def copy_speed(_: str, entrant: Entrant) -> None:
        suite.findings["copy"] = entrant.ask("copy")

    sent = {"parallel": {"activation_offload": True}}
    both = {"parallel": {"activation_offload": True, "activation_checkpointing": "full"}}
    suite.measure(
        {ours(seq_len, "offload"): suite.spec("ours", seq_len, settings=sent)}, copy_speed
    )
    suite.measure(
        {ours(seq_len, "save_on_cpu"): suite.spec("ours", seq_len, save_on_cpu=True)}
    )
    suite.measure(
        {
            ours(seq_len, "checkpointing full, offload"): suite.spec(
                "ours", seq_len, settings=both
            )
        }
    )


def overlap(suite: Suite, with_offload: str, without: str) -> dict[str, float] | None:
    """How much of the copying is hidden behind computing.

    copy_s: bytes out and back, at the speed copies have alone. exposed_s: what the step takes longer. overlap_share: of
    copy_s, what is not exposed; at most hideable_share, which is all the computing there is to hide behind.
    """
    step_s, step_without_s = suite.step_s(with_offload), suite.step_s(without)
    if step_s is None or step_without_s is None:
        return None
    found = {
        "step_s": step_s,
        "step_without_s": step_without_s,
        "exposed_s": max(0.0, step_s - step_without_s),
    }
    # torch's own does not say what it sends: what ours does, and weights besides
    sender = suite.entrants.get(
        with_offload.replace("save_on_cpu", "offload"), {"rounds": []}
    )
    sent_gib = max((r["offloaded_gib_per_step"] for r in sender["rounds"]), default=0.0)
    speeds = suite.findings.get("copy", {})
    if speeds and sent_gib:
        copy_s = (
            sent_gib
            * 2**30
            / 1e9
            * (1 / speeds["out_gb_per_s"] + 1 / speeds["back_gb_per_s"])
        )
        found |= {
            "sent_gib": sent_gib,
            "copy_s": copy_s,
            "overlap_share": max(0.0, 1 - found["exposed_s"] / copy_s),
            "hideable_share": min(1.0, step_without_s / copy_s),
        }
    return found


def masks(suite: Suite) -> None:
    """Measure attention within documents; other entrants attend over whole rows."""
    for seq_len in suite.size.seq_lens[::-1]:
        settings = {"data": {"document_masks": True}}
        suite.measure(
            {
                ours(seq_len, "document masks"): suite.spec(
                    "ours", seq_len, settings=settings
                )
            }
        )


def strategies(suite: Suite) -> None:
    """Measure ddp: autocast over whole fp32 weights."""
    seq_len = suite.size.seq_lens[0]
    suite.measure(
        {
            ours(seq_len, "ddp"): suite.spec(
                "ours", seq_len, settings={"parallel": {"strategy": "ddp"}}
            )
        }
    )


@dataclass(frozen=True)
class Part:
    """A part of the suite, and its time as a multiple of one entrant."""

    name: str
    run: Callable[[Suite], None]
    num_entrants: float


# The most wanted first. A part begins when there is time for it, and leaves out of itself
# what there is none for.
PARTS = (
    Part(
        "throughput, short rows",
        lambda suite: throughput(suite, suite.size.seq_lens[0]),
        3.5,
    ),
    Part(
        "throughput, long rows",
        lambda suite: throughput(suite, suite.size.seq_lens[1]),
        1.5,
    ),
    Part("activation offload", offload, 2),
    Part("activation checkpointing", checkpointing, 1),
    Part("document masks", masks, 1),
    Part("strategies", strategies, 1),
)


# ----------------------------------------------------------------------------------------------------------- the tables


PEAKS = ("active_peak_gib", "reserved_peak_gib")

# Variants that send activations to the host, and those that they are held against.
OFFLOADS = {
    "offload": "",
    "save_on_cpu": "",
    "checkpointing full, offload": "checkpointing full",
}


def summarize(suite: Suite) -> dict[str, Any]:
    """Return speed, MFU and memory of each entrant, and the goals."""
    from training.config import ModelConfig
    from training.model.size import count_flops_per_token

    model = ModelConfig(**suite.size.shape, vocab_size=suite.size.vocab_size)
    rows: dict[str, dict[str, Any]] = {}
    for name, entrant in suite.entrants.items():
        rounds = entrant["rounds"]
        if not rounds:
            continue
        tokens_per_s = suite.tokens_per_s(name)
        assert tokens_per_s is not None
        flops = count_flops_per_token(model, suite.size.vocab_size, entrant["seq_len"])
        rows[name] = {
            "seq_len": entrant["seq_len"],
            "tokens_per_s": round(tokens_per_s, 1),
            "rounds_tokens_per_s": [round(r["tokens_per_s"], 1) for r in rounds],
            "mfu": round(tokens_per_s * flops / PEAK_FLOPS, 6),
            "step_s": suite.step_s(name),
            "longest_step_s": max(s for r in rounds for s in r["step_s"]),
            "start_s": round(entrant["start_s"], 1),
            "in_turns": any(r["beside"] for r in rounds),
            **{key: max(r[key] for r in rounds) for key in PEAKS if key in rounds[0]},
            **{
                key: rounds[-1][key]
                for key in ("stall_share", "loss", "offloaded_gib_per_step")
                if key in rounds[-1]
            },
            **{
                f"planned_{key}": round(value, 6)
                for key, value in entrant["planned"].items()
            },
        }
    short = suite.size.seq_lens[0]
    hidden = {
        v: overlap(suite, ours(short, v), ours(short, without))
        for v, without in OFFLOADS.items()
    }
    findings = {
        **suite.findings,
        **{f"offload: {variant}": found for variant, found in hidden.items() if found},
    }
    return {
        "entrants": rows,
        "findings": findings,
        "skipped": suite.skipped,
        "goals": goals(rows, suite.size),
    }


def goals(rows: Mapping[str, Mapping[str, Any]], size: Size) -> dict[str, str]:
    """Return for each goal whether it is met, missed or not measured."""
    if size is not FULL:
        return {}
    found: dict[str, str] = {}
    for seq_len, (nominal, goal) in zip(size.seq_lens, GOALS.items(), strict=True):
        variants = {
            n: r["mfu"] for n in (ours(seq_len), ours(seq_len, "ddp")) if (r := rows.get(n))
        }
        best = max(variants, key=lambda n: variants[n], default=None)
        verdict = "not measured"
        if best is not None:
            verdict = f"{'met' if variants[best] >= goal else 'missed'}: {variants[best]:.1%} ({best})"
        found[f"MFU {goal:.0%} at {nominal:,}"] = verdict
    short = size.seq_lens[0]
    mine, theirs = rows.get(ours(short)), rows.get(f"torchtitan, {short}")
    verdict = "not measured"
    if mine and theirs:
        ratio = mine["tokens_per_s"] / theirs["tokens_per_s"]
        verdict = f"{'met' if ratio >= 1 else 'missed'}: {ratio:.2f} of its speed"
    found["not slower than torchtitan"] = verdict
    return found


def print_tables(figures: Mapping[str, Any]) -> None:
    head = (
        "entrant",
        "tokens/s",
        "MFU",
        "step s",
        "of bare",
        "peak GiB",
        "planned",
        "stall",
        "loss",
    )
    table = [head]
    rows = figures["entrants"]
    for name, row in rows.items():
        bare = rows.get(f"bare, {row['seq_len']}")
        table.append(
            (
                name,
                f"{row['tokens_per_s']:,.0f}",
                f"{row['mfu']:.1%}",
                f"{row['step_s']:.3f}",
                f"{row['tokens_per_s'] / bare['tokens_per_s']:.2f}" if bare else "",
                f"{row['active_peak_gib']:.1f}" if "active_peak_gib" in row else "",
                f"{row['planned_gib']:.1f}" if "planned_gib" in row else "",
                f"{row['stall_share']:.2%}" if "stall_share" in row else "",
                f"{row['loss']:.3f}" if "loss" in row else "",
            )
        )
    widths = [max(len(line[column]) for line in table) for column in range(len(head))]
    for line in table:
        print(
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True)),
                ]
            )
        )
    for title in ("findings", "skipped", "goals"):
        print(f"\n{title}")
        for name, value in figures[title].items():
            print(
                f"  {name}: {value if isinstance(value, str) else json.dumps(_rounded(value))}"
            )


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    return (
        {key: _rounded(inner) for key, inner in value.items()}
        if isinstance(value, Mapping)
        else value
    )


def keep(figures: Mapping[str, Any], name: str, out: Path) -> Path:
    """Write the result file, also on machines without git and the pipeline's libraries."""
    from benchmarks import result_file

    libraries = (*result_file.LIBRARIES, "torch", "triton", *OPTIONAL.values())
    result_file.LIBRARIES = tuple(library for library in libraries if _has(library))
    if shutil.which("git") is None:
        result_file.read_commit = lambda: None
    return result_file.save(name, {"device": device(), **figures}, out)


def _has(library: str) -> bool:
    try:
        return bool(version(library))
    except PackageNotFoundError:
        return False


def device() -> dict[str, Any]:
    """Return GPU, memory, CUDA and driver."""
    import torch

    if not torch.cuda.is_available():
        return {"name": f"cpu ({platform.machine()})"}
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = None
    if shutil.which("nvidia-smi"):
        driver = (
            subprocess.run(
                query, capture_output=True, text=True, check=False
            ).stdout.strip()
            or None
        )
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "cuda": torch.version.cuda,
        "driver": driver,
    }


# ------------------------------------------------------------------------------------------------------------- the rest


def write_dataset(folder: Path, size: Size) -> None:
    """Write four shards of documents with 200 to 3,000 tokens drawn by Zipf's law."""
    import numpy as np

    from shardwriter import Documents, build_manifest, write_shard
    from shardwriter.format import MANIFEST_FILE, TokenizerEntry, index_file, shard_file

    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    num_ids = size.vocab_size - 47  # 50,257 of GPT-2, which a model rounds up
    tokenizer = TokenizerEntry("benchmark", "0" * 64, num_ids, 0)
    tokens = np.minimum(rng.zipf(1.2, size.num_tokens), num_ids - 1).astype(np.uint16)
    entries, first_id = [], 0
    for shard, part in enumerate(np.array_split(tokens, 4)):
        lengths = rng.integers(200, 3001, len(part) // 1000)
        lengths = lengths[np.cumsum(lengths) < len(part)]
        lengths = np.append(lengths, len(part) - lengths.sum())
        part[np.cumsum(lengths) - 1] = 0
        ids = np.arange(first_id, first_id + len(lengths), dtype=np.uint64)
        first_id += len(lengths)
        with (
            (folder / shard_file(shard)).open("wb") as tar,
            (folder / index_file(shard)).open("wb") as index,
        ):
            documents = Documents(part, lengths, ids)
            entries.append(
                write_shard(
                    tar, index, shard=shard, tokenizer=tokenizer, documents=documents
                )
            )
    (folder / MANIFEST_FILE).write_bytes(
        build_manifest(entries, tokenizer=tokenizer, fingerprint="benchmark").dumps()
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _check_packages() -> None:
    if missing := [
        package for module, package in NEEDED.items() if find_spec(module) is None
    ]:
        sys.exit(f"missing here: {', '.join(missing)}; pip install {' '.join(missing)}")


def main() -> None:
    """Measure and print. The exit code is 1 if nothing could be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="on a processor, in a minute")
    parser.add_argument(
        "--budget-s", type=float, default=520, help="seconds for all of it (520)"
    )
    parser.add_argument(
        "--only",
        nargs="*",
        metavar="PART",
        help=f"of {', '.join(part.name for part in PARTS)}",
    )
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FOLDER",
        help="write a result file",
    )
    args = parser.parse_args()
    _check_packages()
    import torch

    from benchmarks import result_file

    if not torch.cuda.is_available() and not args.tiny:
        sys.exit(
            "there is no CUDA device; --tiny runs all of it on a processor, in a small form"
        )
    size = TINY if args.tiny else FULL
    name = "training_gpu_tiny" if args.tiny else "training_gpu"
    out = (
        None
        if args.save is None
        else result_file.FOLDER
        if args.save == Path()
        else args.save
    )
    if args.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory(prefix="gpu-suite-") as folder:
        suite = Suite(size, args.budget_s, Path(folder), out)
        write_dataset(Path(suite.dataset), size)
        for part in PARTS:
            if args.only is not None and part.name not in args.only:
                continue
            wanted_s = part.num_entrants * size.start_s
            if suite.left_s() < wanted_s:
                suite.skipped[part.name] = (
                    f"wants {wanted_s:.0f} s, {suite.left_s():.0f} s left"
                )
                continue
            _say(f"{part.name}, {suite.left_s():.0f} s left")
            part.run(suite)
            if out is not None:
                keep(summarize(suite), name, out)
        figures = summarize(suite)
        took_s = time.monotonic() - suite.began
        print_tables(figures)
        print(f"\n{took_s:.0f} s on {device()['name']}")
        if out is not None:
            print(keep({**figures, "took_s": round(took_s)}, name, out))
        if not figures["entrants"]:
            sys.exit("nothing could be measured")


if __name__ == "__main__":
    main()
