"""Flex attention within documents, which training uses on GPUs only.

torch refuses its gradients on CPUs. Its operator has them, also here: slow, but the same interface.
These tests go around the refusal, and compare both directions with attention under a mask.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as torch_flex
from torch.utils._python_dispatch import TorchDispatchMode

from training.config import PrecisionConfig, TrainConfig
from training.errors import IncompatibleConfig
from training.model import attention
from training.model.attention import (
    FLEX_BLOCK,
    attend,
    make_block_mask,
    make_document_mask,
    select_kernel,
    select_mask_form,
)

NUM_ROWS = 2


@pytest.fixture(scope="module", autouse=True)
def on_cpu() -> Generator[None]:
    """Compute eagerly, and allow gradients on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_compile_flex", lambda: torch_flex.flex_attention)
        patch.setattr(torch_flex, "_validate_device", lambda *_: None)
        patch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        yield


def number_documents(seq_len: int, cuts: set[int]) -> Tensor:
    """Return (NUM_ROWS, seq_len) ids of documents, which begin at `cuts` of all tokens."""
    begins = torch.zeros(NUM_ROWS * seq_len, dtype=torch.int32)
    begins[[cut % len(begins) for cut in cuts]] = 1
    return begins.view(NUM_ROWS, seq_len).cumsum(1)


documents = st.builds(
    number_documents,
    st.sampled_from([1, 40, FLEX_BLOCK, 3 * FLEX_BLOCK, 4 * FLEX_BLOCK + 7]),
    st.sets(st.integers(0, 5000), max_size=8),
)


@given(document_ids=documents)
@settings(max_examples=25)
def test_the_blocks_are_those_of_torch(document_ids: Tensor) -> None:
    """Counts and numbers of partial and of full blocks equal those of create_block_mask."""
    found = make_block_mask(document_ids).blocks
    assert found is not None
    seq_len = document_ids.shape[1]
    expected = torch_flex.create_block_mask(
        found.mask_mod, NUM_ROWS, None, seq_len, seq_len, device="cpu"
    )
    assert found.shape == expected.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(expected, f"{name}_num_blocks")
        assert torch.equal(getattr(found, f"{name}_num_blocks"), counts), name
        # Only the numbers in front have a meaning.
        indices = [getattr(mask, f"{name}_indices") for mask in (found, expected)]
        in_front = torch.arange(indices[0].shape[-1]) < counts[..., None]
        assert torch.equal(indices[0][in_front], indices[1][in_front]), name


@given(document_ids=documents, num_kv_heads=st.sampled_from([1, 2, 4]))
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_flex_attention_equals_a_mask(document_ids: Tensor, num_kv_heads: int) -> None:
    """Outputs and gradients are those of fp32 attention with a mask, with shared heads too."""
    shape = tuple(document_ids.shape)
    query = torch.randn(*shape, 4, 16, requires_grad=True)
    key, value = (
        torch.randn(*shape, num_kv_heads, 16, requires_grad=True) for _ in range(2)
    )
    found = attend(query, key, value, make_block_mask(document_ids))
    expected = attend(query, key, value, make_document_mask(document_ids))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, (query, key, value), grad),
        torch.autograd.grad(expected, (query, key, value), grad),
        rtol=1e-3,
        atol=1e-5,
    )


def test_masks_of_other_documents_need_no_new_compilation() -> None:
    """Two steps have one graph, with flex attention in it."""
    query, key, value = (torch.randn(NUM_ROWS, FLEX_BLOCK, 2, 16) for _ in range(3))
    counter = CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(attend, fullgraph=True, backend=counter)
    for cuts in ({5}, {17, 40, 130}):
        document_ids = number_documents(FLEX_BLOCK, cuts)
        expected = attend(query, key, value, make_document_mask(document_ids))
        found = compiled(query, key, value, make_block_mask(document_ids))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert counter.frame_count == 1


class RefuseReads(TorchDispatchMode):
    """Fails where a GPU would make the processor wait."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run any other operator."""
        assert func not in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
        )
        return func(*args, **(kwargs or {}))


def test_a_mask_is_made_without_waiting_for_the_device() -> None:
    """No number of the mask is read."""
    document_ids = number_documents(3 * FLEX_BLOCK, {5, 200})
    with RefuseReads():
        make_block_mask(document_ids)


def test_flex_attention_is_for_gpus_and_documents() -> None:
    """Elsewhere, and without document masks, the config is refused; the form of masks follows it."""
    with pytest.raises(IncompatibleConfig, match=r"precision\.attention is flex.* auto"):
        select_kernel("flex", torch.device("cpu"))
    select_kernel("flex", torch.device("cuda"))
    flex = PrecisionConfig(attention="flex")
    assert select_mask_form(flex, torch.device("cuda")) == "blocks"
    assert select_mask_form(flex, torch.device("cpu")) == "matrix"
    assert select_mask_form(PrecisionConfig(), torch.device("cuda")) == "cu_seqlens"
    with pytest.raises(ValueError, match=r"flex needs data\.document_masks true"):
        TrainConfig.model_validate(
            {
                "steps": 1,
                "data": {"manifest": "somewhere", "document_masks": False},
                "precision": {"attention": "flex"},
            }
        )
