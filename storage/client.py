"""Connections to object stores by obstore, and the meaning of its errors.

obstore is the client because others commit a truncated object when the writer raises, or hang
without time limits (docs/decisions/0010-run-folders-in-buckets.md).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
from collections.abc import Generator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from storage.credentials import (
    CREDENTIALS_REMEDY,
    NO_CREDENTIALS,
    check_credentials,
    read_profile,
)
from storage.errors import (
    AccessRefused,
    InvalidAddress,
    NotFound,
    ObjectChanged,
    StorageError,
    Unreachable,
)
from storage.retries import RetriesExhausted
from storage.settings import StorageSettings

S3 = "s3://"

# With `stall_timeout_s`, a whole request may take this many times `request_timeout_s`. A
# slow connection is then replaced from time to time, and the bytes that it delivered are
# kept.
STALL_REQUEST_FACTOR = 20

# Client errors that another attempt can mend (RFC 9110 section 15.5). 409: two conditional
# writes at the same time.
TEMPORARY_STATUS = frozenset((408, 409, 425, 429))

# In obstore's dump of an error: the server has no valid certificate, or leads to plain http.
_UNSAFE = re.compile("InvalidCertificate|BadScheme")

CHANGED_REMEDY = "read it from the start, or restore the object"


class IncompleteAnswer(Exception):
    """An answer that does not have the number of bytes that it should have."""


# ---- connecting ----


def connect(
    root: str, settings: StorageSettings, timeout_s: float, *, retries_parts: bool = False
) -> Any:
    """Return obstore's store; the same one for equal arguments and environment.

    It sends a request once: `storage.retries` repeats it. Only the parts of a multipart upload
    are repeated by obstore, because this code does not see them.

    Args:
        root: "s3://bucket", or another address that obstore supports (https, gs, az).
        settings: How to reach it.
        timeout_s: Time limit of a request.
        retries_parts: Let obstore repeat failed requests.

    Raises:
        InvalidAddress: the endpoint is http on another machine, or the profile has no keys.
    """
    # The environment is part of the cache key: tests and notebooks change keys and endpoint.
    aws = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    return _connect(root, settings, timeout_s, retries_parts, tuple(sorted(aws.items())))


def check_installed(address: str) -> None:
    """Raise InvalidAddress if the package that reads object stores is not installed."""
    if importlib.util.find_spec("obstore") is None:
        remedy = "install the extra s3: pip install 'corpusmill[s3]'"
        raise InvalidAddress(address, "object storage needs the package obstore", remedy)


@functools.lru_cache(maxsize=64)
def _connect(
    root: str,
    settings: StorageSettings,
    timeout_s: float,
    retries_parts: bool,
    environment: tuple[tuple[str, str], ...],
) -> Any:
    from obstore.store import S3Store, from_url

    options = dict(settings.options)
    given_client_options = options.pop("client_options", {})
    if root.startswith(S3):
        # Options given by the user win over those of the environment and the profile.
        options = {**_get_s3_options(settings, dict(environment)), **options}
        check_credentials(root, options, dict(environment))
    endpoint = options.get("endpoint", "")
    for address in (root, endpoint):
        if address.startswith("http://"):
            _refuse_unsafe(address, settings, dict(environment))
    is_http = root.startswith("http://") or endpoint.startswith("http://")
    client_options = (
        _make_client_options(settings, timeout_s, is_http) | given_client_options
    )
    retry_config = {
        "max_retries": 10 if retries_parts else 0,
        "retry_timeout": timedelta(seconds=settings.retry_timeout_s),
    }
    given = {"client_options": client_options, "retry_config": retry_config, **options}
    # The stubs list every option of every store, which a dict does not match.
    make_store: Any = S3Store if root.startswith(S3) else from_url
    return make_store(root.removeprefix(S3), **given)


def _make_client_options(
    settings: StorageSettings, timeout_s: float, is_http: bool
) -> dict[str, Any]:
    options: dict[str, Any] = {"allow_http": is_http, "user_agent": "corpusmill"}
    if settings.stall_timeout_s is not None:
        # Limits each wait for the next bytes. The limit of the whole request is then a generous
        # one.
        options["read_timeout"] = timedelta(seconds=settings.byte_timeout_s)
        timeout_s = STALL_REQUEST_FACTOR * settings.request_timeout_s
    options["connect_timeout"] = timedelta(seconds=settings.connect_timeout_s)
    options["timeout"] = timedelta(seconds=timeout_s)
    return options


def _get_s3_options(
    settings: StorageSettings, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Return endpoint, region and keys, as far as obstore does not find them by itself."""
    options: dict[str, Any] = {}
    if "access_key_id" not in settings.options:
        options |= read_profile(environment)
    endpoint = (
        settings.options.get("endpoint")
        or settings.endpoint
        or environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
    )
    if endpoint:
        # Under both names, because obstore prefers the environment's value of the second.
        options |= {"endpoint": endpoint, "aws_endpoint_url_s3": endpoint}
        _check_endpoint(endpoint)
    if settings.region:
        options["region"] = settings.region
    return options


def _check_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        remedy = "set it to https://host or https://host:port"
        raise InvalidAddress("storage.endpoint", f"found {endpoint!r}", remedy)


