"""Reading versions in a replica: leases on the relay's shared memory, or a pull over TCP from another host."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.errors import (
    ChunkDamaged,
    LeaseExpired,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    VersionNotYet,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.liveness import ProcessId
from tailrace.paramserver.machine.protocol import Machine, Segment
from tailrace.paramserver.machine.segments import PREFIX
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.relays.server import STALL_S
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, check_token, connect
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.transfer import receive_chunks

_SLICE_S = 1.0  # of a wait: between slices other threads of this reader get their turn
_ATTEMPTS = 3  # at a pull whose chunks were damaged on the way


class RelayReader:
    """Reads versions from one relay. Threads may share it; their requests take turns.

    Args:
        address: of the relay.
        token: shared secret.
        same_host: True reads the relay's shared memory, False pulls over TCP, None finds out which one works.
        max_bytes: the largest version to pull over TCP.
        stall_s: how long the relay may make no progress.
        machine: where it runs.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str,
        same_host: bool | None = None,
        max_bytes: int | None = None,
        stall_s: float = STALL_S,
        machine: Machine = HOST,
    ) -> None:
        self.address, self._token = address, check_token(token)
        self._asked_same_host, self._max_bytes, self._stall_s = same_host, max_bytes, stall_s
        self._machine, self._lock = machine, machine.lock()
        self._channel: Channel | None = None
        self._same_host, self._nonce = False, ""
        self._spare: mmap.mmap | None = None
        self._mapped: dict[str, tuple[tuple[str, int], Segment]] = {}

    @property
    def same_host(self) -> bool:
        """Whether versions are read from shared memory.

        Raises:
            RelayUnreachable: the relay does not answer.
        """
        with self._lock:
            self._open()
            return self._same_host

    def versions(self) -> list[int]:
        """Visible versions, oldest publication first.

        Raises:
            RelayUnreachable, RelayTimeout: the relay does not answer.
        """
        found: Any = self._request({"op": "versions"}, self._stall_s).get("versions")
        try:
            return [int(version) for version, _ in found]
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"the relay {self.address} sent no list of versions") from error

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
            timeout_s: how long to wait for it to become visible.
            hold_s: how long the relay keeps it for us; after that a writer may take its memory.
            verify: compare every chunk with its checksum first. A pull over TCP is always checked.

        Raises:
            VersionRetired: a newer version has taken its place.
            VersionNotYet: it did not become visible in time.
            ChunkDamaged: what is in memory is not what was published.
            LeaseExpired: on leaving, if the lease was lost before and the memory was given to another version: what was
                read may be a mixture.
            RelayUnreachable, RelayTimeout: the relay does not answer.
        """
        if not self.same_host:
            weights = self._pull(version, timeout_s)
            try:
                yield weights
            finally:
                weights.end()
            return
        channel, lease_id, weights = self._lease(version, timeout_s, hold_s)
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
            self._drop()
            for _, segment in self._mapped.values():
                segment.close()
            self._mapped.clear()
            self._spare = None

    def __enter__(self) -> RelayReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lease(self, version: int, timeout_s: float, hold_s: float) -> tuple[Channel, int, WeightLease]:
        process = ProcessId.current()
        message = {"op": "lease", "version": version, "hold_s": hold_s, "pid": process.pid}
        message |= {"started": process.started, "namespace": process.namespace}
        with self._lock:
            answer = self._await(message, timeout_s)
            granted, channel = self._machine.now(), self._channel
            lease_id: Any = answer.get("lease")
            checksums: Any = answer.get("checksums")
            manifest = Manifest.from_wire(answer.get("manifest"))
            if channel is None or type(lease_id) is not int or not _checksums_fit(checksums, manifest):
                raise ProtocolError(f"the relay {self.address} sent an incomplete lease")
            try:
                segment = self._map(str(answer.get("segment")), answer.get("generation"), manifest)
            except BaseException:
                self._release(channel, lease_id)
                raise

        def extend(seconds: float) -> bool:
            return self._ask(channel, {"op": "renew", "lease": lease_id, "hold_s": seconds})

        view = segment.view[: manifest.total_bytes]
        return channel, lease_id, WeightLease(manifest, view, checksums, granted + hold_s, extend, self._machine.now)

    def _map(self, name: str, generation: object, manifest: Manifest) -> Segment:
        if not name.startswith(PREFIX) or "/" in name or type(generation) is not int:
            raise ProtocolError(f"the relay {self.address} named the segment {name[:40]!r}")
        key = (self._nonce, generation)
        known = self._mapped.get(name)
        if known is not None and known[0] == key:
            return known[1]
        if known is not None:
            known[1].close()
            del self._mapped[name]
        try:
            segment = self._machine.attach(name)
        except OSError as error:
            raise RelayUnreachable(
                f"cannot map the shared memory of the relay {self.address}: {error}; is it on this host?"
            ) from error
        if segment.size < manifest.total_bytes:
            segment.close()
            raise RelayUnreachable(f"the shared memory of the relay {self.address} is too small; was it restarted?")
        self._mapped[name] = (key, segment)
        return segment

    def _pull(self, version: int, timeout_s: float) -> WeightLease:
        with self._lock:
            for attempt in range(1, _ATTEMPTS + 1):
                answer = self._await({"op": "pull", "version": version}, timeout_s)
                channel, checksums = self._channel, list[int]()
                if channel is None:
                    raise RelayUnreachable(f"the connection to the relay {self.address} is closed")
                try:
                    manifest = Manifest.from_wire(answer.get("manifest"), max_bytes=self._max_bytes)
                    memory = self._local_memory(manifest.total_bytes)
                    receive_chunks(channel, manifest, memory, checksums.append, lambda: None)
                    channel.send({"received": True})
                except ChunkDamaged:
                    channel.send({"received": True})
                    if attempt == _ATTEMPTS:
                        raise
                except BaseException:
                    self._drop()
                    raise
                else:
                    return WeightLease(manifest, memory.toreadonly(), checksums)
        raise AssertionError("the last attempt returns or raises")

    def _local_memory(self, nbytes: int) -> memoryview:
        """Memory for a pull: that of the last one, unless it is too small or a tensor still refers to it."""
        if self._spare is not None and len(self._spare) >= nbytes:
            try:
                self._spare.resize(len(self._spare))  # refused while there are views on it
                return memoryview(self._spare)[:nbytes]
            except (BufferError, SystemError):  # SystemError: this platform cannot tell
                pass
        self._spare = mmap.mmap(-1, max(mmap.PAGESIZE, nbytes))
        return memoryview(self._spare)[:nbytes]

    def _await(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        deadline = self._machine.now() + timeout_s
        while True:
            remaining = max(0.0, deadline - self._machine.now())
            wait_s = min(_SLICE_S, remaining)
            try:
                return self._request({**message, "wait_s": wait_s}, wait_s + self._stall_s)
            except VersionNotYet as error:
                if remaining <= wait_s:
                    version = message["version"]
                    raise VersionNotYet(
                        f"version {version} did not become visible on {self.address} in {timeout_s:.3g} s"
                    ) from error

    def _release(self, channel: Channel, lease_id: int) -> bool:
        return self._ask(channel, {"op": "release", "lease": lease_id})

    def _ask(self, channel: Channel, message: dict[str, Any]) -> bool:
        """Whether the relay says that a lease was ours until now. It was not if the connection that had it is gone."""
        with self._lock:
            if channel is not self._channel:
                return False
            try:
                return self._request(message, self._stall_s).get("kept") is True
            except (RelayUnreachable, RelayTimeout, LeaseExpired):
                return False

    def _check_unchanged(self, weights: WeightLease) -> None:
        try:
            weights.verify()
        except ChunkDamaged as error:
            raise LeaseExpired(
                f"the lease on version {weights.version} was lost while it was read, and its memory has been given to "
                "another version; what was read may be a mixture: lease again, and longer (hold_s)"
            ) from error

    def _request(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with self._lock:
            channel = self._open()
            try:
                return channel.request(message, timeout_s)
            except (RelayUnreachable, RelayTimeout, ProtocolError):
                self._drop()
                raise

    def _open(self) -> Channel:
        if self._channel is not None and not self._channel.readable(0):  # readable between requests: the peer closed
            return self._channel
        self._drop()
        channel, welcome = connect(
            self._machine, self.address, token=self._token, timeout_s=HANDSHAKE_S, stall_s=self._stall_s
        )
        self._nonce = str(welcome.get("nonce"))
        if self._asked_same_host is None:
            owner = str(welcome.get("owner_segment"))
            nonce = self._machine.owner_nonce(owner) if owner.startswith(PREFIX) and "/" not in owner else None
            self._same_host = nonce is not None and nonce == self._nonce
        else:
            self._same_host = self._asked_same_host
        self._channel = channel
        return channel

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _checksums_fit(checksums: object, manifest: Manifest) -> bool:
    return (
        isinstance(checksums, list)
        and len(checksums) == manifest.chunk_count
        and all(type(value) is int for value in checksums)
    )
