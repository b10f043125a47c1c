"""The log rebuilds the controller wherever it ends."""

import json

from worlds import patient, play, seeds, world

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.fuzz.faults import BreakKind


def small(case):
    struck = {fault.kind for fault in case.faults}
    return case.pipeline.steps <= 3 and case.replicas <= 2 and BreakKind.KILL in struck and patient(case)


def test_replay_is_exact_at_every_prefix():
    """Each prefix gives the commands that were given, and the next instant the next ones."""
    for seed in seeds(2, fits=small):
        played = world(seed)
        play(seed, played)
        fleet, instants = played.simulation.fleet, played.simulation.log.instants
        log = [
            (now, [c.decode(json.loads(json.dumps(c.encode(event)))) for event in events], list(commands))
            for now, events, commands in instants
        ]
        assert len(log) > 30, f"seed {seed}"
        for prefix in range(1, len(log), 7):
            rebuilt = Controller(fleet.spec, relays=fleet.relays)
            for number, (now, events, commands) in enumerate(log[: prefix + 1]):
                assert rebuilt.handle_all(events, now) == commands, f"seed {seed}, instant {number} of {prefix}"
