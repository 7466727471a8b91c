"""Size of a model: rows of the vocabulary, parameters, and FLOPs per token."""

from __future__ import annotations

import math

from training.config import ModelConfig
from training.errors import IncompatibleConfig

# The vocabulary is padded to a multiple of this: the tile of a tensor core, and divisible
# by any usual number of tensor-parallel ranks.
VOCAB_MULTIPLE = 128


def resolve_vocab_size(config: ModelConfig, tokenizer_vocab_size: int) -> int:
    """Return the rows of the embedding: as configured, or the tokenizer's ids, padded.

    Raises:
        IncompatibleConfig: the configured vocabulary is smaller than the tokenizer's.
    """
    if config.vocab_size is None:
        return math.ceil(tokenizer_vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if config.vocab_size < tokenizer_vocab_size:
        raise IncompatibleConfig(
            f"model.vocab_size is {config.vocab_size}, but the dataset's tokenizer has "
            f"{tokenizer_vocab_size} ids; raise it, or set it to null"
        )
    return config.vocab_size


def count_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of parameters, without building the model."""
    # q and o have num_heads heads each, k and v have num_kv_heads each.
    attention = config.dim * config.head_dim * 2 * (config.num_heads + config.num_kv_heads)
    feed_forward = 3 * config.dim * config.ffn_dim
    block = attention + feed_forward + _count_block_norms(config)
    num_matrices = 1 if config.tie_embeddings else 2
    embedding_and_head = num_matrices * vocab_size * config.dim
    # config.dim: the final norm
    return config.num_layers * block + config.dim + embedding_and_head


def count_flops_per_token(config: ModelConfig, vocab_size: int, seq_len: int) -> int:
    """Return the FLOPs of forward and backward per token: 6 per matrix weight, and attention.

    Attention takes 12 * layers * width * T (Chowdhery et al. 2022, PaLM, appendix B). As there,
    the embedding look-up does not count, the causal half of attention is not subtracted, and
    recomputed activations are not added.
    """
    norms = config.num_layers * _count_block_norms(config) + config.dim
    matrices = count_parameters(config, vocab_size) - norms
    if not config.tie_embeddings:
        matrices -= vocab_size * config.dim  # a shared matrix is that of the head
    return 6 * matrices + 12 * config.num_layers * config.dim * seq_len


def _count_block_norms(config: ModelConfig) -> int:
    """Return the weights of the norms of a block."""
    return 2 * config.dim + (2 * config.head_dim if config.qk_norm else 0)
