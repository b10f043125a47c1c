"""Faults, as a schedule names them."""

from __future__ import annotations

from collections.abc import Callable

from simulation.actors import start_publisher, start_relay
from simulation.schedule import Fault
from simulation.scheduler import Process
from simulation.world import World

_PATIENCE_S = 3.0  # for a number of bytes that may never be sent


def arm(world: World, fault: Fault) -> None:
    """Let a fault happen at its time."""
    world.faults_to_come += 1
    happened = False

    def happen() -> None:
        nonlocal happened
        if not happened:
            happened = True
            _KINDS[fault.kind](world, fault)

    def ready() -> None:
        process = _process(world, fault)
        if fault.after_bytes is None or process is None:
            happen()
        else:
            process.milestones.append((process.sent_bytes + fault.after_bytes, happen))
            process.milestones.sort(key=lambda item: item[0])
            world.scheduler.at(world.scheduler.now + _PATIENCE_S, happen)

    world.scheduler.at(world.scheduler.now + fault.at_s, ready)


def _later(world: World, fault: Fault, action: Callable[[], None]) -> None:
    def over() -> None:
        action()
        world.faults_to_come -= 1
        world.want_repair()

    world.want_repair()
    world.scheduler.at(world.scheduler.now + abs(fault.for_s), over)


def _process(world: World, fault: Fault) -> Process | None:
    """The process that the fault hits."""
    index, schedule = fault.target[0], world.schedule
    if fault.kind == "kill publisher":
        return world.publishers[-1]
    if fault.kind == "kill reader":
        return world.readers[index % len(world.readers)]
    if fault.kind == "kill master":
        return next((r.process for r in world.relays.values() if r.address == world.master), None)
    if fault.kind == "kill source":
        index = next((reader.relay for reader in schedule.readers if reader.pulls), index)
    return world.relays[index].process


def _kill_relay(world: World, fault: Fault) -> None:
    process = _process(world, fault)
    relay = next((relay for relay in world.relays.values() if relay.process is process), None)
    if relay is None or process is None or process.dead or not relay.serving:
        world.faults_to_come -= 1
        return
    world.disturb(f"{fault.kind} {relay.name}, {fault.how}")
    world.kill(process, fault.how)
    again = fault.for_s > 0 or not world.living()
    _later(world, fault, lambda: _restart(world, relay.index) if again else None)


def _restart(world: World, index: int) -> None:
    if world.relays[index].process.dead:
        start_relay(world, index)


def _kill_publisher(world: World, fault: Fault) -> None:
    process = world.publishers[-1]
    world.disturb(f"kill {process.name}, {fault.how}")
    world.kill(process, "end")

    def another() -> None:
        if len(world.publishers) < len(world.schedule.publications):
            start_publisher(world, len(world.publishers))

    _later(world, fault, another)


def _kill_reader(world: World, fault: Fault) -> None:
    process = _process(world, fault)
    if process is not None and not process.dead:
        world.disturb(f"kill {process.name}, {fault.how}")
        world.kill(process, "end")
    _later(world, fault, lambda: None)


def _suspend(world: World, fault: Fault) -> None:
    process = _process(world, fault)
    if process is None or process.dead:
        world.faults_to_come -= 1
        return
    world.disturb(f"suspend {process.name} for {abs(fault.for_s)} s")
    world.scheduler.suspend(process)
    _later(world, fault, lambda: world.scheduler.resume(process))


def _ends(world: World, fault: Fault) -> tuple[str, str]:
    hosts = world.schedule.hosts
    one, other = fault.target
    return hosts[one], world.publishers[-1].host if other < 0 or other == one else hosts[other]


def _cut(world: World, fault: Fault) -> None:
    one, other = _ends(world, fault)
    if one == other:
        world.faults_to_come -= 1
        return
    world.disturb(f"cut {one} from {other} for {abs(fault.for_s)} s, {fault.how}")
    world.network.cut(one, other, reset=fault.how == "end")
    _later(world, fault, lambda: world.network.heal(one, other))


def _slow(world: World, fault: Fault) -> None:
    one, other = _ends(world, fault)
    links, factor = (world.network.link(one, other), world.network.link(other, one)), float(fault.how)
    world.disturb(f"slow {one} to {other} and back to {factor} for {abs(fault.for_s)} s")
    for link in links:
        link.bandwidth *= factor

    def fast() -> None:
        for link in links:
            link.bandwidth /= factor
            link.free_at = min(link.free_at, world.scheduler.now)

    _later(world, fault, fast)


def _damage(world: World, fault: Fault) -> None:
    one, other = _ends(world, fault)
    world.disturb(f"damage a byte between {one} and {other}")
    for link in (world.network.link(one, other), world.network.link(other, one)):
        link.damage += 1

    def no_more() -> None:
        for link in (world.network.link(one, other), world.network.link(other, one)):
            link.damage = 0

    _later(world, fault, no_more)


_KINDS: dict[str, Callable[[World, Fault], None]] = {
    "kill relay": _kill_relay,
    "kill master": _kill_relay,
    "kill source": _kill_relay,
    "kill publisher": _kill_publisher,
    "kill reader": _kill_reader,
    "suspend": _suspend,
    "cut": _cut,
    "slow": _slow,
    "damage": _damage,
}
