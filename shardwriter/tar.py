"""Write members of a tar, and measure and hash a file while it is written."""

from __future__ import annotations

import hashlib
import struct
from typing import BinaryIO

from shardwriter.format import MAX_MEMBER_BYTES, TAR_BLOCK_BYTES

# name; mode, uid, gid; size, mtime; checksum; type; link name; magic, version; user, group;
# device numbers; prefix.
_USTAR_HEADER = struct.Struct("100s 8s8s8s 12s12s 8s c 100s 6s2s 32s32s 8s8s 155s 12x")

_CHECKSUM_FIELD = slice(148, 156)


class HashedFile:
    """A file for writing that counts its bytes and computes their SHA-256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        """Write all bytes.

        Raises:
            OSError: the file took only a part of the bytes.
        """
        num_written = self._file.write(data)
        # An unbuffered file may write a part of the data without an error.
        if num_written != len(data):
            raise OSError(
                f"{self._file}: took {num_written} of {len(data)} bytes after {self.num_bytes} "
                f"bytes; open the file buffered"
            )
        # Hashed while writing, because reading the file again would double the disk traffic.
        self._sha256.update(data)
        self.num_bytes += len(data)

    @property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of the bytes so far."""
        return self._sha256.hexdigest()


def write_member(tar: HashedFile, name: str, *parts: bytes) -> None:
    """Write a member whose content is the concatenation of `parts`.

    Raises:
        ValueError: the content is larger than a tar member can be.
    """
    num_bytes = sum(map(len, parts))
    check_member_size(name, num_bytes)
    tar.write(_make_header(name, num_bytes))
    for part in parts:
        tar.write(part)
    # Pad to whole blocks; nothing if the content ends at a block.
    tar.write(bytes(-num_bytes % TAR_BLOCK_BYTES))


def write_end_of_archive(tar: HashedFile) -> None:
    """Write two blocks of zeros (POSIX.1-1988, "ustar Interchange Format")."""
    tar.write(bytes(2 * TAR_BLOCK_BYTES))


def check_member_size(name: str, num_bytes: int) -> None:
    """Raise ValueError if a member would be too large for a tar."""
    if num_bytes > MAX_MEMBER_BYTES:
        raise ValueError(
            f"{name} would have {num_bytes} bytes, but a tar member holds at most "
            f"{MAX_MEMBER_BYTES} bytes (8 GiB); lower sample_tokens, or split or drop the document"
        )


def _make_header(name: str, num_bytes: int) -> bytes:
    """Return the ustar header of a regular file (POSIX.1-1988): mode 0644, no owner, time 0.

    The header is not written by `tarfile`, because Python releases differ in how it writes the
    device numbers, and equal documents must give equal bytes.
    """
    zero = b"0000000"
    header = _USTAR_HEADER.pack(
        name.encode("ascii"),
        b"0000644",  # mode
        zero,  # uid
        zero,  # gid
        b"%011o" % num_bytes,
        # A time would make equal documents give different bytes. A fractional time would also force
        # PAX headers, 1 KB per member.
        b"0" * 11,  # mtime
        b" " * 8,  # the checksum is computed with blanks in its own field
        b"0",  # type: regular file
        b"",  # link name
        b"ustar",
        b"00",
        b"",  # user
        b"",  # group
        zero,  # device major
        zero,  # device minor
        b"",  # prefix
    )
    # The sum of all bytes of the header, as six octal digits, NUL and blank (POSIX.1-1988).
    checksum = b"%06o\0 " % sum(header)
    return header[: _CHECKSUM_FIELD.start] + checksum + header[_CHECKSUM_FIELD.stop :]
