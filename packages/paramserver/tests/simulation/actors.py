"""What the simulated relays, publishers and readers do."""

from __future__ import annotations

from simulation.deadlines import within
from simulation.oracle import raw_bytes
from simulation.schedule import SLOT_TIMEOUT_S, STALL_S, Publication, ReaderPlan
from simulation.scheduler import Process
from simulation.waiting import Mailbox, Signal
from simulation.world import TOKEN, Relay, World

from tailrace.paramserver.clients.publisher import Publisher
from tailrace.paramserver.clients.reader import RelayReader
from tailrace.paramserver.errors import LeaseExpired, ParamServerError, VersionRetired
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.relays.server import RelayServer
from tailrace.paramserver.wire.authentication import HANDSHAKE_S

# What a connection may cost before a request: dialling, the greeting, the proof, and one stall for each of three sends.
CONNECT_S = 3 * HANDSHAKE_S + 3 * STALL_S


def start_relay(world: World, index: int) -> Relay:
    """A relay's life: it serves until it is killed or the run ends."""
    schedule, before = world.schedule, world.relays.get(index)
    host = schedule.hosts[index]

    def main(process: Process) -> None:
        with RelayServer(
            relay.name,
            host=host,
            token=TOKEN,
            slots=schedule.slots,
            slot_timeout_s=SLOT_TIMEOUT_S,
            stall_s=STALL_S,
            codecs=schedule.codecs,
            machine=world.machine(process),
        ) as server:
            relay.address, relay.cleaned = server.address, server.cleaned
            world.scheduler.note(f"serves on {server.address}, cleaned {server.cleaned}")
            world.want_repair()
            if bool(server.cleaned) != relay.left_memory:
                world.scheduler.fail(f"{relay.name} cleaned {server.cleaned}, was there something? {relay.left_memory}")
            world.stop_relays.wait()

    world.network.unreachable.discard(host)
    memory = world.memories.get(host)
    name = f"relay{index}"
    left = memory is not None and any(segment.startswith(f"tailrace-{name}-") for segment in memory.segments)
    life = 0 if before is None else int(before.process.name.rpartition("#")[2]) + 1
    relay = Relay(index, name, Process("", ""), left_memory=left)
    world.relays[index] = relay
    relay.process = world.start(f"{name}#{life}", host, schedule.skews_s[index], main)
    return relay


def start_publisher(world: World, index: int) -> Process:
    """A trainer: it publishes what the schedule says and goes to another master when it is told to."""
    schedule, orders = world.schedule, Mailbox(world.scheduler)
    world.orders.append(orders)
    world.published_all = published_all = Signal(world.scheduler)

    def main(process: Process) -> None:
        machine, scheduler = world.machine(process), world.scheduler

        def report(version: int, error: ParamServerError | None) -> None:
            if error is not None:
                world.judge(f"version {version} was not published", error)
                again = orders.put if world.schedule.grouped else lambda _: world.repairs.put("repair")
                scheduler.at(scheduler.now + schedule.detect_s, lambda: again(world.master))
            else:
                scheduler.note(f"version {version} is on the master")

        publisher = Publisher(
            world.master,
            token=TOKEN,
            on_published=report,
            chunk_bytes=schedule.chunk_bytes,
            slot_timeout_s=SLOT_TIMEOUT_S,
            stall_s=STALL_S,
            codecs=schedule.codecs,
            borrow_bytes=1 if schedule.borrows else None,
            machine=machine,
        )
        world.staging += [staged.memory for staged in publisher._staged]

        def obey() -> None:
            while (master := orders.take()) is not None:
                scheduler.note(f"goes to {master}")
                publisher.retarget(master)

        obeying = machine.spawn(obey, "orders")
        if index:
            _settle(world, publisher, machine, index)
        start = scheduler.now
        for publication in schedule.publications[index]:
            machine.sleep(max(0.0, start + publication.at_s - scheduler.now))
            _publish(world, publisher, index, publication)
        published_all.give()
        world.stop_publishers.wait()
        orders.close()
        obeying.join()
        try:
            with within(world, 10.0 + HANDSHAKE_S, "Publisher.close"):
                publisher.close()
        except ParamServerError as error:
            world.judge("Publisher.close", error)

    process = world.start(f"publisher{index}", schedule.publisher_hosts[index], schedule.skews_s[-1 - index], main)
    world.publishers.append(process)
    return process


def _publish(world: World, publisher: Publisher, index: int, publication: Publication) -> None:
    sealed = publication.sealed_s is not None
    weights = world.oracle.publish(index, publication.version, publication.sizes, sealed=sealed)
    world.scheduler.note(f"publishes version {publication.version}: {sum(publication.sizes)} bytes")
    world.newest = (index, publication.version)
    # It never waits for a push. To borrow memory it asks the relay of its host, for half a second at each step.
    with within(world, 3.0 if world.schedule.borrows else 0.0, "Publisher.publish"):
        publisher.publish(publication.version, list(weights.items()), sealed=sealed)
    if publication.sealed_s is not None:
        machine = world.machine(world.scheduler.current.process)
        machine.spawn(lambda: _reveal(world, publisher, index, publication), "reveal")
    if publication.wait_s is not None:
        try:
            with within(world, publication.wait_s, "Publisher.wait"):
                publisher.wait(publication.version, publication.wait_s)
        except ParamServerError as error:
            world.judge(f"waited for version {publication.version}", error)


