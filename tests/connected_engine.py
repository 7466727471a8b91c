"""The Ray engine for tests in one process: it stays connected, so that its workers start once."""

from __future__ import annotations

from typing import Self

from pipeline.config.engine import EngineConfig
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.phases.run_plan import RunPlan


class ConnectedEngine(RayEngine):
    """Runs plans, or tasks of their phases, on the shared Ray. New workers take 4 s of CPU per connection."""

    def __init__(self) -> None:
        super().__init__(EngineConfig(kind="ray"))

    def use(self, plan: RunPlan) -> Self:
        """Take the settings of a plan, and connect if that was not done yet."""
        self.config, self.on_documents = plan.config.engine, None
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Stay connected at the end of a run."""

    def leave(self) -> None:
        """Disconnect, because this process connects to another Ray."""
        super().__exit__(None, None, None)
