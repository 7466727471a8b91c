"""The base of all settings of stages."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]


class Settings(BaseModel):
    """Base class of the settings of a stage: immutable, validated, unknown keys are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
