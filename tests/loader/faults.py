"""A proxy that injects faults between a client and a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from typing import Any


class FaultProxy:
    """Forwards connections to a port and injects faults into the answers.

    cut_after:  bytes of an answer after which the connection is reset
    cuts:       how many connections are reset in this way; -1 for all
    hang_after: bytes of an answer after which nothing more is sent
    refuse:     reset new connections immediately
    flip:       flip one bit of the next answer over 4 KiB; `flips` counts them
    rate:       bytes per second
    deaf_after: bytes of the requests of a connection after which nothing more is forwarded;
                `num_deaf` counts these connections
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.cut_after: int | None = None
        self.cuts, self.flips = -1, 0
        self.hang_after: int | None = None
        self.refuse = self.flip = False
        self.rate: float | None = None
        self.deaf_after: int | None = None
        self.num_deaf = 0
        self._tasks: set[asyncio.Task[Any]] = set()  # one for each connection
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Accept no more connections, and end the open ones."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        # Python 3.11 leaves a socket open whose handler is cancelled before it begins,
        # or whose server closes between `accept` and the handler. New connections are
        # therefore reset by their handlers, and the server closes when no task is left.
        self._is_closed = True
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(others, timeout=0.1)
        self._server.close()
        for _ in range(3):  # transports close in later iterations of the loop
            await asyncio.sleep(0)

    async def _serve(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        if self.refuse or self._is_closed:
            return reset(client)
        if task := asyncio.current_task():
            self._tasks.add(task)
        with contextlib.suppress(asyncio.CancelledError):  # by `close`
            try:
                await self._forward(reader, client)
            finally:
                client.transport.abort()
        return None

    async def _forward(
        self, reader: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return reset(client)
        forwarding = asyncio.ensure_future(self._pass(reader, server))
        try:
            with contextlib.suppress(ConnectionError):
                await self._answer(answers, client)
        finally:
            forwarding.cancel()
            server.transport.abort()

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                if self.deaf_after is not None and passed + len(data) > self.deaf_after:
                    self.num_deaf += 1
                    await asyncio.sleep(3600)
                passed += len(data)
                target.write(data)
                await target.drain()

    async def _answer(
        self, answers: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        passed = 0
        while data := await answers.read(4096 if self.rate else 16384):
            if self.hang_after is not None and passed + len(data) > self.hang_after:
                await asyncio.sleep(3600)
            if self.rate:
                await asyncio.sleep(len(data) / self.rate)
            is_cut = (
                self.cut_after is not None
                and self.cuts != 0
                and passed + len(data) > self.cut_after
            )
            if self.refuse or is_cut:
                self.cuts -= is_cut
                client.write(data[: (self.cut_after or 0) - passed] if is_cut else b"")
                await client.drain()
                return reset(client)
            if self.flip and len(data) > 4096:
                self.flip, self.flips = False, self.flips + 1
                data = data[:-1] + bytes([data[-1] ^ 1])
            passed += len(data)
            client.write(data)
            await client.drain()
        client.close()
        await client.wait_closed()
        return None


def reset(client: asyncio.StreamWriter) -> None:
    """Reset a connection, as a crashed server does."""
    client.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    client.transport.abort()
