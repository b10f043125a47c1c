"""The trainer's state: it is given one thing at a time, and ends what it was given."""

import dataclasses
import random

import pytest

from tailrace.contracts import Offloaded
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
    "an end of what was not given": (adding, lambda t: t.part_ended(1, 1, 1.0), "its cell 1 works on None"),
    "an end of another version": (adding, lambda t: t.part_ended(2, 0, 1.0), "its cell 0 works on 1"),
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
    state.part_ended(1, 1, 1.0)
    state.part_ended(1, 0, 1.0)
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


def test_it_falls_back_to_nothing_newer_than_what_it_came_up_with():
    """The end of a newer checkpoint may be heard after another trainer was told to load an older one."""
    state = TrainerState(steps=4, keep=3)
    state.up = True
    for version in (1, 2):
        state.steps_on(version)
        state.stepped(version)
        state.became_durable(version)
    assert (state.fallbacks, state.durable) == ([0, 1, 2], 2)
    state.fall_back(1)
    assert (state.fallbacks, state.durable, state.step, state.checkpoint) == ([0, 1], 1, 1, 1)
    assert state.batches == {0: 0, 1: 1}


def test_what_is_seen_and_not_safe_counts_once():
    state = stepping()
    state.stepped(1)
    state.hands_over(fence=False)
    for _ in range(2):
        state.was_published(1)
    assert (state.published, state.published_before_durable) == (1, 1)
    state.steps_on(2)
    state.stepped(2)
    state.became_durable(2)
    state.was_published(2)
    assert state.published_before_durable == 1


def test_one_that_died_reveals_nothing():
    state = stepping()
    state.stepped(1)
    state.hands_over(fence=True)
    state.went_down()
    state.became_durable(1)
    assert not state.reveals(1)


def test_staleness_is_counted_by_batch():
    state = stepping()
    state.consumed(1, {0: 2})
    state.consumed(1, {0: 3, 1: 1})
    assert state.consumed_staleness == {1: {0: 5, 1: 1}}
    assert state.staleness_at_consumption == {}  # it is under way
    state.stepped(1)
    state.consumed(2, {1: 4})
    assert state.staleness_at_consumption == {0: 5, 1: 1}
    for version in (1, 0, 0):
        state.completed(version)
    assert state.staleness_at_completion == {0: 1, 1: 2}


def test_what_cells_add_is_of_one_batch():
    state = adding()
    state.adds(1, [8, 9], cell=1)
    assert (state.accumulated, state.making) == ([7, 8, 9], 1)


def test_a_checkpoint_behind_which_the_trainer_fell_back_comes_late_and_changes_nothing():
    state = trainer()
    for version in (1, 2):
        state.steps_on(version)
        state.stepped(version)
        state.hands_over(fence=True)
    state.fall_back(0)
    assert (state.version, state.publishing) == (0, 0)
    assert state.became_durable(2) == 0
    assert (state.durable, state.fallbacks) == (-1, [0])
    with pytest.raises(ControllerError, match="found Durable\\(3\\), expected at most 2"):
        state.became_durable(3)


def kept_by_the_rule(durable, keep, limit):
    """What is kept of durable checkpoints (version, full, bytes) by trying all: the oldest weights go, then the oldest full."""
    full = [one for one in durable if one[1]][-keep:]
    weights = [one for one in durable if not one[1] and one[0] > full[0][0]]
    while limit and sum(size for _, _, size in full + weights) > limit and (weights or len(full) > 2):
        del (weights or full)[0]
    return {version for version, _, _ in full + weights}


def test_what_is_kept_is_limited_by_count_and_by_bytes(seeds):
    for seed in seeds(40):
        draw = random.Random(seed)
        keep, every, limit = draw.randint(2, 4), draw.randint(1, 4), draw.choice([0, 0, 30, 60, 200])
        state, durable = TrainerState(steps=40, keep=keep, keep_bytes=limit), [(0, True, 0)]
        state.up = True
        for version in range(1, 25):
            state.steps_on(version)
            state.stepped(version)
            kept = set(state.saves(()))
            assert kept == {one[0] for one in durable}, f"seed {seed}"
            full, size = version % every == 0, draw.randint(1, 9) + (20 if version % every == 0 else 0)
            state.became_durable(version, full=full, nbytes=size)
            durable.append((version, full, size))
            left = kept_by_the_rule(durable, keep, limit)
            durable = [one for one in durable if one[0] in left]
            assert state.checkpoint == (max([v for v, full, _ in durable if full]) or None), f"seed {seed}"
            if draw.random() < 0.1:  # it falls back, and what came after the full state is made again
                state.went_down()
                state.came_up()
                back = max(v for v, full, _ in durable if full)
                state.fall_back(back)
                durable = [one for one in durable if one[0] <= back]
                assert state.version == back
                break


def test_a_durable_checkpoint_of_a_batch_that_was_undone_is_no_fallback():
    state = trainer()
    for version in (1, 2):
        state.steps_on(version)
        state.stepped(version)
        state.hands_over(fence=False)
    state.fall_back(1)
    assert state.version == 3  # 2 was seen
    assert state.became_durable(2) == 0
    assert state.fallbacks == [0]


@pytest.mark.parametrize("work", ["steps", "accumulates", "adds"])
def test_a_cell_that_is_given_work_has_left_its_devices_no_more(work):
    state = trainer()
    for cell, seq in ((0, 5), (1, 6)):
        state.leaves(cell, seq)
    state.has_left(Offloaded(1, 6))
    gives = {
        "steps": lambda _: state.steps_on(1),
        "accumulates": lambda _: state.accumulates(1, [7]),
        "adds": lambda cell: state.adds(1, [7], cell),
    }
    for cell in (0, 1) if work == "adds" else (0,):
        gives[work](cell)
    state.has_left(Offloaded(0, 5))  # it was told before
    assert (state.leaving, state.away) == ({}, set())
