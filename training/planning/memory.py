"""How much memory a run takes on its fullest GPU: arithmetic on the config, nothing is built or started.

Promises: parameters, gradients and optimizer's state are what the trainer's tensors take, to the byte; activations are
what autograd saves of our block; the rest are the buffers of DDP and fully_shard, and what is assumed is named so.
Leaves to others: which layouts to compare, speed, printing (plan.py).

Against the accounts in the literature. ZeRO (Rajbhandari et al. 2020, section 3.1) counts 2 + 2 + 12 bytes a parameter:
fp16 weights and gradients, and fp32 master, momentum, variance. Ours are 4 + 4 + 8: the fp32 parameter is the master,
its gradient is summed in fp32, AdamW keeps two moments. The sum is 16 as well, but what is gathered or cast in bf16 (2)
comes on top, and so does a whole fp32 gradient (4) where fully_shard accumulates several micro-batches. Activations
of Korthikanti et al. 2022, equation 1, are s b h (34 + 5 a s / h) bytes a layer, with GELU, dropout and all scores; our
block has none of these (`block_activations` tells what it has), and flash attention keeps no scores.

A step has four moments at which it can be fullest:

    loss    forward is done: all activations, and the head's logits or its gradients
    last    backward of the last block: all activations, and what that block computes again and its gradients
    first   backward of the first block: its activations alone, but the gradients of all that come after it
    end     backward is done: all gradients, and the embedding's on its way to them
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from training.config import TrainConfig
from training.model import lora
from training.model.decoder import Decoder
from training.parallel.distributed import IncompatibleConfig, mesh_shape

FP32 = 4
GIB = 2**30

CONTEXT_BYTES = 1 * GIB
"""Assumed: CUDA's context with its loaded kernels, and cuBLAS's workspaces. Not measured here."""

COMMUNICATOR_BYTES = GIB // 2
"""Assumed: NCCL's buffers of one group of ranks; a channel takes 4 MiB (NCCL_BUFFSIZE) per direction and peer."""

