"""The pages of docs/results: their tables are those that their data give, and every table and picture that is kept is shown."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(RESULTS.glob("*.md"))}


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("result_tables", ROOT / "docs" / "site" / "result_tables.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = load()


@pytest.mark.parametrize("name", PAGES)
def test_page_holds_what_its_data_give(name: str) -> None:
    assert PAGES[name] == tables.written(PAGES[name]), "make results"


def test_every_table_and_picture_that_is_kept_is_on_one_page() -> None:
    shown = sorted(source for page in PAGES.values() for source in tables.sources(page))
    kept = [(f"data/{path.name}", None) for path in (RESULTS / "data").glob("*.json")]
    for path in (RESULTS / "figures").glob("*.json"):
        tree = json.loads(path.read_text(encoding="utf-8"))
        kept += [(f"figures/{path.name}", name) for name in tree] if isinstance(tree, dict) else []
    assert shown == sorted(kept, key=lambda one: (one[0], one[1] or ""))
    pictures = sorted(name for page in PAGES.values() for name in re.findall(r"\]\(pictures/([^)]+)\)", page))
    assert pictures == sorted(path.name for path in (RESULTS / "pictures").iterdir())


def test_earlier_figures_name_a_page_that_there_is() -> None:
    history = json.loads((RESULTS / "figures" / "history.json").read_text(encoding="utf-8"))
    assert len(history) > 50 and {f"{one['page']}.md" for one in history} <= PAGES.keys()
    assert all(one["what"] and one["figure"] for one in history)


def test_page_without_tables_has_no_table_but_every_table_a_mark() -> None:
    for name, page in PAGES.items():
        outside = re.sub(r"<!-- table: .*?<!-- end -->", "", page, flags=re.DOTALL)
        assert "\n| " not in outside, name


def page_of(folder: Path, data: Any) -> str:
    (folder / "one.json").write_text(json.dumps(data), encoding="utf-8")
    made: str = tables.written("# A\n\n<!-- table: one.json -->\nold\n<!-- end -->\n\ntext\n", folder)
    return made


def test_another_figure_of_a_study_gives_another_table(tmp_path: Path) -> None:
    data = json.loads((RESULTS / "data" / "faults.json").read_text(encoding="utf-8"))
    before = page_of(tmp_path, data)
    assert "| undisturbed | 0 ± 0 | 261 ± 1 |" in before and "old" not in before and before.endswith("<!-- end -->\n\ntext\n")
    data["cells"][0]["run_took_s"] += 100
    data["cells"][0]["date"] = "2026-01-02T03:04:05+00:00"
    after = page_of(tmp_path, data)
    assert "| undisturbed | 0 ± 0 | 261 ± 1 |" not in after and "2026-01-02" in after and "2026" not in before
    assert tables.written(after, tmp_path) == after


def test_rows_of_a_benchmark_are_shown_as_the_command_wrote_them(tmp_path: Path) -> None:
    machine = {"num_cores": 2, "cpu": "Some CPU", "memory_mb": 24576, "gpus": ["NVIDIA H200"]}
    rows = [
        {"name": "a step", "value": 0.01234, "unit": "s", "target": 0.1, "reason": None},
        {"name": "tokens", "value": 131200.4, "unit": "1/s", "target": None, "reason": None},
    ]
    head = {"machine": machine, "commit": "a" * 40, "date": "2026-01-02T03:04:05+00:00", "command": "computerrl bench gpu"}
    page = page_of(tmp_path, {**head, "rows": rows})
    for line in ("| name | value | unit | target |", "| a step | 0.01234 | s | 0.1 |", "| tokens | 131,200 | 1/s |  |"):
        assert f"\n{line}\n" in page
    assert "`computerrl bench gpu`; 2 cores (Some CPU), 24 GB, NVIDIA H200; commit aaaaaaaa; 2026-01-02." in page
