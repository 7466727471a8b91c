"""Compare the cost of each stage with the bare library calls that it uses.

    python -m benchmarks.stages_table --megabytes 12 --rounds 7

Each row is one step of the demo. It has the MB/s of one core for the step as the engine calls it (same documents, same
batches), the MB/s of a loop of bare library calls on the same documents, and the ratio of the times. Both take turns;
figures are medians of CPU time. `share` is the step's share of all steps. Steps below 1 % (length, the filters of
select) are left out. MB are UTF-8 bytes of the texts that reach the step.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import statistics
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
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
from fastwarc.warc import ArchiveIterator, WarcRecordType
from rich.console import Console
from rich.table import Table

from benchmarks.demo_chain import load_demo_config
from benchmarks.result_file import save
from pipeline.execution.engine import run
from pipeline.execution.task import apply_stage, conform
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.phase import PartitionPhase, Phase, SplitPhase
from pipeline.planning.plan import make_plan
from pipeline.planning.run_plan import RunPlan
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter
from shardwriter.format import TOKENS_MEMBER
from stages.dedup.duplicate_lines import find_duplicates
from stages.dedup.minhash import signatures
from stages.dedup.paragraph_hashes import hash_paragraph, hash_paragraphs
from stages.filters.classifiers import load_model, to_line
from stages.filters.language_model import normalize_for_lm
from stages.transform.tokenize import Tokenize

Action = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """A step, and bare library calls that compute the same."""

    step: str
    bare_calls: str
    num_bytes: int
    as_called: Action
    bare: Action


@dataclass
class RecordedTask:
    """The batches that reached each step of one task. With them, each step can run again separately."""

    phase: SplitPhase
    task_id: str
    inputs: dict[str, list[pa.Table]]  # step -> batches
    dropped: list[tuple[pa.Table, pa.Table]]  # a batch, and the rows that a stage dropped

    def documents(self, step: str) -> pa.Table:
        """Return the documents that reach a step."""
        return pa.concat_tables(self.inputs[step])

    def repeat(self, step: str) -> Action:
        """Return a function that runs the step on all its batches."""
        if step == "read":
            return self._read
        if step == "write":
            return self._write
        (spec,) = (spec for spec in self.phase.stage_specs() if spec.stage.name == step)
        stage = spec.opened()
        return lambda: [apply_stage(stage, batch) for batch in self.inputs[step]]

    def _read(self) -> None:
        with self.phase.folder.commit(f"{self.task_id}-again") as output:
            writer = self._create_writer(output)
            deque(self.phase.read(self.task_id, writer), maxlen=0)
            writer.close()

    def _write(self) -> None:
        with self.phase.folder.commit(f"{self.task_id}-again") as output:
            writer = self._create_writer(output)
            for batch, dropped in self.dropped:
                writer.add_dropped(batch, dropped)
            for batch in self.inputs["write"]:
                writer.add_kept(batch)
            writer.close()

    def _create_writer(self, output: PendingOutput) -> SplitWriter:
        return self.phase.create_writer(f"{self.task_id}-again", output)


def record_task(phase: Phase, task_id: str) -> RecordedTask:
    """Run one task of a phase and keep the batches between its steps."""
    assert isinstance(phase, SplitPhase)
    task = RecordedTask(phase, task_id, {}, [])
    with phase.folder.commit(f"{task_id}-again") as output:
        writer = phase.create_writer(f"{task_id}-again", output)
        batches = [conform(batch, phase.schema) for batch in phase.read(task_id, writer)]
        writer.close()
    for spec, schema in phase.stage_schemas():
        task.inputs[spec.stage.name] = batches
        outcomes = [apply_stage(spec.opened(), batch) for batch in batches]
        for batch, outcome in zip(batches, outcomes, strict=True):
            task.dropped.append((batch, outcome.dropped))
        batches = [conform(outcome.kept, schema) for outcome in outcomes]
    task.inputs["write"] = batches
    return task


# ---- Bare calls ----


def read_records(path: Path) -> list[str]:
    """Return the decoded payload of every conversion record."""
    with path.open("rb") as file:
        records = ArchiveIterator(
            file, record_types=WarcRecordType.conversion, strict_mode=False
        )
        return [record.reader.read().decode("utf-8", "replace") for record in records]


def remove_lines(texts: list[str], duplicates: list[list[int]]) -> pa.Array:
    """Return the texts without their duplicate lines."""
    kept: list[str] = []
    for text, gone in zip(texts, map(set, duplicates), strict=True):
        kept.append(
            "\n".join(line for i, line in enumerate(text.split("\n")) if i not in gone)
        )
    return pa.array(kept, pa.large_string())


def predict(model: Any, lines: list[str], k: int) -> list[Any]:
    """Predict one text at a time, as `model.predict` does, without building an array of the result."""
    return [model.f.predict(line + "\n", k, 0.0, "strict") for line in lines]


def score(pieces: Any, model: Any, lines: list[str]) -> list[float]:
    """Return the log10 probability of each line, tokenized into pieces."""
    return [model.score(" ".join(pieces.encode(line, out_type=str))) for line in lines]


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write Parquet with the row groups and the compression of the pipeline."""
    pq.write_table(table, path, compression="zstd", compression_level=1, row_group_size=512)


