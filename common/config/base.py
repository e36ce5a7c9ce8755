"""The base of every section of the configuration: frozen, unknown keys are errors, field strings become descriptions.

It also holds the rules for all numbers and all texts of the tree, which hold beside the rules of their fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

MAX_NUMBER = 2**31 - 1
"""Largest magnitude of a number. Counts and sizes become 32-bit integers in torch, numpy and the kernel."""
MAX_SECONDS = 2_000_000
"""Longest duration in seconds, 23 days. A socket's timeout is a 32-bit number of milliseconds."""
MAX_PROCESSES = 10_000
"""Largest number of processes or nodes of one kind, and of episodes that a process plays at a time."""
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Name of an environment variable that a shell can set."""
Place = Annotated[str, AfterValidator(os.path.expanduser)]
"""Path of a file or folder on this machine. `~` stands for the home folder, which no shell replaces in KEY=~/x or in a file."""
_SECONDS = "_s"
"""Ending of the names of durations in seconds."""


class Section(BaseModel):
    """One part of the configuration tree."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="wrap")
    @classmethod
    def _keep_truth_values(cls, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Refuse a truth value in place of a number; it would be 1 or 0. YAML reads yes, no, on and off as truth values."""
        value = validate(given)
        pairs = zip(_leaves(given), _leaves(value), strict=False)  # A section is one leaf; its own fields were looked at.
        if any(isinstance(was, bool) and not isinstance(now, bool) for was, now in pairs):
            raise ValueError("should be a number, not a truth value")
        return value

    @field_validator("*")
    @classmethod
    def _obey_rules(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that are too large and text that no file can hold, in lists and mappings too."""
        most = MAX_SECONDS if (info.field_name or "").endswith(_SECONDS) else MAX_NUMBER
        for leaf in _leaves(value):
            if isinstance(leaf, str):
                _require_text(leaf)
            elif isinstance(leaf, int | float) and not -most <= leaf <= most:  # NaN is not in the range either.
                raise ValueError(
                    f"should be a number from {-most} to {most}"
                    if most == MAX_NUMBER
                    else f"should be at most {most} seconds, which is 23 days"
                )
        return value


def _leaves(value: Any) -> Iterator[Any]:
    """The values inside ``value`` that contain no others. Keys of mappings are among them."""
    if isinstance(value, Mapping):
        for key, held in value.items():
            yield key
            yield from _leaves(held)
    elif isinstance(value, list | tuple | set | frozenset):
        for held in value:
            yield from _leaves(held)
    else:
        yield value


def _require_text(text: str) -> None:
    if "\0" in text:
        raise ValueError("should be text without NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("should be text in UTF-8; a file or folder whose name is not has to be renamed") from None
