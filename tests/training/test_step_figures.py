"""A step waits for the device nowhere; the device decides whether the optimizer takes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.conftest import decide, losses, make_config
from training.anomaly_guard import AnomalyGuard
from training.config import AnomalyGuardConfig
from training.errors import TrainingStopped
from training.observability.step_figures import StepFigures
from training.parallel import distributed
from training.trainer import Trainer

# On a GPU, each of these waits until the device has done all work before it.
WAITS = {
    "item",
    "tolist",
    "cpu",
    "numpy",
    "nonzero",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "masked_select",
}


class CountPythonWaits(TorchFunctionMode):
    """Counts functions of torch's Python interface that wait for the device."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count the call and make it."""
        name = getattr(func, "__name__", "")
        if name in WAITS:
            self._found[name] += 1
        return func(*args, **(kwargs or {}))


class CountReads(TorchDispatchMode):
    """Counts the operator that reads a number of the device."""

    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count the call and make it."""
        if func is torch.ops.aten._local_scalar_dense.default:
            self._found["_local_scalar_dense"] += 1
        return func(*args, **(kwargs or {}))


def open_trainer(
    run_dir: Path, language: Path, cleanup: ExitStack, **changes: Any
) -> Trainer:
    """Return a trainer of one rank."""
    config = make_config(run_dir, language, **changes)
    context = distributed.init_distributed(config.parallel, timeout_s=600, dump_dir=run_dir)
    return Trainer(config, context, cleanup)


def count_waits(work: Callable[[], object]) -> Counter[str]:
    """Return the calls that wait for the device, by name."""
    found: Counter[str] = Counter()
    with CountPythonWaits(found), CountReads(found):
        work()
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"strategy": "ddp"}},
        {"parallel": {"strategy": "zero3"}, "anomaly_guard": {"spike_factor": 3}},
        {"optimizer": {"algorithm": "muon", "z_loss": 0.1}},
        {"precision": {"compute": "bf16"}, "parallel": {"activation_offload": True}},
    ],
)
def test_no_step_waits_for_the_device(
    changes: dict[str, Any], language: Path, tmp_path: Path
) -> None:
    """The figures of a step are read in one call, after the step."""
    with ExitStack() as cleanup:
        trainer = open_trainer(tmp_path, language, cleanup, **changes)
        figures: list[StepFigures] = []
        micro_batches = trainer.batches.read_step(0)
        found = count_waits(
            lambda: figures.append(trainer._train_step(micro_batches, wants_stop=False))
        )
        assert found == {}
        assert count_waits(figures[0].read) == {"tolist": 1}


def test_the_counter_finds_a_read() -> None:
    """Each form of reading a scalar is counted."""
    value = torch.ones(())
    assert count_waits(value.item)["item"] == 1
    assert count_waits(lambda: float(value))["__float__"] == 1
    assert count_waits(lambda: bool(value > 0))["__bool__"] == 1


numbers = st.sampled_from([0.5, 1.0, 1.5, 9.0, 31.0, 1e30, math.inf, math.nan])


@given(
    steps=st.lists(st.tuples(numbers, numbers), max_size=9),
    spike_factor=st.sampled_from([None, 1.5, 10.0]),
    mean_norm=st.sampled_from([None, 1.25]),
)
@settings(max_examples=100)
def test_the_guard_refuses_spikes_and_what_is_not_finite(
    steps: list[tuple[float, float]], spike_factor: float | None, mean_norm: float | None
) -> None:
    """A refused step leaves the running mean as it is; a saved guard goes on with its bits."""
    config = AnomalyGuardConfig(spike_factor=spike_factor)
    guard = AnomalyGuard(config, torch.device("cpu"))
    guard.load_state_dict({**guard.state_dict(), "mean_norm": mean_norm})
    num_bad = 0
    for number, (loss, norm) in enumerate(steps):
        before = guard.state_dict()["mean_norm"]
        is_spike = None not in (spike_factor, before) and norm > spike_factor * before
        is_bad = is_spike or not (math.isfinite(loss) and math.isfinite(norm))
        assert decide(guard, loss, norm, number) == is_bad
        mean = guard.state_dict()["mean_norm"]
        num_bad += is_bad
        assert guard.num_bad == num_bad
        if is_bad:
            assert mean == before
        else:
            first = norm if before is None else before
            assert mean == pytest.approx(0.98 * first + 0.02 * norm)
        resumed = AnomalyGuard(config, torch.device("cpu"))
        resumed.load_state_dict(guard.state_dict())
        assert resumed.state_dict() == guard.state_dict()
        guard = resumed


def test_the_guard_stops_at_the_first_bad_step_if_configured() -> None:
    """The message says whether it was a spike or no finite number."""
    config = AnomalyGuardConfig(on_bad_step="stop", spike_factor=10)
    guard = AnomalyGuard(config, torch.device("cpu"))
    with pytest.raises(TrainingStopped, match="step 3: loss is nan"):
        decide(guard, math.nan, 1.0, 3)
    assert not decide(guard, 2.0, 1.0, 4)
    with pytest.raises(TrainingStopped, match=r"norm is 11, more than 10 times .* mean 1;"):
        decide(guard, 2.0, 11.0, 5)


@pytest.mark.parametrize("bad_number", [math.nan, math.inf])
@pytest.mark.parametrize(
    "changes",
    [
        {"parallel": {"strategy": "ddp"}},
        {"parallel": {"strategy": "zero3"}},
        {"parallel": {"offload": "optimizer"}},
        {"optimizer": {"algorithm": "muon"}},
    ],
)
def test_a_bad_step_leaves_parameters_and_state_as_they_are(
    changes: dict[str, Any], bad_number: float, language: Path, tmp_path: Path
) -> None:
    """Every bit is the same, and the next good step changes all of them."""
    with ExitStack() as cleanup:
        trainer = open_trainer(tmp_path, language, cleanup, **changes)

        def copy_state() -> dict[str, Tensor]:
            state = {**trainer.parameters, **trainer.optimizer.state_tensors()}
            return {name: value.detach().clone() for name, value in state.items()}

        def step(factor: float) -> None:
            micro_batches = trainer.batches.read_step(trainer.step)
            scale = torch.tensor(factor)
            trainer._accumulate(micro_batches, scale)
            norm = trainer.optimizer.clip_gradients().double()
            loss = torch.ones((), dtype=torch.float64)
            trainer.optimizer.step(0.1, trainer.anomaly_guard.find_bad(loss, norm))
            trainer.optimizer.zero_grad()
            trainer.step += 1

        step(1e-3)
        before = copy_state()
        step(bad_number)
        after = copy_state()
        assert all(torch.equal(before[name], after[name]) for name in before)
        step(1e-3)
        later = copy_state()
        same = [name for name in before if torch.equal(before[name], later[name])]
        assert same == []


def test_too_many_bad_steps_end_the_run_before_a_checkpoint(
    language: Path, tmp_path: Path
) -> None:
    """The host counts a step late, but not later than a checkpoint."""
    with ExitStack() as cleanup:
        trainer = open_trainer(
            tmp_path,
            language,
            cleanup,
            optimizer={"learning_rate": 1e30, "warmup_steps": 0, "max_grad_norm": 1e30},
            anomaly_guard={"on_bad_step": "stop"},
            checkpoint={"every_steps": 1},
        )
        with pytest.raises(TrainingStopped, match="step 1: "):
            trainer.run()
        assert [path.name for path in trainer.checkpointer.folder.iterdir()] == [
            "step-00000001"
        ]
    assert len(losses(tmp_path)) == 1
