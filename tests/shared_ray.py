"""One Ray for all tests of a session: starting Ray takes 11 seconds of two processor cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from tests.seaweed import KEYS, Seaweed

PROGRAM = """
import sys
import ray
from storage.local import private_umask
for attempt in range(10):  # beside other work, a raylet may need more than Ray's 30 s
    try:
        with private_umask():
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, logging_level="ERROR")
        break
    except Exception:
        ray.shutdown()
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()  # until the test session closes it, or dies
"""


class SharedRay:
    """A Ray with two CPUs. Its workers import this repository and can reach the test's S3 server.

    Attributes:
        environment: the variables with which a driver connects to it.
        pid: the process from which all of its processes descend.
    """

    def __init__(self, repository: str, seaweed: Seaweed) -> None:
        started_with = {
            **os.environ,
            **{f"AWS_{name.upper()}": value for name, value in KEYS.items()},
            "AWS_ENDPOINT_URL": seaweed.endpoint,
            "PYTHONPATH": repository,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=started_with,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        address = self._process.stdout.readline().strip()
        assert address, "Ray did not start; see the output above"
        self.environment: Mapping[str, str] = {"RAY_ADDRESS": address}
        self.pid = self._process.pid

    def stop(self) -> None:
        """Shut Ray down."""
        self._process.communicate()
