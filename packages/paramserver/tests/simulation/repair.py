"""Who repairs: the relay group, or an obvious script, by which whoever answers is ordered by what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.deadlines import within
from simulation.scheduler import Process
from simulation.world import TOKEN, Relay, World

from tailrace.paramserver.errors import ParamServerError
from tailrace.paramserver.group.relay_group import RelayGroup
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.wire.authentication import connect

HOST = "10.0.0.99"
HEARTBEAT_S, DEAD_AFTER_S = 0.3, 1.0
_ANSWER_S = 1.0


def start_repair(world: World) -> Process:
    """Wires the relays at first, and after every fault that is noticed."""

    def main(process: Process) -> None:
        machine = world.machine(process)
        while any(not relay.serving for relay in world.relays.values()):
            machine.sleep(0.01)
        while True:
            if _wire(world, machine):
                world.ready.give()
            else:
                world.want_repair()
            if world.repairs.take() is None:
                return

    return world.start("repair", HOST, 0.0, _grouped(world) if world.schedule.grouped else main)


def _grouped(world: World) -> Callable[[Process], None]:
    """A relay group; that a relay has begun a new life is all that it is told."""
    scheduler = world.scheduler

    def main(process: Process) -> None:
        machine = world.machine(process)
        while any(not relay.serving for relay in world.relays.values()):
            machine.sleep(0.01)
        known = {relay.name: relay.address for relay in world.relays.values()}

        def on_master(address: str) -> None:
            scheduler.note(f"the master is {address}")
            world.master = address
            if world.orders:
                world.orders[-1].put(address)
            world.ready.give()

        group = RelayGroup(
            known,
            token=TOKEN,
            on_master=on_master,
            sites={relay.name: world.schedule.hosts[relay.index].rpartition(".")[0] for relay in world.relays.values()},
            home=world.schedule.publisher_hosts[0].rpartition(".")[0],
            heartbeat_s=HEARTBEAT_S,
            dead_after_s=DEAD_AFTER_S,
            machine=machine,
        )
        while world.repairs.take() is not None:
            for relay in world.living():
                if known[relay.name] != relay.address:
                    known[relay.name] = relay.address
                    group.join(relay.address, name=relay.name)
        with within(world, 6.0, "RelayGroup.close"):
            group.close()

    return main


def _wire(world: World, machine: HostInterface) -> bool:
    """Whether everybody who lives answered, and was wired."""
    living = world.living()
    held = list[tuple[int, int, Relay]]()
    complete = bool(living)
    for relay in living:
        try:
            versions = ask(machine, relay.address, {"op": "versions"})["versions"]
        except ParamServerError as error:
            world.judge(f"asked {relay.name}", error)
            complete = False
        else:
            held.append((-max((stamp for _, stamp in versions), default=0), relay.index, relay))
    order = [relay for _, _, relay in sorted(held, key=lambda item: item[:2])]
    fanout = world.schedule.fanout
    for place in reversed(range(len(order))):
        following = [relay.address for relay in order[fanout * place + 1 : fanout * place + 1 + fanout]]
        try:
            ask(machine, order[place].address, set_next(following))
        except ParamServerError as error:
            world.judge(f"wired {order[place].name}", error)
            complete = False
    if order:
        world.scheduler.note(f"wired {' '.join(relay.name for relay in order)}")
        world.master = order[0].address
        if world.orders:
            world.orders[-1].put(world.master)
    return complete


def set_next(following: list[str]) -> dict[str, Any]:
    """The message that names a relay's next hops."""
    return {"op": "set_next", "addresses": following, "address": following[0] if following else None}


def ask(machine: HostInterface, address: str, message: dict[str, Any]) -> dict[str, Any]:
    """One request on a connection of its own."""
    channel, _ = connect(machine, address, token=TOKEN, timeout_s=_ANSWER_S, stall_s=_ANSWER_S)
    try:
        return channel.request(message, _ANSWER_S)
    finally:
        channel.close()
