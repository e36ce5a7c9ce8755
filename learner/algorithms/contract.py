"""Checks of algorithms of other packages: their members, the signatures of their methods, and the returned values. Pure."""

from __future__ import annotations

import inspect
import math
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from computerrl.common.errors import ComputerRLError, ConfigError, Problem

T = TypeVar("T")

FIELD = "learner.algorithm.name"
DERIVE = "derive the class from computerrl.learner.algorithms:GRPO, as examples/hard_tasks.py does"
_OWN = "computerrl.learner.algorithms."
_CALLS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prepare": (("groups",), ("ages",)),
    "loss": (("outputs", "batch"), ()),
}
"""Method -> its positional arguments, and its keyword arguments."""


def check_members(name: str, algorithm: object, *, needs: Collection[str]) -> None:
    """Raise `ConfigError` with every fault of ``algorithm``, called ``name``. ``needs``: all that an algorithm may ask for."""
    missing = [part for part in ("needs", "temperature", *_CALLS) if not hasattr(algorithm, part)]
    if missing:
        raise ConfigError([Problem(FIELD, f"{name!r} has no {', '.join(missing)}", DERIVE)])
    faults = [*_attribute_faults(algorithm, needs), *(fault for method in _CALLS if (fault := _call_fault(algorithm, method)))]
    if faults:
        raise ConfigError([Problem(FIELD, f"{name!r}: {fault}", DERIVE) for fault in faults])


@contextmanager
def blaming(algorithm: object, method: str) -> Iterator[None]:
    """Turn what ``method`` of ``algorithm`` raises, or what is wrong with what it returned, into a `ConfigError` that names both.

    An exception inside an algorithm of this package is a mistake of this package, and keeps its traceback.
    """
    try:
        yield
    except ComputerRLError:
        raise
    except Exception as error:  # code of others may raise anything; the cause goes along
        owner = type(algorithm)
        if owner.__module__.startswith(_OWN):
            raise
        own_file = getattr(sys.modules.get(owner.__module__), "__file__", None)
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if frame.filename == own_file), frames[-1])
        name = f"{owner.__module__}:{owner.__qualname__}.{method}"
        reason = f"{name}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        raise ConfigError([Problem(FIELD, reason, f"correct its {method}; learner/algorithms/grpo.py is the example")]) from error


def returned(value: object, kind: type[T]) -> T:
    """``value``, which has to be a ``kind``. Raises `TypeError`."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"it returned {type(value).__name__}, not {kind.__name__}")


def checked_factor(value: object) -> float:
    """``value`` as a factor of the learning rate. Raises `ValueError`."""
    if isinstance(value, int | float) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"it returned {value!r:.50}, and a factor of the learning rate is a number from 0 up")


def _attribute_faults(algorithm: Any, needs: Collection[str]) -> list[str]:
    """Faults of the members that are no methods."""
    faults = []
    temperature, wanted = algorithm.temperature, algorithm.needs
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not (is_number and math.isfinite(temperature) and temperature > 0):
        faults.append(f"its temperature is {temperature!r:.50}, and has to be a number above 0")
    if not isinstance(wanted, set | frozenset | tuple | list):
        faults.append(f"its needs are {wanted!r:.50}, and have to be a frozenset")
    elif set(map(str, wanted)) - set(needs):
        faults.append(f"its needs are {sorted(map(str, wanted))}, and there are {', '.join(sorted(needs))}")
    return faults


def _call_fault(algorithm: object, method: str) -> str:
    """Why ``method`` cannot be called as the trainer calls it; empty when it can."""
    function = getattr(algorithm, method)
    places, names = _CALLS[method]
    shown = f"{method}({', '.join((*places, *(f'{name}=...' for name in names)))})"
    if not callable(function):
        return f"its {method} is no method {shown}"
    try:
        inspect.signature(function).bind(*places, **dict.fromkeys(names))
    except TypeError as error:
        return f"{shown} cannot be called: {error}"
    except ValueError:
        return ""  # A built-in function, which tells no signature.
    return ""
