"""Weights on each rank by layout: the mesh, and the shapes of all parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from training.config import TrainConfig
from training.data.batches import count_rows_at_a_time
from training.model.decoder import Decoder
from training.model.lora import add_adapters
from training.parallel.distributed import compute_mesh_shape
from training.parallel.tensor_parallel import check_divisible

# Matrices that tensor parallelism cuts along rows and along columns
# (training/parallel/tensor_parallel.py).
_CUT_ROWS = (
    "embed_tokens",
    "lm_head",
    "q_proj",
    "k_proj",
    "v_proj",
    "gate_proj",
    "up_proj",
)
_CUT_COLUMNS = ("o_proj", "down_proj")


@dataclass(frozen=True)
class MeshLayout:
    """The mesh of replicate x shard x tensor ranks, and the micro-batches of a step.

    `context` ranks, which share rows, are among those of replicate x shard.
    """

    replicate: int
    shard: int
    tensor: int
    context: int
    micro_batches: int

    @property
    def num_communicators(self) -> int:
        """The number of mesh dimensions over which ranks communicate."""
        sizes = self.replicate, self.shard, self.tensor, self.context
        return sum(size > 1 for size in sizes)


def plan_mesh(config: TrainConfig, num_gpus: int) -> MeshLayout:
    """Return the mesh of a config on a number of GPUs.

    Raises:
        IncompatibleConfig: the degrees, heads or rows cannot be divided over the GPUs.
    """
    parallel, data = config.parallel, config.data
    replicate, shard, tensor = compute_mesh_shape(parallel, num_gpus)
    rows = count_rows_at_a_time(data, replicate * shard // parallel.context)
    # Rounded up, because a step ends with the first micro-batch that reaches global_batch_rows.
    micro_batches = math.ceil(data.global_batch_rows / rows)
    return MeshLayout(replicate, shard, tensor, parallel.context, micro_batches)


@dataclass(frozen=True)
class Weight:
    """Shape of a parameter on one tensor-parallel rank; a norm has one column."""

    rows: int
    columns: int
    is_trained: bool

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, and not the weight of a norm."""
        return self.columns > 1

    def count(self, shard: int = 1) -> int:
        """Return how many numbers a rank holds at most, if `shard` ranks share the matrix.

        fully_shard cuts along rows and pads the last shard.
        """
        return math.ceil(self.rows / shard) * self.columns


@dataclass(frozen=True)
class ModelWeights:
    """The groups of parameters that fully_shard gathers together; all blocks are alike."""

    embedding: list[Weight]
    block: list[Weight]
    head: list[Weight]
    num_layers: int

    @property
    def all(self) -> list[Weight]:
        """All parameters in the order of the decoder."""
        return [*self.embedding, *self.block * self.num_layers, *self.head]


def count(weights: list[Weight], shard: int = 1) -> int:
    """Return the numbers on the fullest of `shard` ranks."""
    return sum(weight.count(shard) for weight in weights)


def select_trained(weights: list[Weight]) -> list[Weight]:
    """Return the weights that have gradients and optimizer state."""
    return [weight for weight in weights if weight.is_trained]


def list_weights(config: TrainConfig, vocab_size: int, tensor: int) -> ModelWeights:
    """Return the parameters of a model on one of `tensor` tensor-parallel ranks.

    Raises:
        IncompatibleConfig: the ranks do not divide the vocabulary, or lora.targets is wrong.
    """
    check_divisible(config.model, vocab_size, tensor)
    with torch.device("meta"):
        # One block is enough: all are alike.
        decoder = Decoder(config.model.model_copy(update={"num_layers": 1}), vocab_size)
        if config.lora is not None:
            add_adapters(decoder, config.lora)
    groups: dict[str, list[Weight]] = {"embed_tokens": [], "layers": [], "head": []}
    for name, parameter in decoder.named_parameters():
        layer = name.split(".")[-2]
        # A vector of n numbers counts as n rows of one column, because fully_shard cuts along rows.
        rows, columns = (*parameter.shape, 1)[:2]
        if layer in _CUT_ROWS:
            rows //= tensor
        elif layer in _CUT_COLUMNS:
            columns //= tensor
        group = groups.get(name.split(".")[0], groups["head"])
        group.append(Weight(rows, columns, parameter.requires_grad))
    embedding, block, head = groups.values()
    if config.model.tie_embeddings:
        # One matrix, which fully_shard gathers for both uses.
        embedding, head = [], [*embedding, *head]
    return ModelWeights(embedding, block, head, config.model.num_layers)
