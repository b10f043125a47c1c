"""The turns of responses out of events, beside a slow reader that knows the whole log."""

import random

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.profile.run import MeasuredTurns


def ref(name, kept=0):
    return c.TrajectoryRef(name, 0, 0, kept=kept)


def a_response(name, numbers):
    """Events of a response with their times, and the turns that it has."""
    now, total, events, turns = numbers.uniform(0, 9), 0, [], []
    for number in range(1, numbers.randint(1, 5)):
        tokens, answer, waited = numbers.randint(1, 40), numbers.randint(0, 9), numbers.uniform(0, 3)
        total += tokens
        now += numbers.uniform(0, 2)
        events.append((now, c.TurnEnded("r0", name, total)))
        total += answer
        now += waited
        events.append((now, c.Turned(name, number, total)))
        turns.append((tokens, pytest.approx(waited)))
    last = numbers.randint(1, 40)
    if numbers.random() < 0.5:  # the environment ends it
        events.append((now + 1, c.TurnEnded("r1", name, total + last)))
        events.append((now + 2, c.Turned(name, len(turns) + 1, total + last + 2, done=True)))
    else:
        events.append((now + 1, c.Finished("r1", name, total + last)))
    return events, (*turns, (last, 0.0))


@pytest.mark.parametrize("seed", range(20))
def test_turns_are_those_of_each_response(seed):
    numbers = random.Random(seed)
    told = {f"t{number}": a_response(f"t{number}", numbers) for number in range(8)}
    fold, found = MeasuredTurns(), {}
    fold.routed([ref(name) for name in told])
    for now, event in sorted((one for events, _ in told.values() for one in events), key=lambda one: one[0]):
        turns = fold.heard(now, event)
        if turns is not None:
            found[event.trajectory] = turns
        else:
            fold.routed([ref(event.trajectory, kept=event.tokens)])  # it goes on elsewhere
    assert found == {name: turns for name, (_, turns) in told.items()}


def test_a_response_that_begins_anew_has_only_its_new_turns():
    fold = MeasuredTurns()
    fold.heard(1.0, c.TurnEnded("r0", "t", 5))
    fold.heard(2.0, c.Turned("t", 1, 7))
    fold.routed([ref("t")])
    fold.heard(3.0, c.TurnEnded("r0", "t", 4))
    assert fold.heard(3.5, c.Turned("t", 1, 6)) is None
    assert fold.heard(4.0, c.Finished("r0", "t", 9)) == ((4, 0.5), (3, 0.0))


def test_an_end_that_is_told_twice_counts_once_from_the_first():
    fold = MeasuredTurns()
    fold.heard(1.0, c.TurnEnded("r0", "t", 5))
    fold.heard(6.0, c.TurnEnded("r1", "t", 5))
    fold.heard(7.0, c.Turned("t", 1, 5))
    assert fold.heard(9.0, c.Finished("r1", "t", 8)) == ((5, 6.0), (3, 0.0))
