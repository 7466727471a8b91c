"""What the phases of near-duplicates read of the n-grams, and how many they hold."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from pipeline.config import load
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup import hash_phase
from pipeline.phases.dedup.fuzzy_candidates import FuzzyCandidates, FuzzyNgrams
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.dedup.fuzzy_members import FuzzyMemberNgrams, FuzzyMembers
from pipeline.phases.dedup.merge_clusters import FuzzyMerge, FuzzyRanges
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.runs.ngram_sets import LocalSets
from stages.dedup import candidate_groups
from tests.bucket_like_store import read_like_a_bucket
from tests.conftest import wet_record
from tests.pipeline.conftest import run_until

NUM_SPLITS = 50
NEXT = 17  # splits from one with a similar document to the one that has the original
DOCUMENTS_PER_SPLIT = 20
NUM_WORDS = 120  # of each document, so that all have as many n-grams
NGRAM_BYTES = 4 * (NUM_WORDS - 4)


def write_config(folder: Path, tokenizer: Path, texts: list[list[str]]) -> str:
    """Write a WET file per list of texts, and return a config of them with near-duplicates."""
    for number, pages in enumerate(texts):
        records = [
            wet_record(f"https://example.org/{number}/{i}", f"Title\n{text}", number=i)
            for i, text in enumerate(pages)
        ]
        (folder / f"{number:04d}.warc.wet").write_bytes(b"".join(records))
    path = folder / "near.yaml"
    path.write_text(
        f"run_dir: {folder}/run\ninput:\n  files: ['{folder}/*.warc.wet']\n"
        "extract:\n  length: {min_chars: 10}\nparagraph_dedup: {keep: keep_all}\nannotate:\n  minhash: {}\n"
        "fuzzy_dedup: {keep: first}\nselect:\n  language: null\n"
        f"tokenize:\n  tokenizer: {tokenizer}\nengine:\n  kind: inline\n"
    )
    return str(path)


def run_config(config: str, phase: str) -> RunPlan:
    """Run a config until a phase has finished."""
    plan = make_plan(load(config))
    list(run_until(plan, phase))
    return plan


def find_decisions(plan: RunPlan) -> list[list[tuple[int, int]]]:
    """Return the record and the representative of each near-duplicate, per split."""
    phase = FuzzyDedup(plan)
    found = [phase.find_near_duplicates(split).to_pylist() for split in plan.splits]
    return [[(row["record"], row["representative"]) for row in rows] for rows in found]


def run_phase(phase: PartitionPhase, counts: Counter[str]) -> list[Counter[str]]:
    """Run all tasks of a phase and merge them; return what each task read."""
    per_task: list[Counter[str]] = []
    phase.folder.begin()
    for task_id in phase.task_ids():
        counts.clear()
        phase.run(task_id)
        per_task.append(counts.copy())
    phase.finish()
    counters = phase.sum_records().to_json()
    phase.folder.finish({"task_ids": len(per_task), "of": "", "counters": counters})
    return per_task


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> RunPlan:
    """Annotated: 50 splits of 20 documents, of which one in ten is similar to one of another split."""
    rng = random.Random(3)

    def make_words() -> list[str]:
        return [f"w{rng.randrange(10**6)}" for _ in range(NUM_WORDS)]

    texts = [[make_words() for _ in range(DOCUMENTS_PER_SPLIT)] for _ in range(NUM_SPLITS)]
    for number in range(NUM_SPLITS):
        original = texts[(number + NEXT) % NUM_SPLITS][3]
        texts[number][15] = [*original[:-1], "other"]
    pages = [[" ".join(words) for words in split] for split in texts]
    folder = tmp_path_factory.mktemp("sparse")
    return run_config(write_config(folder, tiny_tokenizer, pages), "annotate")


def expect_sparse_decisions() -> list[list[tuple[int, int]]]:
    """Return what `find_decisions` finds: the later document of each pair is dropped."""
    expected: list[list[tuple[int, int]]] = [[] for _ in range(NUM_SPLITS)]
    for number in range(NUM_SPLITS):
        pair = [(number, 15), ((number + NEXT) % NUM_SPLITS, 3)]
        (kept, kept_record), (dropped, record) = sorted(pair)
        expected[dropped].append((record, kept << 32 | kept_record))
    return [sorted(rows) for rows in expected]


def count_wanted_bytes(plan: RunPlan, num_partitions: int) -> int:
    """Return the bytes of the sets that tasks compare: of each document once per partition in which it has a group."""
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for split in plan.splits:
        with plan.folder("annotate").open(Annotate.bands.file_name(split.key)) as file:
            bands = pa.ipc.open_file(file).read_all()
        for value, record in zip(
            bands["hash"].to_pylist(), bands["record"].to_pylist(), strict=True
        ):
            rows[value].append((split.index, record))
    wanted = {
        (value * num_partitions >> 64, document)
        for value, documents in rows.items()
        for document in documents
        if len(documents) > 1
    }
    return len(wanted) * NGRAM_BYTES


@pytest.mark.parametrize("num_partitions", [1, 8])
def test_a_task_reads_little_more_than_the_sets_that_it_compares(
    sparse: RunPlan, monkeypatch: pytest.MonkeyPatch, num_partitions: int
) -> None:
    """The n-grams of a split are read once, and the decisions are the same for any partitions."""
    monkeypatch.setattr(hash_phase, "count_partitions", lambda *_: num_partitions)
    with read_like_a_bucket() as counts:
        run_phase(FuzzyCandidates(sparse), counts)
        per_source = run_phase(FuzzyNgrams(sparse), counts)
        per_task = run_phase(FuzzyClusters(sparse), counts)
        for phase in (FuzzyRanges, FuzzyMerge, FuzzyMembers, FuzzyMemberNgrams, FuzzyDedup):
            run_phase(phase(sparse), counts)
        assert find_decisions(sparse) == expect_sparse_decisions()
    assert {each["requests of ngrams.bin"] for each in per_source} == {1}
    assert len(per_task) == num_partitions
    assert max(each["requests of sets.arrow"] for each in per_task) <= NUM_SPLITS
    wanted_bytes = count_wanted_bytes(sparse, num_partitions)
    assert wanted_bytes >= 2 * NUM_SPLITS * NGRAM_BYTES
    read_bytes = sum(each["bytes of sets.arrow"] for each in per_task)
    header_bytes = 400 * NUM_SPLITS * num_partitions
    assert wanted_bytes <= read_bytes < 1.1 * wanted_bytes + header_bytes
    for name in (
        "fuzzy_candidates",
        "fuzzy_ngrams",
        "fuzzy_clusters",
        "fuzzy_ranges",
        "fuzzy_merge",
        "fuzzy_members",
        "fuzzy_member_ngrams",
        "fuzzy_dedup",
    ):
        sparse.folder(name).root.delete_all()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of documents whose n-grams were read at a time."""
    found: list[int] = []
    original = LocalSets.read

    def read(
        sets: LocalSets, documents: NDArray[np.uint64], places: NDArray[np.uint64]
    ) -> Any:
        found.append(len(documents))
        return original(sets, documents, places)

    monkeypatch.setattr(LocalSets, "read", read)
    return found


