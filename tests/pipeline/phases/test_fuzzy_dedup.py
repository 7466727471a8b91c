"""fuzzy_dedup over whole crawls: which documents are dropped, and which represent them."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config_files.reader import ConfigError
from pipeline.config import load
from pipeline.execution.engine import run
from pipeline.phases import fuzzy_dedup
from pipeline.planning.plan import make_plan
from pipeline.runs.run_folder import RunFolder
from stages.dedup.minhash import MinHash, MinHashSettings, signatures, split_ngrams
from tests.conftest import wet_record

NUM_FAMILIES = 24
THRESHOLD = 0.6


@pytest.fixture(scope="module")
def pages() -> list[tuple[str, str]]:
    """URL and text of families of pages.

    Each page is an edited copy of the page before it, and the pages are shuffled.
    """
    rng = random.Random(7)
    pages: list[tuple[str, str]] = []
    for family in range(NUM_FAMILIES):
        words = [f"w{rng.randrange(900)}" for _ in range(100)]
        for member in range(1 + family % 4):
            pages.append(
                (
                    f"https://example.org/{family}/{member}",
                    " ".join(words) + " ." * rng.randrange(3),
                )
            )
            for i in rng.sample(range(100), 4 if family % 2 else 14):
                words[i] = f"x{rng.randrange(10**6)}"
    rng.shuffle(pages)
    return pages


@pytest.fixture
def config(tmp_path: Path, tiny_tokenizer: Path, pages: list[tuple[str, str]]) -> str:
    """A config with three files of these pages."""
    for i, part in enumerate((pages[:9], pages[9:10], pages[10:])):
        records = [
            wet_record(url, f"Title\n{text}", number=n)
            for n, (url, text) in enumerate(part)
        ]
        (tmp_path / f"{i}.warc.wet").write_bytes(b"".join(records))
    path = tmp_path / "near.yaml"
    path.write_text(
        f"run_dir: {tmp_path}/run\ninput:\n  files: ['{tmp_path}/*.warc.wet']\nextract:\n  length: {{min_chars: 10}}\n"
        f"annotate:\n  minhash: {{threshold: {THRESHOLD}, ngram_words: 2}}\nfuzzy_dedup: {{}}\n"
        f"select:\n  language: null\ntokenize:\n  tokenizer: {tiny_tokenizer}\nengine:\n  kind: inline\n"
    )
    return str(path)


def find_representatives(config: str, *overrides: str) -> dict[str, str | None]:
    """Run, and return URL -> URL of the representative, or None for a kept document."""
    plan = make_plan(load(config, overrides))
    list(run(plan))
    select = Path(RunFolder.open(plan.run_dir).folder("select").root)
    rows = [
        row
        for path in sorted(select.glob("*.decisions.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    urls = {row["doc_id"]: row["url"] for row in rows} | {None: None}
    assert all(
        (row["decision"] == "minhash.near_duplicate") == (row["representative"] is not None)
        for row in rows
    )
    return {row["url"]: urls[row["representative"]] for row in rows}


def compare_all_pairs(
    pages: list[tuple[str, str]], settings: MinHashSettings, keep: str
) -> dict[str, str | None]:
    """Return the same by comparing every page with every other one."""
    texts = pa.array([text for _, text in pages], pa.large_string())
    ids = pa.array(range(len(pages)), pa.uint64())
    rows = (
        MinHash(settings)
        .apply(pa.table({"doc_id": ids, "text": texts}))
        .kept.column("minhash")
        .to_pylist()
    )
    values, _ = signatures(texts, settings)
    sets = [set(split_ngrams(text, settings.ngram_words)) for _, text in pages]

    def is_verified(a: int, b: int) -> bool:
        if settings.verify == "exact":
            return len(sets[a] & sets[b]) >= settings.threshold * len(sets[a] | sets[b])
        return not settings.verify or (values[a] == values[b]).mean() >= settings.threshold

    pairs = [
        (a, b)
        for a, b in itertools.combinations(range(len(pages)), 2)
        if set(rows[a]) & set(rows[b]) and is_verified(a, b)
    ]
    labels = list(range(len(pages)))
    for _, (a, b) in itertools.product(pages, pairs):
        labels[a] = labels[b] = min(labels[a], labels[b])
    representatives: dict[str, str | None] = {}
    for i, (url, _) in enumerate(pages):
        members = [j for j in range(len(pages)) if labels[j] == labels[i]]
        representative = (
            max(members, key=lambda j: len(pages[j][1]))
            if keep == "longest"
            else members[0]
        )
        representatives[url] = None if representative == i else pages[representative][0]
    return representatives


@pytest.mark.parametrize("verify", [None, "signatures", "exact"])
@pytest.mark.parametrize("keep", ["first", "longest", "best"])
def test_clusters_are_those_of_comparing_all_pairs(
    config: str, pages: list[tuple[str, str]], keep: str, verify: Any
) -> None:
    """For each rule and each verification. Without perplexities, "best" is "first"."""
    settings = MinHashSettings(threshold=THRESHOLD, ngram_words=2, verify=verify)
    overrides = [f"fuzzy_dedup.keep={keep}", f"annotate.minhash.verify={verify or 'null'}"]
    found = find_representatives(config, *overrides)
    assert found == compare_all_pairs(pages, settings, keep)
    assert (
        5
        < sum(representative is not None for representative in found.values())
        < len(pages) - NUM_FAMILIES
    )


def test_verification_drops_fewer_documents_for_any_block_size(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing a few signatures at a time has the same result."""
    without = find_representatives(config)
    verified = find_representatives(
        config,
        "annotate.minhash.verify=signatures",
        "run_dir=" + str(Path(config).parent / "verified"),
    )
    assert sum(map(bool, verified.values())) < sum(map(bool, without.values()))
    monkeypatch.setattr(fuzzy_dedup, "MAX_VALUES_HELD", 3 * 128)
    pieces = "run_dir=" + str(Path(config).parent / "pieces")
    assert (
        find_representatives(config, "annotate.minhash.verify=signatures", pieces)
        == verified
    )


@pytest.mark.parametrize("num_partitions", [2, 5, 300])
def test_the_number_of_partitions_changes_nothing(
    config: str, monkeypatch: pytest.MonkeyPatch, num_partitions: int
) -> None:
    """Edges of several partitions merge to the same clusters."""
    one = find_representatives(config)
    monkeypatch.setattr(fuzzy_dedup, "count_partitions", lambda *_: num_partitions)
    assert (
        find_representatives(config, "run_dir=" + str(Path(config).parent / "more")) == one
    )


def test_select_does_not_depend_on_fuzzy_dedup_when_it_is_off(
    config: str, tmp_path: Path
) -> None:
    """No near-duplicate is dropped. Switching it changes four fingerprints."""
    on, off = make_plan(load(config)), make_plan(load(config, ["fuzzy_dedup=null"]))
    changed = {
        a.name
        for a, b in zip(on.phases, off.phases, strict=True)
        if a.fingerprint != b.fingerprint
    }
    assert changed == {"fuzzy_dedup", "select", "tokenize", "write_shards"}
    assert off.phase("select").parents == ("annotate",)
    assert set(find_representatives(config, "fuzzy_dedup=null").values()) == {None}
    assert not list(Path(off.folder("fuzzy_dedup").root).glob("done/*"))


def test_fuzzy_dedup_without_signatures_is_refused(config: str) -> None:
    """The error of the config has both remedies."""
    with pytest.raises(
        ConfigError, match=r"annotate.minhash is null.*set annotate.minhash to \{\}"
    ):
        load(config, ["annotate.minhash=null"])
