"""Shortening a walk: what is left leads to the same difference, and nothing of it can be left out."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from computerrl.common.messages import Action
from computerrl.env_server.tasks.synthesis.walks import shortened

PRESSES = tuple(Action("key", {"keys": name}) for name in "abcd")


@given(st.lists(st.sampled_from(PRESSES), max_size=7), st.lists(st.sampled_from(PRESSES), max_size=3))
def test_shortened_walk_leads_there_and_needs_each_action(walk: list[Action], wanted: list[Action]) -> None:
    def leads_there(actions: Sequence[Action]) -> bool:
        """Whether ``wanted`` is a subsequence."""
        rest = iter(actions)
        return all(any(action == other for other in rest) for action in wanted)

    if not leads_there(walk):
        walk = [*walk, *wanted]
    assert list(shortened(walk, leads_there)) == wanted


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_actions_that_undo_each_other_go_in_the_end_only_where_one_alone_may_go(toggles: list[bool]) -> None:
    walk = [PRESSES[0] if toggle else PRESSES[1] for toggle in toggles]

    def leads_there(actions: Sequence[Action]) -> bool:
        """Whether the switch that the first key toggles is as after the whole walk."""
        return actions.count(PRESSES[0]) % 2 == toggles.count(True) % 2

    kept = shortened(walk, leads_there)
    assert PRESSES[1] not in kept and leads_there(kept)
    assert not any(leads_there(kept[:index] + kept[index + 1 :]) for index in range(len(kept)))
