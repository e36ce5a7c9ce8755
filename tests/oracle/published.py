"""Runs the published evaluators of OSWorld (package ``desktop_env``) in a virtual environment of their own.

Reads one call a line from standard input as JSON (``metric``, ``args``, ``options``) and writes its outcome a line to the file
that the first argument names: ``{"value": 0.5}`` or ``{"error": "KeyError: ..."}``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import logging
import math
import os
import sys
import tempfile
import types
import warnings
from typing import Any

NOT_INSTALLED = ("easyocr", "borb", "borb.pdf")
"""Imported by the package's modules and used by none of the functions that are called here. They weigh gigabytes."""


def load_metrics() -> Any:
    """The package's functions. The packages above them import a whole desktop controller, so they are put in by hand."""
    for name in NOT_INSTALLED:
        stub: Any = types.ModuleType(name)
        stub.Document = stub.PDF = None
        sys.modules[name] = stub
    found = importlib.util.find_spec("desktop_env")
    assert found is not None and found.origin is not None
    folder = os.path.dirname(found.origin)
    for name, path in (("desktop_env", folder), ("desktop_env.evaluators", os.path.join(folder, "evaluators"))):
        package = types.ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    # Its list of public suffixes comes from the network; the one that lies in the package is enough.
    tldextract = importlib.import_module("tldextract")
    tldextract.extract = tldextract.TLDExtract(suffix_list_urls=())  # type: ignore[attr-defined]
    return importlib.import_module("desktop_env.evaluators.metrics")


def outcome(metrics: Any, call: dict[str, Any]) -> dict[str, Any]:
    """What a call gives or raises. What it prints is dropped."""
    silent = io.StringIO()
    try:
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            value = float(getattr(metrics, call["metric"])(*call["args"], **call["options"]))
    # The boundary of another project's functions: whatever they raise is their outcome.
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"value": value} if math.isfinite(value) else {"error": f"gave {value}"}


def main() -> None:
    """Answer calls until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    metrics = load_metrics()
    with tempfile.TemporaryDirectory() as folder, open(sys.argv[1], "w", encoding="utf-8") as answers:
        # Some write files into the current folder.
        os.chdir(folder)
        for line in sys.stdin:
            answers.write(json.dumps(outcome(metrics, json.loads(line))) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
