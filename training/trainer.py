"""The training loop.

The loss is the mean over all labels of the global batch, for any number of ranks and
micro-batches. A killed run that resumes on the same number of ranks computes the same bits as an
uninterrupted one. On another number of ranks it reads the same rows in the same steps.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from terminal_output import format_count
from training.anomaly_guard import AnomalyGuard
from training.build import build_model
from training.checkpoint.checkpointer import Checkpointer, TrainState
from training.checkpoint.marker import format_step_name
from training.config import CheckpointConfig, ObservabilityConfig, TrainConfig
from training.data.batches import MicroBatch, open_batches
from training.evaluation.evaluations import Evaluations
from training.model.size import (
    count_flops_per_token,
    count_parameters,
    resolve_vocab_size,
)
from training.observability.curves import write_report
from training.observability.metrics_log import MetricsLog
from training.observability.profiling import (
    GC_EVERY_STEPS,
    ScheduledGC,
    read_memory_peaks,
    record_memory_history,
    trace_steps,
)
from training.observability.prometheus import serve_prometheus
from training.observability.step_figures import StepFigures, StepTimer
from training.observability.summary import (
    format_evaluation,
    format_setup,
    format_step,
    format_summary,
)
from training.parallel.distributed import RankContext
from training.parallel.optimizer import Optimizer, compute_learning_rate
from training.parallel.parallelize import COMPUTE_DTYPES, accumulate_gradients
from training.planning.gpus import find_peak_flops

log = logging.getLogger(__name__)

# Ctrl-C reaches a rank twice: from the terminal, and at once again from torchrun.
_REPEATED_INTERRUPT_S = 1.0

_LOGGED_LOADER_STATS = (
    "skipped_rows",
    "retries",
    "refetches",
    "broken_lines",
    "cut_conversations",
)


@dataclass(frozen=True)
class TrainResult:
    """How a run ended.

    Attributes:
        step: finished steps.
        loss: loss of the last step.
        was_stopped: whether a stop was requested before the last step.
    """

    step: int
    loss: float
    was_stopped: bool


def train(
    config: TrainConfig, context: RankContext, stop_requested: threading.Event | None = None
) -> TrainResult:
    """Train to the end, starting from the newest checkpoint in run_dir if there is one.

    Args:
        config: the run.
        context: this rank.
        stop_requested: setting it on any rank has the effect of SIGTERM. It is for launchers that
            handle signals themselves.

    Raises:
        IncompatibleConfig: config, ranks, dataset and machine do not fit together.
        TrainingStopped: too many bad steps.
        CheckpointFailed: a checkpoint could not be written.
        CheckpointDamaged: the newest checkpoint differs from its digests.
        ReadFailed, FormatError, ShardCorrupt, ResumeMismatch: raised by the loader.
    """
    with ExitStack() as cleanup:
        trainer = Trainer(config, context, cleanup)
        first_step = trainer.step
        trainer.report_start()
        result = trainer.run(stop_requested)
        trainer.report_results(first_step)
        return result


class Trainer:
    """A run on one rank: model, optimizer, data and logs, restored from the newest checkpoint."""

    def __init__(
        self, config: TrainConfig, context: RankContext, cleanup: ExitStack
    ) -> None:
        """Build and load everything. `cleanup` closes it."""
        self.config, self.context, self.run_dir = config, context, Path(config.run_dir)
        self.step = 0
        self.batches, tokenizer_vocab_size = open_batches(config, context)
        self.vocab_size = resolve_vocab_size(config.model, tokenizer_vocab_size)
        self.checkpointer = Checkpointer(self.run_dir, config.checkpoint, context)
        cleanup.callback(self.checkpointer.close)
        # Before the model is built: a resumed run does not read the initial weights.
        newest = self.checkpointer.find_newest()
        self.model, decoder = build_model(
            config, self.vocab_size, context, loads_initial_weights=newest is None
        )
        self.parameters = dict(decoder.named_parameters())
        self.optimizer = Optimizer(
            self.parameters,
            config.optimizer,
            config.parallel,
            context,
            COMPUTE_DTYPES[config.precision.compute],
        )
        self.anomaly_guard = AnomalyGuard(config.anomaly_guard, context.device)
        self.enqueued: StepFigures | None = None
        self.loss, self.is_stopping, self.is_first_report = math.nan, False, True
        self._open_logs(cleanup)
        self.evaluations = Evaluations(config, context)
        if newest is not None:
            self._resume(newest)

    def _open_logs(self, cleanup: ExitStack) -> None:
        """Open the metrics log and the Prometheus endpoint, and schedule garbage collection."""
        config, context = self.config, self.context
        self.metrics_log = MetricsLog(
            self.run_dir, config.observability, config.model_dump(), writes=context.is_first
        )
        cleanup.callback(self.metrics_log.close)
        close_endpoint = serve_prometheus(
            config.observability,
            self.run_dir,
            context.rank,
            self.batches.stats,
            self.metrics_log,
        )
        cleanup.callback(close_endpoint)
        self.scheduled_gc = ScheduledGC(GC_EVERY_STEPS)
        cleanup.callback(self.scheduled_gc.close)
        self.flops_per_token = count_flops_per_token(
            config.model, self.vocab_size, config.data.seq_len
        )
        self.peak_flops = get_peak_flops(config.observability, context.device)
        stats = self.batches.stats()
        if stats.get("broken_lines"):
            first_faults = "; ".join(stats["first_faults"])
            skipped = format_count(stats["broken_lines"], "broken line")
            log.info("%s skipped; %s", skipped, first_faults)

    def _resume(self, newest: Path) -> None:
        progress = self._load(newest)
        self.batches.load_state_dict(progress["rows"])
        self.batches.skipped_steps = progress["skipped_steps"]
        self.anomaly_guard.load_state_dict(progress["guard"])
        path = self.checkpointer.folder / format_step_name(self.step)
        log.info(
            "resuming from %s: step %d, row %d", path, self.step, self.batches.position
        )

    def _load(self, checkpoint: Path) -> dict[str, Any]:
        """Load parameters, optimizer and step of a checkpoint; return its progress."""
        progress = self.checkpointer.restore(checkpoint, self._make_state())
        # The checkpoint was loaded into the parameters; masters in CPU memory are copies.
        self.optimizer.sync_masters()
        self.step = progress["step"]
        return progress

    def _rewind(self, norm: float) -> bool:
        """Return to the newest checkpoint, and leave out the rows that were read since then.

        The loader continues where it is. A run that is killed before its next checkpoint meets the
        same bad step again, and returns to the same place.

        Returns:
            Whether there was a checkpoint. Otherwise the bad step is skipped.
        """
        self.checkpointer.wait()
        newest, bad_step = self.checkpointer.find_newest(), self.step
        if newest is None:
            log.warning("step %d is bad, and skipped: there is no checkpoint yet", bad_step)
            self.anomaly_guard.skip()
            return False
        progress = self._load(newest)
        self.anomaly_guard.rewind(progress["guard"], self.step)
        self.batches.skipped_steps += bad_step - self.step
        rewind = {
            "rewind/bad_step": bad_step,
            "rewind/loss": self.loss,
            "rewind/grad_norm": norm,
            "rewind/position": self.batches.position,
        }
        self.metrics_log.write(self.step, rewind)
        log.warning(
            "step %d is bad (loss %.4g, gradient norm %.4g): back to step %d; the rows of steps "
            "%d to %d are left out",
            bad_step,
            self.loss,
            norm,
            self.step,
            self.step + 1,
            bad_step,
        )
        return True

    def _make_state(self) -> TrainState:
        """Return the live state. The keys of `progress` are part of the checkpoint format."""
        config = self.config
        progress = {
            "step": self.step,
            "rows": self.batches.state_dict(),
            "skipped_steps": self.batches.skipped_steps,
            "guard": self.anomaly_guard.state_dict(),
            "model": {**config.model.model_dump(), "vocab_size": self.vocab_size},
            "lora": config.lora and config.lora.model_dump(),
            "tokenizer": config.data.tokenizer,
        }
        return TrainState(self.parameters, self.optimizer.state_tensors(), progress)

    # ---- the loop ----

    def run(self, stop_requested: threading.Event | None = None) -> TrainResult:
        """Train to the last step, or until SIGTERM, Ctrl-C or the event requests a stop."""
        stop_requested = stop_requested or threading.Event()
        config, timer = self.config, StepTimer()
        first_step, self.is_stopping = self.step, False
        with (
            stop_on_signals(stop_requested),
            trace_steps(
                config.observability, self.run_dir, self.context
            ) as finish_traced_step,
            record_memory_history(config.observability, self.run_dir, self.context),
        ):
            while self.step < config.steps and not self.is_stopping:
                began = time.perf_counter()
                micro_batches = self.batches.read_step(self.step)
                waited_s = time.perf_counter() - began
                # A stop is an agreement of all ranks, reached inside of the step.
                enqueued = self._train_step(
                    micro_batches, wants_stop=stop_requested.is_set()
                )
                enqueued.waited_s = waited_s
                # While the device computes this step, the host reads the one before.
                self._finish_step(timer)
                self.enqueued = enqueued
                if config.anomaly_guard.on_bad_step == "rewind":
                    # Read at once, because the step after a bad one must not read its rows.
                    self._finish_step(timer)
                if self.step < enqueued.step:
                    continue  # back to an earlier step
                finish_traced_step()
                self.scheduled_gc.collect(self.step)
                if self.step == first_step + 1:
                    self._finish_step(timer)
                    # Later steps get a shorter timeout: they do not compile, and open no datasets.
                    self.context.set_timeout(config.advanced.step_timeout_s)
                self._evaluate_and_save(timer)
            self._finish_step(timer)
        # The last checkpoint must be complete before the process ends.
        self.checkpointer.wait()
        was_stopped = self.is_stopping and self.step < config.steps
        return TrainResult(self.step, self.loss, was_stopped)

    def _finish_step(self, timer: StepTimer) -> None:
        """Wait for the enqueued step, if there is one; check and report its figures.

        Raises:
            TrainingStopped: too many bad steps. The optimizer has skipped them.
        """
        enqueued, self.enqueued = self.enqueued, None
        if enqueued is None:
            return
        self.loss, norm, tokens, wants_stop, is_bad = enqueued.read()
        self.is_stopping = self.is_stopping or bool(wants_stop)
        timer.add_step(int(tokens), waited_s=enqueued.waited_s, finished=enqueued.finished)
        self.anomaly_guard.count(
            self.loss, norm, is_bad=bool(is_bad), step=enqueued.step - 1
        )
        if self.anomaly_guard.wants_rewind and self._rewind(norm):
            return
        if self.is_first_report or self._is_due(self.config.observability, enqueued.step):
            self.is_first_report = False
            self._report(enqueued, norm, timer)

    def report_start(self) -> None:
        """Log the size of the run."""
        num_parameters = count_parameters(self.config.model, self.vocab_size)
        setup = format_setup(self.config, self.context.world_size, num_parameters)
        num_steps = format_count(self.config.steps, "step")
        log.info("%s: %s, %s", self.config.run_dir, num_steps, setup)

    def report_results(self, first_step: int) -> None:
        """Draw the curves, and log where the results of the steps since `first_step` are."""
        if not self.context.is_first or self.step == 0:
            return
        report = write_report(self.run_dir, self.config.model_dump(mode="json"))
        checkpoint = None
        if self.config.checkpoint.every_steps is not None:
            checkpoint = self.checkpointer.folder / format_step_name(self.step)
        summary = format_summary(
            self.config, self.step, first_step, self.metrics_log.latest, checkpoint, report
        )
        log.info(summary)

    def _train_step(
        self, micro_batches: list[MicroBatch], *, wants_stop: bool
    ) -> StepFigures:
        """Enqueue one step, without waiting for the device; the optimizer skips a bad one.

        Returns:
            The figures of the step, the same on all ranks, as `_finish_step` reads them.
        """
        context = self.context
        # fp64, because fp32 counts exactly only up to 2**24 labels.
        local_labels = torch.stack([m.num_labels for m in micro_batches]).sum().double()
        num_labels = context.sum_over_data_ranks(local_labels).clamp(min=1)
        # DDP and FSDP average gradients over ranks. We want the mean over all labels instead, so
        # the number of ranks is multiplied back in.
        num_ranks = context.num_data_ranks * context.context_degree
        local_loss = self._accumulate(micro_batches, num_ranks / num_labels)
        local_loss = context.sum_over_row(local_loss)
        # The norm of all ranks: every rank then takes the same decision below.
        norm = self.optimizer.clip_gradients().to(context.device, torch.float64)
        # A signal reaches ranks at different times. The maximum makes all of them stop at the same
        # step. torch.full and not torch.tensor, which would wait for the device.
        stop = torch.full((), wants_stop, dtype=torch.int32, device=context.device)
        stop = context.max_over_ranks(stop)
        local_tokens = sum(m.input_ids.numel() for m in micro_batches)
        tokens = torch.full_like(num_labels, local_tokens)
        loss_sum, tokens = context.sum_over_data_ranks(
            torch.stack([local_loss.double(), tokens])
        )
        loss = loss_sum / num_labels
        learning_rate = compute_learning_rate(
            self.step, self.config.steps, self.config.optimizer
        )
        is_bad = self.anomaly_guard.find_bad(loss, norm)
        self.optimizer.step(learning_rate, is_bad)
        self.optimizer.zero_grad()
        self.step += 1
        return StepFigures(
            [loss, norm, tokens, stop, is_bad],
            step=self.step,
            position=self.batches.position,
            learning_rate=learning_rate,
        )

    def _accumulate(self, micro_batches: list[MicroBatch], scale: Tensor) -> Tensor:
        """Run forward and backward of all micro-batches; return the summed loss of this rank."""
        total = torch.zeros((), device=self.context.device)
        for micro_batch in micro_batches:
            is_last = micro_batch is micro_batches[-1]
            with accumulate_gradients(self.model, self.config.parallel, is_last=is_last):
                loss, _ = self.model(
                    micro_batch.input_ids, micro_batch.labels, micro_batch.mask
                )
                # `loss` is a sum over labels. Scaling each micro-batch by the step's total gives
                # the exact mean.
                (loss * scale.to(loss.dtype)).backward()
                total += loss.detach()
        return total

    def _report(self, enqueued: StepFigures, norm: float, timer: StepTimer) -> None:
        """Write the figures of a step to the log, and a line to the terminal."""
        rates = timer.report(self.flops_per_token, self.context.world_size, self.peak_flops)
        figures: dict[str, float] = {
            "loss": self.loss,
            "grad_norm": norm,
            "learning_rate": enqueued.learning_rate,
            "bad_steps": self.anomaly_guard.num_bad,
            **rates,
            **read_memory_peaks(self.context.device),
        }
        stats = self.batches.stats()
        for key in _LOGGED_LOADER_STATS:
            if key in stats:
                figures[f"loader_{key}"] = stats[key]
        figures["position"] = enqueued.position
        self.metrics_log.write(enqueued.step, figures)
        log.info(format_step(enqueued.step, self.config.steps, figures))

    def _evaluate_and_save(self, timer: StepTimer) -> None:
        """Evaluate and save a checkpoint if they are due. A requested stop only saves."""
        config = self.config
        saves = self._is_due(config.checkpoint, self.step)
        if saves or self.is_stopping or self.evaluations.is_due(self.step):
            # Neither may come before the figures of the step are known to be good.
            self._finish_step(timer)
        if self.evaluations.is_due(self.step) and not self.is_stopping:
            with timer.exclude():
                figures = self.evaluations.run_due(self.model, self.step)
            self.metrics_log.write(self.step, figures)
            log.info(format_evaluation(self.step, figures))
        if saves or (self.is_stopping and config.checkpoint.every_steps is not None):
            self.checkpointer.save(self._make_state())

    def _is_due(self, section: CheckpointConfig | ObservabilityConfig, step: int) -> bool:
        """Return whether a step is the last one, or a multiple of the section's every_steps."""
        every_steps = section.every_steps
        if every_steps is None:
            return False
        return step % every_steps == 0 or step == self.config.steps


