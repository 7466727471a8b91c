"""The sections `validation` and `tasks`: figures of the model during training."""

from __future__ import annotations

from pydantic import Field

from training.config.base import Positive, Section


class ValidationConfig(Section):
    """Loss on held-out documents, in total, by language and by bucket.

    With data.tokenizer also bits per byte.
    """

    manifest: str = Field(description="Path or address of the held-out dataset.")
    every_steps: Positive = Field(
        default=500, description="Steps between validations. One also runs at the end."
    )
    documents: Positive | None = Field(
        default=1000, description="Number of documents to use, from the first. null: all."
    )


class TasksConfig(Section):
    """Accuracy on multiple-choice tasks, by the likelihood of the endings; needs data.tokenizer."""

    files: dict[str, str | None] = Field(
        min_length=1,
        description="Tasks by name, with a JSON-lines file of {query, choices, gold} for each. "
        "null downloads it: hellaswag, arc_easy, arc_challenge, piqa.",
    )
    every_steps: Positive = Field(
        default=1000, description="Steps between evaluations. One also runs at the end."
    )
    max_questions: Positive | None = Field(
        default=1000, description="Number of questions per task, from the first. null: all."
    )
