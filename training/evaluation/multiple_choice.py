"""Accuracy on multiple-choice tasks, by the likelihood of each ending.

The figures are those of EleutherAI's lm-evaluation-harness (lm_eval/api/task.py, output type
multiple_choice). `acc` counts a question as right if its answer has the highest log-likelihood
after the prompt, `acc_norm` if it has the highest one per character. Of equal endings the first
wins. Prompt and ending are encoded together and divided after the tokens of the prompt.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import nn

from training.config import TrainConfig
from training.data.tokenizer import OpenedTokenizer, open_tokenizer
from training.errors import IncompatibleConfig
from training.evaluation.held_out import check_tokenizer
from training.evaluation.packed_losses import Ints, PackedLosses, Piece
from training.evaluation.task_files import Question, read_questions
from training.parallel.agreement import RankGroup
from training.parallel.distributed import RankContext


class _Ending(NamedTuple):
    """The tokens of a prompt with one ending, of which the last `num_scored` are the ending's."""

    tokens: Ints
    num_scored: int


class MultipleChoice:
    """The tasks of a config. Their questions are read once and stay in memory."""

    def __init__(self, config: TrainConfig, context: RankContext) -> None:
        """Read the questions on rank 0, and encode them.

        Raises:
            IncompatibleConfig: there is no tokenizer, or the file of a task cannot be read.
        """
        tasks = config.tasks
        if tasks is None or config.data.tokenizer is None:
            raise IncompatibleConfig(
                "tasks need data.tokenizer; set it to the tokenizer of the dataset"
            )
        ranks = RankGroup(context)
        try:
            # Only one rank downloads, and all get the same questions.
            self._tasks: dict[str, list[Question]] = ranks.run_on_first(
                lambda: {
                    name: read_questions(name, path, tasks.max_questions)
                    for name, path in tasks.files.items()
                }
            )
        finally:
            ranks.close()
        tokenizer = open_tokenizer(config.data.tokenizer)
        what = f"data.tokenizer {tokenizer.path}"
        check_tokenizer(config.data, tokenizer.sha256, what)
        self._endings: list[_Ending] = []
        for questions in self._tasks.values():
            self._endings += _encode(questions, tokenizer, config.data.seq_len)
        self._losses = PackedLosses(
            [len(ending.tokens) - 1 for ending in self._endings],
            self._read_piece,
            len(self._endings),
            config=config,
            context=context,
        )

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the accuracies. All ranks must call it at the same step.

        Returns:
            `tasks/<name>/acc`, `tasks/<name>/acc_norm` and `tasks/<name>/questions`; the same on
            every rank.
        """
        likelihoods = iter((-self._losses.compute(model)).tolist())
        figures: dict[str, float] = {}
        for name, questions in self._tasks.items():
            num_right = num_right_norm = 0
            for question in questions:
                values = np.array([next(likelihoods) for _ in question.endings])
                num_chars = np.array([len(ending) for ending in question.endings])
                num_right += int(values.argmax()) == question.answer
                per_char = values / np.maximum(num_chars, 1)
                num_right_norm += int(per_char.argmax()) == question.answer
            figures[f"tasks/{name}/acc"] = num_right / max(1, len(questions))
            figures[f"tasks/{name}/acc_norm"] = num_right_norm / max(1, len(questions))
            figures[f"tasks/{name}/questions"] = len(questions)
        return figures

    def _read_piece(self, number: int) -> Piece:
        ending = self._endings[number]
        sums = np.full(len(ending.tokens) - 1, -1, np.int64)
        sums[len(sums) - ending.num_scored :] = number
        return Piece(ending.tokens, sums)


def _encode(
    questions: list[Question], tokenizer: OpenedTokenizer, seq_len: int
) -> list[_Ending]:
    """Return all endings of all questions. Prompts are cut at the left to fit into a row."""
    prompts: list[str] = []
    texts: list[str] = []
    for question in questions:
        # Spaces at the end of a prompt belong to the ending, as in lm-evaluation-harness.
        prompts += [question.prompt.rstrip()] * len(question.endings)
        texts += [f"{question.prompt} {ending}" for ending in question.endings]
    endings: list[_Ending] = []
    encoded = zip(tokenizer.encode(prompts), tokenizer.encode(texts), strict=True)
    for prompt, tokens in encoded:
        kept = np.array(tokens[-(seq_len + 1) :], np.int64)
        num_scored = min(max(1, len(tokens) - len(prompt)), len(kept) - 1)
        endings.append(_Ending(kept, num_scored))
    return endings