def write_tar(samples: list[np.ndarray[Any, Any]], path: Path) -> str:
    """Write one tar member per array with the standard library, and return the SHA-256 of the file."""
    with tarfile.open(path, "w") as tar:
        for i, sample in enumerate(samples):
            content = io.BytesIO()
            np.save(content, sample)
            member = tarfile.TarInfo(f"{i:09d}.{TOKENS_MEMBER}")
            member.size = content.tell()
            content.seek(0)
            tar.addfile(member, content)
    return _sha256(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- Rows ----


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
        lambda: predict(model, lines, 1),
    )
    documents = task.documents("perplexity")
    by_language = {
        language: documents.filter(pc.equal(documents.column("language"), language))
        .column("text")
        .to_pylist()
        for language in annotate.perplexity.models
    }
    scorers: list[tuple[Any, Any, list[str]]] = []
    classifiers: list[tuple[Any, list[str]]] = []
    for language, texts in by_language.items():
        lm = model_registry.resolve(annotate.perplexity.models[language])
        pieces = sentencepiece.SentencePieceProcessor(
            model_file=str(lm / f"{language}.sp.model")
        )
        scorers.append(
            (
                pieces,
                kenlm.Model(str(lm / f"{language}.arpa.bin")),
                [*map(normalize_for_lm, texts)],
            )
        )
        classifier = load_model(model_registry.resolve(reference_models[language]))
        classifiers.append((classifier, [*map(to_line, texts)]))
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
    bare = lambda: _write_tokens(tokens, folder / "bare.bin")  # noqa: E731
    yield Row(
        "tokenize.write", "tokens to a file, SHA-256", size, task.repeat("write"), bare
    )


def _write_tokens(tokens: np.ndarray[Any, Any], path: Path) -> str:
    tokens.astype(np.uint16).tofile(path)
    return _sha256(path)


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
    """Return speeds and ratios from the median CPU seconds of every row. The first round is not counted."""
    seconds = [([], []) for _ in rows]
    for i in range(rounds + 1):
        for row, taken in zip(rows, seconds, strict=True):
            for action, mine in zip((row.as_called, row.bare), taken, strict=True):
                started = time.process_time()
                action()
                if i:
                    mine.append(time.process_time() - started)
    medians = [tuple(map(statistics.median, taken)) for taken in seconds]
    whole = sum(
        {row.step: ours for row, (ours, _) in zip(rows, medians, strict=True)}.values()
    )
    return [
        {
            "step": row.step,
            "bare_calls": row.bare_calls,
            "megabytes": round(row.num_bytes / 1e6, 2),
            "mb_per_s": round(row.num_bytes / 1e6 / ours, 1),
            "bare_mb_per_s": round(row.num_bytes / 1e6 / bare, 1),
            "ratio": round(ours / bare, 2),
            "share": round(ours / whole, 3),
        }
        for row, (ours, bare) in zip(rows, medians, strict=True)
    ]


def compare(megabytes: float, rounds: int) -> list[dict[str, Any]]:
    """Run the demo once on one file of that size, then measure its steps."""
    with tempfile.TemporaryDirectory(prefix="corpusmill-") as folder:
        config = load_demo_config(
            megabytes, Path(folder) / "run", "engine.kind=inline", num_files=1
        )
        plan = make_plan(config)
        deque(run(plan), maxlen=0)
        return measure(list(create_rows(plan, Path(folder))), rounds)


def print_table(figures: list[dict[str, Any]]) -> None:
    """Print one line per row, and the ratio of all steps together."""
    table = Table(
        "step", "MB/s", "bare calls", "MB/s bare", "time / bare", "share", box=None
    )
    for row in figures:
        speeds = f"{row['mb_per_s']:,}", row["bare_calls"], f"{row['bare_mb_per_s']:,}"
        table.add_row(row["step"], *speeds, f"{row['ratio']:.2f}", f"{row['share']:.1%}")
    by_step = {row["step"]: row for row in figures}  # a step with two rows counts once
    whole = 1 / sum(row["share"] / row["ratio"] for row in by_step.values())
    console = Console(width=120)
    console.print(table)
    console.print(
        f"all of these steps together / the bare calls: {whole:.2f}", highlight=False
    )


def main() -> None:
    """Compare, print the table, and save the figures with `--save`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=12, help="WET text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    figures = compare(args.megabytes, args.rounds)
    print_table(figures)
    if args.save:
        print(save("stages_table", {"rounds": args.rounds, "steps": figures}))


if __name__ == "__main__":
    main()
