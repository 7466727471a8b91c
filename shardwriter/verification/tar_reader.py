"""Read the members of a shard's tar strictly."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from shardwriter.format import REFETCH, TAR_BLOCK_BYTES, TOKENS_MEMBER, ShardCorrupt

MAX_SAMPLE_MEMBERS = 3


class Member(NamedTuple):
    """A member of a tar. `offset` is the byte of the tar at which its content starts."""

    name: str
    offset: int
    content: bytes


def read_samples(file: BinaryIO, name: str) -> Iterator[list[Member]]:
    """Yield the members of each sample. The tokens are the last member of a sample.

    Raises:
        ShardCorrupt: see `read_members`.
    """
    pending: list[Member] = []
    for member in read_members(file, name):
        pending.append(member)
        # The limit on members ends a sample whose tokens are missing, so memory stays bounded.
        is_last = member.name.endswith(f".{TOKENS_MEMBER}")
        if is_last or len(pending) == MAX_SAMPLE_MEMBERS:
            yield pending
            pending = []
    if pending:
        yield pending


def read_members(file: BinaryIO, name: str) -> Iterator[Member]:
    """Yield the members of a tar, from its first byte to its last.

    The headers are parsed by `tarfile.TarInfo`. `tarfile.TarFile` is not used: it takes a block of
    zeros for the end of the archive, follows extension headers, and accepts any size.

    Args:
        file: the tar, seekable.
        name: name of the tar in error messages.

    Raises:
        ShardCorrupt: the data at some byte is neither a member nor the end of the archive.
    """
    file_bytes = file.seek(0, 2)
    file.seek(0)
    while True:
        offset = file.tell()
        block = file.read(TAR_BLOCK_BYTES)
        # The end is two blocks of zeros; a single block of zeros is not.
        if block + file.read(TAR_BLOCK_BYTES) == bytes(2 * TAR_BLOCK_BYTES):
            break
        file.seek(offset + TAR_BLOCK_BYTES)
        yield _read_member(file, block, file_bytes, f"{name}, byte {offset}")
    if file.tell() != file_bytes:
        found = f"the end of the archive, but {file_bytes - file.tell()} bytes after it"
        wanted = "nothing after two blocks of zeros"
        raise ShardCorrupt(f"{name}, byte {offset}", found, wanted, REFETCH)


def _read_member(file: BinaryIO, block: bytes, file_bytes: int, where: str) -> Member:
    """Read the content of the member with this header, up to the next header."""
    try:
        # frombuf also verifies the checksum of the header.
        header = tarfile.TarInfo.frombuf(block, "ascii", "backslashreplace")
    except tarfile.HeaderError as error:
        found = f"no tar header ({error})"
        raise ShardCorrupt(where, found, "a member or the end", REFETCH) from error
    offset = file.tell()
    # A damaged size could otherwise ask for terabytes of memory.
    if header.type != tarfile.REGTYPE or not 0 <= header.size <= file_bytes - offset:
        found = f"type {header.type!r}, {header.size} bytes"
        raise ShardCorrupt(where, found, "a regular file that ends inside the tar", REFETCH)
    content = file.read(header.size)
    file.seek(-header.size % TAR_BLOCK_BYTES, 1)
    return Member(header.name, offset, content)
