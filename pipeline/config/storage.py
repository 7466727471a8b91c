"""The `storage` section: access to object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field

from stages.settings.base import Settings

if TYPE_CHECKING:
    from storage import StorageSettings


class StorageAdvanced(Settings):
    """Limits of requests that hardly any run needs to change."""

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


class StorageConfig(Settings):
    """Access to object storage. Credentials come from AWS_* variables, a profile or a role."""

    endpoint: str | None = Field(
        default=None,
        description="Address of the server; null: AWS_ENDPOINT_URL, or else Amazon's own.",
    )
    region: str | None = Field(
        default=None, description="Region of the buckets; null: AWS_REGION, or us-east-1."
    )
    allow_http: bool = Field(
        default=False,
        description="Whether the endpoint of another machine may use http, as in a private "
        "network. Anyone on the network path can then read and change the data.",
    )
    scratch_dir: str | None = Field(
        default=None,
        description="Local folder of each machine for the files that its tasks are reading and "
        "writing; null: the system's folder for temporary files.",
    )
    advanced: StorageAdvanced = Field(
        default=StorageAdvanced(), description="Limits that hardly any run needs to change."
    )

    def to_settings(self) -> StorageSettings:
        """Return the settings for `storage.open_store`."""
        from storage import StorageSettings

        return StorageSettings(
            endpoint=self.endpoint,
            region=self.region,
            allow_http=self.allow_http,
            scratch_dir=self.scratch_dir,
            request_timeout_s=self.advanced.request_timeout_s,
            retry_timeout_s=self.advanced.retry_timeout_s,
        )

    @classmethod
    def from_settings(cls, settings: StorageSettings) -> Self:
        """Return the section of a config that gives these settings."""
        return cls(
            endpoint=settings.endpoint,
            region=settings.region,
            allow_http=settings.allow_http,
            scratch_dir=settings.scratch_dir,
            advanced=StorageAdvanced(
                request_timeout_s=settings.request_timeout_s,
                retry_timeout_s=settings.retry_timeout_s,
            ),
        )
