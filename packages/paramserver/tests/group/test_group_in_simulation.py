"""A group's driver and coordinator in virtual time: relays, publishers and readers under kills, cuts and damage.

What was wrong can be seen again with its seed; the failure message has the schedule and the trace.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation import repair
from simulation.run import run
from simulation.world import TOKEN

from tailrace.paramserver.group.relay_group import RelayGroup

SEEDS = int(os.environ.get("TAILRACE_GROUP_SEEDS", "40"))


def start_group(world):
    """In place of the simulation's own repair: the relays' addresses go in, the master comes out."""

    def main(process):
        machine = world.machine(process)
        while any(not relay.serving for relay in world.relays.values()):
            machine.sleep(0.01)

        def tell(address):
            world.master = address
            if world.orders:
                world.orders[-1].put(address)

        known = {relay.name: relay.address for relay in world.relays.values()}
        over = []
        with RelayGroup(
            known, token=TOKEN, on_master=tell, heartbeat_s=0.1, dead_after_s=0.6, fetch_after_s=1.0, machine=machine
        ) as group:
            world.master = group.master

            def register():
                """What starts a relay anew tells the group where."""
                while not over:
                    for relay in world.living():
                        if known[relay.name] != relay.address:
                            known[relay.name] = relay.address
                            group.join(relay.address, name=relay.name)
                    machine.sleep(0.1)

            registering = machine.spawn(register, "register")
            world.ready.give()
            while world.repairs.take() is not None:  # something failed; a publisher's owner would retarget, too
                if group.addresses():
                    tell(group.master)
            over.append(True)
            registering.join()

    return world.start("group", repair.HOST, 0.0, main)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(seed, monkeypatch):
    monkeypatch.setattr(repair, "start_repair", start_group)
    outcome = run(seed)
    assert not outcome.wrong, outcome.report()


def test_the_same_seed_gives_the_same_run(monkeypatch):
    monkeypatch.setattr(repair, "start_repair", start_group)
    assert run(5).digest == run(5).digest
