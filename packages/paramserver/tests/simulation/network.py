"""Connections between simulated hosts: dialling, listening, streams, and what a death or a cut does to them."""

from __future__ import annotations

import errno
import math
from collections import deque

from simulation.links import Link, Pipe
from simulation.scheduler import Process, Scheduler, Task

from tailrace.paramserver.errors import PortInUse, RelayUnreachable
from tailrace.paramserver.wire.channel import format_address, parse_address

_FIRST_PORT = 4000


class Network:
    """All hosts and the links between them.

    Args:
        scheduler: the clock.
        bandwidth, latency_s: of a link within a site; `far` says what they are between sites.
        capacity: bytes of a connection that may be on their way in one direction.
        far: factors on bandwidth and latency between sites. A host's site is the part of its name before the colon.
        short: how likely a send or a receive moves fewer bytes than it could.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        bandwidth: float,
        latency_s: float,
        capacity: int,
        far: tuple[float, float] = (0.5, 10.0),
        short: float = 0.0,
    ) -> None:
        self.scheduler, self.capacity, self.short = scheduler, capacity, short
        self._bandwidth, self._latency_s, self._far = bandwidth, latency_s, far
        self._links: dict[tuple[str, str], Link] = {}
        self.listeners: dict[tuple[str, int], SimulatedListener] = {}
        self.streams: dict[SimulatedStream, None] = {}
        self.unreachable: set[str] = set()  # hosts that lost their power: nothing answers, not even a refusal
        self._ports = _FIRST_PORT
        self._pipes: list[Pipe] = []

    def link(self, source: str, target: str) -> Link:
        """One direction between two hosts."""
        found = self._links.get((source, target))
        if found is None:
            near, far = source.rpartition(".")[0] == target.rpartition(".")[0], self._far
            bandwidth, latency_s = (1, 1) if near else far
            found = Link(self._bandwidth * bandwidth, self._latency_s * latency_s)
            if source == target:
                found = Link(20 * self._bandwidth, self._latency_s / 10)
            self._links[(source, target)] = found
        return found

    def links(self) -> list[Link]:
        """All that were ever used."""
        return list(self._links.values())

    def thrown(self) -> list[int]:
        """Bytes that nobody read, for every direction of a connection that carried chunks and was broken off."""
        return [pipe.unread for pipe in self._pipes if pipe.carried and (pipe.unread or pipe.broken)]

    def cut(self, one: str, other: str, *, reset: bool) -> None:
        """Nothing passes any more; with `reset`, connections end at once instead of falling silent."""
        for link in (self.link(one, other), self.link(other, one)):
            link.cut = True
            for pipe in link.pipes:
                pipe.hold()
        if reset:
            for stream in list(self.streams):
                if {stream.local, stream.remote} == {one, other}:
                    stream.reset()

    def heal(self, one: str, other: str) -> None:
        """Join two hosts again that were cut off."""
        for link in (self.link(one, other), self.link(other, one)):
            if link.cut:
                link.cut = False
                link.free_at = self.scheduler.now
                for pipe in link.pipes:
                    pipe.heal()

    def end_connections(self, process: Process, *, silent: bool) -> None:
        """What the kernel does for a process that is gone. `silent`: other hosts hear nothing of it."""
        for stream in list(self.streams):
            if stream.process is process and not (silent and stream.remote != stream.local):
                stream.hang_up()
        for listener in list(self.listeners.values()):
            if listener.process is process:
                listener.hang_up()

    def listen(self, process: Process, host: str, port: int) -> SimulatedListener:
        """See `Machine`."""
        if port == 0:
            self._ports += 1
            port = self._ports
        if (host, port) in self.listeners:
            raise PortInUse(f"port {port} on {host} is in use")
        self.listeners[(host, port)] = SimulatedListener(self, process, host, port)
        return self.listeners[(host, port)]

    def dial(self, process: Process, address: str, timeout_s: float) -> SimulatedStream:
        """See `Machine`."""
        scheduler = self.scheduler
        host, port = parse_address(address)
        there, back = self.link(process.host, host), self.link(host, process.host)
        deadline = scheduler.now + timeout_s
        while there.cut or back.cut or host in self.unreachable:
            # As SYN is sent again: a link that heals in time is noticed a little later.
            scheduler.block(f"an answer of {address}", min(deadline, scheduler.now + 0.5))
            if scheduler.now >= deadline:
                raise RelayUnreachable(f"cannot reach the relay {address}: timed out") from TimeoutError("timed out")
        scheduler.block(f"an answer of {address}", scheduler.now + there.latency_s + back.latency_s)
        listener = self.listeners.get((host, port))
        if listener is None or there.cut:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            raise RelayUnreachable(f"cannot reach the relay {address}: Connection refused") from refused
        self._ports += 1
        pipes = (Pipe(scheduler, there, self.capacity), Pipe(scheduler, back, self.capacity))
        self._pipes += pipes
        near = SimulatedStream(self, process, process.host, host, pipes[1], pipes[0])
        far = SimulatedStream(self, listener.process, host, process.host, pipes[0], pipes[1])
        near.peer, far.peer = far, near
        here, there = format_address(process.host, self._ports), format_address(host, port)
        near.addresses, far.addresses = (here, there), (there, here)
        listener.arrive(far, here)
        return near


class SimulatedStream:
    """One end of a connection."""

    def __init__(
        self, network: Network, process: Process, local: str, remote: str, inbound: Pipe, outbound: Pipe
    ) -> None:
        self._network, self._scheduler = network, network.scheduler
        self.process, self.local, self.remote = process, local, remote
        self._in, self._out = inbound, outbound
        self.peer: SimulatedStream
        self.addresses = ("", "")
        self._closed = self._shut = self._broken = False
        network.streams[self] = None

    def send(self, data: memoryview, timeout_s: float) -> int:
        """See `Stream`."""
        scheduler, pipe = self._scheduler, self._out
        scheduler.enter()
        deadline = scheduler.now + timeout_s
        while True:
            if self._closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
            if self._broken:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if self._shut:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            room = pipe.capacity - pipe.unread
            if room > 0:
                break
            if scheduler.now >= deadline:
                raise TimeoutError("timed out")
            pipe.writer = scheduler.current
            scheduler.block(f"room to send to {self.remote}, until {deadline:.4f} s", deadline)
            pipe.writer = None
        count = self._some(min(room, data.nbytes))
        if pipe.reader_gone:  # the answer to bytes that nobody takes is a reset
            scheduler.at(scheduler.now + pipe.link.latency_s + self._in.link.latency_s, self.reset_here)
        message = isinstance(data.obj, bytes) and data.obj[12:13] == b"{"
        pipe.send(bytes(data[:count]), weights=not message)
        self._count(count)
        return count

    def send_file(self, fd: int, offset: int, nbytes: int, timeout_s: float) -> int:
        """See `Stream`: this one cannot."""
        return 0

    def receive_into(self, view: memoryview, timeout_s: float | None) -> int:
        """See `Stream`."""
        scheduler, pipe = self._scheduler, self._in
        scheduler.enter()
        deadline = math.inf if timeout_s is None else scheduler.now + timeout_s
        while True:
            if self._closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
            if self._broken:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if self._shut:
                return 0
            arrival = pipe.next_arrival()
            if arrival <= scheduler.now:
                return pipe.take(view[: self._some(view.nbytes)]) if pipe.segments else 0
            if scheduler.now >= deadline:
                raise TimeoutError("timed out") if timeout_s else BlockingIOError(errno.EAGAIN, "would block")
            pipe.reader = scheduler.current
            scheduler.block(f"bytes from {self.remote}, until {deadline:.4f} s", min(deadline, arrival))
            pipe.reader = None

    def readable(self, timeout_s: float) -> bool:
        """See `Stream`."""
        scheduler, pipe = self._scheduler, self._in
        scheduler.enter()
        deadline = scheduler.now + timeout_s
        while not (self._closed or self._broken or self._shut):
            arrival = pipe.next_arrival()
            if arrival <= scheduler.now:
                return True
            if scheduler.now >= deadline:
                return False
            pipe.reader = scheduler.current
            scheduler.block(f"bytes from {self.remote}, until {deadline:.4f} s", min(deadline, arrival))
            pipe.reader = None
        return True

    def ends(self) -> tuple[str, str]:
        """See `Stream`."""
        return self.addresses

    def shutdown(self) -> None:
        """See `Stream`."""
        self._scheduler.enter()
        if not (self._shut or self._closed or self._broken):
            self._shut = True
            self._in.broken = self._out.broken = True
            self._out.finish()
            self._wake()

    def close(self) -> None:
        """See `Stream`. As the kernel: with bytes that nobody read, the peer gets a reset instead of an end."""
        if not self.process.dead:
            self._scheduler.enter()
            self.hang_up()

    def hang_up(self) -> None:
        """End it without asking whether the process lives."""
        if self._closed:
            return
        self._closed = True
        if self.process.dead:
            self._in.broken = self._out.broken = True
        self._network.streams.pop(self, None)
        self._in.reader_gone = True
        if not self._broken:
            if self._in.unread and not self._out.link.cut:
                self._scheduler.at(self._scheduler.now + self._out.link.latency_s, self.peer.reset_here)
            else:
                self._out.finish()
        self._in.wake_writer()
        if self.peer._closed:
            self._in.link.pipes.remove(self._in)
            self._out.link.pipes.remove(self._out)

    def reset(self) -> None:
        """Both ends learn at once that the connection is no more."""
        self.reset_here()
        self.peer.reset_here()

    def reset_here(self) -> None:
        """This end does."""
        self._in.broken = self._out.broken = True
        if not self._closed:
            self._broken = True
            self._wake()

    def _wake(self) -> None:
        self._in.wake_reader()
        self._out.wake_writer()

    def _some(self, count: int) -> int:
        network = self._network
        if network.short and count > 1 and self._scheduler.random() < network.short:
            return 1 + int(self._scheduler.random() * (count - 1))
        return count

    def _count(self, nbytes: int) -> None:
        process = self.process
        process.sent_bytes += nbytes
        while process.milestones and process.milestones[0][0] <= process.sent_bytes:
            _, action = process.milestones.pop(0)
            self._scheduler.at(self._scheduler.now, action)


class SimulatedListener:
    """Where connections arrive."""

    def __init__(self, network: Network, process: Process, host: str, port: int) -> None:
        self._network, self.process, self._host, self.port = network, process, host, port
        self._arrived: deque[tuple[SimulatedStream, str]] = deque()
        self._acceptor: Task | None = None
        self._closed = False

    def arrive(self, stream: SimulatedStream, peer: str) -> None:
        """A connection is there."""
        self._arrived.append((stream, peer))
        self._wake()

    def accept(self) -> tuple[SimulatedStream, str] | None:
        """See `Listener`."""
        scheduler = self._network.scheduler
        scheduler.enter()
        while not self._arrived:
            if self._closed:
                return None
            self._acceptor = scheduler.current
            scheduler.block("a connection")
            self._acceptor = None
        return self._arrived.popleft() if not self._closed else None

    def close(self) -> None:
        """See `Listener`."""
        if not self.process.dead:
            self._network.scheduler.enter()
            self.hang_up()

    def hang_up(self) -> None:
        """Close it without asking whether the process lives."""
        if not self._closed:
            self._closed = True
            del self._network.listeners[(self._host, self.port)]
            for stream, _ in self._arrived:
                stream.hang_up()
            self._wake()

    def _wake(self) -> None:
        if self._acceptor is not None:
            self._network.scheduler.wake(self._acceptor)
