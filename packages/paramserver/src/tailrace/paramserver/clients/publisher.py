"""Publishing from the trainer: one local copy is the only stall (Laminar, section 4.2).

    consumes     `publish` calls
    waits for    the master relay, on a thread of its own
    unblocked by the relay's answer, `retarget`, `close`

There are two staging buffers. While one is pushed, the other takes the newest version, and each further version takes
that one's place: the trainer never waits, and nothing queues up. A pushed version stays staged, so that it can go to
another master if the first one is lost (`retarget`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tailrace.paramserver.clients.borrowing import Borrowing
from tailrace.paramserver.clients.outcomes import Outcomes
from tailrace.paramserver.clients.pusher import Pusher
from tailrace.paramserver.clients.staged import Staged, State
from tailrace.paramserver.clients.staging import StagingBuffer
from tailrace.paramserver.errors import (
    ChunkDamaged,
    ParamServerError,
    PublishTimeout,
    RelayUnreachable,
    VersionRetired,
    VersionSuperseded,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.protocol import Machine
from tailrace.paramserver.manifest import CHUNK_BYTES, Manifest
from tailrace.paramserver.relays.server import SLOT_TIMEOUT_S, STALL_S
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, check_token, connect
from tailrace.paramserver.wire.means import WORTH_BYTES, Means, default_codecs, default_transports

_RESTOCK_S = 1.0  # for the relay to answer
_ATTEMPTS = 3  # at a push whose chunks were damaged on the way


class Publisher:
    """Publishes weights to the master relay, in the background.

    Args:
        address: of the master relay. None: there is none yet, and what is published stays staged until `retarget` names one.
        token: shared secret.
        on_published: called on the background thread with each version and None once it is visible on the master, or
            the error that kept it from there (`VersionSuperseded` if a newer one took its place). A version that
            failed may be reported again after `retarget`.
        chunk_bytes: size of the chunks.
        slot_timeout_s: how long the relay may take to free a slot.
        stall_s: how long the relay may make no progress.
        transports: for chunks, beside the connection itself, best first; None takes shared memory where there is any.
        codecs: to send fewer bytes with where that is faster, best first; None takes all that there are. What is encoded
            is the difference to the version before, if that is still staged.
        borrow_bytes: a version of at least this size is copied into memory that the relay lends, if it is on this host
            and has some at once, and never a second time; None, or `transports` without shared memory, always copies into
            memory of this process.
        machine: where it runs.

    Raises:
        TransportUnavailable, CodecUnknown, CodecUnavailable: a transport or codec cannot be used here.
    """

    def __init__(
        self,
        address: str | None,
        *,
        token: str,
        on_published: Callable[[int, ParamServerError | None], None] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        slot_timeout_s: float = SLOT_TIMEOUT_S,
        stall_s: float = STALL_S,
        transports: Sequence[str] | None = None,
        codecs: Sequence[str] | None = None,
        borrow_bytes: int | None = WORTH_BYTES,
        machine: Machine = HOST,
    ) -> None:
        means = Means(
            default_transports(machine) if transports is None else transports,
            default_codecs(machine) if codecs is None else codecs,
        )
        self._address, self._token = address or "", check_token(token)
        self._chunk_bytes = chunk_bytes
        self._stall_s, self._machine = stall_s, machine
        self._changed = machine.condition()
        self._filling = machine.lock()
        self._staged = [Staged(StagingBuffer()), Staged(StagingBuffer())]
        self._outcomes = Outcomes(self._changed, machine, on_published)
        self._superseded: list[int] = []
        self._epoch, self._closed, self._restock = 0, False, False
        no_memory = transports is not None and "shm" not in transports
        least_bytes = None if no_memory else borrow_bytes
        self._borrowing = Borrowing(self._staged, self._changed, least_bytes, token, machine)
        self._pusher = Pusher(
            self._staged,
            self._changed,
            token,
            means=means,
            slot_timeout_s=slot_timeout_s,
            stall_s=stall_s,
            machine=machine,
        )
        self._thread = machine.spawn(self._run, "tailrace publisher")

    @property
    def address(self) -> str:
        """The master relay; empty if there was none yet."""
        return self._address

    @property
    def superseded(self) -> list[int]:
        """Versions that were never pushed because a newer one came first, in order."""
        with self._changed:
            return list(self._superseded)

    @property
    def transfers(self) -> dict[str, int]:
        """What was pushed, counted (see `Counts`)."""
        return self._pusher.counts.to_wire()

    def publish(
        self, version: int, weights: Iterable[tuple[str, Any]], *, stamp: int | None = None, sealed: bool = False
    ) -> float:
        """Copy the weights and return; they become visible on the master relay later.

        Args:
            version: the version's number, from 0.
            weights: names and torch tensors (on any device), `RawTensor`s or buffers. May be a generator.
            stamp: of the publication, larger than all before. With several masters each has a publisher of its own, which
                all publish one version with the same bytes and one stamp: relays then take it from any of them. None
                takes the wall clock's nanoseconds.
            sealed: it travels to all relays but stays invisible until `reveal` (its checkpoint is durable).

        Returns:
            Seconds that the copy took: the trainer's stall.

        Raises:
            ManifestInvalid: the weights cannot be published.
            RelayUnreachable: the publisher is closed.
        """
        start = self._machine.now()
        with self._filling:
            staged = self._claim(version)
            staged.pinned, staged.sealed = stamp, sealed
            try:
                self._borrowing.provide(staged, weights, self._address)
                manifest = staged.memory.fill(weights, version, self._chunk_bytes)
            except BaseException:
                self._set(staged, State.EMPTY, None)
                raise
            self._borrowing.last_bytes = manifest.total_bytes
            self._set(staged, State.WAITING, manifest)
        return self._machine.now() - start

    def prepare(self, nbytes: int, *, timeout_s: float = 30.0) -> None:
        """Borrow memory for a version of so many bytes now, so that the first `publish` need not. It may find none.

        The size of the first version is known to `publish` if the weights are a list; for a generator it is not, and
        what it gathers is then copied into memory of this process first.
        """
        self._borrowing.last_bytes = nbytes
        self._borrowing.prepare(self._address, nbytes, timeout_s)

    def reveal(self, version: int, *, timeout_s: float = 10.0) -> None:
        """Let a sealed version be seen, on every relay that has it or gets it later.

        A version that is still on its way becomes visible when it has arrived; `wait` waits for that. A version of an
        earlier publisher, which died before it could reveal it, can be revealed too.

        Raises:
            VersionRetired: the master relay does not have it.
            ParamServerError: the master relay does not answer.
        """
        with self._changed:
            staged = next((s for s in self._staged if s.manifest and s.version == version), None)
            stamp = None
            if staged is not None and staged.manifest is not None:
                staged.sealed, stamp = False, staged.manifest.stamp
                if staged.state in (State.WAITING, State.PUSHING):
                    self._pusher.owe_reveal(version)
                    return
        self._ask({"op": "reveal", "version": version, "stamp": stamp}, timeout_s)
        if stamp is not None:
            self._pusher.revealed((version, stamp))
        with self._changed:
            self._outcomes.record(version, None)

    def retire(self, version: int, *, timeout_s: float = 10.0) -> None:
        """Let no relay serve a version any more. Readers that hold it keep it until their leases end.

        Raises:
            ParamServerError: the master relay does not answer.
        """
        with self._changed:
            staged = next((s for s in self._staged if s.manifest and s.version == version), None)
            stamp = None
            if staged is not None and staged.manifest is not None:
                stamp = staged.manifest.stamp
                if staged.state is State.WAITING:
                    self._outcomes.record(
                        version, VersionRetired(f"version {version} was retired before it was pushed")
                    )
                if staged.state in (State.WAITING, State.HELD):
                    staged.state, staged.manifest = State.EMPTY, None
        self._ask({"op": "retire", "version": version, "stamp": stamp}, timeout_s)

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until a version is visible on the master relay.

        Raises:
            PublishTimeout: not within `timeout_s`.
            VersionSuperseded: it never will be, a newer one took its place.
            ParamServerError: why the last push failed.
        """
        self._outcomes.wait(version, timeout_s, self._describe)

    def retarget(self, address: str) -> None:
        """Publish to another master relay from now on, first of all the newest version if that relay lacks it."""
        with self._changed:
            self._address, self._epoch = address, self._epoch + 1
            self._pusher.cut()
            candidates = [staged for staged in self._staged if staged.manifest and staged.state is not State.FILLING]
            newest = max(candidates, key=lambda staged: staged.order, default=None)
            for staged in candidates:
                staged.sent.clear()
            if newest is not None and newest.state is State.HELD:
                newest.state = State.WAITING
                self._outcomes.forget(newest.version)
            self._changed.notify_all()

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Stop. What is being pushed has `timeout_s` to arrive.

        Raises:
            PublishTimeout: the push did not end in time; it was cut off.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        late = self._thread.is_alive()
        if late:
            with self._changed:
                self._epoch += 1
                self._pusher.cut()
            self._thread.join(HANDSHAKE_S)
        for staged in self._staged:
            staged.memory.close()
        if late:
            raise PublishTimeout(f"the last push to {self._address} did not end in {timeout_s:.3g} s and was cut off")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, message: dict[str, Any], timeout_s: float) -> None:
        """A request of the caller's own thread, on a connection of its own."""
        if not self._address:
            raise RelayUnreachable("the publisher knows no master relay yet")
        channel, _ = connect(
            self._machine, self._address, token=self._token, timeout_s=timeout_s, stall_s=min(timeout_s, self._stall_s)
        )
        try:
            channel.request(message, timeout_s)
        finally:
            channel.close()

    def _claim(self, version: int) -> Staged:
        """The buffer for a new version: an unused one, else the older of those not being pushed."""
        with self._changed:
            if self._closed:
                raise RelayUnreachable("the publisher is closed")
            free = [staged for staged in self._staged if staged.state is not State.PUSHING]
            staged = min(free, key=lambda staged: (staged.state is not State.EMPTY, staged.order))
            if staged.state is State.WAITING:
                self._supersede(staged, version)
            staged.state, staged.manifest = State.FILLING, None
            staged.checksums.clear()
            staged.sent.clear()
            self._outcomes.forget(version)
            return staged

    def _supersede(self, staged: Staged, by: int) -> None:
        error = VersionSuperseded(f"version {staged.version} was superseded by version {by} before it was pushed")
        self._superseded.append(staged.version)
        self._outcomes.record(staged.version, error)
        staged.state, staged.manifest = State.EMPTY, None

    def _set(self, staged: Staged, state: State, manifest: Manifest | None) -> None:
        with self._changed:
            if state is State.WAITING and manifest is not None and (older := self._next()) is not None:
                self._supersede(older, manifest.version)
            staged.state = state
            # Stamps order publications; a clock that was set back must not reorder ours.
            others = [other.manifest.stamp for other in self._staged if other is not staged and other.manifest]
            stamp = max([self._machine.time_ns(), *(value + 1 for value in others)])
            if staged.pinned is not None:
                stamp = staged.pinned
            staged.manifest = None if manifest is None else dataclasses.replace(manifest, stamp=stamp)
            self._changed.notify_all()

    def _describe(self) -> str:
        staged = ", ".join(str(staged) for staged in self._staged if staged.manifest)
        return f"on the master relay {self._address}; staged: {staged or 'nothing'}"

    def _run(self) -> None:
        while True:
            with self._changed:
                while (
                    not (staged := self._next() if self._address else None)
                    and not self._outcomes.to_report
                    and not self._closed
                    and not self._restock
                ):
                    self._changed.wait()
                reports = self._outcomes.take_reports()
                if staged is not None:
                    staged.state = State.PUSHING
                elif self._closed and not reports:
                    break
                restock = self._restock and staged is None
                self._restock = self._restock and not restock
                epoch, address = self._epoch, self._address
            for version, error in reports:
                self._outcomes.report(version, error)
            if staged is not None:
                self._push(staged, address, epoch)
            elif restock:
                # What the pushed version took the place of; more is made only when a version needs it.
                self._borrowing.prepare(address, self._borrowing.last_bytes, _RESTOCK_S, recycled=True)
        self._pusher.drop()
        self._borrowing.close()

    def _next(self) -> Staged | None:
        """The newest of those that wait: beside a new version an older one may, which was revealed while it was pushed."""
        waiting = (staged for staged in self._staged if staged.state is State.WAITING)
        return max(waiting, key=lambda staged: staged.order, default=None)

    def _push(self, staged: Staged, address: str, epoch: int) -> None:
        outcome: ParamServerError | None = None
        sealed = staged.sealed
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    sealed = self._pusher.push(staged, address, lambda: epoch == self._epoch)
                    break
                except ChunkDamaged:
                    if attempt == _ATTEMPTS:
                        raise
        except ParamServerError as error:
            outcome = error
        except OSError as error:
            outcome = RelayUnreachable(f"pushing version {staged.version} to {address} failed: {error}")
        if outcome is not None:
            self._pusher.drop()
        with self._changed:
            if epoch != self._epoch and not self._closed:
                # Retargeted meanwhile: to the new master with it, whatever became of it, unless a newer one waits.
                waiting = self._next()
                if waiting is None or waiting.order < staged.order:
                    staged.state = State.WAITING
                    return
                staged.state = State.HELD
                self._supersede(staged, waiting.version)
                return
            if outcome is None and sealed and not staged.sealed:
                staged.state = State.WAITING  # revealed meanwhile: the next offer says so
                return
            staged.state, self._restock = State.HELD, True
            if outcome is None and staged.sealed:
                self._changed.notify_all()  # visible, and reported, once it is revealed
            else:
                self._outcomes.record(staged.version, outcome)
