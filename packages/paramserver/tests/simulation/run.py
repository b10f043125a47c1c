"""One simulated run from its seed: what happened, and what was wrong."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from simulation import actors, faults, repair
from simulation.accounts import Accounts
from simulation.oracle import raw_bytes
from simulation.schedule import STALL_S, Schedule, draw
from simulation.scheduler import Process
from simulation.world import TOKEN, Relay, World

from tailrace.paramserver.clients.reader import RelayReader
from tailrace.paramserver.errors import ParamServerError
from tailrace.processes import ProcessId

CONVERGED_S = 60.0
_OVER_S = 200.0  # of the faults and everything that is read meanwhile


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run.

    Args:
        wrong: what should not have happened.
        digest: equal for equal runs.
        chunks_saved: that an interrupted transfer had brought, and that did not come again.
        converged_s: virtual seconds from the end of the last fault until every relay showed the newest version.
    """

    schedule: Schedule
    wrong: list[str]
    log: list[tuple[float, str, str]]
    digest: int
    faults: list[str]
    versions_read: int
    chunks_saved: int
    handovers: int
    virtual_s: float
    converged_s: float | None

    def report(self) -> str:
        """Everything there is to know about a run that went wrong, and how to see it again."""
        trace = "\n".join(f"{at:9.4f}  {who:<12} {what}" for at, who, what in self.log)
        again = f"python {os.path.relpath(__file__.replace('run.py', 'replay.py'))} {self.schedule.seed}"
        return f"{self.schedule.describe()}\n{trace}\n{len(self.wrong)} wrong:\n" + "\n".join(
            [*self.wrong, f"again: {again}"]
        )


def run(seed: int) -> Outcome:
    """Run the schedule of a seed."""
    return run_schedule(draw(seed))


def run_schedule(schedule: Schedule) -> Outcome:
    """Run a schedule."""
    world = World(schedule)
    converged, accounts = list[float](), Accounts(world)
    with _one_core(), _fixed_process(), _messages(world), accounts.kept():
        world.scheduler.run(lambda: _drive(world, converged))
    if not world.scheduler.errors:
        accounts.check()
    for memory in world.staging:
        memory.close()
    scheduler = world.scheduler
    return Outcome(
        schedule=schedule,
        wrong=scheduler.errors,
        log=scheduler.log,
        digest=scheduler.digest,
        faults=world.faults,
        versions_read=world.versions_read,
        chunks_saved=accounts.saved,
        handovers=scheduler.handovers,
        virtual_s=scheduler.now,
        converged_s=converged[0] if converged else None,
    )


def _drive(world: World, converged: list[float]) -> None:
    schedule, scheduler = world.schedule, world.scheduler
    for index in range(len(schedule.hosts)):
        actors.start_relay(world, index)
    repairing = repair.start_repair(world)
    if not world.ready.wait(30.0):
        scheduler.fail("the relays were not wired in 30 s, before any fault")
    actors.start_publisher(world, 0)
    for index, plan in enumerate(schedule.readers):
        actors.start_reader(world, index, plan)
    for fault in schedule.faults:
        faults.arm(world, fault)
    _wait(world, lambda: world.faults_to_come == 0 and world.published_all.given, "the faults to be over")
    start = scheduler.now
    world.repairs.put("repair")
    checker = world.start("checker", "10.0.0.98", 0.0, lambda process: _check_all(world, process, converged, start))
    _wait(world, lambda: not checker.tasks, "the check of all relays")
    _wait(world, lambda: all(not reader.tasks for reader in world.readers), "the readers to end")
    world.stop_publishers.give()
    _wait(world, lambda: not any(publisher.tasks for publisher in world.publishers), "the publishers to end")
    world.repairs.close()
    _wait(world, lambda: not repairing.tasks, "the repair to end")
    world.stop_relays.give()
    _wait(world, lambda: not any(p.tasks for p in scheduler.processes[1:]), "the relays to end")
    for host, memory in world.memories.items():
        closed = {f"tailrace-{relay.name}" for relay in world.relays.values() if not relay.process.dead}
        if left := [name for name in memory.segments if name.rpartition("-")[0] in closed]:
            scheduler.fail(f"{left} stayed in the shared memory of {host}")


def _wait(world: World, condition: object, what: str) -> None:
    scheduler = world.scheduler
    deadline = scheduler.now + _OVER_S
    while not condition():  # type: ignore[operator]
        if scheduler.now >= deadline:
            scheduler.fail(f"waited {_OVER_S} s for {what}; the threads:\n{scheduler.waits()}")
            for process in scheduler.processes:
                world.kill(process)
        scheduler.enter()
        scheduler.block(what, scheduler.now + 0.1)


def _check_all(world: World, process: Process, converged: list[float], start: float) -> None:
    """Wait until every living relay shows the newest version, read it near and far, and compare all bytes."""
    machine, scheduler = world.machine(process), world.scheduler
    if world.newest is None:
        return
    publisher, version = world.newest
    left = world.living()
    while left:
        left = [relay for relay in left if not _shows(world, process, relay, publisher, version)]
        if left and scheduler.now - start > CONVERGED_S:
            names = ", ".join(relay.name for relay in left)
            scheduler.fail(f"{names} do not show version {version} of publisher {publisher} {CONVERGED_S} s later")
            return
        machine.sleep(0.1)
    converged.append(scheduler.now - start)


def _shows(world: World, process: Process, relay: Relay, publisher: int, version: int) -> bool:
    machine = world.machine(process)
    with RelayReader(relay.address, token=TOKEN, stall_s=STALL_S, machine=machine, same_host=False) as reader:
        try:
            if reader.latest() != version:
                return False
            with reader.lease(version, timeout_s=0.0) as lease:
                key, found = lease.manifest.key, raw_bytes(lease)
        except ParamServerError as error:
            world.judge(f"checked {relay.name}", error)
            return False
    wrong = world.oracle.wrong(key, found)
    if wrong is not None:
        world.scheduler.fail(f"{relay.name} showed in the end: {wrong}")
        return True
    return world.oracle.publisher(key) == publisher


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Only one thread runs at a time: to hand over to one on the same core, which does not preempt, costs a sixth."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed, policy, parameters = os.sched_getaffinity(0), os.sched_getscheduler(0), os.sched_getparam(0)
    cores = sorted(allowed)
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
        os.sched_setaffinity(0, allowed)


@contextlib.contextmanager
def _fixed_process() -> Iterator[None]:
    """Messages carry the process id and nonces; with real ones the run, or what it says, would depend on them."""
    fixed, numbers = ProcessId(4711, 1, "of the simulation"), itertools.count(1)
    with (
        mock.patch.object(ProcessId, "current", return_value=fixed),
        mock.patch("os.getpid", return_value=4711),
        mock.patch("secrets.token_hex", lambda nbytes=32: f"{next(numbers):0{2 * nbytes}x}"),
    ):
        yield


@contextlib.contextmanager
def _messages(world: World) -> Iterator[None]:
    """What relays write to standard error becomes part of the trace."""

    class Trace(io.StringIO):
        def write(self, text: str) -> int:
            for line in text.splitlines():
                world.scheduler.note(line)
            return len(text)

    before, sys.stderr = sys.stderr, Trace()
    try:
        yield
    finally:
        sys.stderr = before
