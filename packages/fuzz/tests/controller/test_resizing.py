"""Replicas that change the number of their devices in mid-run: every invariant holds, and devices are never counted twice."""

from dataclasses import dataclass
from random import Random

import pytest
from worlds import expected, play, seeds, world

from tailrace import contracts as c
from tailrace.controller import lending
from tailrace.controller.controller import Controller
from tailrace.fuzz.checks.data_plane import WEIGHTS
from tailrace.fuzz.checks.devices import SHARED
from tailrace.repack import to_size

DEVICES, CELLS = 4, 4


@dataclass(frozen=True)
class Restless(c.ProvisioningPolicy):
    """A size of replicas that a random number says, which depends on the trainer's version."""

    seed: int

    def plan(self, view):
        staying = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
        size = Random(f"{self.seed} {view.progress.version}").choice([1, 1, 2, 4])
        if not staying:
            return [c.StartReplica(tp=size)] * (DEVICES // size)
        if all(member.tp == size for member in staying):
            return []
        return to_size(staying, size, DEVICES, c.Reason(c.Why.PLANNED))


def restless(seed):
    return world(seed, spec={"provisioning": Restless(seed)})


def devices_used(instants):
    """The most devices at any time of the replicas whose processes live."""
    sizes, most = {}, 0
    for _, events, commands in instants:
        for one in (*events, *commands):
            match one:
                case c.Start(role="replica") | c.Restart(role="replica"):
                    sizes[one.id] = one.tp or 1
                case c.Resize(replica=name, tp=tp):
                    sizes[name] = tp
                case c.Down(role="replica", id=name):
                    sizes.pop(name, None)
                case c.Resumed():
                    sizes.clear()
        most = max(most, sum(sizes.values()))
    return most


def test_replicas_grow_and_shrink():
    grown = shrunk = 0
    for seed in seeds(60):
        played = restless(seed)
        play(seed, played, gives_up=True)
        instants = played.simulation.log.instants
        resized = [one for _, _, commands in instants for one in commands if isinstance(one, c.Resize)]
        grown += sum(one.tp > 1 for one in resized)
        shrunk += sum(one.tp == 1 for one in resized)
        if not any(isinstance(event, c.Resumed) for _, events, _ in instants for event in events):
            assert devices_used(instants) <= DEVICES, f"seed {seed}"
    assert grown > expected(30)
    assert shrunk > expected(20)


def test_a_resized_replica_that_serves_before_its_pull_is_found(monkeypatch):
    on_up = Controller._on_up

    def served_what_it_served(controller, event):
        on_up(controller, event)
        member = controller.members.get(event.role, event.id)
        if member is not None and member.own_tp is not None and controller.trainer.published >= 0:
            controller.fleet.replicas[event.id].version = controller.trainer.published

    monkeypatch.setattr(Controller, "_on_up", served_what_it_served)
    with pytest.raises(AssertionError, match=WEIGHTS):  # noqa: PT012
        for seed in range(200):
            play(seed, restless(seed), gives_up=True)


def lends_too(seed):
    """Rounds whose kinds have sizes of their own; within each, cells of the trainer borrow half of the devices."""
    short, long = Random(f"sizes {seed}").choice([(1, 2), (2, 1), (1, 4), (2, 2)])
    pipeline = {
        "provisioning": {"name": "adaptive-tp-scale-down", "short": short, "long": long},
        "batching": {"name": "tail-batching", "prompt_factor": 1.7, "sample_factor": 1.0},
        "admission": {"name": "on-policy"},
        "training": {"name": "streamed", "groups": 1},
        "relocation": {"name": "none"},
        "steps": 6,
        "prompts_per_step": 3,
        "prompts_per_replica": 6,
        "buffer_prompts": None,
        "cycle_s": 0.0,
    }
    return world(seed, pipeline=pipeline, replicas=DEVICES, cells=CELLS, colocated=True)


def test_replicas_change_their_size_between_loans():
    resized = loans = of_two = 0
    for seed in seeds(25):
        played = lends_too(seed)
        play(seed, played, gives_up=True)
        for _, _, commands in played.simulation.log.instants:
            resized += sum(isinstance(one, c.Resize) for one in commands)
            lent = [one for one in commands if isinstance(one, c.Lend)]
            loans += len(lent)
            of_two += sum(len(one.cells) == 2 for one in lent)
    assert min(resized, loans, of_two) > expected(10), (resized, loans, of_two)


def test_a_replica_that_keeps_the_devices_of_its_former_size_is_found(monkeypatch):
    chosen = lending.devices_for
    monkeypatch.setattr(lending, "devices_for", lambda size, taken, own: own or chosen(size, taken))
    with pytest.raises(AssertionError, match=SHARED):  # noqa: PT012
        for seed in range(200):
            play(seed, lends_too(seed), gives_up=True)
