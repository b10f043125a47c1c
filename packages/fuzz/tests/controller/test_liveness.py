"""The coordinator never leaves a replica idle that could work, however late and mixed up its messages come."""

import pytest
from worlds import play, seeds, world

from tailrace import contracts as c
from tailrace.controller.fleet import Replicas
from tailrace.controller.outbox import Outbox
from tailrace.fuzz.case import MessagesCase

PIPELINE = {
    "admission": {"name": "bounded", "bound": 3},
    "batching": {"name": "plain"},
    "sync": {"name": "when-useful"},
    "routing": {"name": "marginal-throughput", "mu": 0.05},
    "relocation": {"name": "migration", "phi_wait": 0, "period_s": 0.1},
    "cycle_s": 0.0,
    "buffer_prompts": None,
}


class Watching:
    """Notices a replica that could work and does not."""

    def __init__(self, simulation, patience_s):
        self.simulation, self.patience_s = simulation, patience_s
        self.idle_since = {}

    def observe(self, now, events, commands, run):
        pass

    def tick(self, now, executor):
        controller = self.simulation.controller
        pool, admits = controller.ledger.levels, controller.gate.tentative()
        for replica in controller.fleet.replicas.values():
            could = replica.serves and any(
                admits.allows(replica.version) if level is None else replica.version >= level for level in pool
            )
            if could and not replica.in_flight:
                since = self.idle_since.setdefault(replica.id, now)
                assert now - since < self.patience_s, f"{replica.id} is idle since {since:.1f} s, with work in the pool"
            else:
                self.idle_since.pop(replica.id, None)


def watched(seed, patience_s=12.0, **fields):
    delays = MessagesCase(delay_s=1.0, repeat=0.5)
    played = world(seed, pipeline=PIPELINE, messages=delays, **fields)
    played.simulation.observers.append(Watching(played.simulation, patience_s))
    played.simulation.executor = played._executor()
    return played


def small(case):
    return case.replicas >= 2 and case.pipeline.steps >= 3 and not case.hurries


@pytest.mark.parametrize("faults", [True, False], ids=["with faults", "without"])
def test_nobody_is_left_idle(faults):
    for seed in seeds(40, fits=small):
        changes = {} if faults else {"faults": (), "failed_groups_limit": 1_000}
        play(seed, watched(seed, **changes), gives_up=faults)


def test_load_that_is_never_known_would_leave_somebody_idle(monkeypatch):
    """Equation 1 of StaleFlow taken literally. What was interrupted is subtracted when the command is given, so a trajectory
    that finished meanwhile makes the count wrong for ever, and the replica is never planned with again."""
    accumulated, finished_at_sync = {}, {}
    send_to, observed = Outbox.send_to, Replicas.observed

    def literally_send(outbox, replica, kind, **fields):
        if kind is c.Route:
            accumulated[replica.id] = accumulated.get(replica.id, 0) + len(fields["trajectories"])
        elif kind is c.Interrupt:
            accumulated[replica.id] = accumulated.get(replica.id, 0) - len(fields["trajectories"])
        elif kind is c.Pull:
            accumulated[replica.id], finished_at_sync[replica.id] = 0, None
        return send_to(outbox, replica, kind, **fields)

    def literally_observed(fleet, snapshot, now):
        observed(fleet, snapshot, now)
        replica = fleet.replicas.get(snapshot.replica)
        if replica is None:
            return
        if finished_at_sync.get(replica.id) is None:
            finished_at_sync[replica.id] = snapshot.finished
        seen = snapshot.running + snapshot.waiting + snapshot.finished
        replica.fresh = seen - finished_at_sync[replica.id] == accumulated.get(replica.id, 0)

    monkeypatch.setattr(Outbox, "send_to", literally_send)
    monkeypatch.setattr(Replicas, "observed", literally_observed)
    stopped = 0
    for seed in seeds(40, fits=small):
        accumulated.clear()
        finished_at_sync.clear()
        try:
            play(seed, watched(seed, faults=()), gives_up=True)
        except AssertionError:
            stopped += 1
    assert stopped > 0


def test_an_in_flight_cap_bounds_no_trajectory():
    """The gap that StaleFlow closes: a cap of (1 + 1) batches lets single trajectories grow older than 1."""
    worst = 0
    for seed in seeds(30, fits=small):
        strategies = {
            "admission": {"name": "in-flight-cap", "bound": 1},
            "batching": {"name": "plain"},
            "sync": {"name": "interrupting"},
            "routing": {"name": "least-loaded"},
        }
        played = world(seed, pipeline=strategies, faults=(), failed_groups_limit=1_000)
        play(seed, played)
        worst = max(worst, *played.checker.training.lags)
    assert worst > 1
