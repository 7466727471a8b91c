"""The section `data`: datasets, rows and batches."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from loader import Mixture
from training.config.base import Positive, Section


class SourceConfig(Section):
    """One dataset of a mixture."""

    manifest: str = Field(description="Path or address of its manifest, or of its folder.")
    weight: float = Field(
        default=1.0,
        ge=0,
        description="Share of the rows, relative to the other datasets; 0 for a dataset that "
        "`mixture_schedule` adds.",
    )


class DataConfig(Section):
    """The training data: exactly one of `manifest`, `mixture`, `instructions`, `synthetic`."""

    manifest: str | None = Field(
        default=None, description="One dataset: path or address of its manifest or folder."
    )
    mixture: dict[str, SourceConfig] | None = Field(
        default=None, description="Several datasets by name, with weights."
    )
    mixture_schedule: dict[Positive, dict[str, float]] = Field(
        default={},
        description="Step -> weights of the mixture from this step on, such as `2000: {web: 1, "
        "code: 1}`. Datasets that are left out give no more rows. A run can be continued with "
        "other datasets and weights from a later step on.",
    )
    instructions: str | None = Field(
        default=None,
        description="JSON-lines file of instructions or chats for fine-tuning (docs/training.md).",
    )
    synthetic: bool = Field(
        default=False,
        description="Random rows, to measure or to test a layout without a dataset; needs "
        "model.vocab_size.",
    )
    tokenizer: str | None = Field(
        default=None,
        description="The tokenizer of the dataset: a tokenizer.json, a folder with GPT-2's two "
        "files, or the name of one that the pipeline has downloaded (gpt2-bpe). Required for "
        "instructions, tasks and bits per byte, and copied into exports.",
    )
    seq_len: Positive = Field(default=2048, description="Tokens per row.")
    global_batch_rows: Positive = Field(
        default=512, description="Rows per step, over all ranks."
    )
    micro_batch_rows: Positive = Field(
        default=4, description="Rows per forward pass on one rank."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the order of rows.")
    packing: bool | str = Field(
        default=False,
        description="True: rows that documents are packed into, so that documents that fit are not "
        "cut, by the file that `python -m loader pack` wrote beside each manifest; or, for one "
        "dataset, the path or address of that file.",
    )
    document_masks: bool = Field(
        default=True,
        description="Tokens attend only within their own document, as in Llama 3.",
    )
    on_corrupt: Literal["stop", "skip_and_count"] = Field(
        default="stop",
        description="Reaction to a damaged sample: stop the run, or leave its rows out of the "
        "loss.",
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        sources = "manifest", "mixture", "instructions", "synthetic"
        given = [name for name in sources if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"set exactly one of {', '.join(sources)}; found "
                f"{', '.join(given) or 'none'}"
            )
        if self.instructions and not self.tokenizer:
            raise ValueError(
                "instructions need a tokenizer; set tokenizer to a tokenizer.json, a folder with "
                "one, or a name such as gpt2-bpe"
            )
        if self.packing and self.instructions:
            raise ValueError("instructions are always packed; leave packing out")
        if isinstance(self.packing, str) and self.mixture:
            raise ValueError(
                f"packing is {self.packing!r} for a mixture; set it to true, and write the file "
                f"of each dataset beside its manifest"
            )
        return self

    @model_validator(mode="after")
    def _check_mixture(self) -> Self:
        if self.mixture_schedule and not self.mixture:
            raise ValueError(
                "mixture_schedule needs a mixture; set mixture, or leave it out"
            )
        if self.mixture:
            # Checks names and weights.
            self.make_mixture()
        return self

    def make_mixture(self) -> Mixture:
        """Return the mixture. Its schedule is by position: step * global_batch_rows."""
        assert self.mixture is not None
        return Mixture(
            {name: source.manifest for name, source in self.mixture.items()},
            weights={name: source.weight for name, source in self.mixture.items()},
            schedule={
                step * self.global_batch_rows: weights
                for step, weights in self.mixture_schedule.items()
            },
        )
