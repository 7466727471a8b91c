"""Credentials for S3: the keys of AWS profiles, and an early error if there are no credentials."""

from __future__ import annotations

import configparser
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import AccessRefused, InvalidAddress

NO_CREDENTIALS = (
    "no credentials are found, in the environment, a profile or a role of this machine"
)
CREDENTIALS_REMEDY = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to keys that may "
    "list, read, write and delete there"
)

# The service of a machine in Amazon's cloud that gives out the credentials of its role. AWS's own
# tools wait for 1 s.
ROLE_SERVICE = "http://169.254.169.254"
ROLE_TIMEOUT_S = 2.0

# If one of these is set, obstore finds credentials, or needs none, without the role service.
_OTHER_SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_SKIP_SIGNATURE",
    "AWS_IMDSV1_FALLBACK",
)


def check_credentials(
    address: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> None:
    """Fail early if there are no credentials, within a few seconds.

    Without this check, a proxy or a firewall between this machine and the role service lets
    obstore wait until its retries are used up.

    Args:
        address: Shown in the error.
        options: The options of obstore's store.
        environment: The AWS_* variables.

    Raises:
        AccessRefused: there are no keys, and no role service.
    """
    names = {f"AWS_{name.upper().removeprefix('AWS_')}" for name in options}
    if not names.isdisjoint(_OTHER_SOURCES) or "AWS_CREDENTIAL_PROVIDER" in names:
        return
    if any(name in environment for name in _OTHER_SOURCES):
        return
    service = environment.get("AWS_METADATA_ENDPOINT", ROLE_SERVICE)
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true" or not _has_role(
        options.get("metadata_endpoint", service)
    ):
        raise AccessRefused(address, NO_CREDENTIALS, CREDENTIALS_REMEDY)


def _has_role(service: str) -> bool:
    """Whether the role service names a role.

    Source: "Use the Instance Metadata Service", IMDSv2, in the user guide of Amazon EC2.
    """
    # No proxies: the service can be reached from its machine only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        token_request = urllib.request.Request(  # noqa: S310 - the address is fixed
            f"{service}/latest/api/token", method="PUT", headers=lifetime
        )
        with opener.open(token_request, timeout=ROLE_TIMEOUT_S) as response:
            token = response.read(1024).decode("ascii")
        roles_request = urllib.request.Request(  # noqa: S310
            f"{service}/latest/meta-data/iam/security-credentials/",
            headers={"X-aws-ec2-metadata-token": token},
        )
        with opener.open(roles_request, timeout=ROLE_TIMEOUT_S) as response:
            role = response.read(1024).decode("ascii").strip()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, ValueError, http.client.HTTPException):
        return False
    # A proxy or a login page answers with another text, such as HTML.
    return re.fullmatch(r"[\w+=,.@-]{1,64}", role) is not None


def read_profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return keys and region of the AWS profile, which obstore does not read.

    Empty if the environment has keys, or if there is no profile: then obstore asks for the role
    of the machine or container. Source of the rules:
    https://docs.aws.amazon.com/sdkref/latest/guide/file-location.html
    """
    if "AWS_ACCESS_KEY_ID" in environment:
        return {}
    profile = environment.get("AWS_PROFILE", "default")
    found = _read_profile_sections(environment, profile)
    if "aws_access_key_id" not in found:
        if "AWS_PROFILE" not in environment:
            return {}
        raise InvalidAddress(
            f"AWS_PROFILE is {profile!r}",
            "the profile has no aws_access_key_id in AWS's credentials file",
            "for a profile that signs in elsewhere run  "
            f"eval $(aws configure export-credentials --profile {profile} --format env)",
        )
    options: dict[str, str] = {}
    # obstore calls the session token `token`.
    for key in ("access_key_id", "secret_access_key", "session_token"):
        if f"aws_{key}" in found:
            options[key.replace("session_", "")] = found[f"aws_{key}"]
    has_region = "AWS_REGION" in environment or "AWS_DEFAULT_REGION" in environment
    if "region" in found and not has_region:
        options["region"] = found["region"]
    return options


def _read_profile_sections(environment: Mapping[str, str], profile: str) -> dict[str, str]:
    folder = Path.home() / ".aws"
    credentials_file = (
        environment.get("AWS_SHARED_CREDENTIALS_FILE") or folder / "credentials"
    )
    config_file = environment.get("AWS_CONFIG_FILE") or folder / "config"
    config_section = profile if profile == "default" else f"profile {profile}"
    found: dict[str, str] = {}
    # The credentials file comes last, so its values win, as in AWS's own tools.
    for path, section in ((config_file, config_section), (credentials_file, profile)):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(path, "utf-8")
        except (configparser.Error, UnicodeDecodeError) as error:
            cause = f"this is no AWS configuration ({error})"
            raise InvalidAddress(str(path), cause, "correct the file") from error
        if section in parser:
            found |= dict(parser[section])
    return found
