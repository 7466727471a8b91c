"""Validation losses are those of each document alone, on any number of ranks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import MANIFEST_FILE, TokenizerEntry, index_file, shard_file
from tests.training.conftest import (
    VOCAB_SIZE,
    losses,
    make_config,
    make_settings,
    read_log,
    train_all,
)
from tests.training.rank_processes import run_world
from training.config import TrainConfig
from training.errors import IncompatibleConfig
from training.evaluation.validation import Validation
from training.model.attention import AttentionMask
from training.model.decoder import Decoder, init_parameter
from training.parallel import distributed
from training.parallel.distributed import RankContext
from training.parallel.parallelize import parallelize

SEQ_LEN = 16
DATA = {"seq_len": SEQ_LEN, "micro_batch_rows": 3}


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A dataset and its documents: tokens, language, bucket."""

    folder: Path
    documents: list[tuple[NDArray[np.int64], str, str]]


def write_held_out(
    folder: Path, *, sha256: str = "ab" * 32, with_metadata: bool = True
) -> HeldOut:
    """Write two shards and an empty one, with documents of 1 to 90 tokens in samples of about 100."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    tokenizer = TokenizerEntry("tiny", sha256, vocab_size=VOCAB_SIZE, end_of_document=0)
    entries, written = [], []
    for shard, lengths in enumerate(
        ([1, 90, 17, 2, 33, 60, 16, 5], [], [40, 7, 1, 18, 64, 49])
    ):
        tokens = rng.integers(1, VOCAB_SIZE, sum(lengths))
        about = []
        for doc, stop in enumerate(np.cumsum(lengths).tolist()):
            tokens[stop - 1] = 0
            about.append(
                {
                    "doc_id": doc,
                    "language": ("en", "fr")[doc % 2],
                    "bucket": ("head", "tail")[doc % 3 == 0],
                }
            )
            written.append(
                (
                    tokens[stop - lengths[doc] : stop],
                    about[-1]["language"],
                    about[-1]["bucket"],
                )
            )
        ids = np.arange(len(lengths), dtype=np.uint64) + np.uint64(shard << 32)
        documents = Documents(
            tokens,
            np.array(lengths, np.int64),
            ids,
            metadata=about if with_metadata else None,
        )
        with (
            (folder / shard_file(shard)).open("wb") as tar,
            (folder / index_file(shard)).open("wb") as index,
        ):
            settings = {"shard": shard, "tokenizer": tokenizer, "sample_tokens": 100}
            entries.append(write_shard(tar, index, documents=documents, **settings))
    (folder / MANIFEST_FILE).write_bytes(
        build_manifest(entries, tokenizer=tokenizer, fingerprint="f00d").dumps()
    )
    return HeldOut(folder, written)


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> HeldOut:
    """Return a dataset with metadata."""
    return write_held_out(tmp_path_factory.mktemp("held-out") / "dataset")


def joined(config: TrainConfig) -> RankContext:
    """Initialize the process group of this process."""
    return distributed.init_distributed(
        config.parallel, timeout_s=600, dump_dir=Path(config.run_dir)
    )


def built(config: TrainConfig, here: RankContext) -> torch.nn.Module:
    """Return the untrained model, distributed over the ranks."""
    with torch.device("meta"):
        decoder = Decoder(config.model, 256)
    return parallelize(
        decoder, lambda name, parameter: init_parameter(name, parameter, config.model, config.seed),
        parallel=config.parallel, precision=config.precision, context=here,
    )  # fmt: skip


def validate(config: TrainConfig) -> tuple[dict[str, float], Decoder]:
    """Return the figures of one process, and its model."""
    here = joined(config)
    model = built(config, here)
    assert isinstance(model, Decoder)
    return Validation(config, here).evaluate(model), model


def plain_losses(model: Decoder, held_out: HeldOut) -> list[tuple[float, int]]:
    """Return (sum, count) of each document by torch's cross entropy over whole logits."""
    found = []
    for tokens, _, _ in held_out.documents:
        total, ids = 0.0, torch.from_numpy(tokens)[None]
        for start in range(0, len(tokens) - 1, SEQ_LEN):
            piece = ids[:, start : start + SEQ_LEN + 1]
            with torch.no_grad():
                logits = model(piece[:, :-1], None, AttentionMask())
            assert isinstance(logits, torch.Tensor)
            total += float(
                torch.nn.functional.cross_entropy(logits[0], piece[0, 1:], reduction="sum")
            )
        found.append((total, len(tokens) - 1))
    return found


def mean(losses_and_counts: Sequence[tuple[float, int]]) -> float:
    """Return the mean loss per token."""
    return sum(loss for loss, _ in losses_and_counts) / sum(
        count for _, count in losses_and_counts
    )


