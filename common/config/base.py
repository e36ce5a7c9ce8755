"""The base of every configuration model: frozen, unknown keys are errors, field docstrings become descriptions."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One part of the configuration tree."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True)