_ROWS = ("embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_COLUMNS = ("o_proj", "down_proj")
"""Which matrices tensor parallelism cuts along which dimension (parallel.py, `_cut_matrices`)."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at one moment.

    parameters:  fp32, this rank's part
    gathered:    whole weights in the type that is computed in: all-gathered (zero2, zero3) or cast by autocast
    gradients:   fp32; whole where micro-batches are accumulated
    optimizer:   AdamW's moments
    activations: what backward needs of the blocks and the last norm
    loss:        logits of a chunk, the head's gradients
    buffers:     of collectives, and what a block's backward computes with
    context:     CUDA and NCCL
    """

    parameters: int
    gathered: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    buffers: int
    context: int

    @property
    def total(self) -> int:
        """Of all."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Footprint:
    """What a run takes on its fullest GPU.

    parameters, gradients, optimizer: bytes of this rank's parts, wherever they lie; gradients as the step sees them
    moments: bytes on the GPU, by moment
    offloaded: bytes of activations of a micro-batch that go to CPU memory and back
    host: bytes of CPU memory per GPU: what is offloaded, and the copy from which a checkpoint is written
    micro_batches: per step and rank
    """

    parameters: int
    gradients: int
    optimizer: int
    moments: dict[str, Memory]
    offloaded: int
    host: int
    micro_batches: int

    @property
    def moment(self) -> str:
        """The fullest."""
        return max(self.moments, key=lambda name: self.moments[name].total)

    @property
    def peak(self) -> Memory:
        """Memory at that moment."""
        return self.moments[self.moment]


@dataclass(frozen=True)
class Activations:
    """Bytes per token of this rank's rows, of one block.

    kept:      on the GPU from forward to backward
    offloaded: likewise, but in CPU memory
    again:     on the GPU while the block goes backward: what is computed again, and gradients of what is kept
    """

    kept: int
    offloaded: int
    again: int


def footprint(
    config: TrainConfig, vocab_size: int, num_gpus: int, *, device_type: str = "cuda"
) -> Footprint:
    """Of a run on so many GPUs; with device_type "cpu", of its processes.

    Raises:
        IncompatibleConfig: the degrees, heads or rows cannot be shared out over the GPUs.
    """
    layout = _Layout.of(config, num_gpus)
    weights = _Weights.of(config, vocab_size, layout)
    tokens = config.data.seq_len * config.data.micro_batch_rows
    trained = weights.local(layout.shard, trained=True)
    parameters, gradients = FP32 * weights.local(layout.shard), FP32 * trained
    optimizer = (
        _zero1_state(weights, layout.replicate)
        if layout.is_zero1
        else _state(trained, weights.num_trained)
    )
    saved = block_activations(config, device_type=device_type)
    moments = _moments(config, layout, weights, saved, tokens, device_type)
    offloaded = max(0, config.model.num_layers - 1) * saved.offloaded * tokens
    host = parameters + optimizer + offloaded  # the checkpoint's copy
    if config.parallel.offload == "optimizer":
        host += 2 * gradients + optimizer  # masters, their gradients, moments
    elif config.parallel.offload == "parameters":
        host += parameters + gradients + optimizer
    return Footprint(
        parameters, gradients, optimizer, moments, offloaded, host, layout.micro_batches
    )


def block_activations(config: TrainConfig, *, device_type: str = "cuda") -> Activations:
    """What one block keeps for its backward, per token.

    D width, Q = D and K the widths of queries and keys, F inner width, e bytes of the computing type (2 or 4), r of the
    residual stream (autocast leaves it in fp32, fully_shard computes all in bf16). t: tensor parallel ranks.

        norms        2 x (r D / t + 4)   input and 1 / root mean square, twice
        projections  2 x e D             q, k, v share one input, gate and up another; under autocast each has its own
        attention    e (2 Q + 2 K) / t + 4 heads / t        query, key, value, output; log of the sum of exponents
        feed-forward 4 e F / t           gate, silu(gate), up, their product

    `selective` keeps the block's input and the outputs of all products, of attention and of the sums over ranks:
    r D / t + e (2 Q + 2 K + 2 F) / t + 4 heads / t + e 2 D, and e 2 D / t where t > 1; `full` the input alone. Inputs
    of frozen layers (lora) are not kept. Compiled blocks keep less than this: the compiler computes cheap things again.
    """
    model, t = config.model, config.parallel.tensor
    e, r = compute_bytes(config), residual_bytes(config)
    width, inner, stream = model.dim // t, model.ffn_dim // t, r * model.dim // t
    keys, heads = model.num_kv_heads * model.head_dim // t, model.num_heads // t
    attention = e * (2 * width + 2 * keys) + FP32 * heads + _score_bytes(config, device_type)
    low_rank = e * config.lora.rank * len(config.lora.targets) if config.lora else 0
    norms = 2 * _norm_bytes(stream, width, device_type, is_trained=config.lora is None)
    has_product = _is_trained(config, "down_proj")
    everything = norms + _num_inputs(config) * e * model.dim + attention + low_rank
    everything += e * inner * (4 if has_product else 3)
    scattered = 2 * e * width if t > 1 else 0
    shared = attention + low_rank + 2 * e * inner  # by both, or one is dropped as the other is made
    dropped = e * _adapter_outputs(config) + e * model.dim + scattered
    products = stream + shared + dropped + e * model.dim
    # the block's input is the first norm's, unless a processor makes it fp32
    again = everything - (stream if device_type == "cuda" or residual_bytes(config) == FP32 else 0)
    # Backward of gate's and up's product: gradients of it and of both, itself no more; and of the stream.
    working = e * inner * (2 if has_product else 3) + stream
    checkpointing = config.parallel.activation_checkpointing
    kept = {"none": everything, "selective": products, "full": stream}[checkpointing]
    again = {"none": 0, "selective": max(0, again - shared - dropped), "full": again}[checkpointing]
    if not config.parallel.activation_offload:
        return Activations(kept, 0, again + working)
    # what selective checkpointing stores is not among the tensors that autograd saves
    offloaded = stream if checkpointing == "selective" else kept
    return Activations(kept - offloaded, offloaded, again + working)


def compute_bytes(config: TrainConfig) -> int:
    """Of a number in forward and backward."""
    return 2 if config.precision.compute == "bf16" else FP32


def residual_bytes(config: TrainConfig) -> int:
    """Of a number of the residual stream: autocast, which ddp and zero1 use, begins with fp32 embeddings."""
    return compute_bytes(config) if config.parallel.strategy in ("zero2", "zero3") else FP32


def _norm_bytes(stream: int, width: int, device_type: str, *, is_trained: bool) -> int:
    """Of a norm. CUDA has a kernel; on a processor torch composes it: input, and what the weight is for, in fp32."""
    return stream + 4 if device_type == "cuda" else FP32 * width * (2 if is_trained else 1) + 4


def _adapter_outputs(config: TrainConfig) -> int:
    """Numbers that adapters put out, per token: products that selective checkpointing stores, though no one wants them.

    Adapters do not go with tensor parallelism.
    """
    model = config.model
    keys = model.num_kv_heads * model.head_dim
    widths = {"k_proj": keys, "v_proj": keys, "gate_proj": model.ffn_dim, "up_proj": model.ffn_dim}
    return (
        sum(widths.get(target, model.dim) for target in config.lora.targets) if config.lora else 0
    )


def _score_bytes(config: TrainConfig, device_type: str) -> int:
    """Of attention's scores, or a mask, per token, where there is no kernel without them.

    On CUDA flash takes bf16 only, and in fp32 grouped heads leave torch's plain composition: scores and their softmax.
    On a processor a boolean mask is made into numbers, once per block.
    """
    model, t = config.model, config.parallel.tensor
    if device_type == "cpu":
        return compute_bytes(config) * config.data.seq_len if config.data.document_masks else 0
    if compute_bytes(config) == FP32 and (
        config.data.document_masks or model.num_heads != model.num_kv_heads
    ):
        return 2 * FP32 * config.data.seq_len * model.num_heads // t
    return 0


def _is_trained(config: TrainConfig, linear: str) -> bool:
    return config.lora is None or linear in config.lora.targets


def _num_inputs(config: TrainConfig) -> int:
    """How many times the inputs of q, k, v and of gate, up are kept."""
    copies = [sum(_is_trained(config, name) for name in names) for names in _SHARED_INPUTS]
    casts_each = config.parallel.strategy in ("ddp", "zero1") and config.precision.compute == "bf16"
    return sum(copies) if casts_each else sum(map(bool, copies))


_SHARED_INPUTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


# -------------------------------------------------------------------------------------------------------------- layout


@dataclass(frozen=True)
class _Layout:
    """replicate x shard x tensor ranks, and the micro-batches of a step."""

    replicate: int
    shard: int
    tensor: int
    is_zero1: bool
    is_sharded: bool
    micro_batches: int

    @classmethod
    def of(cls, config: TrainConfig, num_gpus: int) -> _Layout:
        parallel, data = config.parallel, config.data
        replicate, shard, tensor = mesh_shape(parallel, num_gpus)
        model = config.model
        for name, number in (("num_kv_heads", model.num_kv_heads), ("ffn_dim", model.ffn_dim)):
            if number % tensor:
                raise IncompatibleConfig(
                    f"parallel.tensor is {tensor}, which does not divide model.{name} {number}"
                )
        rows = replicate * shard * data.micro_batch_rows
        if rows > data.global_batch_rows:
            raise IncompatibleConfig(
                f"data.global_batch_rows is {data.global_batch_rows}, but {replicate * shard} data-parallel ranks of "
                f"{data.micro_batch_rows} rows take {rows} at a time; raise it, or lower data.micro_batch_rows"
            )
        is_zero1 = parallel.strategy == "zero1" and num_gpus > 1
        is_sharded = parallel.strategy in ("zero2", "zero3")
        return cls(
            replicate, shard, tensor, is_zero1, is_sharded, math.ceil(data.global_batch_rows / rows)
        )

    @property
    def context(self) -> int:
        """CUDA's and NCCL's, by the groups that talk."""
        return CONTEXT_BYTES + COMMUNICATOR_BYTES * sum(
            n > 1 for n in (self.replicate, self.shard, self.tensor)
        )


@dataclass(frozen=True)
class _Weight:
    """(rows, columns) of a tensor rank's part; a norm has one column."""

    rows: int
    columns: int
    is_trained: bool

    def local(self, shard: int) -> int:
        """Numbers on the fullest of `shard` ranks: fully_shard cuts along rows, and pads the last part."""
        return math.ceil(self.rows / shard) * self.columns


@dataclass(frozen=True)
class _Group:
    """What fully_shard gathers and reduces at once."""

    weights: tuple[_Weight, ...]

    def local(self, shard: int, *, trained: bool = False) -> int:
        """Numbers on the fullest rank."""
        return sum(
            weight.local(shard) for weight in self.weights if weight.is_trained or not trained
        )

    def gathered(self, shard: int) -> int:
        """Numbers when whole, padding included."""
        return shard * self.local(shard)

    @property
    def largest(self) -> int:
        """Numbers of the largest matrix that is trained."""
        return max((weight.local(1) for weight in self.weights if weight.is_trained), default=0)


@dataclass(frozen=True)
class _Weights:
    """The model's groups in forward order: the embedding, `num_layers` blocks alike, norm and head."""

    embedding: _Group
    block: _Group
    head: _Group
    num_layers: int

    @classmethod
    def of(cls, config: TrainConfig, vocab_size: int, layout: _Layout) -> _Weights:
        if vocab_size % layout.tensor:
            raise IncompatibleConfig(
                f"parallel.tensor is {layout.tensor}, which does not divide the vocabulary {vocab_size}"
            )
        with torch.device("meta"):
            decoder = Decoder(config.model.model_copy(update={"num_layers": 1}), vocab_size)
            if config.lora is not None:
                lora.add_adapters(decoder, config.lora)
        groups = (("embed_tokens",), ("layers",), ("norm", "lm_head"))
        embedding, block, head = (
            _Group(
                tuple(
                    w
                    for name in names
                    for w in _weights(decoder.get_submodule(name), layout.tensor, name)
                )
            )
            for names in groups
        )
        return cls(embedding, block, head, config.model.num_layers)

    def local(self, shard: int, *, trained: bool = False) -> int:
        """Numbers on the fullest rank."""
        ends = self.embedding.local(shard, trained=trained) + self.head.local(
            shard, trained=trained
        )
        return ends + self.num_layers * self.block.local(shard, trained=trained)

    def gathered(self, shard: int) -> int:
        """Numbers of the whole model, padding included."""
        return shard * self.local(shard)

    @property
    def all(self) -> list[_Weight]:
        """In the order of the decoder's parameters."""
        return [*self.embedding.weights, *self.block.weights * self.num_layers, *self.head.weights]

    @property
    def num_trained(self) -> int:
        """Tensors that have an optimizer's state."""
        return sum(weight.is_trained for weight in self.all)


def _weights(module: torch.nn.Module, tensor: int, prefix: str) -> Iterator[_Weight]:
    """A module's parameters, as tensor parallelism cuts them."""
    for name, parameter in module.named_parameters(prefix):
        layer = name.split(".")[-2]
        rows, columns = (*parameter.shape, 1)[:2]
        if layer in _ROWS:
            rows //= tensor
        elif layer in _COLUMNS:
            columns //= tensor
        yield _Weight(rows, columns, parameter.requires_grad)


def _state(numbers: int, num_tensors: int) -> int:
    """AdamW's: two moments, and a count of steps per tensor."""
    return 2 * FP32 * numbers + FP32 * num_tensors


def _zero1_state(weights: _Weights, num_ranks: int) -> int:
    """On the fullest rank, as ZeroRedundancyOptimizer deals: the largest first, to whoever has least."""
    numbers, counts = [0] * num_ranks, [0] * num_ranks
    trained = [weight for weight in weights.all if weight.is_trained]
    for is_matrix in (True, False):  # groups of the optimizer: with and without weight decay
        members = [weight for weight in trained if (weight.columns > 1) is is_matrix]
        for weight in sorted(members, key=lambda weight: -weight.local(1)):
            rank = numbers.index(min(numbers))
            numbers[rank] += weight.local(1)
            counts[rank] += 1
    return max(map(_state, numbers, counts))


# ------------------------------------------------------------------------------------------------------------- moments


def _moments(
    config: TrainConfig,
    layout: _Layout,
    weights: _Weights,
    saved: Activations,
    tokens: int,
    device_type: str,
) -> dict[str, Memory]:
    """Memory of each; what does not change over a step first."""
    offload, num_layers = config.parallel.offload, config.model.num_layers
    trained = weights.local(layout.shard, trained=True)
    parameters = 0 if offload == "parameters" else FP32 * weights.local(layout.shard)
    state = (
        _zero1_state(weights, layout.replicate)
        if layout.is_zero1
        else _state(trained, weights.num_trained)
    )
    optimizer = 0 if offload != "none" else state
    # of offloaded blocks two are on the GPU: on the way out, or fetched one ahead
    kept = tokens * (num_layers * saved.kept + min(2, num_layers) * saved.offloaded)
    stream = residual_bytes(config) * config.model.dim // layout.tensor
    is_trained = config.lora is None
    ends = tokens * _norm_bytes(
        stream, config.model.dim // layout.tensor, device_type, is_trained=is_trained
    )
    batch = 2 * 8 * tokens * layout.micro_batches  # input_ids and labels of the whole step, int64
    if config.data.document_masks and device_type == "cpu":
        batch += tokens * config.data.seq_len * layout.micro_batches
    ends += batch
    gathered, gradients, buffers = (
        _sharded(config, layout, weights) if layout.is_sharded else _copied(config, layout, weights)
    )
    loss = _head_bytes(config, weights, tokens)
    context = layout.context if device_type == "cuda" else 0

    def at(moment: str, activations: int, loss: int, working: int) -> Memory:
        return Memory(
            parameters,
            gathered[moment],
            gradients[moment],
            optimizer,
            activations,
            loss,
            working,
            context,
        )

    one = tokens * (saved.kept + saved.offloaded)
    # in the middle of the block, or at its end, when its activations have gone and its gradients have come
    last = max(buffers["last"] + tokens * saved.again, buffers["done"] + tokens * stream - one)
    first = buffers["first"] + tokens * saved.again
    return {
        "loss": at("loss", kept + ends, loss, buffers["loss"]),
        "last": at("last", kept + ends, 0, last),
        "first": at("first", one + batch, 0, first),
        "end": at("end", batch, 0, buffers["end"] + tokens * stream),
    }


def _head_bytes(config: TrainConfig, weights: _Weights, tokens: int) -> int:
    """The most that loss.py has at a time, besides the head's weights: in its forward or in its backward."""
    e = compute_bytes(config)
    matrix = next(weight for weight in weights.head.weights if weight.columns > 1)
    hidden = tokens * config.model.dim * e  # whole rows, also with tensor parallelism
    numbers, is_trained = matrix.local(1), matrix.is_trained
    chunk = min(config.precision.loss_chunk_tokens, tokens) * matrix.rows
    # logits in e and in fp32; later the gradient by them in e, and by the weights of this chunk alone
    logits = max(chunk * (FP32 + e if e < FP32 else FP32), chunk * e + numbers * e * is_trained)
    cast = numbers * e if e < FP32 and config.parallel.strategy in ("ddp", "zero1") else 0
    forward = 2 * hidden + logits + FP32 * numbers * is_trained + cast
    # the fp32 gradient, the same times the loss's own, and that in the weight's type
    backward = 2 * hidden + (2 * FP32 + (e if e < FP32 else 0)) * numbers * is_trained
    return max(forward, backward)


_ByMoment = tuple[dict[str, int], dict[str, int], dict[str, int]]
"""gathered, gradients, buffers; each by moment; buffers also when the last block is "done"."""


def _copied(config: TrainConfig, layout: _Layout, weights: _Weights) -> _ByMoment:
    """ddp, zero1: gradients lie in DDP's buckets for the whole run; autocast keeps its casts until they were used."""
    stays = layout.replicate > 1 or layout.micro_batches > 1
    e, layers = compute_bytes(config), weights.num_layers
    matrices = sum(weight.local(1) for weight in weights.block.weights if weight.columns > 1)
    casts = e * matrices if e < FP32 else 0
    all_casts = layers * casts
    in_backward = all_casts if config.parallel.activation_checkpointing == "none" else casts
    gradients = FP32 * weights.local(1, trained=True)
    passing = (FP32 + e) * weights.block.largest
    groups = (weights.embedding, weights.block, weights.head)
    embedding, block, head = (FP32 * group.local(1, trained=True) for group in groups)
    return (
        {"loss": all_casts, "last": in_backward, "first": casts, "end": 0},
        {
            "loss": stays * gradients,
            "last": gradients if stays else head,
            "first": gradients if stays else head + (layers - 1) * block,
            "end": gradients,
        },
        # one gradient, as computed and in fp32, on its way into its bucket
        {"loss": 0, "last": passing, "done": passing, "first": passing, "end": embedding},
    )


def _sharded(config: TrainConfig, layout: _Layout, weights: _Weights) -> _ByMoment:
    """zero2, zero3: fully_shard gathers a group at a time, one ahead, and reduces its gradients in fp32."""
    e, shard, is_zero3 = compute_bytes(config), layout.shard, config.parallel.strategy == "zero3"
    embedding, block, head = (
        e * group.gathered(shard) for group in (weights.embedding, weights.block, weights.head)
    )
    blocks, two = block * weights.num_layers, block * min(2, weights.num_layers)
    arrives = 1 if shard > 1 else 0  # before it is copied into parameters
    reduced = {
        group: FP32 * shard * part.local(shard, trained=True)
        for group, part in (
            ("embedding", weights.embedding),
            ("block", weights.block),
            ("head", weights.head),
        )
    }
    fresh = {
        group: num_bytes * e // FP32 for group, num_bytes in reduced.items()
    }  # before they are made fp32
    whole = FP32 * weights.local(1, trained=True)
    stays = 0 if config.parallel.offload == "parameters" else FP32
    ends, local_head = (
        stays * n
        for n in (weights.local(shard, trained=True), weights.head.local(shard, trained=True))
    )
    later = local_head + (weights.num_layers - 1) * stays * weights.block.local(shard, trained=True)
    accumulates = layout.micro_batches > 1
    # a block's first gradient is made while those of the group before are being reduced
    first_fresh = e * weights.block.largest
    before = reduced["block"] if weights.num_layers > 1 else reduced["head"]
    return (
        {
            "loss": head + (block if is_zero3 else blocks + embedding),
            "last": two if is_zero3 else blocks + embedding,
            "first": block + embedding,
            "end": embedding,
        },
        {
            "loss": whole if accumulates else 0,
            "last": whole - reduced["head"] + local_head if accumulates else local_head,
            "first": later + (reduced["block"] + reduced["embedding"] if accumulates else 0),
            "end": ends,
        },
        {
            "loss": arrives * head,
            "last": reduced["head"] + first_fresh + arrives * block * is_zero3,
            "done": reduced["block"] + fresh["block"] + arrives * block * is_zero3,
            "first": before + first_fresh + arrives * embedding * is_zero3,
            "end": max(reduced["embedding"], reduced["block"]) + fresh["embedding"],
        },
    )