def test_losses_equal_those_of_each_document_alone(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """Losses in total, by language, by bucket and by both equal a plain cross entropy per document."""
    config = make_config(
        tmp_path, language, data=DATA, validation={"manifest": str(held_out.folder)}
    )
    figures, model = validate(config)
    plain = plain_losses(model, held_out)
    assert figures["validation/loss"] == pytest.approx(mean(plain), rel=1e-6)
    assert figures["validation/perplexity"] == pytest.approx(
        math.exp(mean(plain)), rel=1e-5
    )
    assert figures["validation/tokens"] == sum(count for _, count in plain)
    about = [(f"/{language}", f"/{bucket}") for _, language, bucket in held_out.documents]
    for group in ("/en", "/fr", "/head", "/tail", "/en/head", "/fr/tail"):
        members = [
            found
            for found, (of, at) in zip(plain, about, strict=True)
            if group in (of, at, of + at)
        ]
        assert figures[f"validation/loss{group}"] == pytest.approx(
            mean(members), rel=1e-6
        ), group
        if group.count("/") == 1:
            assert figures[f"validation/tokens{group}"] == sum(
                count for _, count in members
            )


def test_groups_add_up_to_the_total(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """Tokens and losses of all languages, and of all buckets, sum to the total."""
    figures, _ = validate(
        make_config(
            tmp_path, language, data=DATA, validation={"manifest": str(held_out.folder)}
        )
    )
    for groups in (("/en", "/fr"), ("/head", "/tail")):
        tokens = [figures[f"validation/tokens{group}"] for group in groups]
        sums = [
            figures[f"validation/loss{group}"] * count
            for group, count in zip(groups, tokens, strict=True)
        ]
        assert sum(tokens) == figures["validation/tokens"]
        assert sum(sums) == pytest.approx(
            figures["validation/loss"] * sum(tokens), rel=1e-12
        )


def test_a_dataset_without_metadata_has_totals_only(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """The totals equal those of the same dataset with metadata."""
    bare = write_held_out(tmp_path / "bare", with_metadata=False)
    found, _ = validate(
        make_config(
            tmp_path, language, data=DATA, validation={"manifest": str(bare.folder)}
        )
    )
    wanted, _ = validate(
        make_config(
            tmp_path, language, data=DATA, validation={"manifest": str(held_out.folder)}
        )
    )
    names = {"validation/loss", "validation/perplexity", "validation/tokens"}
    assert found == {name: wanted[name] for name in names}


def test_validation_uses_the_first_documents(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """validation.documents counts documents over shards; null uses all."""
    for num in (3, 10, None):
        section = {"manifest": str(held_out.folder), "documents": num}
        figures, model = validate(
            make_config(tmp_path, language, data=DATA, validation=section)
        )
        assert figures["validation/loss"] == pytest.approx(
            mean(plain_losses(model, held_out)[:num]), rel=1e-6
        )


def validate_twice(all_settings: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the figures of each of the settings, validated twice. Runs in each rank."""
    found: list[list[dict[str, float]]] = []
    for settings in all_settings:
        config = TrainConfig.model_validate(settings)
        here = joined(config)
        validation, model = Validation(config, here), built(config, here)
        found.append([validation.evaluate(model), validation.evaluate(model)])
    (folder / f"figures-{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.shutdown_distributed()


def test_all_ranks_have_the_losses_of_one_process(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """Two ranks agree with one process to 1e-6 for every strategy, in the first and second call."""
    section = {"manifest": str(held_out.folder)}
    alone, _ = validate(make_config(tmp_path, language, data=DATA, validation=section))
    modes: list[dict[str, Any]] = [
        {"strategy": "ddp"},
        {"strategy": "zero2"},
        {"strategy": "zero3", "activation_checkpointing": "full"},
        {"strategy": "zero2", "tensor": 2},
    ]
    settings = [
        make_settings(tmp_path, language, data=DATA, validation=section, parallel=mode)
        for mode in modes
    ]
    run_world(2, validate_twice, settings, tmp_path, folder=tmp_path)
    found = [json.loads((tmp_path / f"figures-{r}.json").read_text()) for r in range(2)]
    assert found[0] == found[1]
    for mode, (first, second) in zip(modes, found[0], strict=True):
        assert first == second
        assert first == pytest.approx(alone, rel=1e-6), mode


def test_validation_does_not_change_training(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """A run that validates after each step has bit-identical training losses."""
    sections = {
        "without": None,
        "with": {"manifest": str(held_out.folder), "every_steps": 1},
    }
    settings = [
        make_settings(tmp_path / name, language, validation=section)
        for name, section in sections.items()
    ]
    train_all(2, settings, tmp_path)
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    validated = [line for line in read_log(tmp_path / "with") if "validation/loss" in line]
    assert [line["step"] for line in validated] == [1, 2, 3, 4]
    assert len({line["validation/loss/en"] for line in validated}) == 4


def test_another_tokenizer_is_refused(language: Path, tmp_path: Path) -> None:
    """The error names both datasets, before any document is read."""
    other = write_held_out(tmp_path / "other", sha256="cd" * 32)
    config = make_config(tmp_path, language, validation={"manifest": str(other.folder)})
    with pytest.raises(
        IncompatibleConfig,
        match=r"validation.manifest .*cdcdcdcdcdcd.*, but data.manifest .* with another",
    ):
        Validation(config, joined(config))


def test_nothing_to_predict_is_refused(
    language: Path, held_out: HeldOut, tmp_path: Path
) -> None:
    """A single document of one token has no label."""
    config = make_config(
        tmp_path, language, validation={"manifest": str(held_out.folder), "documents": 1}
    )
    with pytest.raises(IncompatibleConfig, match=r"of 1 document none has two tokens"):
        Validation(config, joined(config))
