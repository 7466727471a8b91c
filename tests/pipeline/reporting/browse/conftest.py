"""A run over pages that attack the browser of the person who looks at them, and its server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from aiohttp import web

from pipeline.reporting.browse import build_index
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.server import make_application
from pipeline.runs.run_folder import RunFolder
from stages.settings.quality import QualityFilterSettings
from tests.conftest import wet_record
from tests.pipeline.conftest import make_small
from tests.pipeline.reporting.pages import PAGES, write_pages
from tests.stages.examples import REFERENCE_LABEL, tiny_reference

TOKEN = "the-token"

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


@pytest.fixture(scope="session")
def index(browsed: RunFolder) -> Iterator[Index]:
    """The index of that run."""
    with build_index(browsed) as built:
        yield built


@pytest.fixture(scope="session")
def address(index: Index) -> Iterator[str]:
    """The address of the page of that run, which a thread serves."""
    with start_server(index) as started:
        yield started


@contextlib.contextmanager
def start_server(index: Index) -> Generator[str]:
    """Serve an index in a thread, and yield the address of the page."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(make_application(index, TOKEN))
    loop.run_until_complete(runner.setup())
    loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/{TOKEN}/"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
