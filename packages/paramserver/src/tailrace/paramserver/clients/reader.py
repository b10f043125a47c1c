"""Reading versions in a replica: leases on the relay's shared memory, or a pull over TCP from another host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tailrace.paramserver.clients.connection import Connection, Where
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.loans import MappedSegments
from tailrace.paramserver.clients.needs import Needs, Selection
from tailrace.paramserver.clients.spare import SpareMemory
from tailrace.paramserver.errors import (
    ChunkDamaged,
    LeaseExpired,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    VersionNotYet,
    VersionRetired,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.machine.segments import own_fields
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.server import STALL_S
from tailrace.paramserver.relays.session import MAX_WAIT_S
from tailrace.paramserver.wire.agreement import Means, Offer, OfferAnswer
from tailrace.paramserver.wire.channel import Channel, TrafficCounts
from tailrace.paramserver.wire.receiving import Intake, receive_chunks


class ArrivingVersion:
    """A version on its way into local memory (see `Sink`).

    Args:
        manifest: the version.
        view: memory for it.
    """

    def __init__(self, manifest: Manifest, view: memoryview) -> None:
        self.manifest, self.view = manifest, view
        self.checksums: dict[int, int] = {}

    def progress(self) -> None:
        """The connection's own deadline is enough."""

    def arrived(self, index: int, checksum: int) -> None:
        self.checksums[index] = checksum


class Puller:
    """Receives versions into memory of this process, and keeps the received part of an interrupted one.

    Args:
        means: transports that it can read from.
        counts: totals to which everything received is added.
        max_bytes: the largest version to accept.
    """

    def __init__(self, means: Means, counts: TrafficCounts, max_bytes: int | None) -> None:
        self._means, self._counts, self._max_bytes = means, counts, max_bytes
        self._spare = SpareMemory()
        self._partial: ArrivingVersion | None = None

    def pull(
        self, channel: Channel, answer: dict[str, object], chunks: Callable[[Manifest], Iterable[int]]
    ) -> ArrivingVersion:
        """Receive what is missing of the version that a relay offers in answer to a pull.

        Args:
            chunks: the chunks that are needed.

        Raises:
            ChunkDamaged: a chunk came damaged too often.
            ParamServerError: the offer is none, or the connection broke. What arrived is kept for the next pull.
        """
        offer = Offer.from_wire(answer, max_bytes=self._max_bytes)
        manifest = offer.manifest
        if self._partial is None or self._partial.manifest != manifest:
            self._partial = None  # its view on the spare memory, too
            self._partial = ArrivingVersion(manifest, self._spare.take(manifest.total_bytes))
        pulled = self._partial
        missing = [index for index in chunks(manifest) if index not in pulled.checksums]
        transport, source = self._means.open(offer.transports)
        intake = Intake(source)
        try:
            channel.send(OfferAnswer(tuple(missing), transport).to_wire())
            if not receive_chunks(channel, manifest, missing, pulled, intake, self._counts):
                raise RelayTimeout(f"{channel.peer} stopped sending version {manifest.version}")
            channel.send({"complete": True})
        finally:
            intake.close()
        self._partial = None
        return pulled

    def close(self) -> None:
        """Forget everything. Memory goes when no tensor refers to it."""
        self._partial = None
        self._spare.clear()


# Tensors that come in parts and are used at once: while one is asked for, a loop still refers to the one before.
_HELD = 2
_SLICE_S = 1.0  # of a wait: between slices other threads of this reader get their turn


