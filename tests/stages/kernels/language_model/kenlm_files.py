"""Write KenLM binary files with probing hash tables. The `kenlm` package can only read them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

MASK = 2**64 - 1
MULTIPLIER = 1.5

# A word sequence, and its log10 probability and backoff. The highest order has no backoff.
Ngrams = Mapping[tuple[str, ...], tuple[float, float]]


def write_probing_file(path: Path, ngrams: Ngrams, kind: int = 0) -> None:
    """Write a model of at least order 2. Words without a unigram are not allowed.

    Args:
        path: the file.
        ngrams: the n-grams, with the unigrams `<unk>`, `<s>` and `</s>`.
        kind: KenLM's number of the data structure; only 0 describes what is written.
    """
    order = max(map(len, ngrams))
    by_order = [[words for words in ngrams if len(words) == n + 1] for n in range(order)]
    vocabulary = ["<unk>", *sorted(word for (word,) in by_order[0] if word != "<unk>")]
    ids = {word: i for i, word in enumerate(vocabulary)}
    magic = b"mmap lm http://kheafield.com/code format version 5\n\0".ljust(56, b"\0")
    content = magic + struct.pack("<3f3IQ", 0.0, 1.0, -0.5, 1, 2**32 - 1, 0, 1)
    content += struct.pack("<B3xfI?3xI", order, MULTIPLIER, kind, True, 0)
    content += struct.pack(f"<{order}Q", *map(len, by_order))
    content = content.ljust(-(-len(content) // 8) * 8, b"\0")
    hashes = {
        murmur_hash(word.encode()): struct.pack("<I", ids[word]) for word in vocabulary[1:]
    }
    content += struct.pack("<II", 0, len(vocabulary))
    content += build_table(hashes, len(vocabulary), 4)
    for word in vocabulary:
        content += struct.pack("<ff", *ngrams[word,])
    content += struct.pack("<ff", 0.0, 0.0)
    for n in range(2, order + 1):
        size = 1 if n == order else 2
        entries = {
            hash_ngram([ids[word] for word in words]): struct.pack(
                f"<{size}f", *ngrams[words][:size]
            )
            for words in by_order[n - 1]
        }
        content += build_table(entries, len(entries), 4 * size)
    content += "".join(f"{word}\0" for word in vocabulary).encode()
    path.write_bytes(content)


def build_table(entries: Mapping[int, bytes], count: int, value_bytes: int) -> bytes:
    """Return a hash table with linear probing for `count` entries."""
    num_buckets = max(count + 1, int(MULTIPLIER * count))
    buckets = [bytes(8 + value_bytes)] * num_buckets
    for key, value in entries.items():
        i = key % num_buckets
        while any(buckets[i][:8]):
            i = (i + 1) % num_buckets
        buckets[i] = struct.pack("<Q", key) + value
    return b"".join(buckets)


def hash_ngram(ids: list[int]) -> int:
    """Return the key of an n-gram: its words from the last to the first."""
    *others, key = ids
    for word in reversed(others):
        key = (key * 8978948897894561157 & MASK) ^ (
            (1 + word) * 17894857484156487943 & MASK
        )
    return key


def murmur_hash(text: bytes) -> int:
    """Return MurmurHash64A with seed 0."""
    multiplier, shift = 0xC6A4A7935BD1E995, 47
    state = len(text) * multiplier & MASK
    end = len(text) // 8 * 8
    for i in range(0, end, 8):
        block = int.from_bytes(text[i : i + 8], "little") * multiplier & MASK
        block = (block ^ block >> shift) * multiplier & MASK
        state = (state ^ block) * multiplier & MASK
    if text[end:]:
        state = (state ^ int.from_bytes(text[end:], "little")) * multiplier & MASK
    state = (state ^ state >> shift) * multiplier & MASK
    return state ^ state >> shift
