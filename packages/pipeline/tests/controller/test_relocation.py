"""Which relocations are carried out."""

from collections import Counter
from dataclasses import dataclass

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c

TICKS = 6


@dataclass(frozen=True)
class EmptiesAlways:
    """Takes everything from every replica, again and again."""

    def due(self, now_s, last_s, stepped):
        return not stepped

    def plan(self, cycle):
        return [c.Evict(view.replica, tuple(view.trajectories)) for view in cycle.replicas if view.trajectories]


class Engines(Scripted):
    """Replicas whose engines make some tokens between two interruptions."""

    def __init__(self, tokens):
        super().__init__(spec(relocation=EmptiesAlways(), sync=policy("sync", "interrupting")))
        self.made, self.kept = tokens, Counter()

    def answers(self, command):
        if not isinstance(command, c.Interrupt):
            return super().answers(command)
        self.kept.update(dict.fromkeys(command.trajectories, self.made))
        return [c.Interrupted(command.replica, name, self.kept[name], command.seq) for name in command.trajectories]


@pytest.mark.parametrize("tokens", [0, 3])
def test_what_made_no_token_since_it_was_relocated_is_left_alone(tokens):
    """It would be prefilled again and again, and never get further."""
    run = Engines(tokens)
    run.go(c.Tick(), leave=(c.Route,))
    for _ in range(TICKS):
        run.later(1.0, leave=(c.Route,))
    found = Counter(name for command in of(c.Interrupt, run.given) for name in command.trajectories)
    assert found
    assert {times > 1 for times in found.values()} == {tokens > 0}
