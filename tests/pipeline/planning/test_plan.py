"""Plans: fingerprints decide which phases run again, and are equal on every machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_files.reader import ConfigError
from pipeline.config import load
from pipeline.phases import registry
from pipeline.planning.fingerprints import fingerprint
from pipeline.planning.plan import make_plan
from stages.html import extraction, trafilatura
from tests.processes import run_python

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


# The phases that merge near-duplicates read phases that are off.
ALL_PHASES = set(registry.list_phase_names()) - {
    "fuzzy_ranges",
    "fuzzy_merge",
}
SUBSTRING_PHASES = {"substring_hashes", "substring_dedup"}
# Both read a phase that is off.
EXTRACT_AND_LATER = ALL_PHASES - {"exact_dedup", "substring_dedup"}


@pytest.fixture
def config(tmp_path: Path, tiny_tokenizer: Path, wet_file: Path) -> str:
    path = tmp_path / "plan.yaml"
    path.write_text(
        f"run_dir: {tmp_path}/run\ninput:\n  files: ['{wet_file}']\ntokenize:\n  tokenizer: {tiny_tokenizer}\n"
        f"annotate:\n  language:\n    model: {tiny_tokenizer}\n"
    )
    return str(path)


def fingerprints(config: str, *overrides: str) -> dict[str, str | None]:
    return {
        phase.name: phase.fingerprint for phase in make_plan(load(config, overrides)).phases
    }


def changed(before: dict[str, str | None], after: dict[str, str | None]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("override", "renewed"),
    [
        (
            "select.language.min_score=0.65",
            {"select", "tokenize", "write_shards"},
        ),
        (
            "select.mix={by: num_chars}",
            {"mix_percentiles", "select", "tokenize", "write_shards"},
        ),
        ("write_shards.sample_tokens=1000", {"write_shards"}),
        ("write_shards.seed=7", {"tokenize", "write_shards"}),
        (
            "paragraph_dedup.keep=keep_first",
            ALL_PHASES - {"extract", "exact_hashes", "exact_dedup", *SUBSTRING_PHASES},
        ),
        ("exact_dedup={by: digest}", ALL_PHASES - {"extract", *SUBSTRING_PHASES}),
        (
            "substring_dedup={}",
            ALL_PHASES - {"extract", "exact_hashes", "exact_dedup", "paragraph_dedup"},
        ),
        ("extract.length.min_chars=200", EXTRACT_AND_LATER),
        ("engine.kind=inline", set()),
        ("engine.memory_mb=512", set()),
        ("run_dir=/elsewhere", set()),
        ("input.max_quarantined_share=0.5", set()),
    ],
)
def test_a_changed_key_reruns_its_phase_and_dependent_phases(
    config: str, override: str, renewed: set[str]
) -> None:
    """All other phases keep their folders."""
    assert changed(fingerprints(config), fingerprints(config, override)) == renewed


def test_other_rules_for_main_content_rerun_only_runs_that_use_them(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of all text, of another engine or of jusText keep their folders."""
    html = "extract.warc.html"
    others = [
        f"{html}.main_content=false",
        f"{html}={{main_content: true, engine: resiliparse}}",
        f"{html}.justext={{}}",
    ]
    before = [fingerprints(config, each) for each in others]
    blocks = fingerprints(config, f"{html}.main_content=true")
    monkeypatch.setattr(extraction, "BLOCKS_VERSION", extraction.BLOCKS_VERSION + 1)
    assert [fingerprints(config, each) for each in others] == before
    after = fingerprints(config, f"{html}.main_content=true")
    assert changed(blocks, after) == EXTRACT_AND_LATER


def test_another_version_of_trafilatura_reruns_all_phases(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output differs by version. Without the library there is no plan."""
    override = "extract.warc.html={main_content: true, engine: trafilatura}"
    found: list[dict[str, str | None]] = []
    for version in ("2.3.1", "2.4.0"):
        monkeypatch.setattr(trafilatura, "list_versions", lambda v=version: {"lxml": v})
        found.append(fingerprints(config, override))
    assert changed(*found) == EXTRACT_AND_LATER
    monkeypatch.undo()
    monkeypatch.setattr(trafilatura, "LIBRARIES", ("no-such-library",))
    with pytest.raises(ConfigError, match=r"pip install 'corpusmill\[trafilatura\]'"):
        make_plan(load(config, [override]))


def test_more_input_reruns_global_phases_and_keeps_extracted_splits(
    config: str, wet_file: Path
) -> None:
    """A second file changes the duplicates; the first split keeps its key."""
    before = make_plan(load(config))
    copy = wet_file.with_name("z-second.warc.wet")
    copy.write_bytes(wet_file.read_bytes() + b"\r\n")
    after = make_plan(load(config, [f"input.files=['{wet_file}', '{copy}']"]))
    assert after.phase("extract").fingerprint == before.phase("extract").fingerprint
    assert after.splits[0].key == before.splits[0].key
    assert (
        after.phase("paragraph_dedup").fingerprint
        != before.phase("paragraph_dedup").fingerprint
    )


def test_a_changed_file_has_another_key_and_a_moved_file_has_not(
    config: str, wet_file: Path, tmp_path: Path
) -> None:
    """Keys depend on name and content, not on the folder or the modification time."""
    (before,) = make_plan(load(config)).splits
    moved = tmp_path / "moved" / wet_file.name
    moved.parent.mkdir()
    moved.write_bytes(wet_file.read_bytes())
    (same,) = make_plan(load(config, [f"input.files=['{moved}']"])).splits
    assert same.key == before.key
    content = bytearray(moved.read_bytes())
    content[-20] ^= 1
    moved.write_bytes(bytes(content))
    (other,) = make_plan(load(config, [f"input.files=['{moved}']"])).splits
    assert other.key != before.key


def test_fingerprints_do_not_depend_on_the_process(config: str) -> None:
    """Another process with another hash seed has the same plan."""
    code = (
        "from pipeline.config import load; from pipeline.planning.plan import make_plan\n"
        f"print(' '.join(p.fingerprint or '-' for p in make_plan(load({config!r})).phases))"
    )
    done = run_python(
        "-c",
        code,
        check=True,
        env={"PYTHONHASHSEED": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
    )
    # The hash seed of this process is random.
    assert done.stdout == " ".join(str(f) for f in fingerprints(config).values()) + "\n"


def test_parents_come_before_their_children() -> None:
    """The phases are in an order of their graph."""
    order = list(registry.PHASES)
    for phase in order:
        assert all(order.index(parent) < order.index(phase) for parent in phase.parents)


@given(JSON)
def test_equal_values_have_equal_fingerprints(value: object) -> None:
    """A fingerprint depends only on the value."""
    assert fingerprint(value) == fingerprint(value)
    assert fingerprint([value, 1]) != fingerprint([value, 2])


@pytest.mark.parametrize("value", [{1, 2}, {1: 2}, float("nan"), object(), b"bytes"])
def test_values_without_a_stable_hash_are_refused(value: object) -> None:
    """Sets, objects and NaN raise an error with the place of the value."""
    with pytest.raises(TypeError, match=r"value\.inner"):
        fingerprint({"inner": value})


def test_a_missing_model_leaves_fingerprints_open(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phases before it have fingerprints.

    The error of the others names the command to run.
    """
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "empty"))
    plan = make_plan(load(config, ["annotate.perplexity.models.en=demo-lm-en"]))
    assert plan.phase("paragraph_dedup").fingerprint is not None
    assert plan.phase("annotate").fingerprint is None
    assert plan.phase("write_shards").fingerprint is None
    with pytest.raises(ValueError, match="models fetch"):
        plan.folder("annotate")