class RelayReader:
    """Reads versions from a relay, and from another one if that fails. Threads may share it; their requests take turns.

    Args:
        address: the relay's address; or several, best first; or a callable that returns them (`RelayGroup.locate`). With more
            than one, a relay that dies, is cut off or stands still costs a reader no more than the time to notice: it goes
            on with the next, and a pull that was interrupted asks that one for the missing chunks only.
        token: shared secret.
        same_host: True reads the relay's shared memory, False pulls over the network, None finds out which one works.
        max_bytes: the largest version to pull over the network.
        stall_s: how long the relay may make no progress.
        transports: transports for pulls besides the connection itself, best first.
        needs: the part of a version that this rank needs; None: all of it.
        machine: the machine that it runs on.
    """

    def __init__(
        self,
        address: Where,
        *,
        token: str,
        same_host: bool | None = None,
        max_bytes: int | None = None,
        stall_s: float = STALL_S,
        transports: Sequence[str] = (),
        needs: Needs | None = None,
        machine: HostInterface = HOST,
    ) -> None:
        self._connection = Connection(address, token=token, same_host=same_host, stall_s=stall_s, machine=machine)
        self._machine, self._lock, self._stall_s = machine, self._connection.lock, stall_s
        self._counts = TrafficCounts()
        self._puller = Puller(Means(transports, (), machine), self._counts, max_bytes)
        self._mapped = MappedSegments(machine)
        self._asked, self._needs = needs is not None, needs or Needs()
        self._whole = SpareMemory(_HELD)

    @property
    def address(self) -> str:
        """The relay that it reads from, or read from last."""
        return self._connection.address

    @property
    def same_host(self) -> bool:
        """Whether versions are read from shared memory.

        Raises:
            RelayUnreachable: no relay answers.
        """
        return self._connection.anywhere(self._connection.same_host)

    @property
    def transfers(self) -> dict[str, int]:
        """Totals of what was pulled over the network (see `TrafficCounts`)."""
        return self._counts.to_wire()

    def versions(self) -> list[int]:
        """Visible versions, oldest publication first.

        Raises:
            RelayUnreachable, RelayTimeout: no relay answers.
        """
        answer = self._connection.anywhere(lambda: self._connection.request({"op": "versions"}, 0.0))
        found: Any = answer.get("versions")
        try:
            return [int(version) for version, _ in found]
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"the relay {self.address} sent no list of versions") from error

    def memory(self) -> tuple[int, int]:
        """Copies of weights that the relay has in memory, and their bytes (see `RelayStatus`).

        Raises:
            RelayUnreachable, RelayTimeout: no relay answers.
        """
        answer = self._connection.anywhere(lambda: self._connection.request({"op": "versions"}, 0.0))
        copies, nbytes = answer.get("copies"), answer.get("bytes")
        if not isinstance(copies, int) or not isinstance(nbytes, int):
            raise ProtocolError(f"the relay {self.address} did not say how many copies it has")
        return copies, nbytes

    def latest(self) -> int | None:
        """The newest visible version, or None."""
        versions = self.versions()
        return versions[-1] if versions else None

    @contextmanager
    def lease(
        self, version: int, *, timeout_s: float = 30.0, hold_s: float = 300.0, verify: bool = True
    ) -> Iterator[WeightLease]:
        """The tensors of a version, which do not change while the context is open.

        Args:
            version: a version's number.
            timeout_s: how long to wait for it to become visible, and, with several relays, for one that works.
            hold_s: how long the relay keeps it for us, 3,600 s at most; after that a writer may take its memory.
            verify: compare every chunk with its checksum first. A pull over the network is always checked.

        Raises:
            VersionRetired: a newer version has taken its place.
            VersionNotYet: it did not become visible in time. The message says so if it is there but sealed.
            ChunkDamaged: what is in memory is not what was published.
            ValueError: `hold_s` is longer than a relay keeps a version without a renewal.
            LeaseExpired: on leaving, if the lease was lost before and the memory was given to another version: what was
                read may be a mixture.
            RelayUnreachable, RelayTimeout: no relay answers.
        """
        deadline = self._machine.now() + timeout_s
        held = self._connection.anywhere(lambda: self._obtain(version, timeout_s, deadline, hold_s), deadline)
        if not isinstance(held, tuple):
            try:
                yield held
            finally:
                held.end()
            return
        channel, lease_id, weights = held
        try:
            if verify:
                weights.verify()
            yield weights
        except BaseException:
            self._release(channel, lease_id)
            raise
        else:
            if not self._release(channel, lease_id):
                self._check_unchanged(weights)
        finally:
            weights.end()

    def close(self) -> None:
        """Give everything back: leases end, shared memory is unmapped once no tensor refers to it."""
        with self._lock:
            self._connection.drop()
            self._mapped.close()
            self._puller.close()
            self._whole.clear()

    def __enter__(self) -> RelayReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _obtain(
        self, version: int, timeout_s: float, deadline: float, hold_s: float
    ) -> WeightLease | tuple[Channel, int, WeightLease]:
        """The version in local memory, or a lease on the relay's, with its connection and id."""
        while True:
            remaining = max(0.0, deadline - self._machine.now())
            wait_s = min(_SLICE_S, remaining)
            try:
                with self._lock:
                    if self._connection.same_host(deadline):
                        return self._lease(version, wait_s, deadline, hold_s)
                    return self._pull(version, wait_s, deadline)
            except VersionNotYet as error:
                if remaining <= wait_s:
                    raise VersionNotYet(
                        f"version {version} did not become visible on {self.address} in {timeout_s:.3g} s: {error}"
                    ) from error

    def _lease(self, version: int, wait_s: float, deadline: float, hold_s: float) -> tuple[Channel, int, WeightLease]:
        if not 0 <= hold_s <= MAX_WAIT_S:  # no relay would take it
            raise ValueError(
                f"found hold_s={hold_s!r}, expected seconds from 0 to {MAX_WAIT_S:.0f}; renew the lease in time"
            )
        message = {"op": "lease", "version": version, "wait_s": wait_s, "hold_s": hold_s, **own_fields()}
        answer = self._connection.request(message, wait_s, deadline)
        granted, channel = self._machine.now(), self._connection.channel
        lease_id: Any = answer.get("lease")
        checksums: Any = answer.get("checksums")
        manifest = Manifest.from_wire(answer.get("manifest"))
        if type(lease_id) is not int or not _checksums_fit(checksums, manifest):
            raise ProtocolError(f"the relay {self.address} sent an incomplete lease")
        try:
            segment = self._mapped.map(
                str(answer.get("segment")),
                self._connection.nonce,
                answer.get("generation"),
                manifest.total_bytes,
                self.address,
            )
            selection = self._selected(manifest)
        except BaseException:
            self._release(channel, lease_id)
            raise

        def extend(seconds: float) -> bool:
            return self._ask(channel, {"op": "renew", "lease": lease_id, "hold_s": seconds})

        view = segment.view[: manifest.total_bytes]
        return (
            channel,
            lease_id,
            WeightLease(
                manifest,
                view,
                checksums,
                granted + hold_s,
                extend,
                self._machine.now,
                selection,
                self._whole,
            ),
        )

    def _pull(self, version: int, wait_s: float, deadline: float) -> WeightLease:
        answer = self._connection.request({"op": "pull", "version": version, "wait_s": wait_s}, wait_s, deadline)
        try:
            pulled = self._puller.pull(self._connection.channel, answer, self._chunks)
        except BaseException:
            self._connection.drop()
            raise
        return WeightLease(
            pulled.manifest,
            pulled.view.toreadonly(),
            pulled.checksums,
            selection=self._selected(pulled.manifest),
            whole=self._whole,
        )

    def _selected(self, manifest: Manifest) -> Selection | None:
        """None for whole tensors of which all are needed: they are read where they lie."""
        parts = any(spec.part is not None for spec in manifest.tensors)
        return self._needs.of(manifest) if self._asked or parts else None

    def _chunks(self, manifest: Manifest) -> Sequence[int]:
        selection = self._selected(manifest)
        return range(manifest.chunk_count) if selection is None else selection.chunks

    def _release(self, channel: Channel, lease_id: int) -> bool:
        return self._ask(channel, {"op": "release", "lease": lease_id})

    def _ask(self, channel: Channel, message: dict[str, Any]) -> bool:
        """Whether the relay confirms that a lease was held until now. It was not if its connection is gone."""
        with self._lock:
            if not self._connection.is_current(channel):
                return False
            try:
                return channel.request(message, self._stall_s).get("kept") is True
            except (RelayUnreachable, RelayTimeout, ProtocolError):
                self._connection.drop()
                return False
            except LeaseExpired:
                return False

    def _check_unchanged(self, weights: WeightLease) -> None:
        try:
            weights.verify()
        except ChunkDamaged as error:
            raise LeaseExpired(
                f"the lease on version {weights.version} was lost while it was read, and its memory has been given to "
                "another version; what was read may be a mixture: lease again, and longer (hold_s)"
            ) from error


