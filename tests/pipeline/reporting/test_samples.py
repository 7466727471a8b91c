"""Samples: random documents of a decision, language, domain or score range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config_files.reader import ConfigError
from pipeline.reporting.browse.search import Search, parse_scores
from pipeline.reporting.samples import (
    draw_samples,
    format_sample,
    to_json,
)
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.conftest import make_small
from tests.pipeline.reporting.pages import RULES, read_decisions, write_pages

KINDS = ["good", "french", "short", "copy", "half", "good"]


@pytest.fixture(scope="module")
def found(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> RunFolder:
    """A run over two files with pages of all kinds. French is not wanted."""
    small = make_small(tmp_path_factory.mktemp("samples"), tiny_tokenizer, lid_file)
    files = [
        str(write_pages(small.folder / name, KINDS))
        for name in ("a.warc.wet", "b.warc.wet")
    ]
    return small.run(input={"files": files}, **RULES)[0]


def test_every_decision_gives_exactly_its_documents(found: RunFolder) -> None:
    """With enough samples, each document is drawn once, under its own decision."""
    decisions = read_decisions(found)
    for decision in set(decisions.values()):
        drawn = draw_samples(found, Search(decision=decision), 99, seed=0)
        assert {sample.decision for sample in drawn} == {decision}
        wanted = sorted(doc_id for doc_id, given in decisions.items() if given == decision)
        assert sorted(sample.doc_id for sample in drawn) == wanted


def test_the_seed_decides_the_choice(found: RunFolder) -> None:
    """Fewer samples are the beginning of more; another seed gives another order."""
    orders = [
        tuple(sample.doc_id for sample in draw_samples(found, Search(), num, seed))
        for num, seed in ((99, 1), (99, 1), (3, 1), (99, 2))
    ]
    assert orders[0] == orders[1] != orders[3]
    assert orders[2] == orders[0][:3]
    assert len(orders[0]) == len(read_decisions(found))


def test_language_domain_and_scores_are_filters(found: RunFolder) -> None:
    """A document without the score is not drawn."""
    french = draw_samples(found, Search(language="fr"), 99, seed=0)
    assert {sample.decision for sample in french} == {"language.not_wanted"}
    assert len(french) == 2
    everything = draw_samples(found, Search(domain="example.org"), 99, seed=0)
    assert len(everything) == len(read_decisions(found))
    assert draw_samples(found, Search(domain="org"), 99, seed=0) == everything
    by_stage = draw_samples(found, Search(decision="language"), 99, seed=0)
    assert {sample.decision for sample in by_stage} == {"language.not_wanted"}
    scored = Search(scores=parse_scores(["language_score=0:"]))
    assert all(sample.text for sample in draw_samples(found, scored, 99, seed=0))


def test_a_sample_has_its_text_before_and_after(found: RunFolder) -> None:
    """Removed lines are in the first text only; a page dropped at once has none."""
    (half, *_) = [
        sample
        for sample in draw_samples(found, Search(decision="kept"), 99, seed=0)
        if sample.text_before != sample.text
    ]
    assert half.text is not None
    assert half.text_before is not None
    assert len(half.text) < len(half.text_before)
    after, before = (format_sample(half, 10, is_before) for is_before in (False, True))
    assert after[1] == f"    {half.text[:10]}"
    assert after[-1] == f"    ... {len(half.text) - 10:,} more characters"
    assert before[1] == f"    {half.text_before[:10]}".split("\n", 1)[0]
    short = draw_samples(found, Search(decision="length.too_few_chars"), 1, seed=0)[0]
    head, note = format_sample(short, 0, False)
    assert head.startswith("length.too_few_chars (value 1, limit 5)")
    assert "no text is stored" in note
    assert json.loads(to_json(half))["text_before"] == half.text_before


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (
            Search(decision="perplexity.tial"),
            r"no document of .* matches; its decisions: .*kept",
        ),
        (
            Search(scores={"perplexty": (0, 1)}),
            r"score 'perplexty': no such score; stored are",
        ),
    ],
)
def test_what_does_not_exist_is_named(
    found: RunFolder, wanted: Search, message: str
) -> None:
    """The message lists what there is."""
    with pytest.raises(ConfigError, match=message):
        draw_samples(found, wanted, 3, seed=0)


@pytest.mark.parametrize("entry", ["perplexity", "perplexity=3", "perplexity=a:b", "=x"])
def test_a_wrong_score_range_is_refused(entry: str) -> None:
    """The message shows the form."""
    with pytest.raises(ConfigError, match="expected COLUMN=LOW:HIGH"):
        parse_scores([entry])
