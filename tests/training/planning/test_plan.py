"""Plans: whether a config fits, remedies, and training time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from config_files.reader import ConfigError
from training.cli import main
from training.config import TrainConfig, load_config
from training.errors import IncompatibleConfig
from training.model.size import count_flops_per_token
from training.planning.gpus import GIB, GPUS, PEAK_FLOPS, find_gpu
from training.planning.plan import MAX_REMEDIES, Plan, find_vocab_size, make_plan

VOCAB_SIZE = 50304
# Llama 3's 8 B, but for its vocabulary.
LARGE = (
    "model.dim=4096",
    "model.num_layers=32",
    "model.ffn_dim=14336",
    "parallel.shard_degree=null",
)


def make_config(*changes: str) -> TrainConfig:
    """Return configs/train-1b.yaml with changes."""
    return load_config("train-1b.yaml", [f"model.vocab_size={VOCAB_SIZE}", *changes])


def make_test_plan(
    *changes: str, num_gpus: int = 16, gpu: str = "h100-80gb", tokens: float | None = None
) -> Plan:
    """Return the plan of the changed config."""
    return make_plan(
        make_config(*changes),
        num_gpus=num_gpus,
        gpu=GPUS[gpu],
        vocab_size=VOCAB_SIZE,
        tokens=tokens,
    )


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Return the exit code of the command line."""
    monkeypatch.setattr(sys, "argv", ["training", "plan", "train-1b.yaml", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("gpu", "code", "verdict"),
    [("h100-80gb", 0, "fits: "), ("l40s-48gb", 1, "does not fit: ")],
)
def test_the_exit_code_shows_whether_the_config_fits(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gpu: str,
    code: int,
    verdict: str,
) -> None:
    """0 or 1, and the table has a row for each alternative."""
    rows = "data.micro_batch_rows=4"  # 62 GiB
    arguments = (
        "--gpus",
        "16",
        "--gpu",
        gpu,
        "--set",
        f"model.vocab_size={VOCAB_SIZE}",
        "--set",
        rows,
    )
    assert run(monkeypatch, *arguments) == code
    out = capsys.readouterr().out
    assert verdict in out
    for row in (
        "as configured",
        "ddp",
        "zero1",
        "zero2",
        "zero3",
        "hsdp",
        "tensor 2",
        "activation offload",
    ):
        assert f"\n{row}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "h100"), "--gpu is h100, which is unknown; use one of a100-40gb, "),
        (("--tokens", "0"), "--tokens is 0, must be above 0"),
        (("--mfu", "40"), "--mfu is 40, must be above 0 and at most 1"),
        (("--gpus", "0", "--mfu", "0"), "--gpus is 0, must be at least 1; --mfu is 0, "),
        (
            ("--set", "parallel.shard_degree=3"),
            "parallel.shard_degree is 3, which does not divide 16",
        ),
    ],
)
def test_impossible_plans_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    """Exit code 2, with the value found and the range expected."""
    assert (
        run(
            monkeypatch,
            "--gpus",
            "16",
            "--set",
            f"model.vocab_size={VOCAB_SIZE}",
            *arguments,
        )
        == 2
    )
    assert message in capsys.readouterr().err


def test_a_missing_dataset_asks_for_the_vocabulary(tmp_path: Path) -> None:
    """A plan needs no dataset if vocab_size is set."""
    config = load_config("train-1b.yaml", [f"data.manifest={tmp_path}"])
    with pytest.raises(IncompatibleConfig, match=r"--set model.vocab_size=50304"):
        find_vocab_size(config)
    assert find_vocab_size(make_config()) == VOCAB_SIZE


def test_known_gpus_have_a_peak_and_less_memory_than_their_name() -> None:
    """The driver takes some memory, and names are found in any case."""
    for name, gpu in GPUS.items():
        named_gb = float(name.rsplit("-", 1)[1].removesuffix("gb"))
        assert (
            0.95 * named_gb * GIB < gpu.memory_bytes < 1.01 * named_gb * GIB
            or name == "l40s-48gb"
        )
        assert gpu.peak_flops in PEAK_FLOPS.values()
    assert find_gpu("H100-80GB") is GPUS["h100-80gb"]


def test_a_plan_of_one_billion_parameters_has_known_sizes() -> None:
    """Ddp takes 16 bytes per parameter plus bf16 casts."""
    plan = make_test_plan()
    (ddp,) = (each.footprint for each in plan.alternatives if each.name == "ddp")
    assert ddp is not None
    assert plan.num_parameters == pytest.approx(1.18e9, rel=0.01)
    state = ddp.peak.parameters + ddp.peak.gradients + ddp.peak.optimizer
    assert state == pytest.approx(16 * plan.num_parameters, rel=1e-4)
    matrices = plan.num_parameters - 2 * VOCAB_SIZE * 2048
    assert ddp.peak.gathered == pytest.approx(2 * matrices, rel=1e-3)


def test_hours_are_tokens_by_speed() -> None:
    """The speed is the MFU share of the peak, without recomputation and transfers."""
    plan = make_test_plan(tokens=1e9)
    flops = count_flops_per_token(make_config().model, VOCAB_SIZE, 8192)
    speed = 16 * GPUS["h100-80gb"].peak_flops * plan.mfu / flops
    assert plan.configured.tokens_per_s == pytest.approx(speed)
    assert plan.estimate_hours(plan.configured) == pytest.approx(1e9 / speed / 3600)
    assert make_test_plan().tokens == 50_000 * 128 * 8192
    slower = [
        option
        for option in plan.alternatives
        if option.name in ("checkpointing full", "tensor 8", "offload optimizer")
    ]
    assert len(slower) == 3
    for option in slower:
        assert plan.estimate_hours(option) > plan.estimate_hours(plan.configured)


def test_remedies_fit_and_are_minimal() -> None:
    """Each remedy fits as `--set` options, and without any one change it does not."""
    plan = make_test_plan(*LARGE, num_gpus=8, gpu="a100-40gb")
    assert not plan.configured.fits(plan.gpu)
    assert 1 <= len(plan.remedies) <= MAX_REMEDIES
    for remedy in plan.remedies:
        changes = remedy.name.split(", ")
        again = make_test_plan(*LARGE, *changes, num_gpus=8, gpu="a100-40gb")
        assert again.configured.fits(again.gpu), remedy.name
        assert again.configured.footprint == remedy.footprint
        for left_out in changes:
            fewer = [change for change in changes if change != left_out]
            try:
                less = make_test_plan(*LARGE, *fewer, num_gpus=8, gpu="a100-40gb")
            except (ConfigError, IncompatibleConfig):
                continue
            assert not less.configured.fits(less.gpu), (remedy.name, left_out)


def test_impossible_alternatives_are_listed_with_the_reason() -> None:
    """On four GPUs tensor 8 is listed with the reason."""
    plan = make_test_plan(num_gpus=4)
    refused = {
        option.name: option.error
        for option in plan.alternatives
        if option.footprint is None
    }
    assert set(refused) == {"hsdp: zero3, shard_degree 8", "tensor 8"}
    assert "parallel.tensor is 8, which does not divide 4 ranks" in refused["tensor 8"]
