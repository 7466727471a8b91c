"""Settings for reaching object storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class StorageSettings:
    """How object storage is reached. Files on a disk need none of this.

    Credentials are never settings: they come from AWS_ACCESS_KEY_ID and related variables, from a
    profile in AWS's files, or from the role of the machine. A plain dataclass, because the loader
    must not import pydantic; `pipeline.config.StorageConfig` checks the values of a config file.

    Attributes:
        endpoint: Address of the server; None: AWS_ENDPOINT_URL, or Amazon's address.
        region: Region of the buckets; None: AWS_REGION, or us-east-1.
        allow_http: Allow an endpoint on another machine to use http.
        request_timeout_s: Time limit of a request for each 16 MiB it transfers. With
            `stall_timeout_s`: how long a request may wait for the next byte.
        retry_timeout_s: A failing request is repeated until this long after its first failure.
        scratch_dir: Local folder for files before they are uploaded; None: the system's folder
            for temporary files.
        stall_timeout_s: If set, it replaces `retry_timeout_s`: a read fails at most this long
            after its start or the last new byte. Used by the loader.
        options: Further options for obstore's store classes, e.g. access_key_id.
    """

    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False
    request_timeout_s: float = 60.0
    retry_timeout_s: float = 180.0
    scratch_dir: str | None = None
    stall_timeout_s: float | None = None
    # A dict has no hash. Comparing it is enough to keep clients with different options apart.
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def byte_timeout_s(self) -> float:
        """How long a request may wait for the next byte, if `stall_timeout_s` is set.

        At most a third of it, so that two attempts fit.
        """
        assert self.stall_timeout_s is not None
        return min(self.request_timeout_s, self.stall_timeout_s / 3)

    @property
    def connect_timeout_s(self) -> float:
        """Time limit of connecting."""
        if self.stall_timeout_s is None:
            return min(MAX_CONNECT_TIMEOUT_S, self.request_timeout_s)
        return min(MAX_CONNECT_TIMEOUT_S, self.byte_timeout_s / 2)


# Settings for code that has only an address: endpoint and region come from AWS_* variables.
DEFAULT_SETTINGS = StorageSettings()