def make_template_pages(num_splits: int, num_pages: int) -> list[list[str]]:
    """Return pages of one text that end with a number; two neighbours are equal."""
    text = " ".join(f"w{i}" for i in range(200))
    return [
        [f"{text} {(split * num_pages + page) // 2}" for page in range(num_pages)]
        for split in range(num_splits)
    ]


def test_a_large_group_is_compared_in_parts(
    tmp_path: Path,
    tiny_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: list[int],
) -> None:
    """60 similar pages in one group are never held together, and one of them is kept."""
    config = write_config(tmp_path, tiny_tokenizer, make_template_pages(3, 20))
    monkeypatch.setattr(candidate_groups, "MAX_COMPARED", 7)
    monkeypatch.setattr(candidate_groups, "count_ngrams_held", lambda *_: 1000)
    plan = run_config(config, "fuzzy_dedup")
    decisions = [row for rows in find_decisions(plan) for row in rows]
    assert [representative for _, representative in decisions] == [0] * 59
    assert 2 <= max(held) <= 2 * 7


def test_equal_sets_of_a_split_are_stored_and_read_once(
    tmp_path: Path, tiny_tokenizer: Path
) -> None:
    """50 equal pages cost one set of each split."""
    text = " ".join(f"w{i}" for i in range(NUM_WORDS))
    config = write_config(tmp_path, tiny_tokenizer, [[text] * 50, [text] * 50])
    plan = run_config(config, "fuzzy_dedup")
    for phase in (FuzzyNgrams, FuzzyMemberNgrams):
        plan.folder(phase.name).root.delete_all()
        with read_like_a_bucket() as counts:
            per_source = run_phase(phase(plan), counts)
        assert [each["requests of ngrams.bin"] for each in per_source] == [1, 1]
        assert [each["bytes of ngrams.bin"] for each in per_source] == [4 + NGRAM_BYTES] * 2
    decisions = [row for rows in find_decisions(plan) for row in rows]
    assert [representative for _, representative in decisions] == [0] * 99
