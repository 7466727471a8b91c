"""Names of checkpoints, and `complete.json`, which is written last."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from storage import Store, open_store
from storage.errors import NotFound
from storage.json_schema import (
    MAX_INTEGER,
    Count,
    JsonObject,
    Mismatch,
    OpenJsonObject,
    check_json,
    load_json,
)
from training.checkpoint.block_digests import FileDigest, compute_digest
from training.errors import CheckpointDamaged, IncompatibleConfig

# Written last. A checkpoint without it is ignored.
MARKER = "complete.json"

CHECKPOINT_VERSION = 2

_NAME = re.compile(r"step-(\d{8})")


class _Guard(JsonObject):
    num_bad: Count
    in_a_row: Count
    mean_norm: Annotated[float, Field(ge=0)] | None
    num_rewinds: Count
    rewound_to: Count | None


class _File(JsonObject):
    num_bytes: Count
    xxh3_128: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class _Content(OpenJsonObject):
    """The keys that a resumed run reads. Exports read others. The loader verifies its own state."""

    step: Count
    world_size: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    rows: dict[str, Any]
    guard: _Guard
    skipped_steps: Count
    files: dict[str, _File]


_CONTENT = TypeAdapter(_Content)


@dataclass(frozen=True)
class Marker:
    """The content of complete.json.

    Attributes:
        progress: step, world_size, the loader's state, counters.
        files: digests of all other files, by name.
    """

    progress: Mapping[str, Any]
    files: Mapping[str, FileDigest]


def format_step_name(step: int) -> str:
    """Return the folder name of a checkpoint."""
    return f"step-{step:08d}"


def is_step_name(name: str) -> bool:
    """Return whether this is the folder name of a checkpoint."""
    return _NAME.fullmatch(name) is not None


def parse_step(path: Path) -> int:
    """Return the number of finished steps in the folder name of a checkpoint."""
    matched = _NAME.fullmatch(path.name)
    assert matched is not None
    return int(matched[1])


def list_complete_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints with a marker, ordered by step. They may be damaged."""
    marked = [marker.parent for marker in folder.glob(f"step-*/{MARKER}")]
    return sorted((path for path in marked if is_step_name(path.name)), key=parse_step)


def write_marker(path: Path, marker: Marker) -> None:
    """Write complete.json atomically. From then on the checkpoint is complete."""
    files = {name: asdict(digest) for name, digest in sorted(marker.files.items())}
    content = {"version": CHECKPOINT_VERSION, **marker.progress, "files": files}
    # As it will be read: keys are strings, tuples are lists.
    content = json.loads(json.dumps(content))
    content["digest"] = _compute_own_digest(content)
    text = json.dumps(content, indent=1) + "\n"
    open_store(path).put(MARKER, text.encode())


def read_marker(path: Path | Store) -> Marker:
    """Read and verify complete.json of a checkpoint on a disk or in an object store.

    Raises:
        IncompatibleConfig: it is missing, or of another version.
        CheckpointDamaged: it was changed since it was written, or has invalid values.
    """
    store = open_store(path)
    where = store.locate(MARKER)
    try:
        content = load_json(store.read_bytes(MARKER))
        check_json(content, TypeAdapter(dict[str, Any]))
        digest, version = content.pop("digest", None), content.get("version")
        if digest != _compute_own_digest(content):
            raise CheckpointDamaged(f"{where} differs from the digest in it")
        if content.pop("version", None) != CHECKPOINT_VERSION:
            raise IncompatibleConfig(
                f"{where}: version is {version!r}, expected {CHECKPOINT_VERSION}"
            )
        check_json(content, _CONTENT)
    except NotFound as error:
        raise IncompatibleConfig(
            f"{store} has no {MARKER}, so it is not a complete checkpoint; use another one"
        ) from error
    except Mismatch as error:
        key = f"{error.key}: " if error.key else ""
        fault = f"{key}wanted {error.wanted}, found {error.found}"
        raise CheckpointDamaged(f"{where} has invalid values: {fault}") from error
    files = {name: FileDigest(**entry) for name, entry in content.pop("files").items()}
    return Marker(content, files)


def read_progress(path: Path) -> dict[str, Any]:
    """Return step, world_size, loader state and counters of a checkpoint.

    Raises:
        IncompatibleConfig, CheckpointDamaged: as `read_marker`.
    """
    return dict(read_marker(path).progress)


def _compute_own_digest(content: Mapping[str, Any]) -> str:
    """Return the digest of complete.json, of which its own digest is left out."""
    return compute_digest(json.dumps(content, sort_keys=True).encode()).hex()
