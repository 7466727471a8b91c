"""Every stage keeps the contract. tests/stages/examples.py has one example per stage."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.config import RunConfig
from pipeline.models import registry as model_registry
from pipeline.phases import registry
from pipeline.phases.stage_spec import StageSpec
from stages.contract import DOCUMENT, DROPPED, Outcome, Stage, drop_where, with_columns
from stages.counters import Counters
from stages.filters.language import Language, LanguageSettings
from stages.filters.length import Length, LengthSettings
from tests.stages.examples import (
    EXAMPLES,
    HOSTILE,
    Example,
    tiny_lid,
    tiny_lines,
    tiny_lm,
    tiny_reference,
    tiny_unigram,
)

Decisions = dict[int, dict[str, Any]]

# Where stages work; one may work in two phases.
PLACES = [(phase.name, stage) for phase in registry.PHASES for stage in phase.stages]

example_of_each = pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: example.label
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Model references in the settings of the examples -> tiny models."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("lm", "reference"):
        (folder / name).mkdir()
    return {
        "tiny-lid": tiny_lid(folder / "lid.bin"),
        "tiny-lm": tiny_lm(folder / "lm"),
        "tiny-reference": tiny_reference(folder / "reference"),
        "tiny-domains": tiny_lines(folder / "domains.txt", "blocked.example"),
        "tiny-set": tiny_lines(
            folder / "set.txt",
            "Was the treaty signed in the museum of history? The treaty was signed",
        ),
        "tiny-unigram": tiny_unigram(folder / "tokenizer.json"),
    }


@pytest.fixture(scope="module")
def opened(files: Mapping[str, Path]) -> Mapping[str, Stage[Any]]:
    """The opened stages of the examples, by label."""
    stages = {example.label: example.made(files) for example in EXAMPLES}
    for stage in stages.values():
        stage.open()
    return stages


def apply_one(stage: Stage[Any], batch: pa.Table) -> Decisions:
    """Check the contract and return the row of every document, kept or dropped."""
    return apply_counted(stage, batch)[0]


def apply_counted(stage: Stage[Any], batch: pa.Table) -> tuple[Decisions, Counters]:
    """Check the contract and return the row of every document, and the counters."""
    outcome = stage.apply(batch)
    check(stage, batch, outcome)
    decisions = {row["doc_id"]: row for row in outcome.kept.to_pylist()}
    decisions |= {row["doc_id"]: row for row in outcome.dropped.to_pylist()}
    return decisions, outcome.counters


def check(stage: Stage[Any], batch: pa.Table, outcome: Outcome) -> None:
    """Raise unless rows balance, columns are as declared and reasons are declared."""
    outcome.check(batch, stage.name)
    assert outcome.dropped.schema.equals(DROPPED)
    assert set(outcome.dropped.column("reason").to_pylist()) <= stage.reasons.keys()
    for counter in [*outcome.counters.counts, *outcome.counters.histograms]:
        assert stage.counter_display_name(counter)
    wanted = StageSpec(type(stage), stage.settings).output_schema(batch.schema)
    found = {field.name: field.type for field in outcome.kept.schema}
    assert found.keys() <= set(wanted.names)
    assert found.keys() >= set(stage.adds.names)
    assert all(wanted.field(name).type == kind for name, kind in found.items())


# ---- what is declared ----


def test_every_stage_of_the_chain_has_an_example() -> None:
    """A stage of a phase without an entry in examples.py fails this test."""
    missing = {stage.__name__ for _, stage in PLACES} - {
        example.label for example in EXAMPLES
    }
    assert not missing, f"add to EXAMPLES in tests/stages/examples.py: {missing}"


@pytest.mark.parametrize(
    ("phase", "stage"),
    PLACES,
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_stage_has_the_name_of_its_module_and_its_section(
    phase: str, stage: type[Stage[Any]]
) -> None:
    """The file, the section of the config and the prefix of the reasons have one name."""
    assert stage.__module__.startswith("stages.")
    assert stage.__module__.endswith(f".{stage.name}")
    section = RunConfig.model_fields[phase].annotation
    sections = {phase} | set(getattr(section, "model_fields", {}))
    assert stage.name in sections or not stage.settings_class().model_fields
    assert stage.version >= 1


@example_of_each
def test_reasons_are_sentences_under_the_stages_name(example: Example) -> None:
    """A reason is `<stage>.<fault>` in lower case, with one sentence."""
    for reason, sentence in example.stage.reasons.items():
        stage, _, fault = reason.partition(".")
        assert stage == example.stage.name
        assert fault.isidentifier()
        assert fault == fault.lower()
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert len(sentence.split()) >= 5
        assert "\n" not in sentence


@example_of_each
def test_the_plan_refuses_a_stage_whose_columns_are_missing(example: Example) -> None:
    """The error has the name and the type of each missing column."""
    spec = StageSpec(example.stage, example.settings)
    whole = example.batch().schema
    for needed in example.stage.needs:
        if needed.name == "doc_id":
            continue
        index = whole.get_field_index(needed.name)
        with pytest.raises(
            ValueError,
            match=f"stage {example.stage.name} needs {needed.name} .* no such column",
        ):
            spec.output_schema(whole.remove(index))
        other = pa.int8() if needed.type == pa.bool_() else pa.bool_()
        with pytest.raises(
            ValueError, match=f"stage {example.stage.name} needs {needed.name} .* {other}"
        ):
            spec.output_schema(whole.set(index, pa.field(needed.name, other)))


# ---- what is done ----

REASONS = [(example, fault) for example in EXAMPLES for fault in example.dropped]


@pytest.mark.parametrize(
    ("example", "fault"), REASONS, ids=lambda value: getattr(value, "label", value)
)
def test_every_reason_is_reached(
    opened: Mapping[str, Stage[Any]], example: Example, fault: str
) -> None:
    """The row of an example is dropped for its reason, and the ordinary row is kept."""
    stage = opened[example.label]
    batch = example.batch(
        [example.ordinary, {**example.ordinary, **example.dropped[fault]}]
    )
    outcome = stage.apply(batch)
    check(stage, batch, outcome)
    assert outcome.kept.num_rows == 1
    assert outcome.dropped.column("reason").to_pylist() == [f"{stage.name}.{fault}"]


@example_of_each
def test_every_declared_reason_has_a_row(example: Example) -> None:
    """Each reason is reached by a row of the example."""
    assert {f"{example.stage.name}.{fault}" for fault in example.dropped} == set(
        example.stage.reasons
    )


@example_of_each
def test_an_empty_batch_passes(opened: Mapping[str, Stage[Any]], example: Example) -> None:
    """The result is empty and has all declared columns."""
    assert apply_one(opened[example.label], example.batch([])) == {}


@example_of_each
def test_a_stage_can_be_pickled_and_opened_in_another_process(
    opened: Mapping[str, Stage[Any]], files: Mapping[str, Path], example: Example
) -> None:
    """Both stages have the same decisions."""
    arrived = pickle.loads(pickle.dumps(example.made(files)))
    arrived.open()
    assert apply_one(arrived, example.batch()) == apply_one(
        opened[example.label], example.batch()
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
@settings(max_examples=25)
@given(data=st.data())
def test_batches_and_chunks_make_no_difference(
    opened: Mapping[str, Stage[Any]], example: Example, data: st.DataObject
) -> None:
    """One or several batches or chunks have equal rows and counters."""
    stage, batch = opened[example.label], many(example)
    cuts = sorted(data.draw(st.lists(st.integers(0, batch.num_rows), max_size=5)))
    ends = [*cuts, batch.num_rows]
    parts = [
        batch.slice(start, end - start) for start, end in zip([0, *cuts], ends, strict=True)
    ]
    whole = apply_counted(stage, batch)
    assert apply_counted(stage, pa.concat_tables(parts)) == whole
    decisions: Decisions = {}
    counters = Counters()
    for part in parts:
        decisions_of_part, counters_of_part = apply_counted(stage, part)
        decisions |= decisions_of_part
        counters += counters_of_part
    assert (decisions, counters) == whole


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.label)
@settings(max_examples=15)
@given(data=st.data())
def test_order_makes_no_difference(
    opened: Mapping[str, Stage[Any]], example: Example, data: st.DataObject
) -> None:
    """Rows in another order have the same outcomes and counters."""
    stage, batch = opened[example.label], many(example)
    order = data.draw(st.permutations(range(batch.num_rows)))
    assert apply_counted(stage, batch.take(pa.array(order))) == apply_counted(stage, batch)


def many(example: Example) -> pa.Table:
    """Return the rows of the example, and small hostile texts if the stage reads texts."""
    reads = "text" in example.stage.needs.names
    small = [text for text in HOSTILE.values() if reads and len(text or "") < 100]
    return example.batch([*example.rows(), *(hostile_row(example, text) for text in small)])


def hostile_row(example: Example, text: str | None) -> dict[str, Any]:
    """Return the ordinary row with that text, and without lines or spans of another text."""
    of_another_text = ("duplicate_lines", "kept_lines", "repeated_spans")
    return {
        name: value
        for name, value in example.ordinary.items()
        if name not in of_another_text
    } | {"text": text}


READERS = [example for example in EXAMPLES if "text" in example.stage.needs.names]


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("example", READERS, ids=lambda example: example.label)
def test_hostile_documents_survive(
    opened: Mapping[str, Stage[Any]], example: Example, hostile: str
) -> None:
    """A hostile text is one kept or dropped row, and does not change other rows."""
    stage = opened[example.label]
    rows = [example.ordinary, hostile_row(example, HOSTILE[hostile]), example.ordinary]
    decisions = apply_one(stage, example.batch(rows))
    alone = apply_one(stage, example.batch([example.ordinary]))
    first, _, last = sorted(decisions)
    assert [decisions[first]] == [decisions[last] | {"doc_id": first}] == [*alone.values()]


@pytest.mark.parametrize("example", READERS, ids=lambda example: example.label)
def test_documents_without_url_or_title_survive(
    opened: Mapping[str, Stage[Any]], example: Example
) -> None:
    """Columns that a stage does not need pass through unchanged."""
    batch = example.batch()
    others = [field for field in DOCUMENT if field.name not in batch.column_names]
    whole = pa.table(
        [*batch.columns, *(pa.nulls(batch.num_rows, field.type) for field in others)],
        schema=pa.schema([*batch.schema, *others]),
    )
    kept = opened[example.label].apply(whole).kept
    assert all(kept.column(field.name).null_count == kept.num_rows for field in others)
    bare = {
        doc_id: decision.get("reason")
        for doc_id, decision in apply_one(opened[example.label], batch).items()
    }
    assert {
        doc_id: decision.get("reason")
        for doc_id, decision in apply_one(opened[example.label], whole).items()
    } == bare


class Careless(Stage[LengthSettings]):
    """A stage that breaks the contract as a test asks."""

    name, version, needs = Length.name, Length.version, Length.needs
    adds: ClassVar[pa.Schema] = pa.schema([pa.field("num_letters", pa.int64())])
    reasons: ClassVar[Mapping[str, str]] = Length.reasons
    counters: ClassVar[Mapping[str, str]] = {"letters": "Letters"}
    fault = ""

    def apply(self, batch: pa.Table) -> Outcome:
        """One fault at most."""
        letters = pa.array(
            [1] * batch.num_rows, pa.int32() if self.fault == "type" else pa.int64()
        )
        kept = (
            batch
            if self.fault == "column"
            else with_columns(batch, {"num_letters": letters})
        )
        reason = "length.too_ugly" if self.fault == "reason" else "length.too_few_chars"
        outcome = drop_where(kept, pa.array([True, False]), reason)
        outcome.counters.add("letters.a" if self.fault == "counter" else "letters")
        return Outcome(kept.slice(2), outcome.dropped) if self.fault == "loss" else outcome


@pytest.mark.parametrize("fault", ["type", "column", "reason", "loss", "counter"])
def test_a_broken_contract_is_found(fault: str) -> None:
    """A wrong type, a missing column, a lost row and an undeclared name are errors."""
    stage = Careless(LengthSettings())
    batch = next(one for one in EXAMPLES if one.stage is Length).batch(
        [{"text": "a"}, {"text": "b"}]
    )
    assert len(apply_one(stage, batch)) == 2
    stage.fault = fault
    with pytest.raises((AssertionError, KeyError)):
        apply_one(stage, batch)


@pytest.mark.models
def test_the_published_language_model_keeps_the_contract_too() -> None:
    """lid.176.ftz on every hostile text, together and one by one."""
    example = Example(
        Language,
        LanguageSettings(),
        {"text": "The quick brown fox jumps over the lazy dog."},
        {},
    )
    stage = example.made({"lid.176.ftz": model_registry.resolve("lid.176.ftz")})
    stage.open()
    batch = example.batch(
        [example.ordinary, *(hostile_row(example, text) for text in HOSTILE.values())]
    )
    decisions = apply_one(stage, batch)
    assert {
        k: v
        for i in range(batch.num_rows)
        for k, v in apply_one(stage, batch.slice(i, 1)).items()
    } == decisions
    assert decisions[min(decisions)]["language"] == "en"
