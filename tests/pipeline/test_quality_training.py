"""Fitting the quality score to labels: of a run, cross-validated, and usable in a config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from pipeline import cli
from pipeline.models.classifier_training import compute_average_precision
from pipeline.models.corpus import TextUnreadable, TrainingFailed
from pipeline.phases.select import Select
from pipeline.quality_training import fit_quality, read_labels
from pipeline.runs.run_folder import RunFolder
from stages.kernels.quality import columns
from tests.conftest import wet_record
from tests.pipeline.conftest import Small

NUM_PAGES = 60


def make_url(number: int) -> str:
    """Return a URL; three pages are of one site."""
    return f"https://site{number // 3}.org/{number}"


@pytest.fixture
def pages(small: Small, tmp_path: Path) -> Small:
    """A config of 60 pages; pages with a higher number are longer, and repeat fewer words."""
    records: list[bytes] = []
    for number in range(NUM_PAGES):
        words = [f"w{number}x{each % (number + 2)}" for each in range(70 + number)]
        records.append(wet_record(make_url(number), f"Title\n{' '.join(words)}"))
    path = tmp_path / "pages.warc.wet"
    path.write_bytes(b"".join(records))
    tree: Mapping[str, Any] = {
        **small.tree,
        "input": {"files": [str(path)]},
        "annotate": {**small.tree["annotate"], "quality": {}},
        "select": {"language": None},
    }
    return Small(small.folder, tree)


def read_scores(run: RunFolder) -> np.ndarray:
    path = run.folder("select").path(Select.scores.file_name(run.splits[0].key))
    return pq.read_table(path).column("quality_score").to_numpy()


def train(run: RunFolder, labels: Mapping[str | int, bool], out: Path) -> str:
    """Run the command, and return what it printed, on one line."""
    lines = [
        json.dumps({"url" if isinstance(key, str) else "doc_id": key, "label": label})
        for key, label in labels.items()
    ]
    path = out.parent.parent / "labels.jsonl"
    path.write_text("\n".join(lines))
    words = [
        "models",
        "train",
        "quality",
        "--labels",
        path,
        "--run",
        run.run_dir,
        "--out",
        out,
    ]
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_model_is_a_section_of_the_config_and_predicts_the_labels(
    pages: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longer half of the pages is good. Scores of a run with the model are its probabilities."""
    run, _ = pages.run("scored")
    labels: dict[str | int, bool]
    labels = {make_url(number): number >= NUM_PAGES // 2 for number in range(NUM_PAGES)}
    fitted = fit_quality(run, {**labels, "https://nowhere.org/": True})
    assert fitted["cross_validation"]["roc_auc"] > 0.95
    counts = {name: fitted[name] for name in ("num_documents", "num_good", "num_not_found")}
    assert counts == {"num_documents": 60, "num_good": 30, "num_not_found": 1}
    assert sum(row["num_documents"] for row in fitted["calibration"]) == NUM_PAGES
    weights = fitted["score"]["signals"].values()
    assert min(weights) < 0 < max(weights)
    assert fit_quality(run, dict(reversed(labels.items())))["score"] == fitted["score"]
    with_model, _ = pages.run("with_model", select={"score": fitted["score"]})
    scores = read_scores(with_model)
    # The likelihood of an intercept without penalty is largest where the means are equal.
    assert scores.mean() == pytest.approx(0.5, abs=1e-3)
    assert scores[NUM_PAGES // 2 :].min() > scores[: NUM_PAGES // 2].max()
    out = pages.folder / "models" / "quality.json"
    result = train(run, labels, out)
    assert json.loads(out.read_text())["score"] == fitted["score"]
    assert "60 labelled documents (30 good), 0 labels without a document" in result
    # A run of an older version lacks signals.
    monkeypatch.setattr(columns, "SIGNALS", (*columns.SIGNALS, "signal_of_a_later_version"))
    assert fit_quality(run, labels)["score"] == fitted["score"]
    few: dict[str | int, bool] = {
        make_url(number): number > 5 for number in range(NUM_PAGES)
    }
    with pytest.raises(TrainingFailed, match="54 good and 6 other documents"):
        fit_quality(run, few)


def test_documents_without_urls_are_distributed_one_by_one(small: Small) -> None:
    """They have no domain. The output says that nothing keeps similar ones together."""
    path = small.folder / "texts.jsonl"
    lines: list[str] = []
    for number in range(NUM_PAGES):
        words = [f"w{number}x{each % (number + 2)}" for each in range(70 + number)]
        lines.append(json.dumps({"text": " ".join(words)}))
    path.write_text("\n".join(lines))
    tree: Mapping[str, Any] = {**small.tree, "input": {"text": {"files": [str(path)]}}}
    run, _ = Small(small.folder, tree).run(annotate={"quality": {}})
    documents = run.folder("annotate").path(f"{run.splits[0].key}.documents.parquet")
    ids = sorted(pq.read_table(documents).column("doc_id").to_pylist())
    labels = {doc_id: row >= NUM_PAGES // 2 for row, doc_id in enumerate(ids)}
    fitted = fit_quality(run, labels)
    assert fitted["cross_validation"]["num_without_domain"] == NUM_PAGES
    assert fitted["cross_validation"]["roc_auc"] > 0.95
    result = train(run, labels, small.folder / "models" / "quality.json")
    assert "60 documents have no URL" in result


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('{"url": "https://a.org"}', "labels.jsonl:2: found"),
        ("good", "labels.jsonl:2: found 'good'"),
        ('{"url": "https://a.org", "label": 2}', "a label of true, false, 1 or 0"),
        ('{"doc_id": 7, "label": 0}', "7 has the label False, and another one above"),
    ],
)
def test_a_wrong_label_is_refused(tmp_path: Path, line: str, fault: str) -> None:
    """The error names the line. Documents may be named by id or URL."""
    path = tmp_path / "labels.jsonl"
    path.write_text(json.dumps({"doc_id": 7, "label": 1}) + "\n")
    assert read_labels(path) == {7: True}
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(TextUnreadable, match=fault):
        read_labels(path)


def test_average_precision_is_the_mean_precision_at_the_good_documents() -> None:
    """Equal scores have one precision."""
    is_good = np.array([True, False, True])
    found = compute_average_precision(np.array([3.0, 2.0, 1.0]), is_good)
    assert found == pytest.approx(5 / 6)
    assert compute_average_precision(np.zeros(3), is_good) == pytest.approx(2 / 3)
