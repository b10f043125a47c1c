"""A full experience buffer: it holds replicas back, or complete groups leave it untrained."""

import pytest
from scripted import Scripted, of, policy, spec
from wrong_policies import Wrong, boom, ended

from tailrace import contracts as c


def beside_a_slow_trainer(rounds=8, **changes):
    """A run whose trainer is at its first step all the time."""
    run = Scripted(spec(steps=4, **changes))
    run.go(c.Tick(), leave=(c.Score, c.Step))
    for _ in range(rounds):
        run.catch_up(c.Score, leave=(c.Score, c.Step))
    return run


def test_without_eviction_replicas_wait_for_the_trainer():
    run = beside_a_slow_trainer(buffer_groups=5)
    assert run.view.counts.admitted == 2 + 5  # two are trained on
    assert run.view.counts.filtered == 0


@pytest.mark.parametrize("batches", [1, 3])
def test_open_batches_say_how_much_is_open_where_nothing_else_does(batches):
    run = beside_a_slow_trainer(buffer_groups=None, open_batches=batches)
    assert run.view.counts.admitted == min(8, 2 + 2 * batches)


@pytest.mark.parametrize("name", ["oldest", "stalest"])
def test_with_eviction_the_buffer_stays_small_and_every_prompt_has_its_end(name):
    run = beside_a_slow_trainer(buffer_groups=2, open_batches=1, eviction=policy("eviction", name))
    counts = run.view.counts
    assert counts.filtered_because == {"evicted": counts.filtered}
    assert counts.filtered > 4
    aborted = [command for command in of(c.Abort, run.given) if command.reason.why is c.Why.EVICTED]
    assert len(aborted) == counts.filtered
    run.catch_up()
    assert run.view.finished, run.view.failure
    assert counts.trained == 4 * 2
    assert counts.admitted == counts.trained + counts.filtered


def test_one_that_goes_wrong_is_named():
    wrong = Wrong(policy("eviction", "oldest"), "evict", boom)
    run = beside_a_slow_trainer(buffer_groups=2, open_batches=1, eviction=wrong, rounds=4)
    assert ended(run).startswith("eviction policy ")
