"""Faulty servers and connections, while the loader reads and while a run writes.

The loader must return the rows of the local dataset, or raise its error in time. It must never
return other rows, and it must go on when the fault is over.
"""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from loader import TokenLoader
from loader.storage import ReadFailed, ReadSettings
from pipeline.planning.plan import make_plan
from shardwriter.format import FormatError, ShardCorrupt
from storage import StorageSettings
from storage.errors import ObjectChanged
from storage.object_store import ObjectStore
from tests.faults.attack import Attack, get_shared_folder
from tests.faults.runs.small_run import (
    RUN_TIMEOUT_S,
    check_outputs,
    find_missing_seaweed,
    get_reference_digests,
    get_seaweed,
    make_config,
    make_run_dir,
    run_to_end,
    start_driver,
    wait_for,
)
from tests.loader.conftest import write_dataset
from tests.loader.faults import FaultProxy
from tests.seaweed import BUCKET, KEYS, Seaweed
from tests.servers import FAULTS, FLIPPED_BIT, FileServer

SEQ_LEN, BATCH_ROWS = 64, 8

# Requests that one epoch needs at least: the manifest, three indexes and the blocks. They are
# about 30; on a busy machine, neighbouring blocks may be fetched by one request.
MIN_REQUESTS, BLOCK_BYTES = 24, 4096

STALL_TIMEOUT_S = 3.0

# Longest time of one batch: the time limit of a read, on a busy machine.
MAX_BATCH_S = 15 * STALL_TIMEOUT_S

# The time limit of reads that must survive an outage.
LONG_STALL_TIMEOUT_S = 90.0
MAX_OUTAGE_S = 5.0

# After the fault, requests that began during it may still fail.
MAX_ATTEMPTS = 20

NUM_CONTENT_BYTES = 2_000_000

# PUT requests of an undisturbed run.
NUM_PUTS = 100


# ---- reading a dataset ----


@functools.cache
def get_dataset() -> Path:
    """Return the folder of three shards of about 40 KB."""
    folder = get_shared_folder() / "dataset"
    lengths = [[200] * 100] * 3
    return write_dataset(folder, lengths, sample_tokens=2048, metadata=False).folder


@functools.cache
def get_rows() -> list[list[int]]:
    """Return the rows of an epoch of the local dataset."""
    reading = Reading(str(get_dataset()), ReadSettings())
    assert reading.read_on() is None
    return reading.rows


class Reading:
    """Reads one epoch, and goes on after errors.

    Attributes:
        rows: The rows read so far.
    """

    def __init__(self, address: str, settings: ReadSettings) -> None:
        self._address, self._settings = address, settings
        self._loader: TokenLoader | None = None
        self.rows: list[list[int]] = []

    def read_on(self) -> Exception | None:
        """Read to the end of the epoch and return None, or return an error of the loader.

        Raises:
            AssertionError: a batch, or its error, took too long.
        """
        while True:
            began = time.monotonic()
            try:
                batch = next(self._open())
            except StopIteration:
                return None
            except (ReadFailed, ShardCorrupt, FormatError) as error:
                return error
            finally:
                took_s = time.monotonic() - began
                assert took_s < MAX_BATCH_S + self._settings.stall_timeout_s, (
                    f"{took_s:.0f} s"
                )
            self.rows += batch["input_ids"].tolist()

    def finish(self) -> None:
        """Read to the end of the epoch from a healthy server.

        Raises:
            AssertionError: a row is wrong, or reading does not succeed.
        """
        self.check_rows()
        for _ in range(MAX_ATTEMPTS):
            error = self.read_on()
            self.check_rows()
            if error is None:
                assert len(self.rows) == len(get_rows()), "the epoch ended early"
                return
        raise AssertionError("the loader cannot read from a healthy server") from error

    def check_rows(self) -> None:
        """Raise AssertionError if a row that was read so far is wrong."""
        num_rows = len(self.rows)
        assert self.rows == get_rows()[:num_rows], "other rows than those of the dataset"

    def close(self) -> None:
        """Stop the threads of the loader."""
        if self._loader is not None:
            self._loader.close()

    def _open(self) -> TokenLoader:
        if self._loader is None:
            self._loader = TokenLoader(
                self._address,
                seq_len=SEQ_LEN,
                global_batch_rows=BATCH_ROWS,
                rank=0,
                world_size=1,
                interleave_depth=4,
                window_rows=8,
                epochs=1,
                settings=self._settings,
            )
        return self._loader


def make_settings(folder: Path, **given: Any) -> ReadSettings:
    """Return settings with an empty cache and short time limits."""
    options: dict[str, Any] = {
        "cache_dir": folder / "cache",
        "block_bytes": BLOCK_BYTES,
        "stall_timeout_s": STALL_TIMEOUT_S,
    }
    return ReadSettings(**{**options, **given})


