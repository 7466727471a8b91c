"""Reads a JSON-lines file of instructions or chats into tokens.

Each line has one of these forms:

    {"instruction": "Name a colour.", "input": "", "output": "Red."}       # Stanford Alpaca
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import Int64Array
from terminal_output import format_count
from training.data.chat_format import ChatTokenizer, Segment
from training.errors import IncompatibleConfig, join_faults

ROLES = ("system", "user", "assistant")
# Lines that are encoded in one call of the tokenizer.
_LINES_PER_BATCH = 1000


class InvalidLine(ValueError):
    """A line that cannot be used: what was found, and what was expected."""


@dataclass(frozen=True, eq=False)
class Conversations:
    """All conversations of a file, concatenated. They take 5 bytes per token.

    Attributes:
        tokens: (N,) int32 ids.
        is_counted: (N,) bool; whether the token counts in the loss.
        starts: (C + 1,) start of each conversation in `tokens`, then N.
        digest: sha256 of the file, in hex.
        faults: one line per skipped line of the file: where, what was found, what was expected.
        num_cut: conversations that were longer than a row and lost their end.
        has_chats: whether any line was a chat.
    """

    tokens: NDArray[np.int32]
    is_counted: NDArray[np.bool_]
    starts: Int64Array
    digest: str
    faults: tuple[str, ...]
    num_cut: int
    has_chats: bool


def read_conversations(
    path: Path, tokenizer: ChatTokenizer, *, seq_len: int
) -> Conversations:
    """Read and encode a file. Invalid lines are skipped and listed in `faults`.

    Args:
        path: the JSON-lines file.
        tokenizer: encodes the texts.
        seq_len: tokens per row; longer conversations are cut.

    Raises:
        IncompatibleConfig: the file cannot be read, or has no valid line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IncompatibleConfig(
            f"data.instructions: {path} cannot be read: {error}"
        ) from error
    faults: dict[int, str] = {}
    parsed, has_chats = _parse_all(content, tokenizer, faults)
    tokens, is_counted, num_cut = _encode_all(parsed, tokenizer, seq_len, faults)
    messages = tuple(f"{path}:{number}: {faults[number]}" for number in sorted(faults))
    if not tokens:
        expected = (
            'objects with "instruction" and "output", or with "messages", one per line'
        )
        shown = f"; {join_faults(messages)}" if messages else ""
        raise IncompatibleConfig(
            f"data.instructions: {path} has no valid line ({len(messages)} are invalid), "
            f"expected {expected}{shown}"
        )
    return Conversations(
        tokens=np.concatenate(tokens),
        is_counted=np.concatenate(is_counted),
        # (C + 1,) first token of each conversation; the leading 0 shifts the sums
        starts=np.cumsum([0, *map(len, tokens)], dtype=np.int64),
        digest=hashlib.sha256(content).hexdigest(),
        faults=messages,
        num_cut=num_cut,
        has_chats=has_chats,
    )


def _parse_all(
    content: bytes, tokenizer: ChatTokenizer, faults: dict[int, str]
) -> tuple[list[tuple[int, list[Segment]]], bool]:
    """Return line number and segments of each valid line, and whether any was a chat.

    Invalid lines are added to `faults`, by line number.
    """
    parsed: list[tuple[int, list[Segment]]] = []
    has_chats = False
    # Numbered as editors do, from 1, with empty lines counted.
    for line_number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = _parse_line(line)
            parsed.append((line_number, _format_record(record, tokenizer)))
            has_chats |= "messages" in record
        except InvalidLine as error:
            faults[line_number] = str(error)
    return parsed, has_chats


def _encode_all(
    parsed: list[tuple[int, list[Segment]]],
    tokenizer: ChatTokenizer,
    seq_len: int,
    faults: dict[int, str],
) -> tuple[list[NDArray[np.int32]], list[NDArray[np.bool_]], int]:
    """Return tokens and loss flags of each conversation, and how many were cut.

    Args:
        parsed: line number and segments of each conversation.
        tokenizer: encodes the segments.
        seq_len: tokens per row.
        faults: conversations whose prompt fills the row are added here, by line number.
    """
    tokens: list[NDArray[np.int32]] = []
    is_counted: list[NDArray[np.bool_]] = []
    num_cut = 0
    for first in range(0, len(parsed), _LINES_PER_BATCH):
        batch = parsed[first : first + _LINES_PER_BATCH]
        encoded = tokenizer.encode([segments for _, segments in batch])
        for (line_number, _), (ids, flags) in zip(batch, encoded, strict=True):
            # A row of seq_len inputs takes seq_len + 1 tokens: the last one is only a label. The
            # first token is never a label.
            if not any(flags[1 : seq_len + 1]):
                faults[line_number] = (
                    f"found a prompt of {format_count(flags.index(True), 'token')}, expected fewer than "
                    f"data.seq_len {seq_len}"
                )
                continue
            num_cut += len(ids) > seq_len + 1
            tokens.append(np.array(ids[: seq_len + 1], np.int32))
            is_counted.append(np.array(flags[: seq_len + 1], np.bool_))
    return tokens, is_counted, num_cut


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidLine(
            f"found no JSON ({error}), expected an object in UTF-8"
        ) from error
    if not isinstance(record, dict):
        raise InvalidLine(f"found {type(record).__name__}, expected an object")
    return record


def _format_record(record: Mapping[str, Any], tokenizer: ChatTokenizer) -> list[Segment]:
    if "messages" in record:
        return tokenizer.format_chat(list(_parse_messages(record["messages"])))
    if "instruction" in record and "output" in record:
        instruction = _get_text(record, "instruction")
        input_text = _get_text(record, "input") if record.get("input") else ""
        return tokenizer.format_instruction(
            instruction, input_text, _get_text(record, "output")
        )
    raise InvalidLine(
        f"found keys {sorted(record)[:5]}, expected messages, or instruction and output"
    )


def _parse_messages(messages: Any) -> Iterator[tuple[str, str]]:
    """Yield (role, content) of each message."""
    if not isinstance(messages, list):
        raise InvalidLine(
            f"found messages of type {type(messages).__name__}, expected a list"
        )
    roles = [
        message.get("role") if isinstance(message, dict) else None for message in messages
    ]
    if "assistant" not in roles:
        raise InvalidLine(
            "found no message with role 'assistant', expected one: only answers are trained on"
        )
    for message, role in zip(messages, roles, strict=True):
        if role not in ROLES:
            raise InvalidLine(f"found role {role!r}, expected one of {', '.join(ROLES)}")
        yield role, _get_text(message, "content")


def _get_text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidLine(f"found {key} {value!r:.40}, expected text")
    try:
        # json.loads accepts half a surrogate pair, but the tokenizer cannot encode it.
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidLine(
            f"found {key} with half a surrogate pair, expected text ({error})"
        ) from error
    return value
