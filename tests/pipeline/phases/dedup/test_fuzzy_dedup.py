"""The phases of near-duplicates over whole crawls, compared with brute force."""

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
from pipeline.phases.dedup import fuzzy_dedup, hash_phase, merge_clusters
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.runs.run_folder import RunFolder
from stages.dedup import candidate_groups
from stages.dedup.minhash import MinHash, MinHashSettings, split_ngrams
from tests.conftest import wet_record

NUM_FAMILIES = 24
THRESHOLD = 0.6

# The phases that depend on the settings of fuzzy_dedup.
FUZZY_AND_LATER = {
    "fuzzy_candidates",
    "fuzzy_ngrams",
    "fuzzy_clusters",
    "fuzzy_ranges",
    "fuzzy_merge",
    "fuzzy_members",
    "fuzzy_member_ngrams",
    "fuzzy_dedup",
    "percentiles",
    "mix_percentiles",
    "select",
    "tokenize",
    "write_shards",
}


def list_changed_phases(before: RunPlan, after: RunPlan) -> set[str]:
    """Return the phases that would run again."""
    return {
        a.name
        for a, b in zip(before.phases, after.phases, strict=True)
        if a.fingerprint != b.fingerprint
    }


@pytest.fixture(scope="module")
def pages() -> list[tuple[str, str]]:
    """URL and text of families of pages, shuffled. Each page is edited from the one before, a little or more."""
    rng = random.Random(7)
    pages: list[tuple[str, str]] = []
    for family in range(NUM_FAMILIES):
        start = ""
        words = [f"w{rng.randrange(900)}" for _ in range(100)]
        for member in range(1 + family % 4):
            pages.append(
                (
                    f"https://example.org/{family}/{member}",
                    " ".join(words) + " ." * rng.randrange(3),
                )
            )
            start = " ".join(words[:90])
            for i in rng.sample(range(100), 4 if family % 2 else 14):
                words[i] = f"x{rng.randrange(10**6)}"
        # A shorter page, which the last one contains.
        pages.append((f"https://example.org/{family}/start", start))
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


