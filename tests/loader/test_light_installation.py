"""The loader without torch and without the other optional libraries."""

from __future__ import annotations

from tests.loader.conftest import Dataset
from tests.processes import run_python

IMPORTED_LIBRARIES = """
import sys

before = set(sys.modules)
import loader

names = {name.partition(".")[0] for name in set(sys.modules) - before}
print(" ".join(sorted(names - set(sys.stdlib_module_names))))
"""

STORED_TOKENS = """
import sys

sys.modules["torch"] = None
import numpy as np
from loader import TokenLoader

loader = TokenLoader(
    sys.argv[1],
    seq_len=32,
    global_batch_rows=4,
    tokens="stored",
    documents=["document_ids", "cu_seqlens"],
    epochs=1,
)
rows = 0
for batch in loader:
    assert type(batch["tokens"]) is np.ndarray, type(batch["tokens"])
    assert batch["tokens"].dtype == np.uint16
    assert batch["tokens"].shape[1] == 33
    assert type(batch["document_ids"]) is np.ndarray
    assert isinstance(batch["max_seqlen"], int)
    rows += len(batch["tokens"])
print(rows, loader.state.position)
"""

TENSORS = """
import sys

sys.modules["torch"] = None
from loader import TokenDataset, TokenLoader

def show_error(make):
    try:
        make()
    except ImportError as error:
        print(error)

show_error(lambda: TokenLoader(sys.argv[1], seq_len=32, global_batch_rows=4))
show_error(lambda: TokenLoader(sys.argv[1], seq_len=32, global_batch_rows=4, tokens="stored", device="cuda"))
show_error(lambda: TokenDataset(sys.argv[1], seq_len=32)[0])
"""

OBJECT_STORE = """
import sys

sys.modules["obstore"] = None
from loader import TokenLoader
from storage import StorageError

try:
    TokenLoader("s3://bucket/web", seq_len=32, global_batch_rows=4)
except StorageError as error:
    print(error)
"""


def run_code(code: str, *arguments: str) -> str:
    """Run code in a new process and return its output."""
    ended = run_python("-c", code, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_import_loader_needs_numpy_and_isal_only() -> None:
    """`import loader` imports no library besides numpy and isal, and of ours only what it needs."""
    names = set(run_code(IMPORTED_LIBRARIES).split())
    ours = {"loader", "shardwriter", "storage", "terminal_output"}
    assert names <= {*ours, "numpy", "isal"}


def test_stored_tokens_are_numpy_arrays_without_torch(dataset: Dataset) -> None:
    """With tokens="stored" the loader can be created and iterated although torch is missing."""
    num_rows, position = run_code(STORED_TOKENS, str(dataset.folder)).split()
    assert int(num_rows) == int(position) > 0


def test_tensors_without_torch_name_the_extra_to_install(dataset: Dataset) -> None:
    """int64 batches, a device and TokenDataset need torch, and the error says how to install it."""
    lines = run_code(TENSORS, str(dataset.folder)).splitlines()
    assert len(lines) == 3
    for line, reason in zip(
        lines, ("tokens='int64'", "device='cuda'", "TokenDataset"), strict=True
    ):
        assert line.startswith(f"{reason} needs torch, which is not installed")
        assert "pip install 'corpusmill[train]'" in line


def test_an_object_store_without_obstore_names_the_extra_to_install() -> None:
    """At once, with the address."""
    line = run_code(OBJECT_STORE)
    assert line.startswith("s3://bucket/web: object storage needs the package obstore")
    assert "pip install 'corpusmill[s3]'" in line
