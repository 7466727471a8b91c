"""The resources that the tasks of each phase request, and whether a machine has them.

The functions compute with the config alone, without Ray.

    wanted = make_request(config.engine, "annotate")
    find_unmet([wanted], [{"CPU": 16.0, "memory": 64e9}])       # ["annotate requests GPU 1, ..."]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import EngineConfig, PhaseResources, RunConfig
from pipeline.phases import registry

# Resource name -> amount, with Ray's names: CPU, GPU, memory (bytes), and names that a
# cluster's owner has chosen.
Amounts = Mapping[str, float]


@dataclass(frozen=True)
class Request:
    """The resources that one task of a phase takes while it runs."""

    phase: str
    num_cpus: float
    num_gpus: float
    memory_mb: int
    custom: Amounts

    @property
    def amounts(self) -> Amounts:
        """The resources with Ray's names, without zeros."""
        memory_bytes = self.memory_mb * 2**20
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus, "memory": memory_bytes}
        return {
            name: amount for name, amount in {**amounts, **self.custom}.items() if amount
        }

    def remote_args(self) -> dict[str, Any]:
        """Return the keyword arguments of `ray.data.Dataset.map`."""
        arguments: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "memory": self.memory_mb * 2**20,
            "resources": dict(self.custom),
        }
        if self.num_gpus:
            arguments["num_gpus"] = self.num_gpus
        return arguments


def make_request(engine: EngineConfig, phase: str) -> Request:
    """Return the request of a phase's tasks: its section of engine.phases, else the engine's defaults."""
    section = engine.phases.get(phase, PhaseResources())
    return Request(
        phase=phase,
        num_cpus=1.0 if section.num_cpus is None else section.num_cpus,
        num_gpus=section.num_gpus or 0.0,
        memory_mb=engine.get_memory_mb(phase),
        custom=section.custom or {},
    )


def list_requests(config: RunConfig) -> list[Request]:
    """Return the requests of all phases that are on."""
    enabled = registry.list_enabled(config)
    return [make_request(config.engine, phase.name) for phase in enabled]


def find_unmet(requests: Iterable[Request], machines: Sequence[Amounts]) -> list[str]:
    """Return a line for each request that no machine can meet, even if nothing else runs on it.

    Args:
        requests: what tasks request.
        machines: the resources of each machine.
    """
    faults: list[str] = []
    for request in requests:
        lacking = [_find_lacking(request, machine) for machine in machines]
        if not all(lacking):
            continue
        if not machines:
            found = "there is no machine"
        else:
            nearest = min(range(len(machines)), key=lambda i: len(lacking[i]))
            has = {name: machines[nearest].get(name, 0) for name in lacking[nearest]}
            found = f"the nearest machine has {_format_amounts(has)}"
        faults.append(
            f"{request.phase} requests {_format_amounts(request.amounts)}; {found}"
        )
    return faults


def count_slots(request: Request, machines: Iterable[Amounts]) -> int:
    """Return how many tasks with this request run at the same time on the machines."""
    num_slots = 0
    for machine in machines:
        shares = [machine.get(name, 0) / wanted for name, wanted in request.amounts.items()]
        num_slots += int(min(shares, default=1))
    return num_slots


def _find_lacking(request: Request, machine: Amounts) -> list[str]:
    amounts = request.amounts
    return [name for name, amount in amounts.items() if machine.get(name, 0) < amount]


def _format_amounts(amounts: Amounts) -> str:
    parts: list[str] = []
    for name, amount in amounts.items():
        is_memory = name == "memory"
        parts.append(
            f"memory {amount / 2**20:,.0f} MB" if is_memory else f"{name} {amount:g}"
        )
    return ", ".join(parts)
