"""Runs over hostile pages and over several small files, and Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs.run_folder import RunFolder
from stages.settings.quality import QualityFilterSettings
from tests.conftest import wet_record
from tests.pipeline.conftest import make_small
from tests.pipeline.reporting.pages import PAGES, RULES, write_pages
from tests.stages.examples import REFERENCE_LABEL, tiny_reference

# Limits of quality signals, all off.
NO_RULES = dict.fromkeys(QualityFilterSettings.model_fields)

# Each sets the title of the page if a browser runs it.
SCRIPT = "<script>document.title='hacked'</script>"
IMAGE = "<img src=x onerror=\"document.title='hacked'\">"
URLS = (
    f"https://attack.example/{SCRIPT}/1",
    "javascript:document.title='hacked'",
    f'https://attack.example/"><a/href=x>{IMAGE}/2'.replace(" ", "\t"),
)
OVERRIDE = "\u202e\u2066"  # bidirectional control characters


def write_attacks(path: Path) -> Path:
    """Write a WET file of hostile pages. Each line of their texts is unique."""
    records: list[bytes] = []
    for url, name in zip(URLS, ("alpha", "beta", "gamma"), strict=True):
        text = f"the treaty {name} was signed {SCRIPT} {OVERRIDE} in the museum"
        title = f"</title>{IMAGE}{SCRIPT} {name}"
        records.append(wet_record(url, f"{title}\n{text}\nline of {name} {IMAGE}"))
    path.write_bytes(b"".join(records))
    return path


def write_near_duplicates(path: Path) -> Path:
    """Write a WET file of three pages, one long line each, that differ in one word."""
    words = [f"{letter}{other}" for letter in "abcdefghijkl" for other in "mnopqrstuvw"]
    records: list[bytes] = []
    for number, changed in enumerate(("first", "second", "third")):
        text = " ".join(["the treaty of the museum", *words, changed, *words[::-1]])
        url = f"https://near.example/{number}"
        records.append(wet_record(url, f"Near {changed}\n{text}"))
    path.write_bytes(b"".join(records))
    return path


@pytest.fixture(scope="session")
def browsed(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> RunFolder:
    """A run with documents of every decision, near-duplicates, and hostile pages."""
    small = make_small(tmp_path_factory.mktemp("browse"), tiny_tokenizer, lid_file)
    model = small.folder / "model"
    model.mkdir()
    classifier = {"model": str(tiny_reference(model)), "label": REFERENCE_LABEL}
    files = [
        write_pages(small.folder / "pages.warc.wet", [*PAGES, "good", "copy", "half"]),
        write_attacks(small.folder / "attacks.warc.wet"),
        write_near_duplicates(small.folder / "near.warc.wet"),
    ]
    return small.run(
        input={"files": [str(file) for file in files]},
        extract={"length": {"min_chars": 5}},
        annotate={"quality": {}, "minhash": {}, "classifiers": {"good": classifier}},
        fuzzy_dedup={},
        select={
            "language": {"min_score": 0.0, "keep": ["en"]},
            "quality": {**NO_RULES, "languages": None, "min_words": 8},
            "classifiers": {"good": {"keep_top": 1.0}},
            "score": {"min": 0.0},
        },
    )[0]


# Kinds of pages of four files.
KINDS = (("good", "short"), ("good", "good", "french"), ("empty",), ("good",))


@pytest.fixture(scope="session")
def kept_run(
    tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path, lid_file: Path
) -> RunFolder:
    """A run over four files, of which 1, 2, 0 and 1 pages are kept."""
    folder = tmp_path_factory.mktemp("kept")
    files = [
        str(write_pages(folder / f"{name}.warc.wet", kinds))
        for name, kinds in zip("abcd", KINDS, strict=True)
    ]
    small = make_small(folder, tiny_tokenizer, lid_file)
    return small.run(input={"files": files}, **RULES)[0]


# Not of the session: Playwright's event loop runs until it ends.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        # The sandbox needs rights that containers do not give to root.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        yield browser
        browser.close()
