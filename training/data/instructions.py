r"""Rows for fine-tuning, out of a JSON-lines file of instructions or chats: only answers count in the loss.

Promises: the same rows at the same positions on any number of ranks, resumed exactly (a state is one position and what
the rows depend on). Each conversation is in one row of every epoch, whole, or cut at the end where it is longer than a
row. Broken lines are left out and told with their numbers.
Leaves to others: steps and devices (data.py). Texts are held in memory as tokens, 5 bytes each, by every rank.

    {"instruction": "Name a colour.", "input": "", "output": "Red."}           # in Stanford Alpaca's words, see below
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}

A chat becomes this (ChatML, as OpenAI's openai-python had it in chatml.md); what is underlined counts:

    <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>
                                                          ~~~~~~~~~~~~~~~~

The end is the first of `TURN_ENDS` that the tokenizer has; <|im_start|> is one token where it has that, else text. What
its post-processor puts before a text (<s>, <|begin_of_text|>) stands before each conversation. A row of 9 that holds
conversations of 5 and 4 tokens (a, b):

    input_ids      a0 a1 a2 a3 b0 b1 b2  .  .        labels are the next tokens, -100 where these do not count;
    document_ids    0  0  0  0  1  1  1  2  2        what is left over is a document of its own
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from loader.order.permutation import Int64Array, derive_keys, permute
from loader.rank_discovery import resolve_rank
from loader.reading.packing import (
    BoolArray,
    compute_document_ids,
    compute_position_ids,
    compute_sequence_lengths,
)
from loader.state import ResumeMismatch
from training.config import DataConfig
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import IncompatibleConfig, Ranks

STATE_VERSION = 1
"""Rises when a state of the version before would name other rows."""

TURN_ENDS = (
    "<|im_end|>",  # ChatML: Qwen, SmolLM, OLMo
    "<|eot_id|>",  # Llama 3
    "<end_of_turn>",  # Gemma
    "<|end|>",  # Phi
    "</s>",  # Llama 2, Mistral
    "<|end_of_text|>",
    "<|endoftext|>",
    "<eos>",
)
"""Tokens that can end an answer, those made for it first."""

TURN_START = "<|im_start|>"
ROLES = ("system", "user", "assistant")

# Stanford Alpaca's own words (Apache-2.0): PROMPT_DICT of train.py in github.com/tatsu-lab/stanford_alpaca
ALPACA_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)
ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)

OPEN_ROWS = 64
"""Newest rows in which room is looked for: enough that padding is what whole first-fit leaves, and time is linear."""

TOLD_FAULTS = 5
_LINES_AT_A_TIME = 1000
_SHUFFLE = 3  # what a key is for; order.py has 1 and 2


class OtherInstructions(ResumeMismatch):
    """The state is of other rows. `differences`: name -> (in the state, here)."""

    def __str__(self) -> str:
        lines = [
            f"{name} is {saved!r} in the state, {here!r} here"
            for name, (saved, here) in self.differences.items()
        ]
        return (
            f"the state does not fit these instructions: {'; '.join(lines)}. Give the run the file, tokenizer and "
            f"settings that it began with, or another run_dir"
        )


def open_instructions(
    data: DataConfig, ranks: Ranks, documents: Collection[str]
) -> tuple[InstructionRows, int]:
    """The rows of this rank, and how many ids their tokenizer has.

    Raises:
        IncompatibleConfig: a file cannot be read, the tokenizer has no token that ends a turn, or no line is usable.
    """
    assert data.instructions is not None
    assert data.tokenizer is not None
    tokenizer = ChatTokenizer(Path(data.tokenizer))
    conversations = read_conversations(Path(data.instructions), tokenizer, seq_len=data.seq_len)
    rank, world_size = resolve_rank(mesh=ranks.data_mesh)
    rows = InstructionRows(
        conversations, tokenizer, seq_len=data.seq_len, rows_per_rank=data.micro_batch_rows, seed=data.seed, rank=rank,
        world_size=world_size, documents=documents,
    )  # fmt: skip
    return rows, tokenizer.vocab_size


# ---------------------------------------------------------------------------------------------------------------- texts


class Part(NamedTuple):
    """Of a conversation: text, or the id of a token; and whether it counts."""

    content: str | int
    counts: bool


class BrokenLine(ValueError):
    """What was found, and what was wanted."""


class ChatTokenizer:
    """A tokenizer.json, and how turns are written with it."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        try:
            content = path.read_bytes()
            self._tokenizer = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises Exception itself
            raise IncompatibleConfig(
                f"data.tokenizer: {path} cannot be read as a tokenizer.json: {error}"
            ) from error
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self.digest = hashlib.sha256(content).hexdigest()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        end = next((token for token in TURN_ENDS if token in vocabulary), None)
        if end is None:
            raise IncompatibleConfig(
                f"data.tokenizer: {path} has none of the tokens that can end an answer: {', '.join(TURN_ENDS)}; add "
                f"one to it, with an id below model.vocab_size"
            )
        self.end, self.end_id = end, vocabulary[end]
        self._turn_start: str | int = vocabulary.get(TURN_START, TURN_START)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        first = self._tokenizer.encode("a", add_special_tokens=True)
        num_before = [*first.special_tokens_mask, 0].index(0)
        self._start_ids: list[int] = first.ids[:num_before]
        self.start: str | None = first.tokens[0] if num_before else None
        # from here on, what looks like a special token in a text is text
        self._tokenizer.encode_special_tokens = True

    def chat(self, messages: Sequence[tuple[str, str]]) -> list[Part]:
        """The parts of a chat, up to its last answer."""
        parts: list[Part] = []
        last = max(place for place, (role, _) in enumerate(messages) if role == "assistant")
        for place, (role, content) in enumerate(messages[: last + 1]):
            is_answer = role == "assistant"
            parts += [Part("\n", counts=False)] if place else []
            parts += [Part(self._turn_start, counts=False), Part(f"{role}\n", counts=False)]
            parts += [Part(content, is_answer), Part(self.end_id, is_answer)]
        return parts

    def instruction(self, instruction: str, more: str, output: str) -> list[Part]:
        """The parts of an instruction and its answer."""
        prompt = (ALPACA_INPUT if more else ALPACA).format(instruction=instruction, input=more)
        return [
            Part(prompt, counts=False),
            Part(output, counts=True),
            Part(self.end_id, counts=True),
        ]

    @property
    def chat_template(self) -> str:
        """The same chat in Jinja, as tokenizer_config.json has it."""
        start = f"{{{{ {json.dumps(self.start)} }}}}" if self.start else ""
        return (
            f"{start}{{% for message in messages %}}{{{{ {json.dumps(TURN_START)} + message['role'] + '\\n' + "
            f"message['content'] + {json.dumps(self.end)} + '\\n' }}}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{{{{ {json.dumps(TURN_START + 'assistant')} + '\\n' }}}}{{% endif %}}"
        )

    def encode(
        self, conversations: Sequence[Sequence[Part]]
    ) -> Iterator[tuple[list[int], list[bool]]]:
        """Ids of each, and which of them count. Texts beside one another that count alike are encoded as one."""
        joined = [list(_joined(parts)) for parts in conversations]
        texts = [
            part.content for parts in joined for part in parts if isinstance(part.content, str)
        ]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        for parts in joined:
            ids, counts = [*self._start_ids], [False] * len(self._start_ids)
            for part in parts:
                found = next(encoded).ids if isinstance(part.content, str) else [part.content]
                ids += found
                counts += [part.counts] * len(found)
            yield ids, counts


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Neighbouring texts that count alike as one."""
    for (is_text, counts), group in itertools.groupby(
        parts, lambda part: (isinstance(part.content, str), part.counts)
    ):
        if is_text:
            yield Part("".join(str(part.content) for part in group), counts)
        else:
            yield from group


@dataclass(frozen=True, eq=False)
class Conversations:
    """All of a file, laid end to end.

    tokens, counts: (N,) int32 and bool: ids, and whether they are to be learnt
    starts:         (C + 1,) where conversations start in them, and the end
    digest:         of the file
    faults:         a line for each that was left out: where, what was found, what was wanted
    num_cut:        conversations that are longer than a row and have lost their ends
    has_chats:      whether any was in the form of messages
    """

    tokens: NDArray[np.int32]
    counts: NDArray[np.bool_]
    starts: Int64Array
    digest: str
    faults: tuple[str, ...]
    num_cut: int
    has_chats: bool


def read_conversations(path: Path, tokenizer: ChatTokenizer, *, seq_len: int) -> Conversations:
    """Read and encode a file.

    Raises:
        IncompatibleConfig: it cannot be read, or none of its lines is usable.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise IncompatibleConfig(f"data.instructions: {path} cannot be read: {error}") from error
    faults: dict[int, str] = {}
    parsed: list[tuple[int, list[Part]]] = []
    has_chats = False
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            parsed.append((number, _parts(record, tokenizer)))
            has_chats |= "messages" in record
        except BrokenLine as error:
            faults[number] = str(error)
    tokens: list[NDArray[np.int32]] = []
    counts: list[NDArray[np.bool_]] = []
    num_cut = 0
    for first in range(0, len(parsed), _LINES_AT_A_TIME):
        batch = parsed[first : first + _LINES_AT_A_TIME]
        for (number, _), (ids, flags) in zip(
            batch, tokenizer.encode([parts for _, parts in batch]), strict=True
        ):
            # one token more than the row: the last is only a label
            if not any(flags[1 : seq_len + 1]):
                faults[number] = (
                    f"found a prompt of {flags.index(True)} tokens, wanted fewer than data.seq_len {seq_len}"
                )
                continue
            num_cut += len(ids) > seq_len + 1
            tokens.append(np.array(ids[: seq_len + 1], np.int32))
            counts.append(np.array(flags[: seq_len + 1], np.bool_))
    told = tuple(f"{path}:{number}: {faults[number]}" for number in sorted(faults))
    if not tokens:
        wanted = 'objects with "instruction" and "output", or with "messages", one in a line'
        first = f"; {'; '.join(told[:TOLD_FAULTS])}" if told else ""
        raise IncompatibleConfig(
            f"data.instructions: {path} has no usable line ({len(told)} are broken), wanted {wanted}{first}"
        )
    starts = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    digest = hashlib.sha256(content).hexdigest()
    return Conversations(
        np.concatenate(tokens), np.concatenate(counts), starts, digest, told, num_cut, has_chats
    )


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BrokenLine(f"found no JSON ({error}), wanted an object in UTF-8") from error
    if not isinstance(record, dict):
        raise BrokenLine(f"found {type(record).__name__}, wanted an object")
    return record


