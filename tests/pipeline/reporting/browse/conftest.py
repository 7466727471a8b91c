"""The index of a run over hostile pages, and its server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Generator, Iterator

import pytest
from aiohttp import web

from pipeline.reporting.browse import build_index
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.server import make_application
from pipeline.runs.run_folder import RunFolder

TOKEN = "the-token"


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
