"""Publishing from the trainer: one local copy is the only stall (Laminar, section 4.2).

    consumes     `publish` calls
    waits for    the master relay, on a thread of its own
    tells        outcomes on another: a push may wait for room until the next reveal
    unblocked by the relay's answer, `retarget`, `close`

There are two staging buffers. While one is pushed, the other takes the newest version, and each further version takes
that one's place: the trainer never waits, and nothing queues up. A pushed version stays staged, so that it can go to
another master if the first one is lost (`retarget`). With one buffer a version waits until the one before it is sent.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tailrace.contracts import Weights, named_tensors
from tailrace.paramserver.chunk_size import CHUNK_BYTES
from tailrace.paramserver.clients.buffers import Borrowing, Buffers
from tailrace.paramserver.clients.publish_outcomes import PublishOutcomes
from tailrace.paramserver.clients.pusher import Pusher
from tailrace.paramserver.clients.share import Share
from tailrace.paramserver.clients.staging import Staged, StagedState, StagingBuffer
from tailrace.paramserver.errors import (
    ChunkDamaged,
    ManifestInvalid,
    ParamServerError,
    PublishTimeout,
    RelayUnreachable,
    VersionRetired,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.protocol import HostInterface
from tailrace.paramserver.relays.server import SLOT_TIMEOUT_S, STALL_S
from tailrace.paramserver.wire.agreement import WORTH_BYTES, Means
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, check_token, connect

_RESTOCK_S = 1.0  # for the relay to answer
_ATTEMPTS = 3  # at a push whose chunks were damaged on the way


class Publisher:
    """Publishes weights to the master relay, in the background.

    Args:
        address: the master relay's address. None: there is none yet; versions stay staged until `retarget` names one.
        token: shared secret.
        on_published: called on a background thread with each version and None once it is visible on the master, or
            the error that kept it from there (`VersionSuperseded` if a newer one took its place). A version that
            failed may be reported again after `retarget`.
        chunk_bytes: size of the chunks.
        slot_timeout_s: how long the relay may take to free a slot.
        stall_s: how long the relay may make no progress.
        transports: transports for chunks besides the connection itself, best first; None: shared memory if possible.
        codecs: to send fewer bytes with where that is faster, best first; None takes all that there are. What is encoded
            is the difference to the version before, if that is still staged.
        always_encode: use them wherever they make a chunk smaller, faster or not.
        host: under which relays reach this process.
        buffers: staging buffers: 2, or 1 to keep no more than one version in memory. With 1 nothing is encoded.
        borrow_bytes: a version of at least this size is copied into memory that the relay lends, if it is on this host
            and has some at once, and never a second time; None, or `transports` without shared memory, always copies into
            memory of this process.
        alone: no other publisher seals versions on these relays. What is sealed there and not by this one was left by a trainer
            that died: it is retired at first contact, since it would keep its place for good.
        machine: the machine that it runs on.

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
        always_encode: bool = False,
        host: str = "127.0.0.1",
        buffers: int = 2,
        borrow_bytes: int | None = WORTH_BYTES,
        alone: bool = False,
        machine: HostInterface = HOST,
    ) -> None:
        means = Means(transports, codecs, machine, host=host, always_encode=always_encode)
        self._address, self._token = address or "", check_token(token)
        self._chunk_bytes = chunk_bytes
        self._stall_s, self._machine = stall_s, machine
        self._changed = machine.condition()
        self._filling = machine.lock()
        self._staged = [Staged(StagingBuffer()) for _ in range(buffers)]
        self._outcomes = PublishOutcomes(self._changed, machine, on_published)
        self._buffers = Buffers(
            self._staged, self._changed, self._outcomes, machine, patience_s=slot_timeout_s + stall_s
        )
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
            alone=alone,
            machine=machine,
        )
        self._pushes = True  # whether there may be further outcomes
        self._thread = machine.spawn(self._run, "tailrace publisher")
        self._reporter = machine.spawn(self._report, "tailrace publisher's outcomes")

    @property
    def address(self) -> str:
        """The master relay; empty if there was none yet."""
        return self._address

    @property
    def superseded(self) -> list[int]:
        """Versions that were never pushed because a newer one came first, in order."""
        with self._changed:
            return list(self._buffers.superseded)

    @property
    def transfers(self) -> dict[str, int]:
        """Totals of what was pushed (see `Counts`)."""
        return self._pusher.counts.to_wire()

    def publish(
        self,
        version: int,
        weights: Weights,
        *,
        stamp: int | None = None,
        sealed: bool = False,
        share: Share | None = None,
    ) -> float:
        """Copy the weights and return; they become visible on the master relay later.

        Args:
            version: the version's number, from 0.
            weights: torch tensors (on any device), `RawTensor`s or buffers by name: a mapping, such as a ``state_dict()``, or
                pairs, which may come from a generator.
            stamp: the publication's stamp, larger than all before. With several masters each has a publisher of its own, which
                all publish one version with the same bytes and one stamp: relays then take it from any of them. None
                takes the wall clock's nanoseconds.
            sealed: whether it travels to all relays but stays invisible until `reveal` (its checkpoint is durable).
            share: the weights are the buffers of one rank of a layout, and this is what it brings of the version (`shares`).
                All publishers of the version give it one stamp, and seal it or not; it is whole once all have sent theirs.
                One of them reveals it.

        Returns:
            Seconds that the copy took: the trainer's stall.

        Raises:
            ManifestInvalid: the weights cannot be published.
            RelayUnreachable: the publisher is closed.
            PublishTimeout: there is one buffer, and the version in it could not be sent in time.
            ValueError: a share without a stamp.
        """
        if share is not None and stamp is None:
            raise ValueError("found a share without a stamp, expected one with the stamp of all its publishers")
        start = self._machine.now()
        with suppress(TypeError):  # the manifest refuses what is no whole number
            version = operator.index(version)  # numpy's are not JSON
        weights = named_tensors(weights, ManifestInvalid)
        with self._filling:
            staged = self._buffers.claim(version, lambda: self._closed)
            staged.pinned, staged.sealed, staged.share = stamp, sealed, share
            try:
                if share is None:
                    self._borrowing.provide(staged, weights, self._address)
                    manifest = staged.memory.fill(weights, version, self._chunk_bytes)
                else:
                    staged.memory.use(None)
                    staged.memory.fill_share(weights, share)
                    manifest = dataclasses.replace(share.manifest, version=version)
            except BaseException:
                self._buffers.fill(staged, StagedState.EMPTY, None)
                raise
            self._borrowing.last_bytes = manifest.total_bytes if share is None else 0
            self._buffers.fill(staged, StagedState.WAITING, manifest)
        return self._machine.now() - start

    def prepare(self, nbytes: int, *, timeout_s: float = 30.0) -> None:
        """Borrow memory for a version of this size now, so that the first `publish` need not. There may be none.

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
                if staged.state in (StagedState.WAITING, StagedState.PUSHING, StagedState.SENT):
                    self._pusher.owe_reveal(version)
                    return
        try:
            self._ask({"op": "reveal", "version": version, "stamp": stamp}, timeout_s)
        except VersionRetired:
            raise
        except ParamServerError:
            self._pusher.owe_reveal(version)  # whoever is master at the next push is told: it may hold that version up
            raise
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
                if staged.state is StagedState.WAITING:
                    self._outcomes.record(
                        version, VersionRetired(f"version {version} was retired before it was pushed")
                    )
                if staged.state in (StagedState.WAITING, StagedState.HELD):
                    staged.state, staged.manifest = StagedState.EMPTY, None
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
            candidates = [
                staged for staged in self._staged if staged.manifest and staged.state is not StagedState.FILLING
            ]
            newest = max(candidates, key=lambda staged: staged.order, default=None)
            for staged in candidates:
                staged.sent.clear()
            if newest is not None and newest.state is StagedState.HELD:
                newest.state = StagedState.WAITING
                self._outcomes.forget(newest.version)
            self._changed.notify_all()

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Stop. A version that is being pushed has `timeout_s` to arrive.

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
        if threading.current_thread() is not self._reporter:  # else `on_published` closes us
            self._reporter.join(HANDSHAKE_S)
        for staged in self._staged:
            staged.memory.close()
        if late:
            raise PublishTimeout(f"the last push to {self._address} did not end in {timeout_s:.3g} s and was cut off")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ask(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send a request from the caller's thread, on its own connection."""
        if not self._address:
            raise RelayUnreachable("the publisher knows no master relay yet")
        channel, _ = connect(
            self._machine, self._address, token=self._token, timeout_s=timeout_s, stall_s=min(timeout_s, self._stall_s)
        )
        try:
            channel.request(message, timeout_s)
        finally:
            channel.close()

    def _describe(self) -> str:
        staged = ", ".join(str(staged) for staged in self._staged if staged.manifest)
        return f"on the master relay {self._address}; staged: {staged or 'nothing'}"

    def _run(self) -> None:
        while True:
            with self._changed:
                while (
                    not (staged := self._buffers.next() if self._address else None)
                    and not self._closed
                    and not self._restock
                ):
                    self._changed.wait()
                if staged is not None:
                    staged.state = StagedState.PUSHING
                elif self._closed:
                    self._pushes = False
                    self._changed.notify_all()
                    break
                restock = self._restock and staged is None
                self._restock = self._restock and not restock
                epoch, address = self._epoch, self._address
            if staged is not None:
                self._push(staged, address, epoch)
            elif restock:
                # What the pushed version took the place of; more is made only when a version needs it.
                self._borrowing.prepare(address, self._borrowing.last_bytes, _RESTOCK_S, recycled=True)
        self._pusher.drop()
        self._borrowing.close()

    def _report(self) -> None:
        while True:
            with self._changed:
                while self._pushes and not self._outcomes.to_report:
                    self._changed.wait()
                reports = self._outcomes.take_reports()
                if not reports:
                    break
            for version, error in reports:
                self._outcomes.report(version, error)

    def _push(self, staged: Staged, address: str, epoch: int) -> None:
        outcome: ParamServerError | None = None
        sealed, share = staged.sealed, None if staged.share is None else staged.manifest
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    sealed = self._pusher.push(
                        staged, address, lambda: epoch == self._epoch, lambda: self._buffers.claiming
                    )
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
            if share is not None and staged.manifest is not share:
                return  # superseded while the others' shares were waited for
            if epoch != self._epoch and not self._closed:
                # Retargeted meanwhile: to the new master with it, whatever became of it, unless a newer one waits.
                waiting = self._buffers.next()
                if waiting is None or waiting.order < staged.order:
                    staged.state = StagedState.WAITING
                    self._changed.notify_all()
                    return
                staged.state = StagedState.HELD
                self._buffers.supersede(staged, waiting.version)
                return
            if outcome is None and sealed and not staged.sealed:
                staged.state = StagedState.WAITING  # revealed meanwhile: the next offer says so
                return
            staged.state, self._restock = StagedState.HELD, True
            if outcome is None and staged.sealed:
                self._changed.notify_all()  # visible, and reported, once it is revealed
            else:
                others = (other for other in self._staged if other.version == staged.version)
                self._outcomes.record(
                    staged.version, outcome, again=any(other.order > staged.order for other in others)
                )
