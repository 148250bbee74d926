"""What every section of `run.toml` has in common: frozen, typed, unknown keys refused."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict


class Free:
    """Marks a key that may change on a resume: the weights that come out do not depend on it."""


FREE: Final = Free()


class Section(BaseModel):
    """A section of the configuration. Every key is exact unless annotated with FREE (see trainer/resume.py)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)
