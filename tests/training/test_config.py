"""Training configs are validated completely before a run starts."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from config_files.reader import ConfigError
from tests.conftest import REPOSITORY
from training.config import TrainConfig, load_config

SHIPPED = sorted(path.name for path in (REPOSITORY / "configs").glob("train-*.yaml"))


def collect_faults(*overrides: str) -> str:
    """Return the errors of train-tiny.yaml with these changes."""
    with pytest.raises(ConfigError) as raised:
        load_config("train-tiny.yaml", overrides)
    return "\n".join(raised.value.faults)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_config_loads(name: str) -> None:
    """The shipped configs can be loaded by name."""
    assert load_config(name).run_dir == f"runs/{name.removesuffix('.yaml')}"


def list_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield all keys of a section and of the sections in it."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for option in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(option, type) and issubclass(option, BaseModel):
                yield from list_keys(option, f"{prefix}{name}.")


def test_the_reference_page_lists_every_key() -> None:
    """docs/training-config.md has a row for each key; train-1b.yaml shows only the usual ones."""
    page = (REPOSITORY / "docs" / "training-config.md").read_text(encoding="utf-8")
    keys = list(list_keys(TrainConfig))
    assert len(keys) > 70
    assert [key for key in keys if f"| `{key}` |" not in page] == []


def test_train_1b_shows_every_section_that_runs_usually_set() -> None:
    """All sections but `advanced` are in the file, and it has fewer than 80 lines."""
    text = (REPOSITORY / "configs" / "train-1b.yaml").read_text(encoding="utf-8")
    assert TrainConfig.model_fields.keys() - yaml.safe_load(text).keys() == {
        "seed",
        "advanced",
    }
    assert len(text.splitlines()) < 80


def test_all_faults_are_reported_together() -> None:
    """An unknown key, a value out of range and an unknown choice are in one error."""
    said = collect_faults("optimizer.learning_rat=1", "steps=0", "parallel.strategy=zero4")
    assert "learning_rat" in said
    assert "learning_rate" in said
    assert "steps" in said
    assert "'ddp', 'zero1', 'zero2' or 'zero3'" in said


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["data.manifest=null"],
            "exactly one of manifest, mixture, instructions, synthetic; found none",
        ),
        (["data.instructions=a.jsonl"], "found manifest, instructions"),
        (
            ["data.manifest=null", "data.instructions=a.jsonl", "data.tokenizer=null"],
            "instructions need a tokenizer",
        ),
        (
            [
                "data.manifest=null",
                "data.instructions=a.jsonl",
                "data.tokenizer=t",
                "data.packing=true",
            ],
            "instructions are always packed",
        ),
        (
            [
                "data.manifest=null",
                "data.mixture={web: {manifest: a}}",
                "data.packing=a.rows",
            ],
            "packing is 'a.rows' for a mixture; set it to true",
        ),
        (["data.mixture_schedule={5: {web: 1}}"], "mixture_schedule needs a mixture"),
        (
            [
                "data.manifest=null",
                "data.mixture={web: {manifest: a}}",
                "data.mixture_schedule={5: {code: 1}}",
            ],
            "weights are given for ['code'], which are not sources",
        ),
        (["parallel.strategy=ddp", "parallel.tensor=2"], "tensor 2 needs zero2 or zero3"),
        (
            ["parallel.strategy=zero1", "parallel.shard_degree=2"],
            "shard_degree needs zero2 or zero3",
        ),
        (
            ["parallel.strategy=ddp", "parallel.offload=parameters"],
            "offload: parameters needs zero2 or zero3",
        ),
        (
            ["parallel.strategy=zero1", "parallel.offload=optimizer"],
            "zero1 with offload: optimizer",
        ),
        (
            ["lora.rank=4", "parallel.tensor=2"],
            "lora cannot be combined with parallel.tensor 2",
        ),
        (
            ["precision.float8=rowwise", "parallel.tensor=2"],
            "float8 rowwise cannot be combined with parallel.tensor 2",
        ),
        (
            ["precision.attention=cudnn"],
            "precision.attention cudnn needs data.document_masks false",
        ),
        (
            ["precision.attention=flash3", "precision.compute=fp32"],
            "precision.attention flash3 needs precision.compute bf16",
        ),
        (["parallel.async_tensor=true"], "async_tensor needs tensor > 1"),
        (
            ["parallel.async_tensor=true", "parallel.tensor=2"],
            "async_tensor needs precision.compile",
        ),
        (
            ["observability.profile_steps=[3, 2]"],
            "profile_steps is [3, 2], must be a first step from 1",
        ),
        (["model.num_kv_heads=3"], "num_heads 4 must be a multiple of num_kv_heads 3"),
        (["model.dim=65"], "dim 65 must be num_heads 4 times an even number"),
    ],
)
def test_incompatible_settings_are_refused(overrides: list[str], message: str) -> None:
    """The error says what to change, before ranks are started."""
    assert message in collect_faults(*overrides)


def test_the_run_folder_is_named_after_the_file(tmp_path: Path) -> None:
    """{config} is replaced by the file name without .yaml."""
    (tmp_path / "mine.yaml").write_text("steps: 1\ndata: {manifest: here}\n")
    assert load_config(str(tmp_path / "mine.yaml")).run_dir == "runs/mine"


def test_the_oldest_supported_torch_is_tested() -> None:
    """`make test-torch-lowest` installs the lower bound of pyproject.toml."""
    project = (REPOSITORY / "pyproject.toml").read_text()
    (lowest,) = re.findall(r'"torch>=([\d.]+),', project)
    assert f" torch=={lowest}.0 " in (REPOSITORY / "Makefile").read_text()
