"""Names of files, samples and tar members, and the headers of `.npy` members."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from shardwriter.format.errors import FormatError

FORMAT_NAME = "corpusmill-shards"

# Raise this when a reader of the previous version could misread a dataset. Readers refuse
# every other version.
FORMAT_VERSION = 2

MANIFEST_FILE = "manifest.json"

# The members of a sample are `<key>.<one of these>`, in this (alphabetical) order. The metadata may
# be absent.
DOCS_MEMBER = "docs.npy"
METADATA_MEMBER = "json"
TOKENS_MEMBER = "tokens.npy"

# Dtype of the document starts in a sample. It is always large enough: a member holds at
# most 8 GiB, which are 2**32 tokens of uint16.
DOCS_DTYPE = np.dtype("<u4")

NPY_HEADER_BYTES = 128
TAR_BLOCK_BYTES = 512

# The size field of a ustar header has eleven octal digits (POSIX.1-1988, "ustar Interchange
# Format").
MAX_MEMBER_BYTES = 8**11 - 1

_NPY_PREAMBLE = b"\x93NUMPY\x01\x00"
_NPY_LENGTH = struct.Struct("<H")


def shard_file(shard: int) -> str:
    """Return the name of a shard's tar, such as `shard-000003.tar`."""
    return f"shard-{shard:06d}.tar"


def index_file(shard: int) -> str:
    """Return the name of a shard's index, such as `shard-000003.idx`."""
    return f"shard-{shard:06d}.idx"


def sample_key(shard: int, sample: int) -> str:
    """Return the key of a sample, such as `000003-00012`.

    It is unique in the dataset. It has no dots, so WebDataset groups the sample's members by it.
    """
    return f"{shard:06d}-{sample:05d}"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return little-endian uint16 if every id below `vocab_size` fits, else uint32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def npy_header(dtype: np.dtype[Any], num_elements: int) -> bytes:
    """Return the 128 bytes before a 1-D array in a `.npy` file of version 1.0.

    Source: numpy/lib/format.py, "Format Version 1.0". The header is not written by numpy, because
    numpy's padding differs between releases, and equal documents must give equal bytes.
    """
    # The spelling, with spaces and a final comma, is that of numpy: np.load accepts it.
    fields = (
        f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({num_elements},), }}"
    )
    num_bytes = NPY_HEADER_BYTES - len(_NPY_PREAMBLE) - _NPY_LENGTH.size
    # The format ends the header with a newline. 128 bytes keep the array aligned to 64, as numpy
    # does.
    padded = fields.ljust(num_bytes - 1).encode("ascii") + b"\n"
    return _NPY_PREAMBLE + _NPY_LENGTH.pack(num_bytes) + padded


def check_version(where: str, version: object) -> None:
    """Raise FormatError if the version is not the one that this release reads."""
    if version != FORMAT_VERSION:
        remedy = "read it with the release that wrote it, or write the dataset again with this one"
        raise FormatError(where, repr(version), repr(FORMAT_VERSION), remedy)
