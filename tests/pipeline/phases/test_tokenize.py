"""Optional stages of tokenize in a small run: replacement of personal data."""

from __future__ import annotations

from pathlib import Path

from pipeline.reporting.report import make_report, to_html
from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import (
    format_report,
    read_documents,
    read_sample_metadata,
    write_wet,
)


def test_personal_data_is_replaced_only_in_the_shards(small: Small, tmp_path: Path) -> None:
    """Scored and stored texts do not change. Shards, counters and report have the replacements."""
    texts = [
        "Write to ann@example.org or call 415-555-2671 before noon.",
        "The treaty was signed in Ghent.",
    ]
    files = write_wet(tmp_path / "p.warc.wet", texts)
    run, _ = small.run("with", input=files, tokenize={"pii": {"email": "Q", "phone": "QQ"}})
    bare, _ = small.run("without", input=files)
    assert (
        read_documents(run, "annotate")["text"].to_pylist()
        == read_documents(bare, "annotate")["text"].to_pylist()
        == texts
    )
    metadata = read_sample_metadata(run)
    found = {
        url[-1]: [row[f"pii_{kind}"] for kind in ("email", "ip", "phone", "card")]
        for url, row in metadata.items()
    }
    assert found == {"0": [1, 0, 1, 0], "1": [0, 0, 0, 0]}
    assert not [
        name
        for row in read_sample_metadata(bare).values()
        for name in row
        if name.startswith("pii_")
    ]
    with_pii, without = (
        r.folder("tokenize").record(r.splits[0].key)["counters"]["counts"]
        for r in (run, bare)
    )
    assert {name: n for name, n in with_pii.items() if name not in without} == {
        "pii_email": 1,
        "pii_phone": 1,
    }
    assert with_pii["tokens"] < without["tokens"]
    counters = make_report(run).counters["tokenize"]
    replaced = {
        name: number for name, number in counters.items() if name.startswith("pii_")
    }
    kinds = ("email", "iban", "ip", "card", "phone")
    assert replaced == {f"pii_{kind}": int(kind in ("email", "phone")) for kind in kinds}
    for shown in (to_html(make_report(run)), format_report(run)):
        assert "Counted by tokenize: pii" in shown
        assert "E-mail addresses replaced" in shown
    assert not [name for name in make_report(bare).counters["tokenize"] if "pii_" in name]
    assert "tokenize: pii" not in to_html(make_report(bare)) + format_report(bare)
