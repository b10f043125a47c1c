"""The trainer's state: it is given one thing at a time, and ends what it was given."""

import dataclasses

import pytest

from tailrace.controller.errors import ControllerError
from tailrace.controller.trainer_state import TrainerState


def trainer(*, up=True):
    state = TrainerState(steps=4)
    state.up = up
    return state


def adding():
    state = trainer()
    state.adds(1, [7], cell=0)
    return state


def stepping():
    state = trainer()
    state.steps_on(1)
    return state


REFUSED = {
    "one that is down": (
        lambda: trainer(up=False),
        lambda t: t.steps_on(1),
        "is down, expected one that is up and free",
    ),
    "a second step": (stepping, lambda t: t.steps_on(2), "works on version 1"),
    "a part in a step": (stepping, lambda t: t.accumulates(1, [8]), "works on version 1"),
    "gradients in a step": (stepping, lambda t: t.adds(1, [8], 1), "works on version 1"),
    "a step beside a cell at work": (adding, lambda t: t.steps_on(1), "works on version 1"),
    "a cell that is at work": (adding, lambda t: t.adds(1, [8], 0), "works on version 1"),
    "an end of what was not given": (adding, lambda t: t.part_ended(1, 1), "its cell 1 works on None"),
    "an end of another version": (adding, lambda t: t.part_ended(2, 0), "its cell 0 works on 1"),
    "a step that was not given": (adding, lambda t: t.stepped(1), "while the trainer makes None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(name):
    prepare, transition, message = REFUSED[name]
    state = prepare()
    before = dataclasses.asdict(state)
    with pytest.raises(ControllerError, match=message):
        transition(state)
    assert dataclasses.asdict(state) == before


def test_cells_add_beside_each_other_and_then_all_of_it_steps():
    state = adding()
    state.adds(1, [8], cell=1)
    state.part_ended(1, 1)
    state.part_ended(1, 0)
    state.steps_on(1)
    state.stepped(1)
    assert (state.version, state.step, state.accumulated) == (1, 1, [])


@pytest.mark.parametrize("fence", [True, False])
def test_behind_a_fence_a_version_is_sealed_until_it_is_durable(fence):
    state = stepping()
    state.stepped(1)
    assert state.hands_over(fence) == (1, fence)
    assert state.shown == (-1 if fence else 1)
    state.became_durable(1)
    assert state.reveals(1)
    assert state.shown == 1
