"""`clean` removes outputs of a finished run, which is then whole for everything that they are not needed for."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from config_files.reader import ConfigError
from pipeline.cli import make_program
from pipeline.commands.runs import write_report
from pipeline.config import RunConfig
from pipeline.execution.clean import clean, list_removals, restore
from pipeline.execution.engine import PhaseStarted, run
from pipeline.phases import registry
from pipeline.phases.artifact import USES, Use
from pipeline.planning.plan import make_plan
from pipeline.runs.removed_outputs import REMOVED_FILE
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.run_lock import hold
from pipeline.terminal import DONE, FAILED, WRONG_USAGE
from storage import Store
from storage.object_store import ObjectStore
from tests.e2e.conftest import digests
from tests.pipeline.sample_crawl.invented import make_crawl

KEPT: tuple[Use, ...] = USES[1:]

# Commands, and the first level after which they need `--restore`; None: they always work.
COMMANDS: dict[str, tuple[list[str], Use | None]] = {
    "status": ([], None),
    "report": ([], None),
    "verify": (["--deep"], None),
    "explain": (["1"], "previous_runs"),
    "samples": (["-n", "2"], "previous_runs"),
    "preview": (["--set", "select.perplexity=null"], "previous_runs"),
    "export": (["--to", "EXPORT"], "previous_runs"),
    "diff": (["OTHER"], "previous_runs"),
}


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> Iterator[RunConfig]:
    """The config of a finished run with deduplication, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    crawl = make_crawl(folder / "crawl", 100, documents_per_file=50)
    tree: dict[str, Any] = {
        "run_dir": str(folder / "run"),
        "input": {"files": [str(path) for path in crawl.files], "max_quarantined_share": 1.0},
        "paragraph_dedup": {"keep": "keep_first"},
        "annotate": {"language": {"model": str(lid_file)}, "minhash": {"threshold": 0.5}},
        "fuzzy_dedup": {"keep": "longest"},
        "select": {"language": None},
        "tokenize": {"tokenizer": str(tiny_tokenizer)},
        "engine": {"kind": "inline"},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORPUSMILL_CACHE", str(folder / "cache"))
        config = RunConfig.model_validate(tree)
        list(run(make_plan(config)))
        write_report(RunFolder.open(config.run_dir))
        yield config


@pytest.fixture
def copied(finished: RunConfig, tmp_path: Path) -> RunConfig:
    """Return the config of a copy of the finished run, which a test may change."""
    shutil.copytree(finished.run_dir, tmp_path / "run", symlinks=True)
    return finished.model_copy(update={"run_dir": str(tmp_path / "run")})


def change(config: RunConfig, **sections: Any) -> RunConfig:
    """Return the config with other sections."""
    return RunConfig.model_validate({**config.model_dump(mode="json"), **sections})


def list_started(config: RunConfig) -> list[str]:
    """Run a config; return the phases that ran."""
    events = run(make_plan(config))
    return [event.phase for event in events if isinstance(event, PhaseStarted)]


def call(*arguments: str | Path | Store) -> Result:
    """Run a command in this process."""
    result = CliRunner().invoke(make_program(), list(map(str, arguments)))
    gc.collect()  # closes the shards that webdataset has read
    return result


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("keep", KEPT)
def test_commands_work_or_name_the_remedy(
    copied: RunConfig, finished: RunConfig, keep: Use, tmp_path: Path
) -> None:
    """As docs/outputs.md says, by what was kept."""
    page = (Path(copied.run_dir) / "report.html").read_bytes()
    assert call("clean", copied.run_dir, "--keep", keep, "--yes").exit_code == DONE
    for name, (options, needs_restore_from) in COMMANDS.items():
        places = {"EXPORT": str(tmp_path / "export"), "OTHER": finished.run_dir}
        arguments = [places.get(option, option) for option in options]
        result = call(name, copied.run_dir, *arguments)
        works = needs_restore_from is None or USES.index(keep) < USES.index(
            needs_restore_from
        )
        assert result.exit_code == (DONE if works else FAILED), (name, result.output)
        if not works:
            assert "because `clean` removed it" in result.stderr
            assert f"clean {copied.run_dir} --restore`, then the config" in result.stderr
            assert result.stderr.count("\n") == 1
    if keep != "explain":
        assert (Path(copied.run_dir) / "report.html").read_bytes() == page


def test_nothing_is_removed_without_yes(copied: RunConfig, finished: RunConfig) -> None:
    """The files are shown with their sizes."""
    result = call("clean", copied.run_dir, "--keep", "dataset", "--json")
    shown = json.loads(result.stdout)
    assert shown["is_removed"] is False
    by_phase = {
        Path(each["folder"]).name.partition("-")[0]: each for each in shown["removals"]
    }
    assert by_phase["annotate"]["suffixes"] == [
        "bands.arrow",
        "documents.parquet",
        "ngrams.bin",
    ]
    folder = RunFolder.open(copied.run_dir).folder("annotate")
    sizes = [
        output["bytes"]
        for record in folder.records(sorted(folder.list_done()))
        for name, output in record["outputs"].items()
        if not name.endswith("decisions.parquet") and not name.startswith("places_of_")
    ]
    assert by_phase["annotate"]["num_bytes"] == sum(sizes)
    assert by_phase["annotate"]["num_files"] == len(sizes)
    assert digests(Path(copied.run_dir)) == digests(Path(finished.run_dir))
    text = call("clean", copied.run_dir).stdout
    assert "tokens.bin" in text
    assert "Nothing was removed yet" in text


@pytest.mark.parametrize("keep", KEPT)
def test_the_same_config_computes_nothing_again(copied: RunConfig, keep: Use) -> None:
    """The phases are complete."""
    clean(RunFolder.open(copied.run_dir), keep)
    assert list_started(copied) == []


@pytest.mark.parametrize("keep", KEPT)
def test_a_changed_threshold_gives_the_same_bytes_as_without_clean(
    copied: RunConfig, finished: RunConfig, keep: Use, tmp_path: Path
) -> None:
    """What is read and was removed is made again, phase by phase."""
    clean(RunFolder.open(copied.run_dir), keep)
    select = {"language": None, "perplexity": None}
    started = list_started(change(copied, select=select))
    repeated = {"extract", "annotate", "paragraph_dedup"} if keep != "explain" else set()
    assert set(started) == {"select", "tokenize", "write_shards", *repeated}
    other = change(finished, run_dir=str(tmp_path / "other"), select=select)
    list_started(other)
    ours, theirs = (
        {
            name: found
            for name, found in digests(Path(each.run_dir)).items()
            if "write_shards-" in name
        }
        for each in (copied, other)
    )
    assert theirs.items() <= ours.items()


def test_restored_outputs_are_those_of_the_run(
    copied: RunConfig, finished: RunConfig
) -> None:
    """The next run makes them again; the dataset stays."""
    found = RunFolder.open(copied.run_dir)
    clean(found, "dataset")
    restore(found)
    assert "write_shards" not in list_started(copied)
    of_the_run = tuple(
        artifact.suffix
        for phase in registry.PHASES
        for artifact in phase.artifacts()
        if artifact.last_use == "run"
    )
    lost = digests(Path(finished.run_dir)).items() - digests(Path(copied.run_dir)).items()
    assert all(name.endswith((*of_the_run, "log.jsonl")) for name, _ in lost)
    assert call("explain", copied.run_dir, "1").exit_code == DONE


def test_a_damaged_shard_is_made_again_after_clean(
    copied: RunConfig, finished: RunConfig
) -> None:
    """From the input, because nothing else is left."""
    found = RunFolder.open(copied.run_dir)
    clean(found, "dataset")
    shard = found.dataset.get_local_path("shard-000000.tar")
    assert shard is not None
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    assert call("verify", copied.run_dir).exit_code == FAILED
    assert "extract" in list_started(copied)
    assert shard.read_bytes() == whole


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_an_interrupted_clean_is_continued(
    copied: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash nothing is damaged, and the same command removes the rest."""
    found = RunFolder.open(copied.run_dir)
    delete = type(found.run_dir).delete

    def delete_one(store: Store, *names: str) -> None:
        delete(store, names[0])  # pyright: ignore[reportArgumentType]
        raise KeyboardInterrupt

    before = sum(each.num_bytes for each in list_removals(found, "dataset"))
    with monkeypatch.context() as patch:
        patch.setattr(type(found.run_dir), "delete", delete_one)
        with pytest.raises(KeyboardInterrupt):
            clean(found, "dataset")
    assert 0 < sum(each.num_bytes for each in list_removals(found, "dataset")) < before
    assert call("verify", copied.run_dir, "--deep").exit_code == DONE
    clean(found, "dataset")
    assert list_removals(found, "dataset") == []


def test_documents_are_retracted_and_rewritten_after_clean(
    copied: RunConfig, finished: RunConfig, tmp_path: Path
) -> None:
    """From the dataset and the files that are left."""
    folder = RunFolder.open(finished.run_dir).folder("select")
    name = f"{min(folder.list_done() - {'cuts'})}.decisions.parquet"
    rows = pq.read_table(folder.path(name)).to_pylist()
    url = next(row["url"] for row in rows if row["decision"] == "kept")
    (tmp_path / "urls").write_text(f"{url}\n")
    clean(RunFolder.open(copied.run_dir), "dataset")
    request = ("--urls", tmp_path / "urls", "--reason", "test", "--rewrite", "--json")
    result = call("retract", copied.run_dir, *request)
    assert result.exit_code == DONE, result.stderr
    found = json.loads(result.stdout)
    assert found["num_docs"] == 1
    assert len(found["rewritten"]["shards"]) == 1
    assert list_started(copied) == []


def test_folders_of_earlier_configs_are_removed(copied: RunConfig) -> None:
    """Other content of the run folder stays."""
    before = RunFolder.open(copied.run_dir)
    changed = change(copied, select={"language": None, "perplexity": None})
    list_started(changed)
    other = Path(copied.run_dir) / "write_shards-of-mine"
    other.mkdir()
    clean(RunFolder.open(copied.run_dir), "explain")
    for phase, name in before.folders.items():
        if phase in before.stage_versions:
            is_earlier = phase in ("select", "tokenize", "write_shards")
            assert (Path(copied.run_dir) / name).exists() is not is_earlier
    assert other.exists()
    assert list_started(changed) == []


def test_a_later_run_reads_what_was_kept_for_it(copied: RunConfig, tmp_path: Path) -> None:
    """With `--keep dataset`, its plan is refused with the remedy."""
    later = change(copied, run_dir=str(tmp_path / "later"), previous_runs=[copied.run_dir])
    clean(RunFolder.open(copied.run_dir), "previous_runs")
    assert "write_shards" in list_started(later)
    clean(RunFolder.open(copied.run_dir), "dataset")
    with pytest.raises(ConfigError) as raised:
        make_plan(later)
    assert len(raised.value.faults) == 2
    for phase, fault in zip(("extract", "annotate"), raised.value.faults, strict=True):
        assert f"`clean` removed outputs of its {phase}" in fault
        assert f"clean {copied.run_dir} --restore`, then its config" in fault


def test_only_a_finished_run_that_is_not_running_is_cleaned(
    copied: RunConfig, tmp_path: Path
) -> None:
    """Else its phases would lose what they read."""
    found = RunFolder.open(copied.run_dir)
    with hold(found.run_dir):
        result = call("clean", copied.run_dir, "--yes")
    assert result.exit_code == FAILED
    assert "another" in result.stderr
    found.folder("write_shards").unfinish()
    result = call("clean", copied.run_dir, "--yes")
    assert result.exit_code == WRONG_USAGE
    assert "the run has not finished; run its config to the end first" in result.stderr
    assert list(Path(copied.run_dir).glob(f"*/{REMOVED_FILE}")) == []
    assert call("clean", tmp_path).exit_code == WRONG_USAGE


def test_a_run_in_a_bucket_is_cleaned(
    finished: RunConfig, bucket_store: ObjectStore
) -> None:
    """A changed threshold makes again what it reads."""
    config = change(finished, run_dir=str(bucket_store))
    list_started(config)
    found = RunFolder.open(config.run_dir)
    assert list_removals(found, "previous_runs")
    clean(found, "previous_runs")
    assert list_removals(found, "previous_runs") == []
    assert not [
        name for name in found.folder("extract").root.list_names() if "documents" in name
    ]
    assert list_started(config) == []
    started = list_started(change(config, select={"language": None, "perplexity": None}))
    assert {"extract", "annotate", "select"} <= set(started)
    clean(RunFolder.open(config.run_dir), "explain")
    assert found.folder("select").root.list_names() == []
