"""What all sections of a training config have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base class of all sections: immutable, validated, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
