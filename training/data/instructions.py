"""Rows for fine-tuning on instructions or chats. Only the answers count in the loss.

Every conversation occurs once per epoch, in one row. A row of 9 inputs that holds conversations
of 5 and 4 tokens (a, b):

    input_ids      a0 a1 a2 a3 b0 b1 b2  .  .
    labels         a1 a2 a3 a4 b1 b2 b3  .  .     -100 where the token does not count
    document_ids    0  0  0  0  1  1  1  2  2     the padding is a document too
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loader.rank_discovery import resolve_rank
from loader.state import ResumeMismatch
from training.config import DataConfig
from training.data.chat_format import ChatTokenizer
from training.data.conversations import Conversations, read_conversations
from training.data.packing import PackedEpoch, make_document_fields, pack_epoch
from training.data.tokenizer import open_tokenizer
from training.errors import MAX_SHOWN_FAULTS
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import RankContext

# Raise it when a state of the previous version would select other rows.
STATE_VERSION = 1


class InstructionsMismatch(ResumeMismatch):
    """The state belongs to other rows. `differences`: name -> (in the state, in this run)."""

    def __str__(self) -> str:
        lines: list[str] = []
        for name, (saved, current) in self.differences.items():
            lines.append(f"{name} is {saved!r} in the state, {current!r} in this run")
        return (
            f"the state does not fit these instructions: {'; '.join(lines)}. Use the file, "
            f"tokenizer and settings that the run began with, or another run_dir"
        )


def open_instructions(
    data: DataConfig, context: RankContext, documents: Collection[str]
) -> tuple[InstructionRows, int]:
    """Open the instruction data for this rank.

    Args:
        data: names the file and the tokenizer.
        context: this rank.
        documents: document fields of the batches, as of TokenLoader.

    Returns:
        The rows, and the number of ids of their tokenizer.

    Raises:
        IncompatibleConfig: a file cannot be read, the tokenizer has no token that ends a turn, or
            no line is valid.
    """
    assert data.instructions is not None
    assert data.tokenizer is not None
    tokenizer = ChatTokenizer(open_tokenizer(data.tokenizer))
    conversations = read_conversations(
        Path(data.instructions), tokenizer, seq_len=data.seq_len
    )
    rank, world_size = resolve_rank(mesh=context.data_mesh)
    rows = InstructionRows(
        conversations,
        tokenizer,
        seq_len=data.seq_len,
        rows_per_rank=data.micro_batch_rows,
        seed=data.seed,
        rank=rank,
        world_size=world_size,
        documents=documents,
    )
    return rows, tokenizer.vocab_size


class InstructionRows:
    """An endless iterator of this rank's micro-batches, with the interface of TokenLoader.

    The same position of the global order holds the same row on any number of ranks. The state is
    one position, and the settings that the rows depend on.
    """

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
        self._rank, self._world_size = rank, world_size
        self._documents = frozenset(documents)
        # One less than the tokens: the last token is only a label.
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
        self._epochs: dict[int, PackedEpoch] = {}
        self._epoch_starts = [0]
        """Position of the first row of each epoch, as far as they were needed."""
        self._position = 0

    def __next__(self) -> dict[str, Any]:
        """Return input_ids and labels, (B, T) int64, and the document fields."""
        shape = self._rows_per_rank, self._seq_len
        # Padding consists of end tokens, and its labels are ignored.
        inputs = np.full(shape, self._end_id, np.int64)
        labels = np.full(shape, IGNORED_LABEL, np.int64)
        begins_document = np.zeros(shape, np.bool_)
        first = self._position + self._rank * self._rows_per_rank
        for row in range(self._rows_per_rank):
            self._fill_row(first + row, inputs[row], labels[row], begins_document[row])
        self._position += self._world_size * self._rows_per_rank
        batch: dict[str, Any] = {
            "input_ids": torch.from_numpy(inputs),
            "labels": torch.from_numpy(labels),
        }
        return batch | make_document_fields(begins_document, self._documents)

    def _fill_row(
        self,
        position: int,
        inputs: NDArray[Any],
        labels: NDArray[Any],
        begins: NDArray[Any],
    ) -> None:
        """Fill one row, in place; all arrays are (T,)."""
        epoch, row = self._locate(position)
        conversations = self._conversations
        slot = 0
        for number in epoch.conversations[
            epoch.starts[row] : epoch.starts[row + 1]
        ].tolist():
            first = int(conversations.starts[number])
            last = int(conversations.starts[number + 1]) - 1
            # A conversation of n tokens gives n - 1 inputs, each with the next token as label.
            slots = slice(slot, slot + last - first)
            next_tokens = conversations.tokens[first + 1 : last + 1]
            is_counted = conversations.is_counted[first + 1 : last + 1]
            inputs[slots] = conversations.tokens[first:last]
            labels[slots] = np.where(is_counted, next_tokens, IGNORED_LABEL)
            begins[slot] = True
            slot = slots.stop
        # The padding begins here. The slice is empty if the row is full.
        begins[slot : slot + 1] = True

    def _locate(self, position: int) -> tuple[PackedEpoch, int]:
        """Return the epoch at a position of the global order, and the row in it.

        Epochs differ in their number of rows, so all epochs up to the position are packed.
        """
        # Packing depends on the shuffled order, so the number of rows of an epoch is known only
        # after packing it.
        while position >= self._epoch_starts[-1]:
            epoch = len(self._epoch_starts) - 1
            num_rows = self._get_packed(epoch).num_rows
            self._epoch_starts.append(self._epoch_starts[-1] + num_rows)
        epoch = self._find_epoch(position)
        return self._get_packed(epoch), position - self._epoch_starts[epoch]

    def _find_epoch(self, position: int) -> int:
        return int(np.searchsorted(self._epoch_starts, position, side="right")) - 1

    def _get_packed(self, epoch: int) -> PackedEpoch:
        """Return a packed epoch; only neighbouring epochs stay in memory."""
        if epoch not in self._epochs:
            neighbours = {
                e: packed for e, packed in self._epochs.items() if abs(e - epoch) <= 1
            }
            packed = pack_epoch(
                self._num_slots, seq_len=self._seq_len, seed=self._seed, epoch=epoch
            )
            self._epochs = {**neighbours, epoch: packed}
        return self._epochs[epoch]

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch, and the settings that the rows depend on."""
        return {**self._identity, "position": self._position}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state saved on any number of ranks.

        Raises:
            InstructionsMismatch: the state is of another file, tokenizer or setting.
        """
        differences: dict[str, tuple[Any, Any]] = {}
        for name, current in self._identity.items():
            saved = state_dict.get(name)
            if saved != current:
                differences[name] = (saved, current)
        if differences:
            raise InstructionsMismatch(differences)
        self._position = int(state_dict["position"])

    def stats(self) -> dict[str, Any]:
        """Return the size of the data, what was skipped, and the position.

        Keys: conversations; broken_lines; first_faults (messages of the first broken lines);
        cut_conversations (longer than a row); padding_share (of the inputs of this epoch); epochs
        (begun so far, plus the share of the last one that is done); position.
        """
        epoch, row = self._locate(self._position)
        epoch_number = self._find_epoch(self._position)
        # Used inputs divided by all inputs of the epoch's rows.
        used_share = int(self._num_slots.sum()) / (epoch.num_rows * self._seq_len)
        return {
            "conversations": len(self._num_slots),
            "broken_lines": len(self.faults),
            "first_faults": list(self.faults[:MAX_SHOWN_FAULTS]),
            "cut_conversations": self._conversations.num_cut,
            "padding_share": 1 - used_share,
            "epochs": [epoch_number + row / epoch.num_rows],
            "position": self._position,
        }
