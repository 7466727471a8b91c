"""The loop: rows, forward, backward, step, and what has to happen between.

Promises: losses are means over all labels of the global batch, whatever the ranks and micro-batches; a run that was
killed and goes on computes, on as many ranks, bit for bit what it would have; on others, the same rows in the same
steps. A bad step (not a number, a leap) changes nothing and is counted. SIGTERM saves and leaves.
Leaves to others: everything with a file of its own.
"""

from __future__ import annotations

import math
import signal
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training import checkpoint
from training.config import (
    CheckpointConfig,
    GuardConfig,
    TrainConfig,
    ValidationConfig,
    WatchConfig,
)
from training.data import rows as data
from training.data.validation import Validation
from training.hugging_face import export as hugging_face
from training.model import lora
from training.model.decoder import Decoder, draw, flops_per_token, vocab_size_of
from training.observability import metrics_log
from training.parallel import parallelize as parallel
from training.parallel.distributed import IncompatibleConfig, Ranks
from training.parallel.optimizer import Optimizer, learning_rate

NORM_MEMORY = 0.98
"""Of the running mean of gradient norms, per step: half of it is of the last 35."""


class TrainingStopped(RuntimeError):
    """Too many bad steps."""


@dataclass(frozen=True)
class TrainResult:
    """How a run ended: steps done, its last loss, and whether it was told to leave before its end."""

    step: int
    loss: float
    was_stopped: bool


def train(
    config: TrainConfig, ranks: Ranks, stop_requested: threading.Event | None = None
) -> TrainResult:
    """Run a config to its end, from the newest checkpoint in its run_dir where there is one.

    Args:
        config: the run.
        ranks: this process among them.
        stop_requested: once set on any rank, means what SIGTERM means; for launchers that keep signals to themselves.

    Raises:
        IncompatibleConfig: config, ranks, dataset and machine do not go together.
        TrainingStopped: too many bad steps, by the guard's settings.
        CheckpointFailed: a checkpoint could not be written.
        ReadFailed, FormatError, ShardCorrupt, ResumeMismatch: as the loader.
    """
    with ExitStack() as closing:
        trainer = Trainer(config, ranks, closing)
        return trainer.run(stop_requested)


