"""Serves the page and its answers on 127.0.0.1.

A crawl is written by strangers, and other pages in the same browser are too. So every address
has a random token, requests are read-only, and the browser may load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import mimetypes
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

from aiohttp import web

from config_files.reader import ConfigError
from pipeline.errors import TaskFailed
from pipeline.reporting.browse.answers import ANSWERS, Parameters, Session
from pipeline.reporting.browse.index import Index
from pipeline.runs.run_folder import RunNotFound

log = logging.getLogger(__name__)

ADDRESS = "127.0.0.1"

# A page that has its own name resolved to 127.0.0.1 (DNS rebinding) sends that name.
ALLOWED_HOSTS = frozenset({"127.0.0.1", "localhost"})

TOKEN_BYTES = 24

# A slider sends a question for each of its positions. One thread is for the sliders, and one for
# what is asked meanwhile.
NUM_THREADS = 2

HEADERS = {
    # No inline scripts or styles, nothing from other hosts. Trusted types make the browser refuse
    # `innerHTML` and the like, so a text can only become text.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


def serve(index: Index, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C.

    Args:
        index: the run.
        port: 0: any free one.
        announce: is called with the address of the page.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(index, port, announce))


async def _serve(index: Index, port: int, announce: Callable[[str], None]) -> None:
    token = secrets.token_urlsafe(TOKEN_BYTES)
    runner = web.AppRunner(make_application(index, token), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, ADDRESS, port).start()
        announce(f"http://{ADDRESS}:{runner.addresses[0][1]}/{token}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def make_application(index: Index, token: str) -> web.Application:
    """Return the application, which answers addresses that begin with the token."""
    server = _Server(index)
    application = web.Application(middlewares=[_make_guard(token)])
    application.on_response_prepare.append(_add_headers)
    application.on_cleanup.append(server.close)
    application.router.add_get("/{token}/api/{question}", server.answer, allow_head=False)
    application.router.add_get(
        "/{token}/{file:[a-z_.]*}", server.send_file, allow_head=False
    )
    return application


def _make_guard(token: str) -> Any:
    expected = token.encode()

    @web.middleware
    async def guard(request: web.Request, handler: Any) -> web.StreamResponse:
        host = request.host.rpartition(":")[0] or request.host
        if host not in ALLOWED_HOSTS:
            raise web.HTTPForbidden(text="Open the page by its address on 127.0.0.1.\n")
        given = request.path.split("/")[1].encode(errors="replace")
        if not hmac.compare_digest(given, expected):
            raise web.HTTPNotFound
        return await handler(request)

    return guard


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    del request
    response.headers.update(HEADERS)


class _Server:
    """The handlers of an application."""

    def __init__(self, index: Index) -> None:
        self._session = Session(index)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="browse")
        folder = resources.files("pipeline.reporting.browse").joinpath("assets")
        # Only these names are served: a path cannot lead out of the folder.
        self._files = {file.name: file.read_bytes() for file in folder.iterdir()}

    async def close(self, application: web.Application) -> None:
        """Wait for the questions that are being answered; the index is closed after it."""
        del application
        self._threads.shutdown(cancel_futures=True)

    async def send_file(self, request: web.Request) -> web.Response:
        """Send a file of assets/."""
        name = request.match_info["file"] or "index.html"
        if name not in self._files:
            raise web.HTTPNotFound
        kind = mimetypes.guess_type(name)[0]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8")

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a question with JSON; an expected error with a message."""
        answer = ANSWERS.get(request.match_info["question"])
        if answer is None:
            raise web.HTTPNotFound
        query = request.query
        parameters = Parameters({name: query.getall(name) for name in query})
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(
                self._threads, answer, self._session, parameters
            )
        except ConfigError as error:
            return _send({"error": "\n".join(error.faults)}, 400)
        except RunNotFound as error:
            return _send({"error": str(error)}, 404)
        except (OSError, TaskFailed) as error:  # a damaged or deleted file of the run
            log.warning("%s", error)
            return _send({"error": str(error)}, 500)
        return _send(found, 200)


def _send(content: Any, status: int) -> web.Response:
    body = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    return web.Response(body=body, status=status, content_type="application/json")
