"""Runs in an object store that cuts, refuses, delays, stops and corrupts its answers."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from tests.faults.attack import Attack
from tests.faults.runs.crash import resume
from tests.faults.runs.small_run import (
    find_missing_seaweed,
    get_seaweed,
    make_config,
    make_run_dir,
    run_command,
    start_driver,
    wait_for,
    write_config,
)
from tests.loader.faults import FaultProxy, reset

# The small form tries the first. After the others, requests are repeated some seconds later.
FAULTS = ("flipped", "cut", "refused", "slow", "stopped")

# Of the parts of answers, each of at most 16 KiB.
FAULT_SHARE = 0.05

UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class UnreliableProxy(FaultProxy):
    """Forwards requests, and injects one kind of fault into answers at random.

    Attributes:
        num_faults: faults so far.
    """

    def __init__(self, port: int, fault: str, seed: int) -> None:
        super().__init__(port)
        self._fault, self._draws = fault, random.Random(seed)
        self.num_faults = 0

    async def _answer(
        self, answers: asyncio.StreamReader, client: asyncio.StreamWriter
    ) -> None:
        while data := await answers.read(16384):
            if self._draws.random() < FAULT_SHARE and self._is_possible(data):
                self.num_faults += 1
                if self._fault == "stopped":
                    await asyncio.sleep(3600)
                if self._fault == "slow":
                    await asyncio.sleep(0.3)
                if self._fault == "refused":
                    data = UNAVAILABLE
                if self._fault == "cut":
                    client.write(data[: self._draws.randrange(len(data))])
                    await client.drain()
                    return reset(client)
                if self._fault == "flipped":
                    data = data[:-1] + bytes([data[-1] ^ 1])
            client.write(data)
            await client.drain()
            if data is UNAVAILABLE:
                break
        client.close()
        await client.wait_closed()
        return None

    def _is_possible(self, data: bytes) -> bool:
        # An error can only be the beginning of an answer. Its head stays as it is: HTTP has no
        # digest of it.
        if self._fault == "refused":
            return data.startswith(b"HTTP/")
        return self._fault != "flipped" or len(data) > 4096


def run_on_unreliable_server(seed: int, folder: Path) -> None:
    """Run with a run folder in an object store; a run that gives up must continue later."""
    run_dir, messages = make_run_dir("object store", folder), folder / "messages"
    proxy = UnreliableProxy(get_seaweed().port, FAULTS[seed % len(FAULTS)], seed)
    limits = {"request_timeout_s": 2.0, "retry_timeout_s": 20.0}
    config = make_config(run_dir, storage={"advanced": limits})
    path = write_config(config, folder / "config.yaml")
    environment = {"AWS_ENDPOINT_URL": proxy.url}
    try:
        driver = start_driver(
            run_command, "run", str(path), messages=messages, environment=environment
        )
        code = wait_for(driver)
    finally:
        proxy.close()
    text = messages.read_text()
    assert proxy.num_faults > 0, "the server made no fault"
    assert code in (0, 1, 3), f"exit code {code}: {text[-2000:]}"
    assert "Traceback" not in text, text[-3000:]
    resume(run_dir, messages)


ATTACKS = (
    Attack(
        "storage: run on a faulty server",
        "The run ends with the same bytes, or with a message; then it continues to these bytes.",
        40,
        1,
        run_on_unreliable_server,
        find_missing_seaweed,
        timeout_s=600.0,
    ),
)
