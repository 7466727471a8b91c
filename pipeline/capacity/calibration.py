"""Measured rates of a run, from which `estimate` predicts runs of other sizes, and their file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from config_files.reader import ConfigError

# Version of the calibration file.
VERSION = 2

# The shipped rates, measured by benchmarks/runs/calibrate.py on two cores: of WET files, and of WARC
# files, which have more and other content for each byte.
SHIPPED = Path(__file__).with_name("calibration.json")
SHIPPED_WARC = Path(__file__).with_name("calibration-warc.json")

# Amount -> its size. `pipeline.capacity.costs` lists the amounts: bytes of the input, documents, tokens, ...
Amounts = Mapping[str, float]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Line(_Frozen):
    """A straight line: `fixed` per task, plus `rate` times the amount."""

    fixed: float = 0.0
    rate: float = 0.0

    def predict(self, amount: float, num_tasks: float = 1.0) -> float:
        """Return the total for tasks that hold this amount together."""
        return self.fixed * num_tasks + self.rate * amount


class PhaseRates(_Frozen):
    """The measured rates of one phase."""

    cpu_s: dict[str, Line] = Field(
        description="CPU seconds by step, per task and per amount."
    )
    start_s: float = Field(
        description="Extra CPU seconds of the first task of a process: libraries, models."
    )
    bytes: dict[str, Line] = Field(
        description="Bytes written, by kind of file. For partitions of hashes, `fixed` is per split."
    )
    base_mb: float = Field(
        description="Memory of a task beyond the items that the phase declares to hold."
    )


class Calibration(_Frozen):
    """The measured rates of all phases, and where they were measured."""

    version: int = VERSION
    source: str = Field(description="The run that was measured.")
    machine: str = ""
    commit: str | None = None
    date: str = ""
    amounts: dict[str, float] = Field(description="Totals over the run, by amount.")
    phases: dict[str, PhaseRates]

    @property
    def origin(self) -> str:
        """What was measured, where and when, as one line."""
        parts = [self.source, self.machine, self.date[:10], (self.commit or "")[:9]]
        return "; ".join(part for part in parts if part)

    def filled_by(self, other: Calibration) -> Calibration:
        """Return a copy that takes from `other` the phases and steps that were not measured here."""
        phases = dict(other.phases)
        for name, measured in self.phases.items():
            steps = dict(measured.cpu_s)
            if name in other.phases:
                steps = {**other.phases[name].cpu_s, **measured.cpu_s}
            phases[name] = measured.model_copy(update={"cpu_s": steps})
        return self.model_copy(update={"phases": phases})


def read_shipped(*, has_html: bool) -> Calibration:
    """Return the shipped rates for WARC or for WET files. Each fills in what the other has not measured."""
    wet, warc = read_calibration(SHIPPED), read_calibration(SHIPPED_WARC)
    return warc.filled_by(wet) if has_html else wet.filled_by(warc)


def read_calibration(path: Path = SHIPPED) -> Calibration:
    """Read a calibration file.

    Raises:
        ConfigError: the file is no calibration, or has another version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.get("version")
        if version == VERSION:
            return Calibration.model_validate(content)
    except (OSError, ValueError, AttributeError) as error:
        fault = f"{path} is not a calibration: {error}; make one: python -m benchmarks.runs.calibrate"
        raise ConfigError([fault]) from error
    fault = f"{path}: version is {version!r}, expected {VERSION}; measure again: make bench"
    raise ConfigError([fault])