def _parts(record: Mapping[str, Any], tokenizer: ChatTokenizer) -> list[Part]:
    if "messages" in record:
        return tokenizer.chat(list(_messages(record["messages"])))
    if "instruction" in record and "output" in record:
        more = _text(record, "input") if record.get("input") else ""
        return tokenizer.instruction(_text(record, "instruction"), more, _text(record, "output"))
    raise BrokenLine(f"found keys {sorted(record)[:5]}, wanted messages, or instruction and output")


def _messages(messages: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(messages, list):
        raise BrokenLine(f"found messages that are {type(messages).__name__}, wanted a list")
    roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
    if "assistant" not in roles:
        raise BrokenLine("found no message of role 'assistant', wanted one: nothing else is learnt")
    for message, role in zip(messages, roles, strict=True):
        if role not in ROLES:
            raise BrokenLine(f"found role {role!r}, wanted one of {', '.join(ROLES)}")
        yield role, _text(message, "content")


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value:
        raise BrokenLine(f"found {key} {value!r:.40}, wanted text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BrokenLine(
            f"found {key} with half a surrogate pair, wanted text ({error})"
        ) from error
    return value


# -------------------------------------------------------------------------------------------------------------- packing


def pack(num_slots: Int64Array, seq_len: int) -> Int64Array:
    """(n,) the row of each, rising from 0: the first of the newest rows that has room, else a new one.

    Args:
        num_slots: (n,) places that each takes, in the order they come in; 1 .. seq_len.
        seq_len: places in a row.
    """
    rows = np.empty(len(num_slots), np.int64)
    room = np.full(len(num_slots), seq_len, np.int64)
    num_rows = 0
    for place, wanted in enumerate(num_slots.tolist()):
        first = max(0, num_rows - OPEN_ROWS)
        fits = np.flatnonzero(room[first:num_rows] >= wanted)
        row = first + int(fits[0]) if len(fits) else num_rows
        num_rows = max(num_rows, row + 1)
        room[row] -= wanted
        rows[place] = row
    return rows


class Epoch(NamedTuple):
    """Rows of an epoch: row r holds conversations[starts[r] : starts[r + 1]]."""

    conversations: Int64Array
    starts: Int64Array

    @property
    def num_rows(self) -> int:
        """How many."""
        return len(self.starts) - 1


def pack_epoch(num_slots: Int64Array, *, seq_len: int, seed: int, epoch: int) -> Epoch:
    """Conversations in the order that seed and epoch put them in, packed."""
    num = len(num_slots)
    order = permute(np.arange(num), num, derive_keys(seed, epoch, _SHUFFLE))
    rows = pack(num_slots[order], seq_len)
    by_row = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[by_row], np.arange(int(rows.max()) + 2))
    return Epoch(order[by_row], starts)


