"""Instruction rows: loss labels, packing, resume and fine-tuning."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.training.conftest import losses, make_config, make_settings
from tests.training.hugging_face.model_folders import (
    SPECIAL,
    VOCAB_SIZE,
    alone,
    llama_of_transformers,
    logits,
    read_checkpoint,
    read_weights,
    tokens,
    write_llama,
    write_tokenizer,
)
from training.checkpoint.marker import read_progress
from training.config import DataConfig, TrainConfig
from training.data.chat_format import ChatTokenizer
from training.data.conversations import Conversations, read_conversations
from training.data.instructions import (
    InstructionRows,
    InstructionsMismatch,
    open_instructions,
)
from training.data.packing import OPEN_ROWS, pack_epoch, pack_first_fit
from training.data.tokenizer import open_tokenizer
from training.errors import IncompatibleConfig
from training.hugging_face.config_json import read_model_settings
from training.hugging_face.export import export_checkpoint
from training.model.loss import IGNORED_LABEL
from training.model.size import resolve_vocab_size
from training.planning.plan import find_vocab_size
from training.trainer import train

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi, you!"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "And now?\n"},
    {"role": "assistant", "content": "\nBye."},
]
COUNTED = "Hello!<|im_end|>\nBye.<|im_end|>"


def write_lines(path: Path, records: Iterable[Any]) -> Path:
    """Write a JSON-lines file; strings are written unchanged."""
    lines = [
        record if isinstance(record, str) else json.dumps(record) for record in records
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    return path


def answers(num: int) -> list[Any]:
    """Return instructions and chats with distinct answers of several lengths."""
    found: list[Any] = []
    for number in range(num):
        ask, answer = f"Say {number}.", f"{number} is what I say. " * (1 + number % 4)
        if number % 3:
            found.append({"instruction": ask, "output": answer})
        else:
            turns = [
                {"role": "user", "content": ask},
                {"role": "assistant", "content": answer},
            ]
            found.append({"messages": turns})
    return found


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tokenizer with all special tokens."""
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """Return a file with thirty instructions."""
    return write_lines(tmp_path / "lines.jsonl", answers(30))


def open_chat(path: Path) -> ChatTokenizer:
    """Open a tokenizer for conversations."""
    return ChatTokenizer(open_tokenizer(str(path)))


def open_rows(path: Path, tokenizer: Path, **settings: Any) -> InstructionRows:
    """Open the rows of a file, 256 tokens wide by default."""
    chat_tokenizer, seq_len = open_chat(tokenizer), settings.pop("seq_len", 256)
    conversations = read_conversations(path, chat_tokenizer, seq_len=seq_len)
    defaults: dict[str, Any] = {"rows_per_rank": 1, "seed": 3}
    return InstructionRows(
        conversations, chat_tokenizer, seq_len=seq_len, **{**defaults, **settings}
    )


def decoded(tokenizer: Path, ids: Sequence[int]) -> str:
    """Return the text of ids, with special tokens."""
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(tokenizer)).decode(
        list(ids), skip_special_tokens=False
    )


