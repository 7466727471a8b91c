"""Damages a stored file, as disks, copies and people do. The same seed damages it equally."""

from __future__ import annotations

import random
from pathlib import Path

BLOCK_BYTES = 512


def flip_bit(path: Path, seed: int) -> None:
    """Flip one bit."""
    content, chosen = bytearray(path.read_bytes()), random.Random(seed)
    content[chosen.randrange(len(content))] ^= 1 << chosen.randrange(8)
    path.write_bytes(content)


def zero_block(path: Path, seed: int) -> None:
    """Fill a block with zeros, as a disk does that has lost it."""
    content = bytearray(path.read_bytes())
    start = random.Random(seed).randrange(len(content)) // BLOCK_BYTES * BLOCK_BYTES
    num_bytes = min(BLOCK_BYTES, len(content) - start)
    content[start : start + num_bytes] = bytes(num_bytes)
    path.write_bytes(content)


def cut(path: Path, seed: int) -> None:
    """Lose the end of the file."""
    content = path.read_bytes()
    path.write_bytes(content[: random.Random(seed).randrange(1, len(content))])


def empty(path: Path, seed: int) -> None:
    """Lose the content."""
    del seed
    path.write_bytes(b"")


def delete(path: Path, seed: int) -> None:
    """Lose the file."""
    del seed
    path.unlink()
