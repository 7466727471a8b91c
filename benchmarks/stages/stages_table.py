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
from benchmarks.stages.bare_calls import (
    predict,
    remove_lines,
    score,
    write_parquet,
    write_tar,
    write_tokens,
)
from benchmarks.stages.recorded_task import Action, RecordedTask, record_task
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
    """A step on some texts, and bare library calls that compute the same."""

    step: str
    bare_calls: str
    texts: pa.ChunkedArray | pa.Array
    as_called: Action
    bare: Action

    def count_megabytes(self) -> float:
        """Return the MB of UTF-8 of the texts."""
        return int(pc.sum(pc.binary_length(self.texts)).as_py() or 0) / 1e6


def create_rows(plan: RunPlan, folder: Path) -> Iterator[Row]:
    """Yield all rows, for a finished run with one input split."""
    phases = {phase.name: phase(plan) for phase in registry.PHASES}
    split = plan.splits[0].key
    yield from _extract_rows(plan, record_task(phases["extract"], split), folder)
    yield _deduplicate_row(plan, phases["paragraph_dedup"], split)
    yield from _annotate_rows(plan, Annotate(plan), split, folder)
    yield from _tokenize_rows(plan, record_task(phases["tokenize"], split), split, folder)
    yield _shard_row(plan, phases["write_shards"], split, folder)


def _extract_rows(plan: RunPlan, task: RecordedTask, folder: Path) -> Iterator[Row]:
    path = Path(plan.splits[0].files[0].location)
    texts = task.documents("length").column("text")
    bare: Action = partial(read_records, path)
    yield Row(
        "extract.read", "FastWARC, payloads decoded", texts, task.repeat("read"), bare
    )
    texts = task.documents("paragraphs").column("text")
    again = task.repeat("paragraphs")
    bare = partial(hash_paragraphs, texts)
    yield Row("extract.paragraphs", "hash_paragraphs", texts, again, bare)
    lines = [line for text in texts.to_pylist() for line in text.split("\n")]
    bare = lambda: [*map(hash_paragraph, lines)]  # noqa: E731
    name = "hash_paragraph, line by line"
    yield Row("extract.paragraphs", name, texts, again, bare)
    rows = task.documents("write").drop_columns("paragraph_hashes")
    yield _make_write_row("extract", task, rows, folder)


def _make_write_row(phase: str, task: RecordedTask, rows: pa.Table, folder: Path) -> Row:
    bare = partial(write_parquet, rows, folder / "bare.parquet")
    texts, again = rows.column("text"), task.repeat("write")
    return Row(f"{phase}.write", "Parquet of the documents", texts, again, bare)


def _deduplicate_row(plan: RunPlan, phase: Phase, split: str) -> Row:
    assert isinstance(phase, PartitionPhase)
    extracted = plan.folder("extract")
    with pa.memory_map(str(extracted.path(f"{split}.hashes.arrow"))) as source:
        table = pa.ipc.open_file(source).read_all()
    hashes = table.column("hash").to_numpy()
    documents = np.sort(table.column("record").to_numpy()).astype(np.uint64)
    stored = extracted.path(f"{split}.documents.parquet")
    texts = pq.read_table(stored, columns=["text"]).column("text")
    again: Action = lambda: [phase.run(task_id) for task_id in phase.task_ids()]  # noqa: E731
    bare = partial(find_duplicates, hashes, documents, "drop_all_copies")
    return Row("paragraph_dedup", "find_duplicates", texts, again, bare)


def _annotate_rows(
    plan: RunPlan, phase: Annotate, split: str, folder: Path
) -> Iterator[Row]:
    task = record_task(phase, split)
    before = task.documents("paragraphs")
    texts = before.column("text")
    bare: Action = partial(
        pq.read_table, plan.folder("extract").path(f"{split}.documents.parquet")
    )
    yield Row("annotate.read", "Parquet of the documents", texts, task.repeat("read"), bare)
    gone = before.column("duplicate_lines").to_pylist()
    bare = partial(remove_lines, texts.to_pylist(), gone)
    again = task.repeat("paragraphs")
    yield Row("annotate.paragraphs", "split, filter, join", texts, again, bare)
    yield from _model_rows(plan, task)
    if (minhash := plan.config.annotate.minhash) is not None:
        texts = task.documents("minhash").column("text")
        bare = partial(signatures, texts, minhash)
        yield Row("annotate.minhash", "signatures", texts, task.repeat("minhash"), bare)
    rows = task.documents("write").select(phase.stored.names)
    yield _make_write_row("annotate", task, rows, folder)