def _checksums_fit(checksums: object, manifest: Manifest) -> bool:
    return (
        isinstance(checksums, list)
        and len(checksums) == manifest.chunk_count
        and all(type(value) is int for value in checksums)
    )


_POLL_S = 0.05


@contextmanager
def lease_version(
    reader: RelayReader, version: int | None, *, timeout_s: float, hold_s: float = 300.0
) -> Iterator[WeightLease]:
    """A lease on a version, or on the newest visible one.

    Args:
        reader: a reader of the relay.
        version: its number; None takes the newest, and waits until there is one.
        timeout_s: how long to wait for it to become visible.
        hold_s: how long the relay keeps it for us.

    Raises:
        VersionNotYet: it did not become visible in time.
        ParamServerError: what `RelayReader.lease` raises.
    """
    deadline = HOST.now() + timeout_s
    if version is not None:
        with reader.lease(version, timeout_s=timeout_s, hold_s=hold_s) as weights:
            yield weights
        return
    while True:
        newest = reader.latest()
        remaining = deadline - HOST.now()
        if newest is None:
            if remaining <= 0:
                raise VersionNotYet(f"no version became visible on {reader.address} in {timeout_s:.3g} s")
            HOST.sleep(min(_POLL_S, remaining))
            continue
        entered = False
        try:
            with reader.lease(newest, timeout_s=max(0.0, remaining), hold_s=hold_s) as weights:
                entered = True
                yield weights
        except VersionRetired:
            if entered or remaining <= 0:  # a newer one took its place before it was leased: take that one
                raise
            continue
        return
