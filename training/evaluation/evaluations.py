"""The evaluations of a run: held-out documents and multiple-choice tasks."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from training.build import build_model
from training.checkpoint.checkpointer import Checkpointer, TrainState
from training.checkpoint.marker import read_progress
from training.config import TasksConfig, TrainConfig, ValidationConfig
from training.errors import IncompatibleConfig
from training.evaluation.multiple_choice import MultipleChoice
from training.evaluation.validation import Validation
from training.parallel.distributed import RankContext


class Evaluations:
    """The evaluations that a config has, with their intervals."""

    def __init__(self, config: TrainConfig, context: RankContext) -> None:
        """Open datasets and tasks.

        Raises:
            IncompatibleConfig: a dataset or a task does not suit the run.
            ReadFailed, FormatError, ShardCorrupt: the held-out dataset cannot be read.
        """
        self._num_steps = config.steps
        self._all: list[
            tuple[ValidationConfig | TasksConfig, Validation | MultipleChoice]
        ] = []
        if config.validation is not None:
            self._all.append((config.validation, Validation(config, context)))
        if config.tasks is not None:
            self._all.append((config.tasks, MultipleChoice(config, context)))

    def is_due(self, step: int) -> bool:
        """Return whether an evaluation is due after a step, the last one included."""
        return any(
            step % section.every_steps == 0 or step == self._num_steps
            for section, _ in self._all
        )

    def run_due(self, model: nn.Module, step: int) -> dict[str, float]:
        """Return the figures of the evaluations that are due after a step, the last one included.

        All ranks must call it at the same step.
        """
        figures: dict[str, float] = {}
        for section, evaluation in self._all:
            if step % section.every_steps == 0 or step == self._num_steps:
                figures |= evaluation.evaluate(model)
        return figures

    def run_all(self, model: nn.Module) -> dict[str, float]:
        """Return the figures of all evaluations. All ranks must call it together."""
        return self.run_due(model, self._num_steps)


def evaluate_checkpoint(
    config: TrainConfig, context: RankContext, checkpoint: Path | None = None
) -> tuple[Path, dict[str, float]]:
    """Evaluate a checkpoint of a run. All ranks must call it together.

    Args:
        config: the run, on any number of ranks.
        context: this rank.
        checkpoint: None: the newest one of the run.

    Returns:
        The checkpoint, and the figures that the run had at its step.

    Raises:
        IncompatibleConfig: there is no checkpoint or no evaluation, or they do not fit together.
        CheckpointDamaged, CheckpointFailed: the checkpoint cannot be loaded.
        ReadFailed, FormatError, ShardCorrupt: the held-out dataset cannot be read.
    """
    if config.validation is None and config.tasks is None:
        raise IncompatibleConfig(
            "validation and tasks are both null, so there is nothing to evaluate; set one, such as "
            "--set validation.manifest=FOLDER or --set tasks.files.hellaswag=null"
        )
    checkpointer = Checkpointer(Path(config.run_dir), config.checkpoint, context)
    try:
        path = checkpoint or checkpointer.find_newest()
        if path is None:
            raise IncompatibleConfig(
                f"{checkpointer.folder} has no complete checkpoint; train first, or give one"
            )
        vocab_size = read_progress(path)["model"]["vocab_size"]
        model, decoder = build_model(config, vocab_size, context)
        weights = dict(decoder.named_parameters())
        checkpointer.load(path, TrainState(weights, {}, {}))
    finally:
        checkpointer.close()
    return path, Evaluations(config, context).run_all(model)
