"""fuzzy_dedup over whole crawls: who goes, who stays, and that nothing but signatures and the rule decides."""

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
    """URL and text of families of pages, each edited from the one before: by little or by more, shuffled over files."""
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
    """A config of three files of these pages."""
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


def verdicts(config: str, *overrides: str) -> dict[str, str | None]:
    """URL -> URL of the document that stays in its place, or None, after a run."""
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


def expected(
    pages: list[tuple[str, str]], settings: MinHashSettings, keep: str
) -> dict[str, str | None]:
    """The same by comparing every page with every other, and labels passed on until nothing changes."""
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
    verdict: dict[str, str | None] = {}
    for i, (url, _) in enumerate(pages):
        members = [j for j in range(len(pages)) if labels[j] == labels[i]]
        stays = (
            max(members, key=lambda j: len(pages[j][1]))
            if keep == "longest"
            else members[0]
        )
        verdict[url] = None if stays == i else pages[stays][0]
    return verdict


@pytest.mark.parametrize("verify", [None, "signatures", "exact"])
@pytest.mark.parametrize("keep", ["first", "longest", "best"])
def test_groups_are_those_of_comparing_all_with_all(
    config: str, pages: list[tuple[str, str]], keep: str, verify: Any
) -> None:
    """Across files: who goes and who stays, by each rule, verified or not (without perplexities, best is first)."""
    settings = MinHashSettings(threshold=THRESHOLD, ngram_words=2, verify=verify)
    overrides = [f"fuzzy_dedup.keep={keep}", f"annotate.minhash.verify={verify or 'null'}"]
    found = verdicts(config, *overrides)
    assert found == expected(pages, settings, keep)
    assert (
        5 < sum(stays is not None for stays in found.values()) < len(pages) - NUM_FAMILIES
    )


def test_verifying_takes_away_pairs_and_pieces_change_nothing(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer documents go than without; comparing a few signatures at a time gives the same."""
    without = verdicts(config)
    verified = verdicts(
        config,
        "annotate.minhash.verify=signatures",
        "run_dir=" + str(Path(config).parent / "verified"),
    )
    assert sum(map(bool, verified.values())) < sum(map(bool, without.values()))
    monkeypatch.setattr(fuzzy_dedup, "MAX_VALUES_HELD", 3 * 128)
    pieces = "run_dir=" + str(Path(config).parent / "pieces")
    assert verdicts(config, "annotate.minhash.verify=signatures", pieces) == verified


@pytest.mark.parametrize("num_partitions", [2, 5, 300])
def test_the_number_of_partitions_changes_nothing(
    config: str, monkeypatch: pytest.MonkeyPatch, num_partitions: int
) -> None:
    """Forests of more ranges merge to the same groups."""
    one = verdicts(config)
    monkeypatch.setattr(fuzzy_dedup, "count_partitions", lambda *_: num_partitions)
    assert verdicts(config, "run_dir=" + str(Path(config).parent / "more")) == one


def test_switched_off_it_has_no_work_and_select_does_not_hang_on_it(
    config: str, tmp_path: Path
) -> None:
    """Everyone stays, and turning it off and on renews itself, select and what follows, nothing else."""
    on, off = make_plan(load(config)), make_plan(load(config, ["fuzzy_dedup=null"]))
    changed = {
        a.name
        for a, b in zip(on.phases, off.phases, strict=True)
        if a.fingerprint != b.fingerprint
    }
    assert changed == {"fuzzy_dedup", "select", "tokenize", "write_shards"}
    assert off.phase("select").parents == ("annotate",)
    assert set(verdicts(config, "fuzzy_dedup=null").values()) == {None}
    assert not list(Path(off.folder("fuzzy_dedup").root).glob("done/*"))


def test_near_deduplication_without_signatures_is_refused(config: str) -> None:
    """At once, with both ways out."""
    with pytest.raises(
        ConfigError, match=r"annotate.minhash is null.*set annotate.minhash to \{\}"
    ):
        load(config, ["annotate.minhash=null"])
