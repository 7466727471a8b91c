"""Published utilization of H100 GPUs by the shape of the training run.

find_utilization(num_parameters=1.2e9, seq_len=8192, num_gpus=16).share     # 0.3773
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from terminal_output import format_count

# mosaicml/llm-foundry, scripts/train/benchmarking/README.md at commit 8c8dd48 (July 2025):
# H100 80 GB, bf16, FSDP.
_LLM_FOUNDRY = "llm-foundry"
# pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, compiled:
# 6,667 and 6,514 tokens/s per GPU, with our FLOPs per token and 989 TFLOP/s.
_TORCHTITAN = "torchtitan"

# Weight of a factor of two in the number of GPUs, next to one in parameters or in the row length:
# from 8 to 512 GPUs, the tables lose as much as from 2,048 to 8,192 tokens.
_GPUS_WEIGHT = 1 / 3


@dataclass(frozen=True)
class Utilization:
    """A measured share of the peak FLOP/s.

    Attributes:
        num_parameters: of the model.
        seq_len: tokens per row.
        num_gpus: of the run.
        share: FLOPs of a step / (seconds * peak), 0..1. Recomputed activations count as FLOPs
            (hardware FLOPs utilization); without recomputation it is the MFU.
        source: whose measurement it is.
    """

    num_parameters: float
    seq_len: int
    num_gpus: int
    share: float
    source: str

    def describe(self) -> str:
        """Return the shape and the source in words."""
        billions, gpus = self.num_parameters / 1e9, format_count(self.num_gpus, "GPU")
        return f"{self.source}, {billions:.1f} B, {self.seq_len:,} tokens, {gpus}"


def _list_llm_foundry() -> list[Utilization]:
    # (parameters in billions, tokens per row, GPUs, utilization in %). Rows that recompute whole
    # blocks are here only where the table has none without: from 7 B at 4,096 tokens on.
    rows = [
        (0.76, 2048, 16, 37.89),
        (0.76, 4096, 8, 35.83),
        (0.77, 8192, 8, 34.84),
        (0.81, 32768, 8, 31.84),
        (1.32, 1024, 8, 41.95),
        (1.32, 2048, 8, 41.82),
        (1.32, 2048, 64, 40.85),
        (1.32, 2048, 512, 36.65),
        (1.32, 4096, 8, 40.26),
        (1.33, 8192, 8, 37.73),
        (1.38, 32768, 8, 33.54),
        (2.65, 2048, 16, 43.73),
        (2.65, 2048, 64, 40.80),
        (2.65, 2048, 512, 39.24),
        (2.66, 4096, 8, 42.31),
        (2.67, 8192, 8, 40.31),
        (2.73, 32768, 8, 38.46),
        (6.66, 2048, 8, 46.44),
        (6.66, 2048, 128, 45.71),
        (6.66, 2048, 512, 42.20),
        (6.67, 4096, 8, 53.90),
        (6.78, 32768, 8, 41.25),
        (12.85, 2048, 8, 39.79),
        (12.85, 2048, 512, 54.83),
        (12.86, 4096, 8, 55.47),
        (13.01, 32768, 8, 42.24),
        (29.98, 2048, 8, 50.82),
        (29.98, 2048, 512, 53.69),
        (29.99, 4096, 8, 47.81),
        (30.02, 8192, 8, 39.90),
        (64.86, 2048, 64, 56.76),
        (64.86, 2048, 512, 55.00),
    ]
    return [
        Utilization(billions * 1e9, seq_len, num_gpus, percent / 100, _LLM_FOUNDRY)
        for billions, seq_len, num_gpus, percent in rows
    ]


_MEASURED = (
    *_list_llm_foundry(),
    Utilization(8.03e9, 8192, 8, 0.390, _TORCHTITAN),
    Utilization(8.03e9, 8192, 128, 0.381, _TORCHTITAN),
)


def find_utilization(num_parameters: float, seq_len: int, num_gpus: int) -> Utilization:
    """Return the measurement whose shape is nearest, by factors of two."""

    def measure_distance(found: Utilization) -> float:
        by_parameters = abs(math.log2(found.num_parameters / num_parameters))
        by_length = abs(math.log2(found.seq_len / seq_len))
        by_gpus = abs(math.log2(found.num_gpus / num_gpus))
        return by_parameters + by_length + _GPUS_WEIGHT * by_gpus

    return min(_MEASURED, key=measure_distance)