class Trainer:
    """A run on one rank, built and loaded."""

    def __init__(self, config: TrainConfig, ranks: Ranks, closing: ExitStack) -> None:
        self.config, self.ranks, self.run_dir = config, ranks, Path(config.run_dir)
        self.rows, tokenizer_vocab_size = data.open_rows(config, ranks)
        self.vocab_size = vocab_size_of(config.model, tokenizer_vocab_size)
        self.checkpoints = checkpoint.Checkpoints(self.run_dir, config.checkpoint, ranks)
        closing.callback(self.checkpoints.close)
        newest = self.checkpoints.newest()
        self.model, decoder = self._build(is_new=newest is None)
        self.parameters = dict(decoder.named_parameters())
        self.optimizer = Optimizer(self.parameters, config.optimizer, config.parallel, ranks)
        self.guard = Guard(config.guard)
        self.step = 0
        self.log = metrics_log.Log(
            self.run_dir, config.watch, config.model_dump(), writes=ranks.is_first
        )
        closing.callback(self.log.close)
        closing.callback(
            metrics_log.answer_prometheus(
                config.watch, self.run_dir, self.ranks.rank, self.rows.stats, self.log
            )
        )
        self.garbage = metrics_log.Garbage(config.watch.gc_every_steps)
        closing.callback(self.garbage.close)
        self.validation = Validation(config, ranks) if config.validation else None
        self.flops_per_token = flops_per_token(config.model, self.vocab_size, config.data.seq_len)
        name = torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else "cpu"
        told = config.watch.peak_tflops
        self.peak_flops = told * 1e12 if told is not None else metrics_log.peak_flops(name)
        stats = self.rows.stats()
        if stats.get("broken_lines"):
            self.log.say(
                f"{stats['broken_lines']} broken lines are left out; {'; '.join(stats['first_faults'])}"
            )
        if newest is not None:
            self._resume(newest)

    def _build(self, *, is_new: bool) -> tuple[torch.nn.Module, Decoder]:
        config = self.config
        with torch.device("meta"):
            decoder = Decoder(config.model, self.vocab_size)
            if config.lora is not None:
                lora.add_adapters(decoder, config.lora)

        def fill(name: str, parameter: Tensor) -> None:
            if lora.is_adapter(name):
                lora.draw(name, parameter, config.seed)
            else:
                draw(name, parameter, config.model, config.seed)

        model = parallel.parallelise(
            decoder, fill, parallel=config.parallel, precision=config.precision, ranks=self.ranks
        )
        if is_new and config.model.initial_weights is not None:
            hugging_face.load_into(Path(config.model.initial_weights), decoder)
        return model, decoder

    def _resume(self, newest: Path) -> None:
        progress = self.checkpoints.load(newest, self._state())
        self.optimizer.loaded()
        self.step = progress["step"]
        self.rows.load_state_dict(progress["rows"])
        self.guard.load_state_dict(progress["guard"])
        self.log.say(f"going on from {newest}: step {self.step}, row {self.rows.position}")

    def _state(self) -> checkpoint.State:
        progress = {
            "step": self.step,
            "rows": self.rows.state_dict(),
            "guard": self.guard.state_dict(),
            "model": {**self.config.model.model_dump(), "vocab_size": self.vocab_size},
            "lora": self.config.lora and self.config.lora.model_dump(),
            "tokenizer": self.config.data.tokenizer,
        }
        return checkpoint.State(self.parameters, self.optimizer.state(), progress)

    # -------------------------------------------------------------------------------------------------------- the loop

    def run(self, stop_requested: threading.Event | None = None) -> TrainResult:
        """Train to the end, or until told to leave: by SIGTERM, or by the event."""
        stop_requested = stop_requested or threading.Event()
        config, clock, loss = self.config, metrics_log.Clock(), math.nan
        first_step, was_stopped = self.step, False
        with (
            _Leaving(stop_requested),
            metrics_log.tracing(config.watch, self.run_dir, self.ranks) as traced,
            metrics_log.memory_history(config.watch, self.run_dir, self.ranks),
        ):
            while self.step < config.steps and not was_stopped:
                with clock.waiting():
                    micro_batches = self.rows.micro_batches(self.step)
                figures = self._train_step(micro_batches, wants_to_leave=stop_requested.is_set())
                loss, was_stopped = figures["loss"], bool(figures.pop("wants_to_leave"))
                clock.tokens += int(figures.pop("tokens"))
                clock.steps += 1
                self.step += 1
                traced()
                self.garbage.collect(self.step)
                if self.step == first_step + 1:
                    self.ranks.set_timeout(config.process.step_timeout_s)
                if self.step == first_step + 1 or self._is_due(config.watch):
                    self._report(figures, clock)
                self._between_steps(was_stopped)
        self.checkpoints.wait()
        return TrainResult(self.step, loss, was_stopped and self.step < config.steps)

    def _train_step(
        self, micro_batches: list[data.MicroBatch], *, wants_to_leave: bool
    ) -> dict[str, float]:
        """One step of the optimizer, or none where the guard refuses; its figures, the same on all ranks."""
        device = self.ranks.device
        counts = torch.stack([m.num_labels for m in micro_batches]).sum().double()
        num_labels = self.ranks.sum(counts)
        # DDP and FSDP divide by the number of ranks what the whole batch's mean must not be divided by.
        scale = self.ranks.num_data_ranks / num_labels.clamp(min=1)
        total = torch.zeros((), device=device)
        for micro_batch in micro_batches:
            with parallel.accumulating(self.model, is_last=micro_batch is micro_batches[-1]):
                loss, _ = self.model(micro_batch.input_ids, micro_batch.labels, micro_batch.mask)
                (loss * scale.to(loss.dtype)).backward()
                total += loss.detach()
        norm = self.optimizer.clip()
        # the one time that the processor waits for the device in a step
        tokens = sum(m.input_ids.numel() for m in micro_batches)
        leave = self.ranks.agree(torch.tensor(wants_to_leave, dtype=torch.int32, device=device))
        sums = self.ranks.sum(torch.stack([total.double(), torch.tensor(tokens, device=device)]))
        loss_sum, all_tokens = sums.tolist()
        mean_loss = loss_sum / max(1.0, float(num_labels))
        rate = learning_rate(self.step, self.config.steps, self.config.optimizer)
        if self.guard.accepts(mean_loss, float(norm), self.step):
            self.optimizer.step(rate)
        self.optimizer.zero_grad()
        return {
            "loss": mean_loss,
            "grad_norm": float(norm),
            "learning_rate": rate,
            "bad_steps": self.guard.num_bad,
            "tokens": all_tokens,
            "wants_to_leave": leave.item(),
        }

    def _report(self, figures: dict[str, float], clock: metrics_log.Clock) -> None:
        rates = clock.report(self.flops_per_token, self.ranks.world_size, self.peak_flops)
        memory = metrics_log.memory_figures(self.ranks.device)
        stats = self.rows.stats()
        names = "skipped_rows", "retries", "refetches", "broken_lines", "cut_conversations"
        loader = {f"loader_{name}": stats[name] for name in names if name in stats}
        self.log.write(
            self.step, {**figures, **rates, **memory, **loader, "position": self.rows.position}
        )
        left_s = (self.config.steps - self.step) * rates["step_s"]
        share = f"  MFU {rates['mfu']:.1%}" if "mfu" in rates else ""
        self.log.say(
            f"step {self.step:>7,}/{self.config.steps:,}  loss {figures['loss']:.4f}  norm {figures['grad_norm']:.2f}  "
            f"{rates['tokens_per_s']:,.0f} tokens/s{share}  waiting for rows {rates['stall_share']:.1%}  "
            f"left {_duration(left_s)}"
        )

    def _between_steps(self, was_stopped: bool) -> None:
        config = self.config
        if self.validation is not None and self._is_due(config.validation) and not was_stopped:
            figures = self.validation.run(self.model)
            self.log.write(self.step, figures)
            self.log.say(f"step {self.step:>7,}  validation loss {figures['validation/loss']:.4f}")
        if self._is_due(config.checkpoint) or was_stopped:
            self.checkpoints.save(self._state())

    def _is_due(self, section: ValidationConfig | CheckpointConfig | WatchConfig | None) -> bool:
        """After the last step, and every so many before."""
        return section is not None and (
            self.step % section.every_steps == 0 or self.step == self.config.steps
        )