def _settle(world: World, publisher: Publisher, machine: HostInterface, index: int) -> None:
    """A trainer that follows a dead one decides about what that one left sealed: durable after all, or undone."""
    for version in world.oracle.sealed(index - 1):
        durable = world.schedule.seed % 2 == 0
        if durable:
            world.oracle.reveal(index - 1, version)
        for _ in range(10):
            try:
                (publisher.reveal if durable else publisher.retire)(version, timeout_s=STALL_S)
            except VersionRetired:
                break
            except ParamServerError as error:
                world.judge(f"settled the sealed version {version}", error)
                machine.sleep(0.3)
            else:
                world.scheduler.note(f"{'revealed' if durable else 'retired'} the sealed version {version}")
                break


def _reveal(world: World, publisher: Publisher, index: int, publication: Publication) -> None:
    """The checkpoint of a version is durable: it is revealed, again and again until a master does it."""
    machine, scheduler, version = world.machine(world.publishers[-1]), world.scheduler, publication.version
    machine.sleep(publication.sealed_s or 0.0)
    world.oracle.reveal(index, version)
    deadline = scheduler.now + 30.0
    while scheduler.now < deadline:
        try:
            with within(world, CONNECT_S + STALL_S, "Publisher.reveal"):
                publisher.reveal(version, timeout_s=STALL_S)
        except ParamServerError as error:
            world.judge(f"revealed version {version}", error)
            if isinstance(error, VersionRetired) and world.newest != (index, version):
                return
        else:
            scheduler.note(f"revealed version {version}")
            return
        machine.sleep(0.3)


def start_reader(world: World, index: int, plan: ReaderPlan) -> Process:
    """A replica: it reads versions from one relay, wherever that is just now."""

    def main(process: Process) -> None:
        machine = world.machine(process)
        machine.sleep(plan.at_s)
        reader, at = None, ""

        def known() -> list[str]:
            relays = [world.relays[index] for index in (plan.relay, *plan.others)]
            return [relay.address for relay in relays if relay.address]

        for pause_s, stay_s, more_s, wait_s, verify, next_one in plan.rounds:
            machine.sleep(pause_s)
            relay = world.relays[plan.relay]
            if reader is None or (relay.address != at and not plan.others):  # it has begun a new life elsewhere
                if reader is not None:
                    reader.close()
                at = relay.address or at
                if not at:
                    continue
                reader = RelayReader(
                    known if plan.others else at,
                    token=TOKEN,
                    same_host=False if plan.pulls else None,
                    stall_s=STALL_S,
                    machine=machine,
                )
            try:
                _read(world, reader, stay_s, stay_s + more_s, wait_s, verify, next_one, plan)
            except ParamServerError as error:
                shared = not plan.pulls and not plan.others and plan.host == world.schedule.hosts[plan.relay]
                world.judge("reading", error, pulling=not shared)
        if reader is not None:
            reader.close()

    process = world.start(f"reader{index}", plan.host, 0.0, main)
    world.readers.append(process)
    return process


def _read(
    world: World,
    reader: RelayReader,
    stay_s: float,
    hold_s: float,
    wait_s: float,
    verify: bool,
    next_one: bool,
    plan: ReaderPlan,
) -> None:
    scheduler = world.scheduler
    with within(world, CONNECT_S + STALL_S, "RelayReader.latest"):
        latest = reader.latest()
    version = (-1 if latest is None else latest) + next_one
    if version < 0:
        return
    pulls = plan.pulls or plan.host != world.schedule.hosts[plan.relay]
    seen = list[tuple[str, str | None]]()
    own_fault = hold_s < stay_s  # the lease ends while we are still reading
    lost = False
    try:
        context = reader.lease(version, timeout_s=wait_s, hold_s=max(0.001, hold_s), verify=verify)
        with within(world, 2 * CONNECT_S + wait_s + 60.0, "entering RelayReader.lease"):
            lease = context.__enter__()
        try:
            key = lease.manifest.key
            for moment in ("at once", "later"):
                if moment == "later":
                    world.machine(scheduler.current.process).sleep(stay_s)
                seen.append((moment, world.oracle.wrong(key, raw_bytes(lease))))
        except LeaseExpired:
            lost = True
        finally:
            with within(world, CONNECT_S + STALL_S, "leaving RelayReader.lease"):
                context.__exit__(None, None, None)
    except LeaseExpired as error:
        lost = True
        if not own_fault:
            world.judge("leaving a lease", error)
    if lost and not own_fault and not world.disturbed:
        scheduler.fail(f"a lease of {hold_s} s was lost after {stay_s} s")
    scheduler.note(f"read version {version}{', and lost the lease' if lost else ''}")
    for moment, wrong in seen:
        if wrong is not None and not lost:
            scheduler.fail(f"{reader.address} showed, {moment}: {wrong} ({'pulled' if pulls else 'shared memory'})")
    world.versions_read += 1