def run_to_select(config: str, *overrides: str) -> dict[str, str | None]:
    """Return URL -> URL of the representative, None for a document that is kept, after a run."""
    plan = make_plan(load(config, overrides))
    list(run(plan))
    select = Path(RunFolder.open(plan.run_dir).folder("select").root)
    rows = [
        row
        for path in sorted(select.glob("*.decisions.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]
    urls = {row["doc_id"]: row["url"] for row in rows} | {None: None}
    for row in rows:
        is_dropped = row["decision"] == "minhash.near_duplicate"
        assert is_dropped == (row["representative"] is not None)
    return {row["url"]: urls[row["representative"]] for row in rows}


class BruteForce:
    """The decisions, by comparing every page with every other one."""

    def __init__(
        self, pages: list[tuple[str, str]], settings: MinHashSettings, rule: str | None
    ) -> None:
        self.pages, self.rule, self.threshold = pages, rule, settings.threshold
        texts = pa.array([text for _, text in pages], pa.large_string())
        ids = pa.array(range(len(pages)), pa.uint64())
        batch = pa.table({"doc_id": ids, "text": texts})
        rows = MinHash(settings).apply(batch).kept.column("minhash").to_pylist()
        self.bands = [set(row) for row in rows]
        self.ngrams = [set(split_ngrams(text, settings.ngram_words)) for _, text in pages]

    def is_dropped_for(self, dropped: int, kept: int) -> bool:
        """Return whether the first page is dropped if the second one is preferred and kept."""
        if not self.bands[dropped] & self.bands[kept]:
            return False
        one, other = self.ngrams[dropped], self.ngrams[kept]
        if self.rule in ("jaccard", "both") and len(one & other) < self.threshold * len(
            one | other
        ):
            return False
        return self.rule in ("jaccard", None) or one <= other

    def decide(self, keep: str) -> dict[str, str | None]:
        """Return URL -> URL of the representative."""

        def rank(page: int) -> tuple[int, int]:
            # Without perplexities, the best page is the first one.
            return (-len(self.pages[page][1]) if keep == "longest" else 0, page)

        order = sorted(range(len(self.pages)), key=rank)
        chosen = (
            self._choose_per_cluster(order) if self.rule is None else self._choose(order)
        )
        names = [url for url, _ in self.pages]
        return {
            names[page]: None if kept == page else names[kept]
            for page, kept in chosen.items()
        }

    def _choose(self, order: list[int]) -> dict[int, int]:
        chosen: dict[int, int] = {}
        for page in order:
            survivors = [other for other, kept in chosen.items() if other == kept]
            similar = [other for other in survivors if self.is_dropped_for(page, other)]
            chosen[page] = similar[0] if similar else page
        return chosen

    def _choose_per_cluster(self, order: list[int]) -> dict[int, int]:
        """Pass the most preferred page on along all pairs until nothing changes."""
        chosen = {page: page for page in order}
        for _, one, other in itertools.product(order, order, order):
            if self.is_dropped_for(one, other):
                chosen[one] = min(chosen[one], chosen[other], key=order.index)
        return chosen


@pytest.mark.parametrize("rule", [None, "jaccard", "contained", "both"])
@pytest.mark.parametrize("keep", ["first", "longest", "best"])
def test_decisions_are_those_of_brute_force(
    config: str, pages: list[tuple[str, str]], keep: str, rule: str | None
) -> None:
    """Across files, by each rule and each order of preference."""
    if rule in ("contained", "both") and keep != "longest":
        with pytest.raises(ConfigError, match="set keep to longest"):
            load(config, [f"fuzzy_dedup={{keep: {keep}, rule: {rule}}}"])
        return
    settings = MinHashSettings(threshold=THRESHOLD, ngram_words=2)
    found = run_to_select(config, f"fuzzy_dedup={{keep: {keep}, rule: {rule or 'null'}}}")
    assert found == BruteForce(pages, settings, rule).decide(keep)
    num_dropped = sum(kept is not None for kept in found.values())
    assert 5 < num_dropped <= len(pages) - NUM_FAMILIES


def test_a_rule_drops_no_document_through_a_chain(
    config: str, pages: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in groups that are too large to be compared at once. Without a rule, some dropped documents are not similar."""
    texts = dict(pages)

    def count_dissimilar(decisions: dict[str, str | None]) -> int:
        dissimilar = 0
        for url, kept in decisions.items():
            if kept is not None:
                one, other = (set(split_ngrams(texts[u], 2)) for u in (url, kept))
                dissimilar += len(one & other) < THRESHOLD * len(one | other)
        return dissimilar

    assert count_dissimilar(run_to_select(config)) == 0
    monkeypatch.setattr(candidate_groups, "MAX_COMPARED", 2)
    in_parts = run_to_select(config, "run_dir=" + str(Path(config).parent / "parts"))
    assert count_dissimilar(in_parts) == 0
    representatives = {kept for kept in in_parts.values() if kept is not None}
    assert len(representatives) > 5
    assert {in_parts[kept] for kept in representatives} == {None}
    other_run = "run_dir=" + str(Path(config).parent / "without")
    assert count_dissimilar(run_to_select(config, "fuzzy_dedup.rule=null", other_run)) > 5


def test_the_size_of_tasks_changes_nothing(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few documents at a time, and any number of partitions and merges, give the same decisions."""
    sizes: list[tuple[Any, str, int]] = [
        (candidate_groups, "count_ngrams_held", 300),
        (merge_clusters, "MEMBERS_PER_BATCH", 3),
        (merge_clusters, "MAX_READS", 20),
        (merge_clusters, "count_partitions", 3),
        (fuzzy_dedup, "MAX_SORTED", 2),
        (hash_phase, "count_partitions", 2),
        (hash_phase, "count_partitions", 100),
    ]
    expected = run_to_select(config)
    for number, (module, name, value) in enumerate(sizes):
        is_function = name.startswith("count")
        other_run = f"run_dir={Path(config).parent / str(number)}"
        with monkeypatch.context() as patch:
            patch.setattr(module, name, (lambda *_, n=value: n) if is_function else value)
            assert run_to_select(config, other_run) == expected, (name, value)


def test_a_higher_threshold_repeats_only_the_comparison(config: str) -> None:
    """The signatures and scores of annotate are used again, and fewer documents are dropped."""
    before = make_plan(load(config))
    after = make_plan(load(config, ["fuzzy_dedup.threshold=0.8"]))
    assert list_changed_phases(before, after) == FUZZY_AND_LATER
    decisions = run_to_select(config), run_to_select(config, "fuzzy_dedup.threshold=0.8")
    low, high = (sum(kept is not None for kept in found.values()) for found in decisions)
    assert low > high > 0


def test_switched_off_it_has_no_tasks_and_select_does_not_depend_on_it(
    config: str, tmp_path: Path
) -> None:
    """All documents are kept, and switching it changes only itself, select and the phases after."""
    on, off = make_plan(load(config)), make_plan(load(config, ["fuzzy_dedup=null"]))
    assert list_changed_phases(on, off) == FUZZY_AND_LATER
    assert off.phase("select").parents == ("annotate",)
    assert set(run_to_select(config, "fuzzy_dedup=null").values()) == {None}
    assert not list(Path(off.folder("fuzzy_dedup").root).glob("done/*"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["annotate.minhash=null"], r"annotate.minhash is null.*set annotate.minhash to"),
        (
            ["annotate.minhash.store_ngrams=false"],
            r"no n-grams to compare; set store_ngrams",
        ),
        (["fuzzy_dedup.threshold=0.5"], r"0.5, below annotate.minhash.threshold \(0.6\)"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    config: str, overrides: list[str], message: str
) -> None:
    """The message names both settings."""
    with pytest.raises(ConfigError, match=message):
        load(config, overrides)
