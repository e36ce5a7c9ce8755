"""Other words for the same: what is asked for stays, no word of the tests is one of training, and every family has enough."""

from __future__ import annotations

import random

import pytest

from computerrl.common.actions import parse_action
from computerrl.common.config import DesktopConfig, TasksConfig, Wordings
from computerrl.common.messages import TaskRef
from computerrl.common.wire.transport import LocalChannel
from computerrl.env_server.client import DesktopClient
from computerrl.env_server.drivers.scripted import ScriptedDriver
from computerrl.env_server.serving.service import DesktopService
from computerrl.env_server.tasks import FAMILIES
from computerrl.env_server.tasks.wordings import _FRAMES, _ORDERS, _VERBS, all_wordings, reworded, said_to_agents

WORDINGS: tuple[Wordings, ...] = ("plain", "seen", "unseen")
CONFIG = DesktopConfig(driver="scripted", observation="tree", num_desktops=1)


def test_seed_decides_and_plain_changes_nothing() -> None:
    text = "Set cell D6 to daisy."
    assert reworded(text, "plain", seed=3) == text
    assert [reworded(text, "seen", seed=seed) for seed in range(9)] == [reworded(text, "seen", seed=seed) for seed in range(9)]
    assert all(reworded(text, kind, seed=7) in all_wordings(text, seed=7) for kind in WORDINGS)
    assert reworded(" ", "seen", seed=1) == " "


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_every_family_is_said_in_many_ways_none_of_which_is_tested_and_trained(name: str) -> None:
    made = FAMILIES[name].make(5).instruction or "Click on the link to the page."
    seen = {reworded(made, "seen", seed=seed) for seed in range(200)}
    unseen = {reworded(made, "unseen", seed=seed) for seed in range(200)}
    assert len(seen) >= 4 and len(seen | unseen) >= 7 and not seen & unseen and made not in unseen, (seen, unseen)


def test_what_is_asked_for_stays_whatever_the_words() -> None:
    rng = random.Random(1)
    for name, family in sorted(FAMILIES.items()):
        seed = rng.randrange(1000)
        made = family.make(seed).instruction
        if made is None:
            continue
        verb = next((verb for verb in (" ".join(made.split()[:2]), made.split()[0]) if verb in _VERBS), "")
        kept = made[len(verb) :] if verb else made[1:]
        for kind in WORDINGS[1:]:
            for number in range(20):
                assert kept in reworded(made, kind, seed=number), (name, made)


def test_words_of_tests_are_none_of_training() -> None:
    trained = {verb for verbs, _ in _VERBS.values() for verb in verbs} | _VERBS.keys() | _ORDERS
    tested = {verb for _, verbs in _VERBS.values() for verb in verbs}
    assert not trained & tested
    assert not set(_FRAMES["seen"]) & set(_FRAMES["unseen"])
    assert all(key in seen for key, (seen, _) in _VERBS.items()), "the family's own verb is one of them"


def test_task_files_and_bundles_keep_their_words() -> None:
    tasks = TasksConfig(wordings="unseen")
    for family in ("osworld-1", "cua-gym-1"):
        assert said_to_agents("Click it.", TaskRef(family, 3, "training"), tasks) == "Click it."
    assert said_to_agents("Click it.", TaskRef("web-click-button", 3, "training"), tasks) != "Click it."


@pytest.mark.parametrize("family", ["editor-type-save", "calc-set-cell", "files-move"])
def test_agents_read_other_words_and_demonstrators_the_familys_own(family: str) -> None:
    task = TaskRef(family, 5, "demonstration")
    told = {}
    for wordings in WORDINGS:
        tasks = TasksConfig.model_validate({"wordings": wordings})
        service = DesktopService(CONFIG, tasks=tasks, make=lambda index: ScriptedDriver(CONFIG))
        client = DesktopClient(LocalChannel(service.handle), config=CONFIG)
        try:
            assert service.wait_ready(1, timeout_s=60)
            lease = client.lease("a", task)
            told[wordings] = client.reset(lease, task).instruction
            for _ in range(20):
                action = parse_action(client.demonstrate(lease).action_text)
                if action.name == "done":
                    break
                client.step(lease, action)
            assert client.evaluate(lease, "done").success
        finally:
            service.close()
    assert len(set(told.values())) == 3
    assert all(told[wordings] == reworded(told["plain"], wordings, seed=5) for wordings in WORDINGS)
