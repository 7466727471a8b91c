"""Stages that are off by default, each in a small whole run: what they do reaches the shards and the accounts."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.ledger import Run
from tests.conftest import wet_record
from tests.pipeline.conftest import Small
from tests.stages.examples import tiny_reference


def write_wet(path: Path, texts: Sequence[str]) -> dict[str, Any]:
    """The config's `input`: a WET file of those pages."""
    records = [wet_record(f"https://example.org/{i}", f"Title\n{text}") for i, text in enumerate(texts)]
    path.write_bytes(b"".join(records))
    return {"files": [str(path)]}


def stored(run: Run, phase: str) -> pa.Table:
    """The documents of the first unit, as a phase stored them."""
    return pq.read_table(run.folder(phase).path(f"{run.units[0]}.documents.parquet"))


def said_in_shards(run: Run) -> dict[str, dict[str, Any]]:
    """What the first shard says of its documents, by URL."""
    with tarfile.open(run.dataset / "shard-000000.tar") as tar:
        files = [tar.extractfile(member) for member in tar if member.name.endswith(".json")]
        return {row["url"]: row for file in files if file is not None for row in json.load(file)}


def test_repaired_text_is_hashed_and_stored(small: Small, tmp_path: Path) -> None:
    """Mojibake is mended before deduplication, so a broken copy is a copy."""
    sound, broken = "The treaty was signed in the tÃ©nt of Ghent.", "The treaty was signed in the tént of Ghent."
    run, _ = small.run(
        input=write_wet(tmp_path / "m.warc.wet", [sound, broken]), extract={"unicode": {}, "length": None}
    )
    assert stored(run, "extract")["text"].to_pylist() == [broken] * 2
    assert stored(run, "annotate")["text"].to_pylist() == [broken]


def test_placeholders_are_in_the_shards_and_not_in_what_is_scored(small: Small, tmp_path: Path) -> None:
    """The stored text is the page's; each document in the shards, and the tally, say how many were replaced."""
    texts = ["Write to ann@example.org or call 415-555-2671 before noon.", "The treaty was signed in Ghent."]
    files = write_wet(tmp_path / "p.warc.wet", texts)
    run, _ = small.run("with", input=files, tokenize={"pii": {"email": "Q", "phone": "QQ"}})
    bare, _ = small.run("without", input=files)
    assert stored(run, "annotate")["text"].to_pylist() == stored(bare, "annotate")["text"].to_pylist() == texts
    said = said_in_shards(run)
    found = {url[-1]: [row[f"pii_{kind}"] for kind in ("email", "ip", "phone", "card")] for url, row in said.items()}
    assert found == {"0": [1, 0, 1, 0], "1": [0, 0, 0, 0]}
    assert not [name for row in said_in_shards(bare).values() for name in row if name.startswith("pii_")]
    with_pii, without = (r.folder("tokenize").record(r.units[0])["tally"]["counts"] for r in (run, bare))
    assert {name: n for name, n in with_pii.items() if name not in without} == {"pii_email": 1, "pii_phone": 1}
    assert with_pii["tokens"] < without["tokens"]


def test_other_limits_of_a_classifier_score_nothing_again(small: Small, tmp_path: Path) -> None:
    """Scores are stored and said in the shards; changed limits renew select and what follows; the reason names it."""
    (tmp_path / "model").mkdir()
    one = {"model": str(tiny_reference(tmp_path / "model")), "label": "__label__reference"}
    texts = ["The treaty was signed and the treaty was signed.", "Buy cheap shoes online, buy cheap shoes online."]
    chain = {"input": write_wet(tmp_path / "c.warc.wet", texts), "annotate": {"classifiers": {"hq": one}}}
    run, _ = small.run(**chain, select={"classifiers": {"hq": {"min": 0.4}}})
    good, bad = stored(run, "annotate")["classifier_hq"].to_pylist()
    assert good > 0.4 > bad
    fates = pq.read_table(run.folder("select").path(f"{run.units[0]}.fates.parquet")).to_pylist()
    assert [(row["fate"], row["value"], row["limit"], row["detail"]) for row in fates] == [
        ("kept", None, None, None),
        ("classifiers.score_too_low", bad, 0.4, "hq"),
    ]
    assert [row["classifier_hq"] for row in said_in_shards(run).values()] == [good]
    before, after = (
        {phase.name: phase.fingerprint for phase in small.plan(**chain, select={"classifiers": limits}).phases}
        for limits in ({"hq": {"min": 0.4}}, {"hq": {"max": 0.4}})
    )
    assert [name for name in before if before[name] != after[name]] == ["select", "tokenize", "write_shards"]
