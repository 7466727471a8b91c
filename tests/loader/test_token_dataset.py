"""TokenDataset with DataLoader, torchdata, DCP and the trainers that use map-style datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from loader import TokenDataset, TokenLoader
from loader.state import ResumeMismatch
from tests.loader.conftest import Dataset
from tests.loader.retraction.test_tombstones import copy, retract

T = 32


def list_rows(batches: Any) -> list[list[int]]:
    """Return all input list_rows of some batches."""
    return [row for batch in batches for row in batch["input_ids"].tolist()]


def list_loader_rows(dataset: Dataset, **given: Any) -> list[list[int]]:
    """Return all input rows that TokenLoader gives."""
    order = {"seq_len": T, "global_batch_rows": 6, "seed": 2, "epochs": 1}
    return list_rows(
        TokenLoader(dataset.folder, **{"rank": 0, "world_size": 1, **order, **given})
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataloader_gives_the_rows_of_the_loader(larger: Dataset, num_workers: int) -> None:
    """The rows and their order are the same on any rank, with and without worker processes."""
    dataset = TokenDataset(larger.folder, seq_len=T, seed=2)
    for rank in range(2):
        sampler = dataset.sampler(global_batch_rows=6, rank=rank, world_size=2)
        batches = list(
            DataLoader(
                dataset,
                batch_sampler=sampler,
                num_workers=num_workers,
                collate_fn=dataset.collate,
            )
        )
        assert len(batches) == len(sampler)
        assert list_rows(batches) == list_loader_rows(larger, rank=rank, world_size=2)


def test_collate_gives_the_batches_of_default_collate(larger: Dataset) -> None:
    """Inputs and labels are equal, and no row is copied into another tensor."""
    dataset = TokenDataset(larger.folder, seq_len=T, seed=2)
    rows = dataset.__getitems__([5, 0, 3])
    batch, stacked = dataset.collate(rows), default_collate(rows)
    assert batch.keys() == stacked.keys() == {"input_ids", "labels"}
    for name, tensor in batch.items():
        assert torch.equal(tensor, stacked[name])
        assert tensor.is_contiguous()
        assert tensor.data_ptr() == rows[0][name].data_ptr()
    assert len(rows) == 3
    assert [row["input_ids"].tolist() for row in rows] == batch["input_ids"].tolist()


def test_states_of_sampler_and_loader_are_interchangeable(larger: Dataset) -> None:
    """A loader and a sampler continue from the same state, also on another number of ranks."""
    dataset = TokenDataset(larger.folder, seq_len=T, seed=2)
    sampler = dataset.sampler(global_batch_rows=6, rank=0, world_size=1)
    taken = [
        batch
        for _, batch in zip(
            range(5), DataLoader(dataset, batch_sampler=sampler), strict=False
        )
    ]
    state = sampler.state_dict(batches=5)
    loader = TokenLoader(
        larger.folder,
        seq_len=T,
        seed=2,
        global_batch_rows=6,
        rank=0,
        world_size=1,
        epochs=1,
    )
    assert {**state, "global_batch_rows": 6} == {
        **_after(loader, 5),
        "global_batch_rows": 6,
    }
    rest = [row for batch in loader for row in batch["input_ids"].tolist()]
    assert list_rows(taken) + rest == list_loader_rows(larger)
    again = dataset.sampler(global_batch_rows=6, rank=0, world_size=1)
    again.load_state_dict(state)
    assert list_rows(DataLoader(dataset, batch_sampler=again)) == rest
    assert len(again) == len(sampler) - 5


def _after(loader: TokenLoader, num: int) -> dict[str, Any]:
    for _ in range(num):
        next(loader)
    return loader.state_dict()


def test_a_sampler_refuses_the_state_of_another_stream(
    larger: Dataset, dataset: Dataset
) -> None:
    """The error is the one that TokenLoader raises."""
    state = TokenLoader(
        dataset.folder, seq_len=T, global_batch_rows=1, rank=0, world_size=1
    ).state_dict()
    sampler = TokenDataset(larger.folder, seq_len=T).sampler(
        global_batch_rows=1, rank=0, world_size=1
    )
    with pytest.raises(ResumeMismatch, match="sources is"):
        sampler.load_state_dict(state)


def test_positions_outside_of_the_dataset_are_refused(dataset: Dataset) -> None:
    """The error names the allowed range."""
    rows_of = TokenDataset(dataset.folder, seq_len=T)
    with pytest.raises(IndexError, match=rf"must be in 0\.\.{len(rows_of) - 1}"):
        rows_of[len(rows_of)]
    assert rows_of[0]["labels"][:-1].tolist() == rows_of[0]["input_ids"][1:].tolist()


def test_stateful_dataloader_resumes(larger: Dataset) -> None:
    """Torchdata's StatefulDataLoader saves the state of TokenLoader and restores it."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = TokenLoader(
        larger.folder,
        seq_len=T,
        seed=2,
        global_batch_rows=6,
        rank=0,
        world_size=1,
        epochs=1,
    )

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(loader)

        def state_dict(self) -> dict[str, Any]:
            return loader.state_dict()

        def load_state_dict(self, state: dict[str, Any]) -> None:
            loader.load_state_dict(state)

    outer = stateful.StatefulDataLoader(Stream(), batch_size=None)
    it = iter(outer)
    first = [next(it) for _ in range(4)]
    state = outer.state_dict()
    again = stateful.StatefulDataLoader(Stream(), batch_size=None)
    again.load_state_dict(state)
    assert list_rows(first) + list_rows(again) == list_loader_rows(larger)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_restores_the_state(larger: Dataset, tmp_path: Path) -> None:
    """torch.distributed.checkpoint saves and restores TokenLoader as a Stateful object."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.stateful import Stateful

    order = {"seq_len": T, "seed": 2, "global_batch_rows": 6, "rank": 0, "world_size": 1}
    loader, other = TokenLoader(larger.folder, **order), TokenLoader(larger.folder, **order)
    assert isinstance(loader, Stateful)
    next(loader)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"loader": other}, checkpoint_id=tmp_path, no_dist=True)
    assert other.state_dict() == loader.state_dict()
    assert torch.equal(next(other)["input_ids"], next(loader)["input_ids"])


def test_hugging_face_trainer_learns_the_next_token_in_order(
    larger: Dataset, tmp_path: Path
) -> None:
    """Its loss is that of the next tokens, which a Llama computes from labels that are not shifted."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1 << 16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> torch.utils.data.Sampler[int]:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=6,
        max_steps=4,
        learning_rate=0.0,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
    )
    rows = TokenDataset(larger.folder, seq_len=T, seed=2, labels_are_shifted=False)
    trainer = InOrder(model=model, args=arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    loader = TokenLoader(
        larger.folder, seq_len=T, seed=2, global_batch_rows=6, rank=0, world_size=1
    )
    assert len(losses) == 4
    for loss, batch in zip(losses, loader, strict=False):
        logits = model(batch["input_ids"]).logits[:, :-1]
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["labels"][:, :-1].flatten()
        )
        assert loss == pytest.approx(expected.item(), abs=1e-4)


