"""torchtitan 0.3 on the same shape: its own trainer, step by step, on batches that lie in memory.

Its attention is flex, with documents' masks; here every row is one document, so it computes what the others do.
Weights are not tied, the context has no long-range scaling, activations are not computed again, nothing is saved.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

NUM_BATCHES = 4


class Titan:
    """torchtitan's trainer, built from its own config class."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        os.environ.update(
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="1",
            MASTER_ADDR="localhost",
            MASTER_PORT=str(spec["port"]),
        )
        from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
        from torchtitan.components.metrics import MetricsProcessor
        from torchtitan.components.optimizer import default_adamw
        from torchtitan.config import CompileConfig, TrainingConfig
        from torchtitan.trainer import Trainer

        self.tokens_per_step = spec["global_batch_rows"] * spec["seq_len"]
        config = Trainer.Config(
            model_spec=_model(spec),
            loss=ChunkedLossWrapper.Config(
                loss_fn=CrossEntropyLoss.Config(global_vocab_size=spec["vocab_size"])
            ),
            tokenizer=_no_tokenizer(),
            dataloader=_batches(spec),
            dump_folder=tempfile.mkdtemp(prefix="titan-"),
            optimizer=default_adamw(lr=3e-4),
            training=TrainingConfig(
                local_batch_size=spec["micro_batch_rows"],
                global_batch_size=spec["global_batch_rows"],
                seq_len=spec["seq_len"],
                steps=10**6,
            ),
            metrics=MetricsProcessor.Config(log_freq=10**6),
            compile=CompileConfig(enable=spec["compile"]),
            activation_checkpoint=None,  # type: ignore[arg-type] - its parallelize_llama takes None for none
        )
        self.trainer = config.build()
        self.rows = self.trainer.batch_generator(self.trainer.dataloader)

    def run(self, steps: int) -> dict[str, Any]:
        """Return speed and step times of a round, without its first step."""
        self._step()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        return {
            "tokens_per_s": steps * self.tokens_per_step / seconds,
            "step_s": [seconds / steps] * steps,
        }

    def close(self) -> None:
        """Close the trainer."""
        self.trainer.close()

    def _step(self) -> None:
        self.trainer.step += 1
        self.trainer.gc_handler.run(self.trainer.step)
        self.trainer.train_step(self.rows)


def _model(spec: Mapping[str, Any]) -> Any:
    """Return its 1 B model with the dataset's vocabulary and untied embeddings."""
    from torchtitan.models.llama3 import model_registry

    registered = model_registry("1B", attn_backend="flex")
    model, dim, vocab_size = registered.model, spec["shape"]["dim"], spec["vocab_size"]
    layers = model.layers[: spec["shape"]["num_layers"]]
    if (model.dim, len(layers)) != (dim, spec["shape"]["num_layers"]):
        raise ValueError(
            f"torchtitan's 1B has dim {model.dim} and {len(model.layers)} layers, wanted {spec['shape']}"
        )
    embedding = dataclasses.replace(
        model.tok_embeddings,
        num_embeddings=vocab_size,
        param_init={"weight": functools.partial(nn.init.normal_, std=0.02)},
    )
    head = dataclasses.replace(model.lm_head, out_features=vocab_size)
    model = dataclasses.replace(
        model,
        vocab_size=vocab_size,
        enable_weight_tying=False,
        tok_embeddings=embedding,
        lm_head=head,
        layers=layers,
    )
    return dataclasses.replace(registered, model=model)


def _no_tokenizer() -> Any:
    from torchtitan.components.tokenizer import BaseTokenizer

    class NoTokenizer(BaseTokenizer):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()
            self.config = config

        def encode(self, *_: Any, **__: Any) -> list[int]:
            raise NotImplementedError

        def decode(self, *_: Any, **__: Any) -> str:
            raise NotImplementedError

        def get_vocab_size(self) -> int:
            raise NotImplementedError

    return NoTokenizer.Config()


def _batches(spec: Mapping[str, Any]) -> Any:
    from torchtitan.components.dataloader import BaseDataLoader

    rows, seq_len, vocab_size = (
        spec["micro_batch_rows"],
        spec["seq_len"],
        spec["vocab_size"],
    )

    class Batches(BaseDataLoader):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, **_: Any) -> None:
            self.config = config
            drawn = np.minimum(
                np.random.default_rng(2).zipf(1.2, (NUM_BATCHES, rows, seq_len + 1)),
                vocab_size - 1,
            )
            self.batches = torch.from_numpy(drawn.astype(np.int64)).pin_memory()
            self.positions = (
                torch.arange(seq_len).expand(rows, -1).contiguous().pin_memory()
            )

        def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
            while True:
                for batch in self.batches:
                    yield (
                        {"input": batch[:, :-1], "positions": self.positions},
                        batch[:, 1:].contiguous(),
                    )

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            pass

    return Batches.Config()