# ---- servers that break the rules ----


def read_wrong_answers(fault: str, seed: int, folder: Path) -> None:
    """Read from a server that answers some requests, or all from one on, in a wrong way."""
    chosen = random.Random(seed)
    files = {path.name: path.read_bytes() for path in get_dataset().iterdir()}
    with FileServer(files) as server:
        server.num_healthy = chosen.randrange(MIN_REQUESTS)
        server.num_faulty = chosen.choice((1, 3, None))
        server.fault = fault
        reading = Reading(server.url, make_settings(folder))
        try:
            reading.read_on()
            assert len(server.ranges) > server.num_healthy, "no answer was wrong"
            server.fault = ""
            reading.finish()
        finally:
            reading.close()


def read_replaced_object(seed: int, folder: Path) -> None:
    """Replace an object while it is read; the server ignores If-Match."""
    del folder
    chosen = random.Random(seed)
    old = chosen.randbytes(NUM_CONTENT_BYTES)
    num_bytes = chosen.choice((NUM_CONTENT_BYTES, NUM_CONTENT_BYTES // 2, 1))
    num_bytes_before = chosen.randrange(NUM_CONTENT_BYTES)
    options = {"access_key_id": "key", "secret_access_key": "secret"}
    with FileServer({"bucket/content": old}) as server:
        settings = StorageSettings(endpoint=server.url, options=options)
        store = ObjectStore.from_address("s3://bucket", settings)
        with store.open("content") as file:
            found = file.read(num_bytes_before)
            server.files["bucket/content"] = chosen.randbytes(num_bytes)
            # Otherwise all bytes had been fetched before.
            with suppress(ObjectChanged):
                found += file.read()
    assert found in (old, old[:num_bytes_before]), "a mixture of two versions"


# ---- broken connections ----


def cut_connections(proxy: FaultProxy, chosen: random.Random) -> None:
    """Reset some or all connections after a number of bytes."""
    proxy.cut_after = chosen.choice((0, 100, 1000, 5000, 20_000))
    proxy.cuts = chosen.choice((1, 5, -1))


def stall_connections(proxy: FaultProxy, chosen: random.Random) -> None:
    """Send nothing more after a number of bytes."""
    proxy.hang_after = chosen.choice((0, 100, 1000, 5000, 20_000))


def refuse_connections(proxy: FaultProxy, chosen: random.Random) -> None:
    """Reset all connections, from their start."""
    del chosen
    proxy.refuse = True


def flip_bits(proxy: FaultProxy, chosen: random.Random) -> None:
    """Flip a bit of one long answer."""
    del chosen
    proxy.flip = True


def heal(proxy: FaultProxy) -> None:
    """End all faults."""
    proxy.cut_after = proxy.hang_after = proxy.rate = None
    proxy.refuse = proxy.flip = False


def read_through(
    break_proxy: Callable[[FaultProxy, random.Random], None], seed: int, folder: Path
) -> None:
    """Break the connections after some batches, and repair them after the error."""
    chosen, server = random.Random(seed), FileServer(get_dataset())
    proxy = FaultProxy(server.port)
    # Without requests ahead, most blocks are fetched when the fault has begun.
    settings = make_settings(folder, ahead_bytes=1)
    reading = Reading(proxy.url, settings)
    try:
        break_proxy(proxy, chosen)
        reading.read_on()
        heal(proxy)
        reading.finish()
    finally:
        reading.close()
        proxy.close()
        server.close()


def read_slowly(seed: int, folder: Path) -> None:
    """Read over a slow link: there is no error while bytes arrive."""
    server = FileServer(get_dataset())
    proxy = FaultProxy(server.port)
    proxy.rate = random.Random(seed).uniform(20_000, 200_000)  # bytes per second
    reading = Reading(
        proxy.url,
        make_settings(folder, stall_timeout_s=LONG_STALL_TIMEOUT_S),
    )
    try:
        error = reading.read_on()
        assert error is None, f"the slow link is an error: {error}"
        reading.finish()
    finally:
        reading.close()
        proxy.close()
        server.close()


# ---- SeaweedFS is killed and started again ----


@functools.cache
def upload_dataset() -> str:
    """Store the dataset in the object store and return its address."""
    for path in get_dataset().iterdir():
        get_seaweed().store("dataset").put(path.name, path)
    return f"s3://{BUCKET}/dataset"


def restart(server: Seaweed, outage_s: float) -> None:
    """Kill a server, and start it again after a time.

    Only for the main thread: the server ends with the thread that starts it (prctl(2)).
    """
    server.kill()
    time.sleep(outage_s)
    server.start()
    server.wait()


def choose_outage(chosen: random.Random, seed: int) -> float:
    """Return the seconds of an outage; a short one for the small form."""
    return chosen.uniform(0.0, MAX_OUTAGE_S) if seed else 0.0


def read_during_restart(seed: int, folder: Path) -> None:
    """Kill the server while the loader reads over a slow link; there is no error."""
    chosen, server, address = random.Random(seed), get_seaweed(), upload_dataset()
    proxy = FaultProxy(server.port)
    proxy.rate = 100_000
    settings = make_settings(
        folder,
        ahead_bytes=1,
        stall_timeout_s=LONG_STALL_TIMEOUT_S,
        store_options={**KEYS, "endpoint": proxy.url},
    )
    reading = Reading(address, settings)
    try:
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(reading.read_on)
            time.sleep(chosen.uniform(0.0, 1.0))
            restart(server, choose_outage(chosen, seed))
            error = future.result()
        assert error is None, f"the outage is an error: {error}"
        reading.finish()
    finally:
        reading.close()
        proxy.close()


class PausingProxy(FaultProxy):
    """Forwards requests to an S3 server until the middle of one of the uploads.

    Attributes:
        is_reached: Set in the middle of that upload, of which nothing more is forwarded.
    """

    def __init__(self, port: int, num_puts: int) -> None:
        super().__init__(port)
        self._num_puts_left = num_puts
        self.is_reached = threading.Event()

    async def _pass(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                self._num_puts_left -= data.startswith(b"PUT ")
                if self._num_puts_left < 0 and not self.is_reached.is_set():
                    # The server gets the head of the request and at most half of the content.
                    target.write(data[: len(data) // 2])
                    await target.drain()
                    self.is_reached.set()
                    return
                target.write(data)
                await target.drain()


def write_during_restart(seed: int, folder: Path) -> None:
    """Kill the server in the middle of an upload of a run, which must still succeed."""
    chosen, server = random.Random(seed), get_seaweed()
    get_reference_digests()
    run_dir, messages = make_run_dir("object store", folder), folder / "messages"
    proxy = PausingProxy(server.port, chosen.randrange(NUM_PUTS))
    environment = {"AWS_ENDPOINT_URL": proxy.url}
    plan = make_plan(make_config(run_dir))
    try:
        driver = start_driver(run_to_end, plan, messages=messages, environment=environment)
        is_reached = proxy.is_reached.wait(RUN_TIMEOUT_S)
        assert is_reached, f"no such upload: {messages.read_text()[-2000:]}"
        restart(server, choose_outage(chosen, seed))
        code = wait_for(driver)
    finally:
        proxy.close()
    assert code == 0, f"the run ended with {code}: {messages.read_text()[-2000:]}"
    check_outputs(run_dir)


READ_PROMISE = (
    "The loader returns the rows of the dataset or raises its error in time, and goes on with the "
    "next row when the fault is over."
)

CONNECTION_FAULTS = {
    "connections cut": cut_connections,
    "connections stall": stall_connections,
    "connections refused": refuse_connections,
    "bit flipped on the way": flip_bits,
}

ATTACKS = (
    *(
        Attack(
            f"storage: server, {fault}",
            READ_PROMISE,
            num_tries=50,
            num_small_tries=1,
            attempt=functools.partial(read_wrong_answers, fault),
        )
        for fault in (*FAULTS, FLIPPED_BIT)
    ),
    *(
        Attack(
            f"storage: {name}",
            READ_PROMISE,
            num_tries=30,
            num_small_tries=1,
            attempt=functools.partial(read_through, break_proxy),
        )
        for name, break_proxy in CONNECTION_FAULTS.items()
    ),
    Attack(
        "storage: slow link",
        "A slow link is no error.",
        num_tries=10,
        num_small_tries=1,
        attempt=read_slowly,
    ),
    Attack(
        "storage: object replaced while it is read",
        "A file is read in one version, or ObjectChanged is raised.",
        num_tries=200,
        num_small_tries=3,
        attempt=read_replaced_object,
    ),
    Attack(
        "storage: SeaweedFS killed while the loader reads",
        "An outage of a few seconds is no error.",
        num_tries=20,
        num_small_tries=1,
        attempt=read_during_restart,
        find_obstacle=find_missing_seaweed,
    ),
    Attack(
        "storage: SeaweedFS killed while a run writes",
        "A run survives an outage of a few seconds, with the same bytes.",
        num_tries=20,
        num_small_tries=0,
        attempt=write_during_restart,
        find_obstacle=find_missing_seaweed,
        timeout_s=600.0,
    ),
)
