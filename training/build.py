"""Builds the model of a config, distributed over the ranks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from training.config import TrainConfig
from training.hugging_face.weights import load_weights_into
from training.model.decoder import Decoder, init_parameter
from training.model.lora import add_adapters, init_adapter, is_adapter
from training.parallel.distributed import RankContext
from training.parallel.parallelize import parallelize


def build_model(
    config: TrainConfig,
    vocab_size: int,
    context: RankContext,
    *,
    loads_initial_weights: bool = False,
) -> tuple[nn.Module, Decoder]:
    """Return the distributed model and the decoder inside it.

    Args:
        config: the run.
        vocab_size: rows of the embedding.
        context: this rank.
        loads_initial_weights: read `model.initial_weights`, if it is set. Otherwise all weights
            are random.
    """
    with torch.device("meta"):
        decoder = Decoder(config.model, vocab_size)
        decoder.lm_head.z_loss = config.optimizer.z_loss
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
        context=context,
    )
    if loads_initial_weights and config.model.initial_weights is not None:
        load_weights_into(Path(config.model.initial_weights), decoder)
    return model, decoder
