"""Expected files that no answer could agree with: found before a task is played, by comparing each file with itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from computerrl.env_server.tasks.osworld.abilities import Refusal
from computerrl.env_server.tasks.osworld.assets import Assets
from computerrl.env_server.tasks.osworld.format import Judge, Source, TaskFile
from computerrl.env_server.tasks.osworld.metrics import metric
from computerrl.env_server.tasks.osworld.metrics.files import BrokenFile
from computerrl.env_server.tasks.osworld.metrics.matching import BadRule
from computerrl.env_server.tasks.reading.limits import LimitPassed

SAME_KIND = frozenset([
    "compare_csv", "compare_docx_files", "compare_docx_files_and_ignore_new_lines", "compare_docx_images",
    "compare_docx_lines", "compare_docx_tables", "compare_image_list", "compare_images", "compare_line_spacing",
    "compare_pdfs", "compare_pptx_files", "compare_spreadsheet", "compare_table", "compare_text_file",
    "compare_zip_files", "simple_docx_compare", "simple_pptx_compare",
])  # fmt: skip
"""Metrics whose result and expected file are of one kind, so that a file can stand on both sides."""


def gold_faults(task: TaskFile, assets: Assets) -> Iterator[Refusal]:
    """What is wrong with the expected files of a task, as far as they are in the asset folder."""
    for judge in task.evaluator.judges():
        fault = _fault(judge, assets)
        if fault is not None:
            yield Refusal("broken", f"evaluator.expected ({judge.func})", fault)


def _fault(judge: Judge, assets: Assets) -> str | None:
    expected = judge.expected
    if not isinstance(expected, Source) or expected.type != "cloud_file":
        return None
    url = expected.args.get("path")
    place = assets.find(url) if isinstance(url, str) else None
    return None if place is None else fault_of(place, judge)


def fault_of(place: Path, judge: Judge) -> str | None:
    """What is wrong with an expected file, or with the rules for it; None where the file cannot stand on both sides."""
    if judge.func not in SAME_KIND:
        return None
    try:
        metric(judge.func)(str(place), str(place), **judge.options)
    except BrokenFile as error:
        # Another file may lie beside the expected one only when the task is played.
        return str(error) if error.path == place else None
    except (BadRule, LimitPassed) as error:
        return str(error)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001
        # Whatever a metric stumbles over in one file, it would in any answer that is like it.
        return f"{type(error).__name__}: {error}"
    return None