class Guard:
    """Which steps are taken. All ranks see the same figures, so all decide the same."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self.num_bad = 0
        self._in_a_row = 0
        self._mean_norm: float | None = None

    def accepts(self, loss: float, norm: float, step: int) -> bool:
        """Whether the step is to be taken.

        Raises:
            TrainingStopped: it is bad, and on_bad_step is stop, or it is one too many in a row.
        """
        fault = self._fault(loss, norm)
        if fault is None:
            self._in_a_row = 0
            mean = norm if self._mean_norm is None else self._mean_norm
            self._mean_norm = NORM_MEMORY * mean + (1 - NORM_MEMORY) * norm
            return True
        self.num_bad += 1
        self._in_a_row += 1
        if (
            self._config.on_bad_step == "stop"
            or self._in_a_row >= self._config.max_skipped_in_a_row
        ):
            raise TrainingStopped(
                f"step {step}: {fault}, the {self._in_a_row}. bad step in a row (guard.on_bad_step is "
                f"{self._config.on_bad_step}, max_skipped_in_a_row {self._config.max_skipped_in_a_row}); the newest "
                f"checkpoint is from before: lower optimizer.learning_rate or look at these rows, and start again"
            )
        return False

    def _fault(self, loss: float, norm: float) -> str | None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return f"loss is {loss}, gradient norm {norm}"
        factor = self._config.spike_factor
        if factor is not None and self._mean_norm is not None and norm > factor * self._mean_norm:
            return f"gradient norm is {norm:.3g}, {factor:g} times above the running mean {self._mean_norm:.3g}"
        return None

    def state_dict(self) -> dict[str, Any]:
        """Counts and mean."""
        return {"num_bad": self.num_bad, "in_a_row": self._in_a_row, "mean_norm": self._mean_norm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with them."""
        self.num_bad, self._in_a_row, self._mean_norm = (
            state["num_bad"],
            state["in_a_row"],
            state["mean_norm"],
        )


class _Leaving:
    """Sets an event at SIGTERM, as schedulers send it some time before they kill."""

    def __init__(self, event: threading.Event) -> None:
        self._event = event

    def __enter__(self) -> None:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main:
            self._before = signal.signal(signal.SIGTERM, lambda *_: self._event.set())

    def __exit__(self, *_: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGTERM, self._before)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


__all__ = ["IncompatibleConfig", "TrainResult", "Trainer", "TrainingStopped", "train"]
