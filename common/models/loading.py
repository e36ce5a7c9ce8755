"""Models that a library cannot load, or loads with weights of its own invention, as problems of the configuration.

Learner and actors load the same folder: both do it here. No torch: the library is the caller's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from computerrl.common.errors import ConfigError, Problem

_NEXT_STEP = "look whether this version of the library knows the architecture, or try the other actor.engine"


@contextlib.contextmanager
def refusing_model(library: str, folder: Path, *, next_step: str = _NEXT_STEP) -> Iterator[None]:
    """Around the library's calls that load ``folder`` and first run what they loaded. Raises `ConfigError` for what it refuses;
    ImportError, RuntimeError and MemoryError, which are no fault of the model (memory that runs out), pass."""
    try:
        yield
    except (ImportError, RuntimeError, MemoryError, ConfigError):
        raise
    except Exception as error:  # Libraries refuse a model with errors of many classes, their own among them.
        reason = f"{library} cannot run {str(folder)!r}: {type(error).__name__}: {error}"
        raise ConfigError([Problem("model.name", reason, next_step)]) from error


def load_whole(load: Callable[..., Any], folder: Path, **options: Any) -> Any:
    """The model that ``load`` (`from_pretrained` of a class of transformers) makes of ``folder``, without code from there.

    transformers fills in what a folder lacks with random numbers. Raises `ConfigError` instead, naming a tensor.
    """
    model, found = load(
        folder, local_files_only=True, trust_remote_code=False, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    lacking, unlike = sorted(found["missing_keys"]), sorted(found["mismatched_keys"])
    if unlike:
        name, held, wanted = unlike[0]
        reason = f"{name!r} in {str(folder)!r} is {list(held)}, but config.json makes it {list(wanted)}"
    elif lacking:
        of_model = f"tensors of {type(model).__name__}, among them {lacking[0]!r}"
        reason = f"the weights in {str(folder)!r} lack {len(lacking)} {of_model}"
    else:
        return model
    raise ConfigError([Problem("model.name", reason, "copy config.json and all weight files of the same model")])