def get_peak_flops(config: ObservabilityConfig, device: torch.device) -> float | None:
    """Return the peak FLOP/s of the device: as configured, or by its name; None if unknown."""
    if config.peak_tflops is not None:
        return config.peak_tflops * 1e12
    if device.type != "cuda":
        return None
    return find_peak_flops(torch.cuda.get_device_name(device))


@contextmanager
def stop_on_signals(
    event: threading.Event, repeat_s: float = _REPEATED_INTERRUPT_S
) -> Generator[None]:
    """Set an event on SIGTERM or Ctrl-C. Schedulers send SIGTERM some time before SIGKILL.

    A second Ctrl-C ends the process at once, without a checkpoint. Signal handlers can be set in
    the main thread only. In other threads this does nothing.

    Args:
        event: the event.
        repeat_s: a SIGINT that comes earlier after the first one is no second Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    first_s: float | None = None

    def interrupt(*_: object) -> None:
        nonlocal first_s
        now_s = time.monotonic()
        if first_s is not None and now_s - first_s >= repeat_s:
            raise KeyboardInterrupt
        first_s = now_s if first_s is None else first_s
        event.set()

    on_terminate = signal.signal(signal.SIGTERM, lambda *_: event.set())
    on_interrupt = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, on_terminate)
        signal.signal(signal.SIGINT, on_interrupt)
