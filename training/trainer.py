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
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from training.anomaly_guard import AnomalyGuard
from training.checkpoint.checkpointer import Checkpointer, TrainState
from training.checkpoint.marker import format_step_name
from training.config import (
    CheckpointConfig,
    ObservabilityConfig,
    TrainConfig,
    ValidationConfig,
)
from training.data.batches import MicroBatch, open_batches
from training.data.validation import Validation
from training.hugging_face.weights import load_weights_into
from training.model.decoder import Decoder
from training.model.initialization import init_parameter
from training.model.lora import add_adapters, init_adapter, is_adapter
from training.model.size import count_flops_per_token, resolve_vocab_size
from training.observability.metrics_log import MetricsLog
from training.observability.profiling import (
    ScheduledGC,
    read_memory_peaks,
    record_memory_history,
    trace_steps,
)
from training.observability.prometheus import serve_prometheus
from training.observability.step_timer import StepTimer
from training.parallel.distributed import RankContext
from training.parallel.optimizer import Optimizer, compute_learning_rate
from training.parallel.parallelize import accumulate_gradients, parallelize
from training.planning.gpus import find_peak_flops

log = logging.getLogger(__name__)

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
        return trainer.run(stop_requested)


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
        self.model, decoder = self._build_model(is_new_run=newest is None)
        self.parameters = dict(decoder.named_parameters())
        self.optimizer = Optimizer(
            self.parameters, config.optimizer, config.parallel, context
        )
        self.anomaly_guard = AnomalyGuard(config.anomaly_guard)
        self._open_logs(cleanup)
        self.validation = Validation(config, context) if config.validation else None
        if newest is not None:
            self._resume(newest)

    def _build_model(self, *, is_new_run: bool) -> tuple[nn.Module, Decoder]:
        """Return the distributed model and the decoder inside it."""
        config = self.config
        with torch.device("meta"):
            decoder = Decoder(config.model, self.vocab_size)
            if config.lora is not None:
                add_adapters(decoder, config.lora)

        def init(name: str, parameter: Tensor) -> None:
            if is_adapter(name):
                init_adapter(name, parameter, config.seed)
            else:
                init_parameter(name, parameter, config.model, config.seed)

        model = parallelize(
            decoder,
            init,
            parallel=config.parallel,
            precision=config.precision,
            context=self.context,
        )
        if is_new_run and config.model.initial_weights is not None:
            load_weights_into(Path(config.model.initial_weights), decoder)
        return model, decoder

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
        self.scheduled_gc = ScheduledGC(config.advanced.gc_every_steps)
        cleanup.callback(self.scheduled_gc.close)
        self.flops_per_token = count_flops_per_token(
            config.model, self.vocab_size, config.data.seq_len
        )
        self.peak_flops = _get_peak_flops(config.observability, context.device)
        stats = self.batches.stats()
        if stats.get("broken_lines"):
            first_faults = "; ".join(stats["first_faults"])
            log.info("%d broken lines are skipped; %s", stats["broken_lines"], first_faults)

    def _resume(self, newest: Path) -> None:
        progress = self.checkpointer.restore(newest, self._make_state())
        # The checkpoint was loaded into the parameters; masters in CPU memory are copies.
        self.optimizer.sync_masters()
        self.step = progress["step"]
        self.batches.load_state_dict(progress["rows"])
        self.anomaly_guard.load_state_dict(progress["guard"])
        path = self.checkpointer.folder / format_step_name(self.step)
        log.info(
            "resuming from %s: step %d, row %d", path, self.step, self.batches.position
        )

    def _make_state(self) -> TrainState:
        """Return the live state. The keys of `progress` are part of the checkpoint format."""
        config = self.config
        progress = {
            "step": self.step,
            "rows": self.batches.state_dict(),
            "guard": self.anomaly_guard.state_dict(),
            "model": {**config.model.model_dump(), "vocab_size": self.vocab_size},
            "lora": config.lora and config.lora.model_dump(),
            "tokenizer": config.data.tokenizer,
        }
        return TrainState(self.parameters, self.optimizer.state_tensors(), progress)

    # ---- the loop ----

    def run(self, stop_requested: threading.Event | None = None) -> TrainResult:
        """Train to the last step, or until SIGTERM or the event requests a stop."""
        stop_requested = stop_requested or threading.Event()
        config, timer, loss = self.config, StepTimer(), math.nan
        first_step, is_stopping = self.step, False
        with (
            _stop_on_sigterm(stop_requested),
            trace_steps(
                config.observability, self.run_dir, self.context
            ) as finish_traced_step,
            record_memory_history(config.observability, self.run_dir, self.context),
        ):
            while self.step < config.steps and not is_stopping:
                with timer.measure_wait():
                    micro_batches = self.batches.read_step(self.step)
                # A stop is an agreement of all ranks, reached inside of the step.
                figures = self._train_step(
                    micro_batches, wants_stop=stop_requested.is_set()
                )
                loss, is_stopping = figures["loss"], bool(figures.pop("wants_stop"))
                timer.add_step(int(figures.pop("tokens")))
                self.step += 1
                finish_traced_step()
                self.scheduled_gc.collect(self.step)
                is_first_step = self.step == first_step + 1
                if is_first_step:
                    # Later steps get a shorter timeout: they do not compile, and open no datasets.
                    self.context.set_timeout(config.advanced.step_timeout_s)
                if is_first_step or self._is_due(config.observability):
                    self._report(figures, timer)
                self._validate_and_save(is_stopping=is_stopping)
        # The last checkpoint must be complete before the process ends.
        self.checkpointer.wait()
        return TrainResult(self.step, loss, is_stopping and self.step < config.steps)

    def _train_step(
        self, micro_batches: list[MicroBatch], *, wants_stop: bool
    ) -> dict[str, float]:
        """Run one step; the optimizer skips it if the anomaly guard refuses.

        Returns:
            The figures of the step, the same on all ranks.
        """
        context = self.context
        # fp64, because fp32 counts exactly only up to 2**24 labels.
        local_labels = torch.stack([m.num_labels for m in micro_batches]).sum().double()
        num_labels = context.sum_over_data_ranks(local_labels)
        # DDP and FSDP average gradients over ranks. We want the mean over all labels instead, so
        # the number of ranks is multiplied back in.
        scale = context.num_data_ranks / num_labels.clamp(min=1)
        local_loss = self._accumulate(micro_batches, scale)
        # The norm of all ranks: every rank then takes the same decision below.
        norm = self.optimizer.clip_gradients()
        # A signal reaches ranks at different times. The maximum makes all of them stop at the same
        # step.
        stop = torch.tensor(wants_stop, dtype=torch.int32, device=context.device)
        stop = context.max_over_ranks(stop)
        local_tokens = sum(m.input_ids.numel() for m in micro_batches)
        tokens = torch.tensor(local_tokens, device=context.device)
        sums = context.sum_over_data_ranks(torch.stack([local_loss.double(), tokens]))
        # Here the CPU waits for the device, once per step.
        loss_sum, all_tokens = sums.tolist()
        mean_loss = loss_sum / max(1.0, float(num_labels))
        learning_rate = compute_learning_rate(
            self.step, self.config.steps, self.config.optimizer
        )
        if self.anomaly_guard.accept(mean_loss, float(norm), self.step):
            self.optimizer.step(learning_rate)
        self.optimizer.zero_grad()
        return {
            "loss": mean_loss,
            "grad_norm": float(norm),
            "learning_rate": learning_rate,
            "bad_steps": self.anomaly_guard.num_bad,
            "tokens": all_tokens,
            "wants_stop": stop.item(),
        }

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

    def _report(self, figures: dict[str, float], timer: StepTimer) -> None:
        """Write the figures of a step to the log, and a line to the terminal."""
        rates = timer.report(self.flops_per_token, self.context.world_size, self.peak_flops)
        memory = read_memory_peaks(self.context.device)
        stats = self.batches.stats()
        loader = {
            f"loader_{key}": stats[key] for key in _LOGGED_LOADER_STATS if key in stats
        }
        position = {"position": self.batches.position}
        self.metrics_log.write(
            self.step, {**figures, **rates, **memory, **loader, **position}
        )
        left_s = (self.config.steps - self.step) * rates["step_s"]
        mfu = f"  MFU {rates['mfu']:.1%}" if "mfu" in rates else ""
        message = (
            f"step {self.step:>7,}/{self.config.steps:,}  loss {figures['loss']:.4f}  "
            f"norm {figures['grad_norm']:.2f}  {rates['tokens_per_s']:,.0f} tokens/s{mfu}  "
            f"waiting for rows {rates['stall_share']:.1%}  left {_format_duration(left_s)}"
        )
        log.info(message)

    def _validate_and_save(self, *, is_stopping: bool) -> None:
        """Validate and save a checkpoint if they are due. A requested stop only saves."""
        config = self.config
        if (
            self.validation is not None
            and self._is_due(config.validation)
            and not is_stopping
        ):
            figures = self.validation.evaluate(self.model)
            self.metrics_log.write(self.step, figures)
            loss = figures["validation/loss"]
            message = f"step {self.step:>7,}  validation loss {loss:.4f}"
            log.info(message)
        if self._is_due(config.checkpoint) or is_stopping:
            self.checkpointer.save(self._make_state())

    def _is_due(
        self, section: ValidationConfig | CheckpointConfig | ObservabilityConfig | None
    ) -> bool:
        """Return whether the step is the last one, or a multiple of the section's every_steps."""
        if section is None:
            return False
        return self.step % section.every_steps == 0 or self.step == self.config.steps


def _get_peak_flops(config: ObservabilityConfig, device: torch.device) -> float | None:
    """Return the peak FLOP/s of the device: as configured, or by its name; None if unknown."""
    if config.peak_tflops is not None:
        return config.peak_tflops * 1e12
    if device.type != "cuda":
        return None
    return find_peak_flops(torch.cuda.get_device_name(device))


@contextmanager
def _stop_on_sigterm(event: threading.Event) -> Generator[None]:
    """Set an event on SIGTERM, which schedulers send some time before they kill.

    Signal handlers can be set in the main thread only. In other threads this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _format_duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
