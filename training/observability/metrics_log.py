"""Writes the figures of a run to log.jsonl, TensorBoard and Weights & Biases."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import Any

from storage.local import append_line, name_full_disk
from training.config import ObservabilityConfig
from training.errors import IncompatibleConfig

_MAX_LINE_BYTES = 1 << 20


class MetricsLog:
    """Sinks for figures. Only rank 0 has one that writes; on other ranks it does nothing.

    Attributes:
        latest: the last value of every figure, for Prometheus.
    """

    def __init__(
        self,
        run_dir: Path,
        config: ObservabilityConfig,
        settings: Mapping[str, Any],
        *,
        writes: bool,
    ) -> None:
        """Open the sinks.

        Args:
            run_dir: folder of log.jsonl and tensorboard/.
            config: which sinks to open.
            settings: the whole config, which Weights & Biases stores.
            writes: False makes all methods do nothing.

        Raises:
            IncompatibleConfig: wandb is configured, but not installed.
        """
        self.latest: dict[str, Any] = {"steps_planned": settings["steps"]} if writes else {}
        self._sinks = ExitStack()
        self._path = run_dir / "log.jsonl"
        self._file: FileIO | None = None
        self._tensorboard: Any = None
        self._wandb: Any = None
        if not writes:
            return
        run_dir.mkdir(parents=True, exist_ok=True)
        _remove_partial_line(self._path)
        # Unbuffered: a killed run keeps all lines up to its last report, and closing the file
        # cannot fail on a full disk.
        self._file = self._sinks.enter_context(self._path.open("ab", buffering=0))
        if config.tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter

            self._tensorboard = SummaryWriter(str(run_dir / "tensorboard"))
            self._sinks.callback(self._tensorboard.close)
        if config.wandb is not None:
            self._wandb = _open_wandb(config, run_dir, settings)
            self._sinks.callback(self._wandb.finish)

    def write(self, step: int, figures: Mapping[str, Any]) -> None:
        """Append a line to log.jsonl, and send the numbers to the other sinks.

        Raises:
            StorageError: the disk is full.
        """
        if self._file is None:
            return
        line = {"step": step, "time": round(time.time(), 3), **figures}
        # A new dict: the Prometheus thread may be reading the old one.
        self.latest = {**self.latest, **line}
        with name_full_disk(self._path):
            append_line(self._file, json.dumps(line).encode() + b"\n")
        numbers = {
            name: value for name, value in figures.items() if isinstance(value, int | float)
        }
        if self._tensorboard is not None:
            for name, value in numbers.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Flush and close the sinks."""
        self._sinks.close()


def _remove_partial_line(path: Path) -> None:
    """Cut off a last line without newline, which the next line would otherwise continue.

    A killed rank or a full disk can leave one.
    """
    if path.exists():
        with path.open("rb+") as file:
            # The last newline is searched in the last MiB only, because no line is longer.
            start = file.seek(max(0, path.stat().st_size - _MAX_LINE_BYTES))
            file.truncate(start + file.read().rfind(b"\n") + 1)


def _open_wandb(
    config: ObservabilityConfig, run_dir: Path, settings: Mapping[str, Any]
) -> Any:
    assert config.wandb is not None
    try:
        import wandb
    except ImportError as error:
        raise IncompatibleConfig(
            "observability.wandb is set, but wandb is not installed: pip install wandb, "
            "or set it to null"
        ) from error
    return wandb.init(
        project=config.wandb,
        name=run_dir.name,
        dir=str(run_dir),
        config=dict(settings),
    )
