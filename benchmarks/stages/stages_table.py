"""Compare the cost of each stage with the bare library calls that it uses.

    python -m benchmarks.stages.stages_table --megabytes 12 --rounds 7

Each row is one step of the demo. It has the MB/s of one core for the step as the engine calls it (same documents, same
batches), the MB/s of a loop of bare library calls on the same documents, and the ratio of the times. Both take turns;
figures are medians of CPU time. `share` is the step's share of all steps. Steps below 1 % (length, the filters of
select) are left out. MB are UTF-8 bytes of the texts that reach the step.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fasttext
import kenlm
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import sentencepiece

from benchmarks.demo_chain import load_demo_config
from benchmarks.frame import (
    Entrant,
    finish,
    make_parser,
    print_table,
    read_records,
    take_turns,
    time_cpu,
)
from benchmarks.stages.table.bare_calls import (
    predict,
    remove_lines,
    score,
    write_parquet,
    write_tar,
    write_tokens,
)
from benchmarks.stages.table.recorded_task import Action, RecordedTask, record_task
from pipeline.execution.engine import run
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.phase import PartitionPhase, Phase
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.stage_spec import StageSpec
from pipeline.planning.plan import make_plan
from stages.dedup.duplicate_lines import find_duplicates
from stages.dedup.minhash import signatures
from stages.dedup.paragraph_hashes import hash_paragraph, hash_paragraphs
from stages.filters.classifiers import MODEL_FILE, to_line
from stages.filters.language_model import normalize_for_lm
from stages.transform.tokenize import Tokenize


@dataclass(frozen=True)
class Row:
    """A step, and bare library calls that compute the same."""

    step: str
    bare_calls: str
    num_bytes: int
    as_called: Action
    bare: Action


def create_rows(plan: RunPlan, folder: Path) -> Iterator[Row]:
    """Yield all rows, for a finished run with one input split."""
    phases = {phase.name: phase(plan) for phase in registry.PHASES}
    split = plan.splits[0].key
    yield from _extract_rows(plan, record_task(phases["extract"], split), folder)
    yield from _deduplicate_rows(plan, phases["paragraph_dedup"], split)
    yield from _annotate_rows(plan, Annotate(plan), split, folder)
    yield from _tokenize_rows(plan, record_task(phases["tokenize"], split), split, folder)
    yield from _shard_rows(plan, phases["write_shards"], folder)


def _extract_rows(plan: RunPlan, task: RecordedTask, folder: Path) -> Iterator[Row]:
    path = Path(plan.splits[0].files[0].location)
    texts = task.documents("length").column("text")
    yield Row(
        "extract.read",
        "FastWARC, payloads decoded",
        _bytes(texts),
        task.repeat("read"),
        partial(read_records, path),
    )
    texts = task.documents("paragraphs").column("text")
    again = task.repeat("paragraphs")
    yield Row(
        "extract.paragraphs",
        "hash_paragraphs",
        _bytes(texts),
        again,
        lambda: hash_paragraphs(texts),
    )
    lines = [line for text in texts.to_pylist() for line in text.split("\n")]
    yield Row(
        "extract.paragraphs",
        "hash_paragraph, line by line",
        _bytes(texts),
        again,
        lambda: [*map(hash_paragraph, lines)],
    )
    rows = task.documents("write").drop_columns("paragraph_hashes")
    bare = partial(write_parquet, rows, folder / "bare.parquet")
    yield Row(
        "extract.write",
        "Parquet of the documents",
        _bytes(rows.column("text")),
        task.repeat("write"),
        bare,
    )


def _deduplicate_rows(plan: RunPlan, phase: Phase, split: str) -> Iterator[Row]:
    assert isinstance(phase, PartitionPhase)
    with pa.memory_map(str(plan.folder("extract").path(f"{split}.hashes.arrow"))) as source:
        table = pa.ipc.open_file(source).read_all()
    hashes = table.column("hash").to_numpy()
    documents = np.sort(table.column("record").to_numpy()).astype(np.uint64)
    texts = pq.read_table(
        plan.folder("extract").path(f"{split}.documents.parquet"), columns=["text"]
    ).column("text")
    task_ids = phase.task_ids()
    again: Action = lambda: [phase.run(task_id) for task_id in task_ids]  # noqa: E731
    yield Row(
        "paragraph_dedup",
        "find_duplicates",
        _bytes(texts),
        again,
        lambda: find_duplicates(hashes, documents, "drop_all_copies"),
    )


def _annotate_rows(
    plan: RunPlan, phase: Annotate, split: str, folder: Path
) -> Iterator[Row]:
    task = record_task(phase, split)
    stored = plan.folder("extract").path(f"{split}.documents.parquet")
    before = task.documents("paragraphs")
    size = _bytes(before.column("text"))
    yield Row(
        "annotate.read",
        "Parquet of the documents",
        size,
        task.repeat("read"),
        partial(pq.read_table, stored),
    )
    texts, gone = (
        before.column("text").to_pylist(),
        before.column("duplicate_lines").to_pylist(),
    )
    bare = partial(remove_lines, texts, gone)
    yield Row(
        "annotate.paragraphs", "split, filter, join", size, task.repeat("paragraphs"), bare
    )
    yield from _model_rows(plan, task)
    if (minhash := plan.config.annotate.minhash) is not None:
        texts = task.documents("minhash").column("text")
        bare = partial(signatures, texts, minhash)
        yield Row(
            "annotate.minhash", "signatures", _bytes(texts), task.repeat("minhash"), bare
        )
    rows = task.documents("write").select(phase.stored.names)
    bare = partial(write_parquet, rows, folder / "bare.parquet")
    yield Row(
        "annotate.write",
        "Parquet of the documents",
        _bytes(rows.column("text")),
        task.repeat("write"),
        bare,
    )


def _model_rows(plan: RunPlan, task: RecordedTask) -> Iterator[Row]:
    """Yield the rows of the models. The time of the bare calls excludes the normalization of the texts."""
    annotate = plan.config.annotate
    assert annotate.perplexity is not None
    assert annotate.classifiers is not None
    reference_models = annotate.classifiers.by_name["wikipedia_reference"].models
    documents = task.documents("language")
    size = _bytes(documents.column("text"))
    lines = [text.replace("\n", "") for text in documents.column("text").to_pylist()]
    model = fasttext.load_model(str(model_registry.resolve(annotate.language.model)))
    yield Row(
        "annotate.language",
        "fastText predict",
        size,
        task.repeat("language"),
        partial(predict, model, lines, 1),
    )
    documents = task.documents("perplexity")
    by_language = {
        language: _texts_in(documents, language) for language in annotate.perplexity.models
    }
    scorers: list[tuple[Any, Any, list[str]]] = []
    classifiers: list[tuple[Any, list[str]]] = []
    for language, texts in by_language.items():
        lm = model_registry.resolve(annotate.perplexity.models[language])
        pieces = sentencepiece.SentencePieceProcessor(f"{lm}/{language}.sp.model")
        model = kenlm.Model(f"{lm}/{language}.arpa.bin")
        scorers.append((pieces, model, [*map(normalize_for_lm, texts)]))
        path = model_registry.resolve(reference_models[language]) / MODEL_FILE
        classifiers.append((fasttext.load_model(str(path)), [*map(to_line, texts)]))
    size = sum(len(text.encode()) for texts in by_language.values() for text in texts)
    bare: Action = lambda: [score(*scorer) for scorer in scorers]  # noqa: E731
    yield Row(
        "annotate.perplexity",
        "SentencePiece encode, KenLM score",
        size,
        task.repeat("perplexity"),
        bare,
    )
    bare = lambda: [predict(*classifier, 2) for classifier in classifiers]  # noqa: E731
    yield Row(
        "annotate.classifiers", "fastText predict", size, task.repeat("classifiers"), bare
    )


def _texts_in(documents: pa.Table, language: str) -> list[str]:
    chosen = documents.filter(pc.equal(documents.column("language"), language))
    return chosen.column("text").to_pylist()


def _tokenize_rows(
    plan: RunPlan, task: RecordedTask, split: str, folder: Path
) -> Iterator[Row]:
    import awkward

    stored = plan.folder("annotate").path(f"{split}.documents.parquet")
    texts = task.documents("tokenize").column("text").combine_chunks()
    size = _bytes(texts)
    columns = [
        name
        for name in pq.read_schema(stored).names
        if name not in ("kept_lines", "title", "warc_file")
    ]
    bare: Action = lambda: pq.read_table(stored, columns=columns)  # noqa: E731
    yield Row("tokenize.read", "Parquet of all documents", size, task.repeat("read"), bare)
    stage = StageSpec(Tokenize, plan.config.tokenize).opened()
    assert isinstance(stage, Tokenize)
    # the library's object that the stage uses
    backend: Any = vars(vars(stage)["_encoder"])["_backend"]
    bare = lambda: backend.encode_batch(awkward.from_arrow(texts), parallel=False)  # noqa: E731
    yield Row(
        "tokenize.tokenize", "gigatoken encode_batch", size, task.repeat("tokenize"), bare
    )
    tokens = task.documents("write").column("tokens").combine_chunks().flatten().to_numpy()
    bare = lambda: write_tokens(tokens, folder / "bare.bin")  # noqa: E731
    yield Row(
        "tokenize.write", "tokens to a file, SHA-256", size, task.repeat("write"), bare
    )


def _shard_rows(plan: RunPlan, phase: Phase, folder: Path) -> Iterator[Row]:
    assert isinstance(phase, PartitionPhase)
    tokens = np.fromfile(
        plan.folder("tokenize").path(f"{plan.splits[0].key}.tokens.bin"), np.uint16
    )
    samples = np.array_split(
        tokens, max(1, len(tokens) // plan.config.write_shards.sample_tokens)
    )
    decisions = pq.read_table(
        plan.folder("select").path(f"{plan.splits[0].key}.decisions.parquet")
    )
    size = pc.sum(
        decisions.filter(pc.equal(decisions.column("decision"), "kept")).column("num_chars")
    ).as_py()
    task_ids = phase.task_ids()
    again: Action = lambda: [phase.run(task_id) for task_id in task_ids]  # noqa: E731
    yield Row(
        "write_shards",
        "tarfile, SHA-256",
        size,
        again,
        partial(write_tar, samples, folder / "bare.tar"),
    )


def _bytes(texts: pa.ChunkedArray | pa.Array) -> int:
    return int(pc.sum(pc.binary_length(texts)).as_py() or 0)


# ---- The comparison ----


def measure(rows: list[Row], rounds: int) -> list[dict[str, Any]]:
    """Return speeds and ratios from the median CPU seconds of every row."""
    entrants: dict[str, Entrant] = {}
    for number, row in enumerate(rows):
        entrants[f"{number} ours"] = time_cpu(row.as_called)
        entrants[f"{number} bare"] = time_cpu(row.bare)
    seconds = take_turns(entrants, rounds)
    ours = [statistics.median(seconds[f"{i} ours"]) for i in range(len(rows))]
    bare = [statistics.median(seconds[f"{i} bare"]) for i in range(len(rows))]
    # A step with two rows counts once.
    whole = sum({row.step: s for row, s in zip(rows, ours, strict=True)}.values())
    figures: list[dict[str, Any]] = []
    for row, ours_s, bare_s in zip(rows, ours, bare, strict=True):
        figures.append(
            {
                "step": row.step,
                "bare_calls": row.bare_calls,
                "mb_per_s": round(row.num_bytes / 1e6 / ours_s, 1),
                "bare_mb_per_s": round(row.num_bytes / 1e6 / bare_s, 1),
                "ratio": round(ours_s / bare_s, 2),
                "share": round(ours_s / whole, 3),
            }
        )
    return figures


def compare(megabytes: float, rounds: int) -> list[dict[str, Any]]:
    """Run the demo once on one file of that size, then measure its steps."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        run_dir = Path(folder) / "run"
        plan = make_plan(
            load_demo_config(megabytes, run_dir, "engine.kind=inline", num_files=1)
        )
        deque(run(plan), maxlen=0)
        return measure(list(create_rows(plan, Path(folder))), rounds)


def main() -> None:
    """Compare, print the table, and save the figures with `--save`."""
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--megabytes", type=float, default=12, help="WET text")
    args = parser.parse_args()
    figures = compare(args.megabytes, args.rounds)
    print_table(tuple(figures[0]), [tuple(row.values()) for row in figures])
    by_step = {row["step"]: row for row in figures}
    whole = 1 / sum(row["share"] / row["ratio"] for row in by_step.values())
    print(f"all of these steps together / the bare calls: {whole:.2f}")
    finish(args, "stages_table", {"rounds": args.rounds, "steps": figures})


if __name__ == "__main__":
    main()
