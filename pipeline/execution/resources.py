"""What tasks ask of the machine that runs them, phase by phase, and whether there is such a machine.

Promises: a phase's tasks ask for what its section of engine.phases says; a stage with a section of its own there gets
tasks of its own, which ask for that, and for the phase's where it says nothing. Arithmetic on a config, without Ray.
Leaves to others: handing out the tasks, and which machines there are (engine.py).

    wanted = request_of(config.engine, "annotate", "classifiers")       # num_gpus 1
    unmet([wanted], [{"CPU": 16.0, "memory": 64e9}])                    # ["annotate.classifiers asks for ..."]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import EngineConfig, PhaseResources, Resources, RunConfig
from pipeline.phases import registry

Amounts = Mapping[str, float]
"""Under Ray's names: CPU, GPU, memory (bytes), and whatever a cluster's owner has named."""


@dataclass(frozen=True)
class Request:
    """What one task takes while it runs."""

    of: str  # "annotate", or "annotate.classifiers"
    num_cpus: float
    num_gpus: float
    memory_mb: int
    custom: Amounts

    def is_like(self, other: Request) -> bool:
        """Whether both ask for the same, so that one task may do the work of both."""
        return self.amounts == other.amounts

    @property
    def amounts(self) -> Amounts:
        """Under Ray's names, without what is not asked for."""
        amounts = {
            "CPU": self.num_cpus,
            "GPU": self.num_gpus,
            "memory": self.memory_mb * 2**20,
            **self.custom,
        }
        return {name: amount for name, amount in amounts.items() if amount}

    def remote_args(self) -> dict[str, Any]:
        """As `map_batches` takes it."""
        return {
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "memory": self.memory_mb * 2**20,
            "resources": dict(self.custom),
        }


def request_of(engine: EngineConfig, phase: str, stage: str | None = None) -> Request:
    """What the tasks of a phase ask for, or those of one of its stages."""
    of_phase = engine.phases.get(phase, PhaseResources())
    own = of_phase.stages.get(stage, Resources()) if stage else Resources()

    def first(*values: Any) -> Any:
        return next(value for value in values if value is not None)

    return Request(
        of=f"{phase}.{stage}" if stage in of_phase.stages else phase,
        num_cpus=first(own.num_cpus, of_phase.num_cpus, 1.0),
        num_gpus=first(own.num_gpus, of_phase.num_gpus, 0.0),
        memory_mb=first(own.memory_mb, of_phase.memory_mb, engine.memory_mb),
        custom=first(own.custom, of_phase.custom, {}),
    )


def requests_of(config: RunConfig) -> list[Request]:
    """What the tasks of all phases ask for, and those of stages that have their own and are not off."""
    requests: list[Request] = []
    for phase, section in config:
        if phase not in registry.list_phase_names() or section is None:
            continue
        requests.append(request_of(config.engine, phase))
        own = config.engine.phases.get(phase, PhaseResources()).stages
        requests += [
            request_of(config.engine, phase, stage)
            for stage in own
            if getattr(section, stage) is not None
        ]
    return requests


def unmet(requests: Iterable[Request], machines: Sequence[Amounts]) -> list[str]:
    """A line for every request that no machine could meet even if nothing else ran on it.

    Args:
        requests: what is asked for.
        machines: what each has, or would have if it were started.
    """
    faults: list[str] = []
    for request in requests:
        lacks = [
            [name for name, amount in request.amounts.items() if has.get(name, 0) < amount]
            for has in machines
        ]
        if all(lacks):
            nearest = min(range(len(machines)), key=lambda i: len(lacks[i]), default=None)
            has = (
                {}
                if nearest is None
                else {name: machines[nearest].get(name, 0) for name in lacks[nearest]}
            )
            found = f"the nearest has only {_in_words(has)}" if has else "there is no machine"
            faults.append(f"{request.of} asks for {_in_words(request.amounts)}; {found}")
    return faults


def _in_words(amounts: Amounts) -> str:
    return ", ".join(
        f"memory {amount / 2**20:,.0f} MB" if name == "memory" else f"{name} {amount:g}"
        for name, amount in amounts.items()
    )
