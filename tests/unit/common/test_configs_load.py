"""Every file in configs/ is valid, and says what its head promises."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from computerrl.common.config import load_config, load_hosts
from computerrl.env_server.client import family_names
from computerrl.learner.algorithms import ALGORITHMS, make_algorithm
from computerrl.learner.algorithms.grpo import GRPO, GRPOOptions

FOLDER = Path(__file__).resolve().parents[3] / "configs"
MACHINES = sorted([FOLDER / "hosts.yaml", *(FOLDER / "sites").glob("*.yaml")])
"""What runs where, not what a run is; sites are loaded in test_cluster_plan.py."""
FILES = sorted(set(FOLDER.rglob("*.yaml")) - set(MACHINES))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_file_loads_and_names_known_families(path: Path) -> None:
    config = load_config(path)
    assert family_names(config)
    make_algorithm(config.learner)
    assert path.read_text().startswith("#"), "a comment on top says what it is for"


def test_machines_have_a_comment_on_top_and_the_hosts_load() -> None:
    assert load_hosts(FOLDER / "hosts.yaml").workers
    assert all(path.read_text().startswith("#") for path in MACHINES) and len(MACHINES) >= 3


def test_quickstart_plays_six_families_over_three_applications_contained() -> None:
    config = load_config(FOLDER / "quickstart.yaml")
    families = family_names(config)
    assert len(families) >= 6
    assert len({name.split("-")[0] for name in families}) >= 3
    assert config.desktop.driver == "apptainer"
    assert config.learner.recipe.eval_episodes_per_family >= 20


def test_every_algorithm_has_a_config() -> None:
    configured = {load_config(path).learner.algorithm.name for path in (FOLDER / "algorithms").glob("*.yaml")}
    assert configured == set(ALGORITHMS)


@pytest.mark.parametrize("option", ["objective", "correction", "proximal", "lr_scaling"])
def test_every_choice_of_the_objective_has_a_config(option: str) -> None:
    learners = [load_config(path).learner for path in (FOLDER / "algorithms").glob("*.yaml")]
    made = [make_algorithm(learner) for learner in learners]
    chosen = {getattr(one.options, option) for one in made if isinstance(one, GRPO)}
    assert chosen == set(get_args(GRPOOptions.model_fields[option].annotation))
