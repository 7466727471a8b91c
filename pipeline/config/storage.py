"""The `storage` section: access to object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field

from stages.settings.base import Settings

if TYPE_CHECKING:
    from storage import StorageSettings


class StorageConfig(Settings):
    """Access to object storage. Credentials come from AWS_ACCESS_KEY_ID etc., a profile, or a role."""

    endpoint: str | None = Field(
        default=None,
        description="Address of the server; null: AWS_ENDPOINT_URL, or else Amazon's own.",
    )
    region: str | None = Field(
        default=None, description="Region of the buckets; null: AWS_REGION, or us-east-1."
    )
    allow_http: bool = Field(
        default=False,
        description="Whether the endpoint of another machine may use http, as in a private network. Anyone on the "
        "network path can then read and change the data.",
    )
    request_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Time limit of a request, for each 16 MiB that it transfers.",
    )
    retry_timeout_s: float = Field(
        default=180.0,
        ge=0,
        description="How long a request is retried after its first failure.",
    )
    spool: str | None = Field(
        default=None,
        description="Folder of each machine for input and outputs on their way; null: the system's for temporary "
        "files. It holds what the tasks of a machine are reading and writing.",
    )

    def to_settings(self) -> StorageSettings:
        """Return the settings for `storage.open_store`."""
        from storage import StorageSettings

        values = self.model_dump()
        return StorageSettings(scratch_dir=values.pop("spool"), **values)

    @classmethod
    def from_settings(cls, settings: StorageSettings) -> Self:
        """Return the section of a config that gives these settings."""
        values = {name: getattr(settings, name) for name in cls.model_fields if name != "spool"}
        return cls(spool=settings.scratch_dir, **values)
