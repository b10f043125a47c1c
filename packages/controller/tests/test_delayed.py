"""Training does not wait for a group that takes too long, where admission says so (StaleFlow, section 4.3)."""

from collections import Counter

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c


class Slow(Scripted):
    """Attempts at prompt 0 never end, but for the one of that number."""

    def __init__(self, patience_s, *, ends_at, **changes):
        admission = policy("admission", "bounded", bound=1, patience_s=patience_s)
        options = {"sync": policy("sync", "when-drained"), "steps": 60, "buffer_groups": None, **changes}
        super().__init__(spec(admission=admission, **options))
        self.ends_at, self.attempts = ends_at, []

    def answers(self, command):
        if not isinstance(command, c.Route):
            return super().answers(command)
        for ref in command.trajectories:
            if ref.prompt == 0 and ref.group not in self.attempts:
                self.attempts.append(ref.group)
        stays = {
            ref.trajectory
            for ref in command.trajectories
            if ref.prompt == 0 and self.attempts.index(ref.group) + 1 < self.ends_at
        }
        return [event for event in super().answers(command) if getattr(event, "trajectory", None) not in stays]


def _prompts_trained_on(run):
    names = [name for command in of(c.Step, run.given) for batch in command.mini_batches for name in batch]
    prompt_of = {ref.trajectory: ref.prompt for command in of(c.Route, run.given) for ref in command.trajectories}
    return Counter(prompt_of[name] for name in names)


def test_without_patience_training_waits_for_ever():
    run = Slow(None, ends_at=2)
    run.go(c.Tick())
    run.later(1e6)
    assert run.controller.trainer.step < 2
    assert run.controller.ledger.counts.delayed == 0


def test_a_group_that_training_waits_for_is_dropped_and_its_prompt_is_trained_on_later_once():
    run = Slow(5.0, ends_at=3)
    run.go(c.Tick())
    step = run.controller.trainer.step
    run.later(4.9)
    assert run.controller.trainer.step == step
    assert not of(c.Abort, run.given)
    run.later(0.2)
    assert run.controller.trainer.step > step
    (abort,) = of(c.Abort, run.given)
    assert abort.reason.why is c.Why.DELAYED_AGAIN
    assert abort.reason.numbers == {"waited_s": pytest.approx(5.1), "limit_s": 5.0}
    for _ in range(40):
        run.later(3.0)
    counts = run.controller.ledger.counts
    assert run.controller.finished
    assert counts.delayed == counts.deferred == 2
    assert len(run.attempts) == 3
    trained = _prompts_trained_on(run)
    assert trained[0] == 2  # both samples of its third attempt
    assert set(trained.values()) == {2}
    assert counts.filtered + counts.failed == 0


def test_a_delay_that_ends_in_time_starts_the_clock_anew():
    run = Slow(5.0, ends_at=2)
    run.go(c.Tick())
    run.later(4.0)
    held = [name for name, state in run.controller.ledger.trajectories.items() if state.prompt == 0]
    replica = run.controller.ledger.trajectories[held[0]].replica
    run.go(*(c.Finished(replica, name, 10) for name in held))
    assert run.controller.delayed_since is None
    assert run.controller.ledger.counts.delayed == 0
    for _ in range(10):
        run.later(3.0)
    assert run.controller.finished


def test_a_source_that_gives_the_prompt_up_filters_it():
    run = Slow(5.0, ends_at=99)
    run.controller.source.ended = lambda group, end: c.PromptFate.DONE
    run.go(c.Tick())
    run.later(5.0)
    run.later(0.1)
    counts = run.controller.ledger.counts
    assert counts.delayed == 1
    assert counts.deferred == 0
    assert counts.filtered_because == {c.Why.DELAYED: 1}


def test_a_part_of_a_batch_is_given_at_once_when_a_dropped_group_makes_room_for_it():
    run = Slow(5.0, ends_at=99, training=policy("training", "dynamic-batch", parts=2))
    gate, counts = run.controller.gate, run.controller.ledger.counts
    trainable = gate.trainable
    gate.trainable = lambda: trainable() if counts.deferred else []  # until then, other groups have the places
    run.go(c.Tick())
    assert run.view.buffered
    assert not of(c.Accumulate, run.given)
    slow = next(iter(run.attempts))
    run.controller.groups.drop(slow, c.GroupEnd.DELAYED, c.Reason(c.Why.DELAYED))
    given = run.go(c.Tick(), leave=(c.Route,))
    assert {abort.reason.why for abort in of(c.Abort, given)} == {c.Why.DELAYED_AGAIN}
    assert of(c.Accumulate, given)
