"""Measure time, memory, recall and precision of fuzzy_dedup on 100,000 and 1,000,000 documents.

    python -m benchmarks.stages.near_duplicates                     # five minutes on one core
    python -m benchmarks.stages.near_duplicates --documents 10000 30000

Documents are 100 random words. One in ten is a copy of another document of the crawl with one word edited: at most 5 of
101 word 5-grams differ, which is a Jaccard similarity of at least 0.90. Each size is a run of the pipeline in a separate
process, up to fuzzy_dedup. Peak resident memory and CPU seconds are measured per phase. The goal: CPU seconds per
million documents do not grow.

Another run of the smallest size decides without comparing documents (`fuzzy_dedup.rule: null`, no stored n-grams). The
goal: with the comparison, the three phases of fuzzy deduplication take at most 1.5 times its CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.frame import finish, make_parser, run_apart
from pipeline.config import load
from pipeline.execution.engine import PhaseStarted, TaskFinished, run
from pipeline.execution.task_stats import peak_mb
from pipeline.phases import registry
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.planning.plan import make_plan
from tests.conftest import wet_record

WORDS_PER_DOCUMENT = 100
DOCUMENTS_PER_FILE = 25_000
COPIED_SHARE = 0.1
MEMORY_MB = 1000

WARM_DOCUMENTS = 1000

# The phases that near-duplicates need, and what annotate does for them.
FUZZY_PHASES = tuple(
    phase.name
    for phase in registry.PHASES
    if phase.name == "annotate" or phase.section == "fuzzy_dedup"
)

CONFIG = """
run_dir: {folder}/run
input: {{files: ["{folder}/*.warc.wet"]}}
extract: {{length: {{min_chars: 10}}, warc: {{first_line_is_title: false}}}}
paragraph_dedup: {{keep: keep_all}}
annotate:
  language: {{max_chars: 20}}
  minhash: {{threshold: 0.8, store_ngrams: {store_ngrams}}}
fuzzy_dedup: {{keep: first, rule: {rule}}}
tokenize: {{tokenizer: gpt2-bpe}}
engine: {{kind: inline, memory_mb: {memory_mb}}}
"""


def texts(num_documents: int) -> Iterator[tuple[str, bool]]:
    """Yield texts, and whether each is a copy. One text in ten is stored in memory and copied later."""
    rng = random.Random(1)
    kept: list[list[str]] = []
    for _ in range(num_documents):
        is_copy = bool(kept) and rng.random() < COPIED_SHARE
        if is_copy:  # each text is copied once, so every copy is similar to its original
            words = kept.pop(rng.randrange(len(kept)))
            words[rng.randrange(WORDS_PER_DOCUMENT)] = "edited"
        else:
            words = [
                f"w{number}" for number in rng.choices(range(50_000), k=WORDS_PER_DOCUMENT)
            ]
            if rng.random() < 2 * COPIED_SHARE:
                kept.append(words)
        yield " ".join(words), is_copy


def write_crawl(folder: Path, num_documents: int) -> set[int]:
    """Write WET files of these texts, and return the numbers of the copies."""
    copies: set[int] = set()
    numbered = enumerate(texts(num_documents))
    for file_number in range(-(-num_documents // DOCUMENTS_PER_FILE)):
        with (folder / f"{file_number:05d}.warc.wet").open("wb") as file:
            for number, (text, is_copy) in islice(numbered, DOCUMENTS_PER_FILE):
                if is_copy:
                    copies.add(number)
                url = f"https://example.org/{number}"
                file.write(wet_record(url, text, number=number))
    return copies


def measure(num_documents: int, rule: str, folder: Path) -> dict[str, Any]:
    """Run the pipeline up to fuzzy_dedup with a rule, and return its figures."""
    copies = write_crawl(folder, num_documents)
    store_ngrams = str(rule != "null").lower()
    written = CONFIG.format(
        folder=folder, memory_mb=MEMORY_MB, rule=rule, store_ngrams=store_ngrams
    )
    (folder / "near.yaml").write_text(written)
    config = load(str(folder / "near.yaml"))
    plan = make_plan(config)
    found: dict[str, Any] = {
        "documents": num_documents,
        "rule": rule,
        "num_copies": len(copies),
        "phases": {},
    }
    began, peak = 0.0, 0.0
    for event in run(plan):
        if isinstance(event, PhaseStarted):
            began, peak = time.process_time(), 0.0
        elif isinstance(event, TaskFinished):
            peak = max(peak, event.peak_mb or 0.0)
        else:  # the phase has merged the outputs of its tasks
            cpu_s = time.process_time() - began
            found["phases"][event.phase] = {
                "cpu_s": round(cpu_s, 1),
                "peak_mb": max(peak, peak_mb() or 0.0),
            }
            if event.phase == "fuzzy_dedup":
                break
    phase = FuzzyDedup(plan)
    found["partitions"] = len(FuzzyClusters(plan).task_ids())
    dropped = {
        split.index * DOCUMENTS_PER_FILE + record
        for split in plan.splits
        for record in phase.find_near_duplicates(split).column("record").to_pylist()
    }
    found["recall"] = round(len(dropped & copies) / len(copies), 4)
    found["precision"] = round(len(dropped & copies) / max(1, len(dropped)), 4)
    cpu_s = sum(
        found["phases"][name]["cpu_s"] for name in ("fuzzy_clusters", "fuzzy_dedup")
    )
    found["cpu_s_per_million"] = round(cpu_s / num_documents * 1e6, 1)
    return found


def main() -> None:
    """Measure each size in a separate process, and save the figures with `--save`."""
    parser = make_parser(__doc__)
    parser.add_argument("--documents", type=int, nargs="+", default=(100_000, 1_000_000))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        num_documents, rule, folder = args.child
        # The first run compiles kernels that are not in the cache.
        for name, size in (("warm", WARM_DOCUMENTS), ("measured", int(num_documents))):
            place = Path(folder) / name
            place.mkdir()
            found = measure(size, rule, place)
        print(json.dumps(found))
        return
    sizes = [_measure_apart(size, "jaccard") for size in args.documents]
    smallest = min(sizes, key=lambda found: found["documents"])
    without = _measure_apart(smallest["documents"], "null")
    figures = {
        "memory_mb": MEMORY_MB,
        "sizes": sizes,
        "without_comparison": without,
        "cost_of_comparison": round(_add_cpu_s(smallest) / _add_cpu_s(without), 2),
    }
    print(f"CPU with the comparison / without: {figures['cost_of_comparison']}")
    finish(args, "near_duplicates", figures)


def _measure_apart(num_documents: int, rule: str) -> dict[str, Any]:
    """Return the figures of a run in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        module = "benchmarks.stages.near_duplicates"
        found = run_apart(module, "--child", num_documents, rule, folder)
    print(found, flush=True)
    return found


def _add_cpu_s(found: dict[str, Any]) -> float:
    return sum(found["phases"][name]["cpu_s"] for name in FUZZY_PHASES)


if __name__ == "__main__":
    main()