def _refuse_unsafe(
    address: str, settings: StorageSettings, environment: Mapping[str, str]
) -> None:
    """Refuse plain http to another machine unless it is allowed."""
    is_local = urlsplit(address).hostname in ("localhost", "127.0.0.1", "::1")
    is_allowed = environment.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
    if is_local or is_allowed or settings.allow_http:
        return
    raise InvalidAddress(
        address,
        "only https addresses are used (plain http: only on this machine)",
        "within a private network set storage.allow_http, or AWS_ALLOW_HTTP=true",
    )


# ---- errors ----


def is_temporary(error: BaseException) -> bool:
    """Whether another attempt may succeed after this error of obstore."""
    from obstore.exceptions import (
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
    )

    final = (
        StorageError,
        FileNotFoundError,
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
        TypeError,
        ValueError,
    )
    # KeyboardInterrupt and SystemExit are not failures of the request.
    if not isinstance(error, Exception) or isinstance(error, final):
        return False
    is_refused = _is_refused(get_status(error)) or _has_no_credentials(error)
    return not is_refused and not _UNSAFE.search(str(error))


@contextlib.contextmanager
def translate_errors(where: str) -> Generator[None]:
    """Raise the errors of a request as those of storage/errors.py.

    Args:
        where: Address and kind of the request.
    """
    try:
        yield
    except RetriesExhausted as error:
        raise _translate_error(where, error.cause, error.limit) from error.cause
    except ObjectChanged as error:
        raise ObjectChanged(where, error.cause, error.remedy) from error
    except StorageError:  # from `connect`
        raise
    except Exception as error:
        raise _translate_error(where, error) from error


def _translate_error(where: str, error: Exception, limit: str = "") -> StorageError:
    """Return the StorageError for an error of obstore.

    Args:
        where: Address and kind of the request.
        error: The last error.
        limit: The retry limit that was reached; "" if the request was not repeated.
    """
    from obstore.exceptions import PreconditionError

    answer = _get_answer(error)
    cause = f"{answer}; {limit}" if limit else answer
    status, has_no_bucket = get_status(error), "NoSuchBucket" in str(error)
    # obstore raises FileNotFoundError for a missing bucket too, which needs another remedy.
    if isinstance(error, FileNotFoundError) and not has_no_bucket:
        found = f" ({answer})" if status is not None else ""
        return NotFound(where, f"there is no such object{found}", "correct the address")
    # 416: a range begins behind the end of the object.
    if isinstance(error, PreconditionError) or status == 416:
        return ObjectChanged(where, cause, CHANGED_REMEDY)
    if status in (401, 403) or _has_no_credentials(error):
        return AccessRefused(where, cause, CREDENTIALS_REMEDY)
    if has_no_bucket:
        return InvalidAddress(where, cause, "make the bucket, or correct the address")
    # S3 answers so if the request was signed for, or sent to, another region.
    if status in (301, 307, 400):
        remedy = "set storage.region (or AWS_REGION) to the region of the bucket"
        return InvalidAddress(where, cause, remedy)
    if status is None:
        remedy = (
            "check storage.endpoint (or AWS_ENDPOINT_URL), storage.region and the network"
        )
    else:
        remedy = "see the log of the server"
    return (
        Unreachable(where, cause, remedy) if limit else InvalidAddress(where, cause, remedy)
    )


def get_status(error: BaseException) -> int | None:
    """Return the HTTP status in obstore's message; its classes do not cover all of them."""
    found = re.search(r"status code: (\d{3})", str(error))
    return int(found[1]) if found else None


def _is_refused(status: int | None) -> bool:
    if status is None or status in TEMPORARY_STATUS:
        return False
    # Redirects and client errors repeat themselves. 501: the server lacks the operation.
    return 300 <= status < 500 or status == 501


def _has_no_credentials(error: BaseException) -> bool:
    """Whether no complete key is set and the machine's role service does not answer.

    169.254.169.254 is the address of that service; obstore asks it when it finds no key.
    """
    pattern = r"169\.254\.169\.254|Missing (AccessKeyId|SecretAccessKey)"
    return re.search(pattern, str(error)) is not None


def _get_answer(error: Exception) -> str:
    """Return the server's answer, without the dump of Rust structures that obstore adds."""
    text = str(error)
    if _has_no_credentials(error):
        return NO_CREDENTIALS
    status = get_status(error)
    if status is not None:
        # The answer is in obstore's message twice: in its words and in the dump.
        words = dict.fromkeys(re.findall(r"<(?:Code|Message)>([^<]*)</", text))
        return f"the server says {status} {': '.join(words)}".rstrip()
    # The causes of a failed connection follow in further lines, before the dump.
    lines = text.split("\n\nDebug source:", maxsplit=1)[0].split("\n")
    answer = " ".join(line.strip() for line in lines if line.strip())[:500]
    answer = re.sub(r"^Generic \S+ error: |Error performing list request: ", "", answer)
    # The reason of a failed connection is in the dump alone: "Connection refused", BadScheme, ...
    reason = re.search(
        r'(?:message|error): "([^"]+)"|(InvalidCertificate)\(\s*(\w+)|(BadScheme)', text
    )
    if reason is not None:
        answer = f"{answer}: {' '.join(filter(None, reason.groups()))}"
    return answer or type(error).__name__