def equal(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Return whether two batches are equal."""
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


# -------------------------------------------------------------------------------------------------------- what counts


@pytest.mark.parametrize(
    ("record", "text", "counted"),
    [
        (
            {"messages": CHAT},
            (
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi, you!<|im_end|>\n<|im_start|>assistant\n"
                "Hello!<|im_end|>\n<|im_start|>user\nAnd now?\n<|im_end|>\n<|im_start|>assistant\n\nBye.<|im_end|>"
            ),
            COUNTED,
        ),
        (
            {"messages": [*CHAT[1:3], {"role": "user", "content": "no answer to this"}]},
            "<|im_start|>user\nHi, you!<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>",
            "Hello!<|im_end|>",
        ),
        (
            {"instruction": "Add {them}.", "input": "1, 2", "output": "3"},
            (
                "Below is an instruction that describes a task, paired with an input that provides further context. "
                "Write a response that appropriately completes the request.\n\n"
                "### Instruction:\nAdd {them}.\n\n### Input:\n1, 2\n\n### Response:3<|im_end|>"
            ),
            "3<|im_end|>",
        ),
        (
            {"instruction": "Count.", "input": "", "output": "1 é 2"},
            (
                "Below is an instruction that describes a task. Write a response that appropriately "
                "completes the request.\n\n### Instruction:\nCount.\n\n### Response:1 é 2<|im_end|>"
            ),
            "1 é 2<|im_end|>",
        ),
    ],
    ids=["chat", "unanswered", "input", "no-input"],
)
def test_only_answers_and_their_end_tokens_count(
    tmp_path: Path, tokenizer: Path, record: dict[str, Any], text: str, counted: str
) -> None:
    """Inputs follow the template, and the counted labels decode to the answers with their end tokens."""
    batch = next(
        open_rows(
            write_lines(tmp_path / "lines.jsonl", [record]),
            tokenizer,
            documents=["document_ids"],
        )
    )
    inputs, labels, documents = (
        batch[name][0].tolist() for name in ("input_ids", "labels", "document_ids")
    )
    num = documents.count(0)
    assert f"{decoded(tokenizer, inputs[:num])}<|im_end|>" == text
    assert (
        decoded(tokenizer, [label for label in labels if label != IGNORED_LABEL]) == counted
    )
    # each label is the next input, but for the last one, which is the end of all
    assert all(
        label in (IGNORED_LABEL, following)
        for label, following in zip(labels, inputs[1:num], strict=False)
    )
    assert set(labels[num:]) == {IGNORED_LABEL}
    assert set(documents[num:]) == {1}


@pytest.mark.parametrize(
    "special", [SPECIAL, SPECIAL[1:]], ids=["start-token", "start-as-text"]
)
@pytest.mark.parametrize("starts_with", [None, "<s>"])
def test_transformers_makes_the_same_tokens_of_a_chat(
    tmp_path: Path, special: tuple[str, ...], starts_with: str | None
) -> None:
    """With the exported chat template, AutoTokenizer gives the tokens of training."""
    llama_of_transformers()
    from transformers import AutoTokenizer

    tokenizer = write_tokenizer(
        tmp_path / "tokenizer.json", special, starts_with=starts_with
    )
    chat = [*CHAT[:4], {"role": "assistant", "content": "Bye."}]
    path = write_lines(tmp_path / "lines.jsonl", [{"messages": chat}])
    config = make_config(
        tmp_path / "run", None, steps=1, model={"vocab_size": VOCAB_SIZE},
        data={"instructions": str(path), "tokenizer": str(tokenizer), "seq_len": 128},
    )  # fmt: skip
    train(config, alone())
    export_checkpoint(tmp_path / "run", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.eos_token == "<|im_end|>"
    assert theirs.bos_token == starts_with
    ids = theirs.apply_chat_template(chat, return_dict=False)
    ours = read_conversations(path, open_chat(tokenizer), seq_len=128).tokens.tolist()
    assert [*ours, *theirs.encode("\n", add_special_tokens=False)] == ids
    prompt = theirs.apply_chat_template(
        chat[:-1], add_generation_prompt=True, return_dict=False
    )
    assert ours[: len(prompt)] == prompt
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["eos_token_id"] == theirs.eos_token_id
    assert written["bos_token_id"] == theirs.bos_token_id


def test_special_tokens_in_texts_are_encoded_as_text(
    tmp_path: Path, tokenizer: Path
) -> None:
    """A user cannot end a turn by writing its end token."""
    record = {
        "messages": [
            {"role": "user", "content": "<|im_end|><s>"},
            {"role": "assistant", "content": "<|im_end|>"},
        ]
    }
    found = read_conversations(
        write_lines(tmp_path / "a.jsonl", [record]), open_chat(tokenizer), seq_len=99
    )
    end = open_chat(tokenizer).end_id
    assert found.tokens.tolist().count(end) == 2
    assert decoded(tokenizer, found.tokens.tolist()).count("<|im_end|>") == 4


@pytest.mark.parametrize("form", ["folder", "name", "two files"])
def test_the_tokenizer_may_be_a_folder_or_a_name(
    form: str,
    tmp_path: Path,
    lines: Path,
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for datasets: a folder with tokenizer.json, a downloaded one, or GPT-2's two files."""
    monkeypatch.setenv("CORPUSMILL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "assets" / "mine" / "0123456789abcdef"
    folder.mkdir(parents=True)
    if form == "two files":
        model = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
        (folder / "encoder.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
        merges = [" ".join(pair) for pair in model["merges"]]
        (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *merges, ""]))
    else:
        shutil.copy(tokenizer, folder / "tokenizer.json")
    name = str(folder) if form == "folder" else "mine"
    data = DataConfig(instructions=str(lines), tokenizer=name, seq_len=256)
    rows, vocab_size = open_instructions(data, alone(), ())
    opened = open_tokenizer(name)
    text = opened.tokenizer.decode(next(rows)["input_ids"][0].tolist())
    assert re.search(r"\d+ is what I say\. ", text)
    assert vocab_size == opened.vocab_size
    settings = make_settings(
        tmp_path, None, data={"instructions": str(lines), "tokenizer": name}
    )
    config = TrainConfig.model_validate(settings)
    assert find_vocab_size(config) == resolve_vocab_size(config.model, vocab_size)


def test_settings_in_the_tokenizer_do_not_cut_or_pad(
    tmp_path: Path, lines: Path, tokenizer: Path
) -> None:
    """Truncation and padding settings of a tokenizer.json are ignored."""
    import tokenizers

    other = tokenizers.Tokenizer.from_file(str(tokenizer))
    other.enable_truncation(8)
    other.enable_padding(length=16)
    other.save(str(tmp_path / "other.json"))
    same = [
        read_conversations(lines, open_chat(p), seq_len=99)
        for p in (tokenizer, tmp_path / "other.json")
    ]
    assert np.array_equal(same[0].tokens, same[1].tokens)


# -------------------------------------------------------------------------------------------------------- broken input


def test_broken_lines_are_skipped_and_reported(
    tmp_path: Path, tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each broken line is reported with its number and fault; the other lines are used."""
    broken: dict[Any, str] = {
        "{": "found no JSON",
        "[1]": "found list, expected an object",
        '{"text": "x"}': "found keys ['text'], expected messages, or instruction and output",
        '{"instruction": "x", "output": ""}': "found output '', expected text",
        '{"instruction": 7, "output": "x"}': "found instruction 7, expected text",
        '{"instruction": "x", "input": ["y"], "output": "z"}': "found input ['y'], expected text",
        '{"messages": {}}': "found messages of type dict, expected a list",
        '{"messages": [{"role": "user", "content": "x"}]}': "found no message with role 'assistant'",
        '{"messages": ["x", {"role": "assistant", "content": "x"}]}': "found role None, expected one of system, user",
        '{"messages": [{"role": "tool", "content": "x"}, {"role": "assistant", "content": "x"}]}': "found role 'tool'",
        '{"messages": [{"role": "assistant", "content": null}]}': "found content None, expected text",
        '{"messages": [{"role": "assistant", "content": "\\ud800"}]}': "half a surrogate pair",
        json.dumps(
            {"instruction": "x" * 400, "output": "y"}
        ): "expected fewer than data.seq_len 256",
        "[" * 100_000: "found no JSON",
        '{"instruction": "\ud800", "output": "x"}': "found no JSON ('utf-8' codec",
    }
    path = write_lines(tmp_path / "lines.jsonl", ["", *broken, "  ", *answers(3)])
    rows = open_rows(path, tokenizer)
    assert len(rows.faults) == len(broken)
    for number, (said, fault) in enumerate(
        zip(broken.values(), rows.faults, strict=True), start=2
    ):
        assert fault.startswith(f"{path}:{number}: found ")
        assert said in fault
    stats = rows.stats()
    assert (stats["broken_lines"], stats["conversations"]) == (15, 3)
    assert stats["first_faults"] == list(rows.faults[:5])
    data = {"instructions": str(path), "tokenizer": str(tokenizer), "seq_len": 256}
    caplog.set_level("INFO", logger="training")
    train(make_config(tmp_path / "run", None, steps=1, data=data), alone())
    assert f"15 broken lines skipped; {path}:2: found no JSON" in caplog.text


def test_a_conversation_longer_than_a_row_is_cut_and_counted(
    tmp_path: Path, tokenizer: Path
) -> None:
    """The beginning fills one row, and `cut_conversations` counts it."""
    records = [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b" * 99},
            ]
        },
        *answers(1),
    ]
    rows = open_rows(write_lines(tmp_path / "lines.jsonl", records), tokenizer, seq_len=64)
    assert rows.stats()["cut_conversations"] == 1
    labels = torch.cat([next(rows)["labels"] for _ in range(2)])
    text = {
        decoded(tokenizer, [i for i in row if i != IGNORED_LABEL])
        for row in labels.tolist()
    }
    assert len(text) == 2
    assert any(len(t) > 30 and set(t) == {"b"} for t in text)


def test_files_without_valid_lines_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    """The error names the file and what was expected in it."""

    def fault(instructions: Path, tokenizer: Path) -> str:
        data = DataConfig(
            instructions=str(instructions), tokenizer=str(tokenizer), seq_len=64
        )
        with pytest.raises(IncompatibleConfig) as raised:
            open_instructions(data, alone(), ())
        return str(raised.value)

    path = write_lines(tmp_path / "lines.jsonl", ["{}", "{"])
    said = fault(path, tokenizer)
    assert f"{path} has no valid line (2 are invalid), expected objects with" in said
    assert f"{path}:1: found keys []" in said
    assert "cannot be read" in fault(tmp_path / "none.jsonl", tokenizer)
    assert f"{path} cannot be read as a tokenizer" in fault(path, path)
    assert "there is no such file" in fault(path, tmp_path / "none.json")
    assert "none of the tokens that can end an answer: <|im_end|>, <|eot_id|>" in fault(
        path, write_tokenizer(tmp_path / "tokenizer.json", ("<s>",))
    )


# -------------------------------------------------------------------------------------------------------------- packing


@given(st.lists(st.integers(1, 40), min_size=1, max_size=300), st.integers(40, 100))
def test_conversations_go_into_the_first_open_row_with_room(
    num_slots: list[int], seq_len: int
) -> None:
    """No row is overfull, and a new row starts only if no open row has room."""
    rows = pack_first_fit(np.array(num_slots), seq_len).tolist()
    room: list[int] = []
    for row, wanted in zip(rows, num_slots, strict=True):
        first = max(0, len(room) - OPEN_ROWS)
        assert all(left < wanted for left in room[first:row])
        assert first <= row <= len(room)
        room[row : row + 1] = [(room[row] if row < len(room) else seq_len) - wanted]
        assert room[row] >= 0


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=100),
    st.integers(0, 2**40),
    st.integers(0, 5),
)
def test_an_epoch_has_each_conversation_once(
    num_slots: list[int], seed: int, epoch: int
) -> None:
    """No row is empty or longer than seq_len, and equal arguments give equal rows."""
    slots = np.array(num_slots)
    packed = pack_epoch(slots, seq_len=60, seed=seed, epoch=epoch)
    assert sorted(packed.conversations.tolist()) == list(range(len(num_slots)))
    used = [
        int(slots[packed.conversations[a:b]].sum())
        for a, b in itertools.pairwise(packed.starts)
    ]
    assert sum(used) == sum(num_slots)
    assert all(0 < places <= 60 for places in used)
    again = pack_epoch(slots, seq_len=60, seed=seed, epoch=epoch)
    assert np.array_equal(packed.conversations, again.conversations)
    assert np.array_equal(packed.starts, again.starts)


def test_the_order_is_pinned() -> None:
    """A change of these values requires a higher STATE_VERSION."""
    packed = pack_epoch(np.array([5, 3, 8, 2, 7, 4]), seq_len=10, seed=7, epoch=0)
    other = pack_epoch(np.array([5, 3, 8, 2, 7, 4]), seq_len=10, seed=7, epoch=1)
    assert (packed.conversations.tolist(), packed.starts.tolist()) == (
        [3, 5, 1, 0, 2, 4],
        [0, 3, 4, 5, 6],
    )
    assert (other.conversations.tolist(), other.starts.tolist()) == (
        [2, 3, 4, 1, 0, 5],
        [0, 2, 4, 6],
    )


@given(
    st.lists(st.integers(2, 33), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_packing_conserves_every_token(
    tokenizer: Path, lengths: list[int], rows_per_rank: int, seed: int
) -> None:
    """In every epoch all tokens but the last of a conversation are inputs, and all counted ones are labels."""
    starts = np.cumsum([0, *lengths])
    ids = np.arange(1000, starts[-1] + 1000, dtype=np.int32)  # no two alike
    counts = (ids * 7 + seed) % 3 > 0
    made = Conversations(ids, counts, starts, "file", (), 0, has_chats=False)
    rows = InstructionRows(
        made, open_chat(tokenizer), seq_len=32, rows_per_rank=rows_per_rank, seed=seed
    )
    is_last = np.isin(np.arange(len(ids)), starts[1:] - 1)
    is_first = np.isin(np.arange(len(ids)), starts[:-1])
    num_rows = sum(
        pack_epoch(np.diff(starts) - 1, seq_len=32, seed=seed, epoch=e).num_rows
        for e in (0, 1)
    )
    batches = [next(rows) for _ in range(-(-num_rows // rows_per_rank))]
    inputs = torch.cat([batch["input_ids"] for batch in batches])[:num_rows]
    labels = torch.cat([batch["labels"] for batch in batches])[:num_rows]
    assert Counter(inputs[inputs >= 1000].tolist()) == dict.fromkeys(
        ids[~is_last].tolist(), 2
    )
    assert Counter(labels[labels != IGNORED_LABEL].tolist()) == dict.fromkeys(
        ids[counts & ~is_first].tolist(), 2
    )
    follows = labels != IGNORED_LABEL
    assert torch.equal(labels[follows], inputs[follows] + 1)


def test_rows_tell_of_their_documents(lines: Path, tokenizer: Path) -> None:
    """Document ids, position ids and lengths agree, and padding is a separate document."""
    names = "document_ids", "position_ids", "cu_seqlens"
    batch = next(open_rows(lines, tokenizer, rows_per_rank=4, documents=names))
    cu_seqlens = batch["cu_seqlens"].tolist()
    assert cu_seqlens[0] == 0
    assert cu_seqlens[-1] == 4 * 256
    documents = (batch["document_ids"] + torch.arange(4)[:, None] * 1000).flatten()
    assert cu_seqlens[1:-1] == (torch.nonzero(documents.diff()).flatten() + 1).tolist()
    assert batch["max_seqlen"] == int(np.diff(cu_seqlens).max())
    for start, stop in itertools.pairwise(cu_seqlens):
        assert batch["position_ids"].flatten()[start:stop].tolist() == list(
            range(stop - start)
        )
        if start % 256:
            assert stop // 256 == start // 256 or stop % 256 == 0
    counted = [
        set(batch["labels"].flatten()[a:b].tolist())
        for a, b in itertools.pairwise(cu_seqlens)
    ]
    left_over = [place for place, found in enumerate(counted) if found == {IGNORED_LABEL}]
    assert all(cu_seqlens[place + 1] % 256 == 0 for place in left_over)
    assert not {"document_ids", "cu_seqlens"} & next(open_rows(lines, tokenizer)).keys()


# --------------------------------------------------------------------------------------------------------------- resume


def test_resume_at_any_step_gives_the_remaining_rows(lines: Path, tokenizer: Path) -> None:
    """New rows with the state of any step give exactly the rest, over two ends of epochs."""
    settings: dict[str, Any] = {"rows_per_rank": 2, "documents": ["document_ids"]}
    rows = open_rows(lines, tokenizer, **settings)
    states, batches = [json.dumps(rows.state_dict())], []
    while rows.stats()["epochs"][0] < 2.2:
        batches.append(next(rows))
        states.append(json.dumps(rows.state_dict()))
    assert len(batches) > 10
    for step, state in enumerate(states):
        fresh = open_rows(lines, tokenizer, **settings)
        fresh.load_state_dict(json.loads(state))
        assert fresh.stats() == {**fresh.stats(), "position": 2 * step}
        assert all(equal(next(fresh), batch) for batch in batches[step:])


def test_other_numbers_of_ranks_read_each_row_once(lines: Path, tokenizer: Path) -> None:
    """Two, one and three ranks in turn read the rows in the order of a single rank."""
    whole = open_rows(lines, tokenizer)
    state: dict[str, Any] = whole.state_dict()
    dealt: list[dict[str, Any]] = []
    for world_size, rows_per_rank, steps in ((2, 2, 3), (1, 3, 2), (3, 1, 4), (2, 1, 5)):
        ranks = [
            open_rows(
                lines,
                tokenizer,
                rank=rank,
                world_size=world_size,
                rows_per_rank=rows_per_rank,
            )
            for rank in range(world_size)
        ]
        for rank in ranks:
            rank.load_state_dict(state)
        for _ in range(steps):
            batches = [next(rank) for rank in ranks]
            dealt += [
                {n: t[i : i + 1] for n, t in batch.items()}
                for batch in batches
                for i in range(rows_per_rank)
            ]
        assert all(rank.state_dict() == ranks[0].state_dict() for rank in ranks)
        state = ranks[0].state_dict()
    assert state["position"] == len(dealt) == 40
    assert all(equal(next(whole), row) for row in dealt)


def test_epochs_and_seeds_have_different_orders(lines: Path, tokenizer: Path) -> None:
    """Every pair of seed and epoch has another order."""
    slots = np.full(30, 9)
    orders = {
        (s, e): pack_epoch(slots, seq_len=20, seed=s, epoch=e).conversations.tolist()
        for s in (0, 1)
        for e in (0, 1)
    }
    assert len({tuple(order) for order in orders.values()}) == 4


def test_a_state_of_other_rows_is_refused(
    tmp_path: Path, lines: Path, tokenizer: Path
) -> None:
    """The error shows both values of what differs."""
    state = open_rows(lines, tokenizer).state_dict()
    other_lines = write_lines(tmp_path / "other.jsonl", answers(29))
    other_tokenizer = write_tokenizer(tmp_path / "tokenizer.json", (*SPECIAL, "<pad>"))
    for rows, names in (
        (open_rows(other_lines, tokenizer), {"file"}),
        (open_rows(lines, other_tokenizer), {"tokenizer"}),
        (open_rows(lines, tokenizer, seed=4), {"seed"}),
        (open_rows(lines, tokenizer, seq_len=128), {"seq_len"}),
    ):
        with pytest.raises(InstructionsMismatch) as raised:
            rows.load_state_dict(state)
        assert raised.value.differences.keys() == names
    with pytest.raises(
        InstructionsMismatch,
        match=r"seed is 3 in the state, 4 in this run.*another run_dir",
    ):
        open_rows(lines, tokenizer, seed=4).load_state_dict(state)
    with pytest.raises(
        InstructionsMismatch, match="kind is None in the state, 'instructions' in this run"
    ):
        open_rows(lines, tokenizer).load_state_dict(
            {"version": 1, "position": 7, "seed": 3}
        )


# ------------------------------------------------------------------------------------------------------------- training


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model to start from."""
    folder = tmp_path_factory.mktemp("base")
    write_llama(folder, initializer_range=0.02)
    return folder


def fine_tuning(
    run_dir: Path, base: Path, lines: Path, tokenizer: Path, **changes: Any
) -> Any:
    """Return the config of twelve steps on an imported model."""
    data = {
        "instructions": str(lines),
        "tokenizer": str(tokenizer),
        "seq_len": 128,
        "global_batch_rows": 4,
    }
    optimizer = {"learning_rate": 1e-2, "warmup_steps": 0, "schedule": "constant"}
    defaults: dict[str, Any] = {
        "steps": 12,
        "checkpoint": {"every_steps": 6},
        "optimizer": optimizer,
    }
    defaults |= {
        "model": read_model_settings(base),
        "data": {**data, "micro_batch_rows": 2},
    }
    return make_config(run_dir, None, **{**defaults, **changes})


def test_fine_tuning_lowers_the_loss(
    tmp_path: Path, base: Path, lines: Path, tokenizer: Path
) -> None:
    """A run that stops half-way and resumes has the same losses as an uninterrupted one."""
    config = fine_tuning(tmp_path / "whole", base, lines, tokenizer)
    train(config, alone())
    found = losses(config.run_dir)
    assert found[-1] < found[0] - 1.0
    half = fine_tuning(tmp_path / "halves", base, lines, tokenizer, steps=6)
    train(half, alone())
    train(half.model_copy(update={"steps": 12}), alone())
    assert losses(half.run_dir) == found


def test_adapters_train_while_the_weights_stay_frozen(
    tmp_path: Path, base: Path, lines: Path, tokenizer: Path
) -> None:
    """The loss falls, imported weights are bit-identical, and the merged export has the same logits."""
    config = fine_tuning(tmp_path / "run", base, lines, tokenizer, lora={"rank": 8})
    train(config, alone())
    found = losses(config.run_dir)
    assert found[-1] < found[0] - 0.3
    newest = tmp_path / "run/checkpoints/step-00000012"
    model = read_checkpoint(newest)
    after, before = dict(model.named_parameters()), read_weights(base)
    assert all(
        torch.equal(after[name.removeprefix("model.")], weight)
        for name, weight in before.items()
    )
    assert read_progress(newest)["rows"]["end_token"] == "<|im_end|>"
    export_checkpoint(tmp_path / "run", tmp_path / "out", dtype="fp32")
    _, llama_for_causal_lm = llama_of_transformers()
    with torch.no_grad():
        theirs = (
            llama_for_causal_lm.from_pretrained(tmp_path / "out", dtype=torch.float32)
            .eval()(tokens())
            .logits
        )
    torch.testing.assert_close(theirs, logits(model, tokens()), rtol=1e-4, atol=1e-4)
