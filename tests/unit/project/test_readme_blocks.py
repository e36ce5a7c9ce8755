"""README and docs: their shell blocks, links and sizes, and the algorithm in examples/. The desktop's Python block is played on a
real desktop in tests/integration/tasks/test_gym_on_desktop.py."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from PIL import Image

from computerrl.common.config import LearnerConfig
from computerrl.common.errors import ConfigError
from computerrl.launch.commands.main import cli
from computerrl.launch.commands.options import split_words
from computerrl.launch.plan.config_files import find_config
from computerrl.learner.algorithms import PolicyAges, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO
from tests.support.data.trainer_data import random_groups

ROOT = Path(__file__).resolve().parents[3]
FILES = (*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *sorted((ROOT / "docs").rglob("*.md")))
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
README = PAGES["README.md"]


def blocks(language: str, *texts: str) -> list[str]:
    return [block for text in texts for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def learner(name: str) -> LearnerConfig:
    return LearnerConfig.model_validate({"algorithm": {"name": name}})


def classes(source: str) -> dict[str, list[str]]:
    """Class -> its methods, without documentation."""
    return {
        node.name: [ast.dump(part) for part in node.body if isinstance(part, ast.FunctionDef)]
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def test_algorithm_of_the_tutorial_is_the_example() -> None:
    (shown,) = blocks("python", PAGES["docs/tutorials/algorithm.md"])
    assert classes(shown) == classes((ROOT / "examples" / "hard_tasks.py").read_text())
    exec(compile(shown, "algorithm.md", "exec"), {"__name__": "tutorial"})


@pytest.mark.parametrize("seed", range(5))
def test_example_counts_a_step_by_the_share_of_its_task_s_failures(seed: int) -> None:
    algorithm = make_algorithm(learner("examples.hard_tasks:HardTasks"))
    groups = random_groups(num_groups=4, size=4, seed=seed)
    found = algorithm.prepare(groups, ages=PolicyAges(0))
    plain = GRPO({}, LearnerConfig()).prepare(groups, ages=PolicyAges(0))
    assert list(map(id, found.samples)) == list(map(id, plain.samples))
    share = {}
    for group in groups:
        steps = [(step, one.success) for one in group.trajectories for step in one.steps]
        failed = sum(not success for _, success in steps) / len(steps)
        share |= {id(step): failed for step, _ in steps}
    wanted = [value * share[id(step)] for value, step in zip(plain.advantage_S, plain.samples, strict=True)]
    np.testing.assert_allclose(found.advantage_S, wanted, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_mask_of_the_algorithms_page_takes_the_advantage_of_certain_tokens_alone(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = blocks("python", PAGES["docs/reference/algorithms.md"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"uncertain_{seed}"
    (tmp_path / f"{name}.py").write_text(shown)
    groups = random_groups(num_groups=4, size=4, seed=seed)
    found = make_algorithm(learner(f"{name}:UncertainTokens")).prepare(groups, ages=PolicyAges(0))
    assert found.token_advantages is not None
    for step, advantage, tokens in zip(found.samples, found.advantage_S, found.token_advantages, strict=True):
        trained = np.asarray(step.behavior_logprobs) < -0.05
        np.testing.assert_array_equal(tokens[trained], advantage)
        assert not tokens[~trained].any()


WHOLE = """class Mine:
    needs = frozenset()
    temperature = 1.0
    def __init__(self, options, learner): ...
    def prepare(self, groups, *, ages): ...
    def loss(self, outputs, batch): ...
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Mine:\n    pass\n", "takes no arguments"),
        ("class Mine:\n    def __init__(self, options, learner):\n        pass\n", "has no needs, temperature, prepare, loss"),
        ("class Mine:\n    def __init__(self, options, learner):\n        {}['x']\n", "KeyError: 'x'"),
        ("import nowhere\n", "cannot be imported"),
        ("class Other:\n    pass\n", "cannot be imported"),
        ("Mine = undefined\n", "NameError"),
        ("class Mine(\n", "SyntaxError"),
        (f"{WHOLE}    prepare = None\n", "its prepare is no method prepare(groups, ages=...)"),
        (f"{WHOLE}    def prepare(self, groups): ...\n", "prepare(groups, ages=...) cannot be called"),
        (f"{WHOLE}    def loss(self, outputs): ...\n", "loss(outputs, batch) cannot be called"),
        (f"{WHOLE}    temperature = 0\n", "its temperature is 0"),
        (f"{WHOLE}    temperature = float('nan')\n", "its temperature is nan"),
        (f"{WHOLE}    needs = None\n", "its needs are None"),
        (f"{WHOLE}    needs = frozenset({{'proximal_logprob'}})\n", "there are proximal_logprobs, reference_logprobs"),
    ],
)
def test_algorithm_of_others_that_breaks_is_a_problem_with_a_next_step(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # An algorithm is found in the current folder.
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"mine_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(ConfigError) as raised:
        make_algorithm(learner(f"{name}:Mine"))
    (problem,) = raised.value.problems
    assert problem.field == "learner.algorithm.name" and said in problem.reason and problem.next_step


def test_algorithm_s_own_complaint_about_options_stays_what_it_is() -> None:
    config = LearnerConfig.model_validate({"algorithm": {"name": "examples.hard_tasks:HardTasks", "options": {"eps": 1}}})
    with pytest.raises(ConfigError, match=r"learner\.algorithm\.options\.eps: unknown option"):
        make_algorithm(config)


def shown_commands() -> list[list[str]]:
    """The words after `computerrl` of every command in the pages' shell blocks."""
    shown = "\n".join(blocks("bash", *PAGES.values()))
    lines = [part for line in shown.splitlines() for part in line.partition("#")[0].split(";")]
    return [shlex.split(line)[1:] for line in lines if line.strip().startswith("computerrl ")]


@pytest.mark.parametrize("words", shown_commands(), ids=" ".join)
def test_command_of_a_page_is_one_that_exists(words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group):
        command = command.commands[words[0]]
        words = words[1:]
    context = click.Context(command, info_name=command.name, resilient_parsing=True)
    options: dict[str, Any] = {}
    parser = command.make_parser(context)
    options, rest, _ = parser.parse_args(list(words))
    if isinstance(options.get("words"), tuple):
        configs, overrides = split_words(options["words"], None)
        assert all(find_config(config) for config in configs if config != "CONFIG")
        assert all("=" in override for override in overrides)
    assert rest == []


def test_examples_of_the_makefile_are_values_that_there_are() -> None:
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("# For example ARGS=")]
    values = dict(word.split("=", 1) for word in shlex.split(line.removeprefix("# For example ").replace(",", " ")))
    assert list((ROOT / "benchmarks").glob(f"*/{values['BENCH']}.py")) and (ROOT / values["TESTS"]).is_dir()
    from computerrl.common.config import load_config

    assert load_config(ROOT / "configs" / "quickstart.yaml", overrides=[values["ARGS"]])


