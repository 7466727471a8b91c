"""Number of weights on each rank, by mesh and by the groups in which fully_shard gathers them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from training.config import TrainConfig
from training.errors import IncompatibleConfig
from training.model.decoder import Decoder
from training.model.lora import add_adapters
from training.parallel.distributed import compute_mesh_shape

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
    is_zero1: bool
    is_sharded: bool
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
    parallel, data, model = config.parallel, config.data, config.model
    replicate, shard, tensor = compute_mesh_shape(parallel, num_gpus)
    for name, number in (("num_kv_heads", model.num_kv_heads), ("ffn_dim", model.ffn_dim)):
        if number % tensor:
            raise IncompatibleConfig(
                f"parallel.tensor is {tensor}, which does not divide model.{name} {number}"
            )
    num_data_ranks = replicate * shard // parallel.context
    rows = num_data_ranks * data.micro_batch_rows
    if rows > data.global_batch_rows:
        raise IncompatibleConfig(
            f"data.global_batch_rows is {data.global_batch_rows}, but {num_data_ranks} "
            f"(data-parallel ranks) x {data.micro_batch_rows} (data.micro_batch_rows) = {rows} "
            f"rows are read at a time; raise the one or lower the other"
        )
    return MeshLayout(
        replicate=replicate,
        shard=shard,
        tensor=tensor,
        context=parallel.context,
        is_zero1=parallel.strategy == "zero1" and num_gpus > 1,
        is_sharded=parallel.strategy in ("zero2", "zero3"),
        # Rounded up, because a step ends with the first micro-batch that reaches global_batch_rows.
        micro_batches=math.ceil(data.global_batch_rows / rows),
    )


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

    def count_local(self, shard: int) -> int:
        """Return how many elements a rank holds at most, if `shard` ranks share the matrix.

        fully_shard cuts along rows and pads the last shard.
        """
        return math.ceil(self.rows / shard) * self.columns


@dataclass(frozen=True)
class WeightGroup:
    """Parameters that fully_shard gathers and reduces together."""

    weights: tuple[Weight, ...]

    def count_local(self, shard: int, *, trained_only: bool = False) -> int:
        """Return the numbers on the fullest rank."""
        total = 0
        for weight in self.weights:
            if weight.is_trained or not trained_only:
                total += weight.count_local(shard)
        return total

    def count_gathered(self, shard: int) -> int:
        """Return the number of elements when gathered, including padding."""
        return shard * self.count_local(shard)

    @property
    def largest_trained(self) -> int:
        """The number of elements of the largest trained matrix."""
        return max(
            (weight.count_local(1) for weight in self.weights if weight.is_trained),
            default=0,
        )


@dataclass(frozen=True)
class ModelWeights:
    """The groups of a model in forward order; all blocks are alike."""

    embedding: WeightGroup
    block: WeightGroup
    head: WeightGroup
    num_layers: int

    def count_local(self, shard: int, *, trained_only: bool = False) -> int:
        """Return the numbers on the fullest rank."""
        embedding = self.embedding.count_local(shard, trained_only=trained_only)
        block = self.block.count_local(shard, trained_only=trained_only)
        head = self.head.count_local(shard, trained_only=trained_only)
        return embedding + self.num_layers * block + head

    @property
    def all(self) -> list[Weight]:
        """All parameters in the order of the decoder."""
        blocks = self.block.weights * self.num_layers
        return [*self.embedding.weights, *blocks, *self.head.weights]

    @property
    def num_trained(self) -> int:
        """The number of tensors that have optimizer state."""
        return sum(weight.is_trained for weight in self.all)


def list_model_weights(config: TrainConfig, vocab_size: int, tensor: int) -> ModelWeights:
    """Return the parameters of a model on one of `tensor` tensor-parallel ranks.

    Raises:
        IncompatibleConfig: the ranks do not divide the vocabulary, or lora.targets is wrong.
    """
    if vocab_size % tensor:
        raise IncompatibleConfig(
            f"parallel.tensor is {tensor}, which does not divide the vocabulary {vocab_size}"
        )
    with torch.device("meta"):
        # One block is enough: all are alike.
        decoder = Decoder(config.model.model_copy(update={"num_layers": 1}), vocab_size)
        if config.lora is not None:
            add_adapters(decoder, config.lora)
    block = _list_group(decoder, ["layers"], tensor)
    if config.model.tie_embeddings:
        # One matrix, which fully_shard gathers for both uses.
        embedding = WeightGroup(())
        head = _list_group(decoder, ["embed_tokens", "norm"], tensor)
    else:
        embedding = _list_group(decoder, ["embed_tokens"], tensor)
        head = _list_group(decoder, ["norm", "lm_head"], tensor)
    return ModelWeights(embedding, block, head, config.model.num_layers)


def _list_group(decoder: Decoder, module_names: list[str], tensor: int) -> WeightGroup:
    weights: list[Weight] = []
    for name in module_names:
        weights += _list_weights(decoder.get_submodule(name), name, tensor)
    return WeightGroup(tuple(weights))


def _list_weights(module: torch.nn.Module, prefix: str, tensor: int) -> Iterator[Weight]:
    for name, parameter in module.named_parameters(prefix):
        layer = name.split(".")[-2]
        # A vector of n numbers counts as n rows of one column, because fully_shard cuts along rows.
        rows, columns = (*parameter.shape, 1)[:2]
        if layer in _CUT_ROWS:
            rows //= tensor
        elif layer in _CUT_COLUMNS:
            columns //= tensor
        yield Weight(rows, columns, parameter.requires_grad)