# ----------------------------------------------------------------------------------------------------------------- rows


class InstructionRows:
    """An iterator of this rank's micro-batches, as TokenLoader is one; it does not end, epochs follow one another."""

    def __init__(
        self,
        conversations: Conversations,
        tokenizer: ChatTokenizer,
        *,
        seq_len: int,
        rows_per_rank: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        documents: Collection[str] = (),
    ) -> None:
        self.faults = conversations.faults
        self._conversations, self._end_id = conversations, tokenizer.end_id
        self._seq_len, self._rows_per_rank, self._seed = seq_len, rows_per_rank, seed
        self._rank, self._world_size, self._documents = rank, world_size, frozenset(documents)
        self._num_slots = np.diff(conversations.starts) - 1
        self._identity: dict[str, Any] = {
            "kind": "instructions",
            "version": STATE_VERSION,
            "file": conversations.digest,
            "tokenizer": tokenizer.digest,
            "seq_len": seq_len,
            "seed": seed,
            "start_token": tokenizer.start,
            "end_token": tokenizer.end,
            "chat_template": tokenizer.chat_template if conversations.has_chats else None,
        }
        self._epochs: dict[int, Epoch] = {}
        self._first_positions = [0]  # of each epoch
        self._position = 0

    def __next__(self) -> dict[str, Any]:
        first = self._position + self._rank * self._rows_per_rank
        shape = self._rows_per_rank, self._seq_len
        inputs, labels = (
            np.full(shape, self._end_id, np.int64),
            np.full(shape, IGNORED_LABEL, np.int64),
        )
        marks = np.zeros(shape, np.bool_)
        for place in range(self._rows_per_rank):
            self._fill(first + place, inputs[place], labels[place], marks[place])
        self._position += self._world_size * self._rows_per_rank
        batch: dict[str, Any] = {
            "input_ids": torch.from_numpy(inputs),
            "labels": torch.from_numpy(labels),
        }
        return batch | self._document_tensors(marks)

    def _fill(
        self, position: int, inputs: NDArray[Any], labels: NDArray[Any], marks: NDArray[Any]
    ) -> None:
        """inputs, labels, marks: (T,) each, of one row."""
        epoch, row = self._locate(position)
        tokens, counts, starts = (
            self._conversations.tokens,
            self._conversations.counts,
            self._conversations.starts,
        )
        place = 0
        for conversation in epoch.conversations[epoch.starts[row] : epoch.starts[row + 1]].tolist():
            first, last = int(starts[conversation]), int(starts[conversation + 1]) - 1
            here = slice(place, place + last - first)
            inputs[here] = tokens[first:last]
            labels[here] = np.where(
                counts[first + 1 : last + 1], tokens[first + 1 : last + 1], IGNORED_LABEL
            )
            marks[place] = True
            place = here.stop
        marks[place : place + 1] = True

    def _document_tensors(self, marks: BoolArray) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if "position_ids" in self._documents:
            found["position_ids"] = torch.from_numpy(compute_position_ids(marks))
        if "document_ids" in self._documents:
            found["document_ids"] = torch.from_numpy(compute_document_ids(marks))
        if "cu_seqlens" in self._documents:
            cu_seqlens, found["max_seqlen"] = compute_sequence_lengths(marks)
            found["cu_seqlens"] = torch.from_numpy(cu_seqlens)
        return found

    def _locate(self, position: int) -> tuple[Epoch, int]:
        """The epoch at a position, and the row in it. Epochs differ in their rows: those before are packed, too."""
        while position >= self._first_positions[-1]:
            epoch = len(self._first_positions) - 1
            self._first_positions.append(self._first_positions[-1] + self._packed(epoch).num_rows)
        epoch = int(np.searchsorted(self._first_positions, position, side="right")) - 1
        return self._packed(epoch), position - self._first_positions[epoch]

    def _packed(self, epoch: int) -> Epoch:
        if epoch not in self._epochs:
            self._epochs = {e: packed for e, packed in self._epochs.items() if abs(e - epoch) <= 1}
            self._epochs[epoch] = pack_epoch(
                self._num_slots, seq_len=self._seq_len, seed=self._seed, epoch=epoch
            )
        return self._epochs[epoch]

    # --------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Where the rows stand, behind the last batch handed out, and what they depend on."""
        return {**self._identity, "position": self._position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state that was saved on any number of ranks.

        Raises:
            OtherInstructions: it is of another file, tokenizer or setting.
        """
        pairs = {name: (state_dict.get(name), here) for name, here in self._identity.items()}
        if differences := {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}:
            raise OtherInstructions(differences)
        self._position = int(state_dict["position"])

    def stats(self) -> dict[str, Any]:
        """What there is, what was left out of it, and where the rows stand.

        conversations, broken_lines, first_faults (the first broken lines), cut_conversations (longer than a row),
        padding_share (of this epoch's places), epochs (begun so far, and the share of the last that is done), position.
        """
        epoch, row = self._locate(self._position)
        number = int(np.searchsorted(self._first_positions, self._position, side="right")) - 1
        return {
            "conversations": len(self._num_slots),
            "broken_lines": len(self.faults),
            "first_faults": list(self.faults[:TOLD_FAULTS]),
            "cut_conversations": self._conversations.num_cut,
            "padding_share": 1 - int(self._num_slots.sum()) / (epoch.num_rows * self._seq_len),
            "epochs": [number + row / epoch.num_rows],
            "position": self._position,
        }