def _model_rows(plan: RunPlan, task: RecordedTask) -> Iterator[Row]:
    """Yield the rows of the models. The time of the bare calls excludes the normalization of the texts."""
    annotate = plan.config.annotate
    assert annotate.perplexity is not None
    assert annotate.classifiers is not None
    reference_models = annotate.classifiers.by_name["wikipedia_reference"].models
    texts = task.documents("language").column("text")
    lines = [text.replace("\n", "") for text in texts.to_pylist()]
    model = fasttext.load_model(str(model_registry.resolve(annotate.language.model)))
    bare: Action = partial(predict, model, lines, 1)
    again = task.repeat("language")
    yield Row("annotate.language", "fastText predict", texts, again, bare)
    documents = task.documents("perplexity")
    scorers: list[tuple[Any, Any, list[str]]] = []
    classifiers: list[tuple[Any, list[str]]] = []
    chosen: list[str] = []
    for language, reference in annotate.perplexity.models.items():
        is_in = pc.equal(documents.column("language"), language)
        its_texts = documents.filter(is_in).column("text").to_pylist()
        chosen += its_texts
        lm = model_registry.resolve(reference)
        pieces = sentencepiece.SentencePieceProcessor(f"{lm}/{language}.sp.model")
        model = kenlm.Model(f"{lm}/{language}.arpa.bin")
        scorers.append((pieces, model, [*map(normalize_for_lm, its_texts)]))
        path = model_registry.resolve(reference_models[language]) / MODEL_FILE
        classifiers.append((fasttext.load_model(str(path)), [*map(to_line, its_texts)]))
    texts = pa.array(chosen, pa.large_string())
    bare = lambda: [score(*scorer) for scorer in scorers]  # noqa: E731
    again = task.repeat("perplexity")
    yield Row(
        "annotate.perplexity", "SentencePiece encode, KenLM score", texts, again, bare
    )
    bare = lambda: [predict(*classifier, 2) for classifier in classifiers]  # noqa: E731
    again = task.repeat("classifiers")
    yield Row("annotate.classifiers", "fastText predict", texts, again, bare)


def _tokenize_rows(
    plan: RunPlan, task: RecordedTask, split: str, folder: Path
) -> Iterator[Row]:
    import awkward

    stored = plan.folder("annotate").path(f"{split}.documents.parquet")
    texts = task.documents("tokenize").column("text").combine_chunks()
    left_out = ("kept_lines", "title", "warc_file")
    columns = [name for name in pq.read_schema(stored).names if name not in left_out]
    bare: Action = partial(pq.read_table, stored, columns=columns)
    again = task.repeat("read")
    yield Row("tokenize.read", "Parquet of all documents", texts, again, bare)
    stage = StageSpec(Tokenize, plan.config.tokenize).opened()
    assert isinstance(stage, Tokenize)
    # the library's object that the stage uses
    backend: Any = vars(vars(stage)["_encoder"])["_backend"]
    bare = lambda: backend.encode_batch(awkward.from_arrow(texts), parallel=False)  # noqa: E731
    again = task.repeat("tokenize")
    yield Row("tokenize.tokenize", "gigatoken encode_batch", texts, again, bare)
    tokens = task.documents("write").column("tokens").combine_chunks().flatten().to_numpy()
    bare = partial(write_tokens, tokens, folder / "bare.bin")
    again = task.repeat("write")
    yield Row("tokenize.write", "tokens to a file, SHA-256", texts, again, bare)


def _shard_row(plan: RunPlan, phase: Phase, split: str, folder: Path) -> Row:
    assert isinstance(phase, PartitionPhase)
    tokens = np.fromfile(plan.folder("tokenize").path(f"{split}.tokens.bin"), np.uint16)
    num_samples = max(1, len(tokens) // plan.config.write_shards.sample_tokens)
    samples = np.array_split(tokens, num_samples)
    decided = pq.read_table(plan.folder("select").path(f"{split}.decisions.parquet"))
    kept = decided.filter(pc.equal(decided.column("decision"), "kept")).column("doc_id")
    stored = plan.folder("annotate").path(f"{split}.documents.parquet")
    documents = pq.read_table(stored, columns=["doc_id", "text"])
    texts = documents.filter(pc.is_in(documents.column("doc_id"), kept)).column("text")
    again: Action = lambda: [phase.run(task_id) for task_id in phase.task_ids()]  # noqa: E731
    bare = partial(write_tar, samples, folder / "bare.tar")
    return Row("write_shards", "tarfile, SHA-256", texts, again, bare)


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
                "mb_per_s": round(row.count_megabytes() / ours_s, 1),
                "bare_mb_per_s": round(row.count_megabytes() / bare_s, 1),
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
