"""Memory and peak FLOP/s of GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from training.errors import IncompatibleConfig

GIB = 2**30

# Dense bf16 FLOP/s by words of the device name, from NVIDIA's data sheets. The sheets print
# twice as much, with sparsity. More specific names come first.
PEAK_FLOPS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L40S": 362e12,
}


def find_peak_flops(device_name: str) -> float | None:
    """Return the dense bf16 FLOP/s of a device, or None if its name is not known."""
    for product, peak in PEAK_FLOPS.items():
        if all(word in device_name for word in product.split()):
            return peak
    return None


@dataclass(frozen=True)
class Gpu:
    """A GPU type.

    Attributes:
        memory_bytes: total memory as torch.cuda.get_device_properties reports it, which excludes
            the share of the driver.
        peak_flops: dense bf16 FLOP/s.
    """

    name: str
    memory_bytes: int
    peak_flops: float


# Name: memory in GiB, and its product in PEAK_FLOPS.
_KNOWN = {
    "a100-40gb": (39.4, "A100"),
    "a100-80gb": (79.1, "A100"),
    "h100-80gb": (79.1, "H100"),
    "h100-pcie-80gb": (79.1, "H100 PCIe"),
    "h100-nvl-94gb": (93.1, "H100 NVL"),
    "h200-141gb": (139.8, "H200"),
    "b200-180gb": (178.3, "B200"),
    "l40s-48gb": (44.4, "L40S"),
}
GPUS: Mapping[str, Gpu] = {
    name: Gpu(name, int(memory_gib * GIB), PEAK_FLOPS[product])
    for name, (memory_gib, product) in _KNOWN.items()
}


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name, in any case.

    Raises:
        IncompatibleConfig: the name is not known.
    """
    gpu = GPUS.get(name.lower())
    if gpu is None:
        raise IncompatibleConfig(
            f"--gpu is {name}, which is unknown; use one of {', '.join(GPUS)}"
        )
    return gpu
