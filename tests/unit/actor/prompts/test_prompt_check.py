"""A chat template is a program of the model folder's: what it does to prompts is found out before a run starts, within limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from computerrl.actor.prompts.check import prompt_problems
from computerrl.common.config import RunConfig
from computerrl.common.errors import ConfigError
from computerrl.launch.run.preflight import check_prompt
from tests.support.data.tokenizer_data import CHATML, FAMILIES, make_folder

_ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
_DOUBLING = "{% set all = namespace(x='ab') %}{% for i in range(60) %}{% set all.x = all.x ~ all.x %}{% endfor %}{{ all.x }}"


def config(folder: Path, *, format: str = "compact") -> RunConfig:
    prompt = {"format": format, "chat_template": True, "max_prompt_tokens": 600}
    return RunConfig.model_validate({"name": "trial", "model": {"name": str(folder)}, "actor": {"prompt": prompt}})


def folder_with(template: str, folder: Path) -> Path:
    return make_folder(replace(FAMILIES["bytes"], template=template), folder)


@pytest.mark.parametrize(
    ("template", "reason"),
    [(CHATML, None), (CHATML + _ENDLESS, "does not end within 6 s"), (CHATML + _DOUBLING, "")],
)
def test_template_without_end_or_bound_is_a_problem_of_the_configuration(
    tmp_path: Path, template: str, reason: str | None
) -> None:
    problems = prompt_problems(config(folder_with(template, tmp_path)), max_cpu_s=6)
    assert len(problems) == (0 if reason is None else 1)
    assert all(problem.field in ("model.name", "actor.prompt") and (reason or "") in problem.reason for problem in problems)


def test_prompts_that_do_not_fit_the_folder_are_findings_before_a_run_starts(tmp_path: Path) -> None:
    folder = folder_with("{{ raise_exception('never') }}", tmp_path)
    (finding,) = check_prompt(config(folder), None)  # type: ignore[arg-type]
    assert finding.error is ConfigError and "does not take turns of user: never" in finding.problem.reason
    long = config(folder_with(CHATML, tmp_path / "other"), format="computerrl_text")
    (finding,) = check_prompt(long, None)  # type: ignore[arg-type]
    assert finding.problem.field == "actor.prompt.max_prompt_tokens"
    assert check_prompt(config(tmp_path / "none"), None) == []  # type: ignore[arg-type]
