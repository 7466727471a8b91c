"""The use of torch: it is imported when tensors are made, and tokens are copied to a CUDA device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from loader.reading.rows import Tokens

if TYPE_CHECKING:
    import torch


def import_torch(reason: str) -> Any:
    """Return the torch module.

    Args:
        reason: the feature that needs torch, for the error message.

    Raises:
        ImportError: torch is not installed.
    """
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise ImportError(
            f"{reason} needs torch, which is not installed; run pip install 'corpusmill[train]', "
            f"or use TokenLoader with tokens='stored', which gives numpy arrays without torch"
        ) from error


def find_torch() -> Any:
    """Return the torch module, or None if it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None


class CudaCopier:
    """Copies tokens to one CUDA device, from pinned memory on a separate CUDA stream.

    They are widened there, to transfer fewer bytes.
    """

    def __init__(self, device: torch.device) -> None:
        self._torch = import_torch("device='cuda'")
        self.device = device
        self._copy_stream = self._torch.cuda.Stream(device)

    def start_copy(self, tokens: Tokens) -> tuple[torch.Tensor, Any]:
        """Start to copy tokens; return the copy and the event after which it is valid."""
        # As stored: 2 or 4 bytes per token are copied to the device. int64 would need 8.
        dtype = {2: self._torch.uint16, 4: self._torch.uint32}[tokens.itemsize]
        # A copy from pageable memory would block this thread.
        pinned = self._torch.empty(tokens.shape, dtype=dtype, pin_memory=True)
        pinned.numpy()[...] = tokens
        # On a separate stream, the copy overlaps with the training step on the default stream.
        # In a new thread device 0 is current, and `stream` would set it again when it ends. That
        # makes a CUDA context there: half a GB of GPU 0 for each rank of the machine.
        with (
            self._torch.cuda.device(self._copy_stream.device),
            self._torch.cuda.stream(self._copy_stream),
        ):
            on_device = pinned.to(self.device, non_blocking=True)
            copied = self._torch.cuda.Event()
            copied.record()
        return on_device, copied

    def wait_for_copy(self, on_device: torch.Tensor, copied: Any) -> None:
        """Make the current CUDA stream wait for the copy."""
        stream = self._torch.cuda.current_stream(self.device)
        stream.wait_event(copied)
        # Without this, memory of the copy stream could be reused before this stream has read it.
        on_device.record_stream(stream)


def open_cuda_copier(device: str | torch.device | None) -> CudaCopier | None:
    """Return a copier for a CUDA device, or None for the CPU.

    Raises:
        ImportError: a device is given, but torch is not installed.
        ValueError: the device is neither a CUDA device nor the CPU.
    """
    if device is None:
        return None
    torch = import_torch(f"device={str(device)!r}")
    found = torch.device(device)
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        raise ValueError(
            f"device is {device!r}, must be a CUDA device or the CPU; "
            f"leave it out and move the batches yourself"
        )
    return CudaCopier(found)