def test_labels_that_are_not_shifted_have_the_same_masks(
    larger: Dataset, tmp_path: Path
) -> None:
    """Of retracted documents, in the loader and in the dataset."""
    folder = copy(larger, tmp_path / "copy")
    retract(folder, larger, [(0, 1), (1, 0)])
    order: dict[str, Any] = {"seq_len": T, "seed": 2}
    ranks: dict[str, Any] = {
        "global_batch_rows": 6,
        "rank": 0,
        "world_size": 1,
        "epochs": 1,
    }
    shifted = list(TokenLoader(folder, **order, **ranks))
    plain = list(TokenLoader(folder, labels_are_shifted=False, **order, **ranks))
    rows = TokenDataset(folder, labels_are_shifted=False, **order)
    num_masked = 0
    for number, (a, b) in enumerate(zip(shifted, plain, strict=True)):
        assert torch.equal(b["input_ids"], a["input_ids"])
        assert torch.equal(b["labels"][:, 1:], a["labels"][:, :-1])
        assert torch.equal(rows[6 * number]["labels"], b["labels"][0])
        num_masked += int((b["labels"] == -100).sum())
    assert num_masked > 0


def test_lightning_trains_on_the_loader(larger: Dataset, tmp_path: Path) -> None:
    """Lightning accepts TokenLoader as its dataloader."""
    lightning = pytest.importorskip("lightning")
    seen: list[list[int]] = []

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))

        def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            seen.extend(batch["input_ids"].tolist())
            return (self.weight * batch["labels"].float()).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.0)

    loader = TokenLoader(
        larger.folder, seq_len=T, seed=2, global_batch_rows=6, rank=0, world_size=1
    )
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        default_root_dir=tmp_path, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Model(), loader)
    assert seen == list_loader_rows(larger)[:24]