def test_shell_blocks_are_shell() -> None:
    for block in blocks("bash", *PAGES.values()):
        done = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_lead_to_files_and_headings(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text("utf-8")), target


def test_readme_is_short_has_a_picture_and_leads_to_the_documentation() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 100
    pictures = [ROOT / name for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)]
    assert len(pictures) == 2 and all(path.stat().st_size < 1_500_000 for path in pictures)
    with Image.open(pictures[0]) as film:
        assert film.n_frames > 10 and film.info["loop"] == 0
    assert "](docs/index.md)" in README


def test_index_of_the_documentation_leads_to_every_page() -> None:
    index = PAGES["docs/index.md"]
    named = {f"docs/{page}" for page in re.findall(r"^- \[[^\]]+\]\(([^)#]+)\)", index, re.MULTILINE)}
    assert named == {page for page in PAGES if page.startswith("docs/")} - {"docs/index.md"}


def test_folders_of_the_documentation_hold_fifteen_files_at_most() -> None:
    listed = subprocess.run(["git", "ls-files", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert max(Counter(Path(name).parent for name in listed).values()) <= 15


def test_notebook_is_one_without_outputs_whose_cells_are_python() -> None:
    notebook = json.loads((ROOT / "examples" / "desktop.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\w-]{1,64}", name) for name in ids)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 4 and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    for cell in code:
        compile("".join(cell["source"]), cell["id"], "exec")
