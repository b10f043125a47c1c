"""The service's replicas: started, restarted when they die, given samples and weights. Decides nothing about order.

    thread of a replica: start ──► handle.events ──► (event loop) on_events
    event loop: route, abort, pull ──► handle.submit

All state belongs to the event loop; the threads only start replicas and wait for their events.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from tailrace.contracts import (
    Abort,
    Activity,
    Event,
    Finished,
    FinishReason,
    Interrupted,
    Pull,
    Pulled,
    PullFailed,
    Refused,
    Route,
    TrajectoryRef,
)
from tailrace.rollout.command_order import ReplicaCommand
from tailrace.rollout.errors import CloseTimeoutError, ReplicaCrashedError, RolloutError, ServiceDownError
from tailrace.rollout.service.book import SampleOrder
from tailrace.rollout.service.handle import ReplicaHandle, ReplicaSetup, StartReplica

_EVENTS_S = 0.5
_SILENT_S = 10.0  # a replica whose process runs says something at least every few seconds while it has work
_CLOSE_S = 10.0


class Owner(Protocol):
    """Who hears what becomes of samples."""

    def finished(self, id_: str, finish: FinishReason) -> None:
        """A sample is complete."""
        ...

    def refused(self, id_: str, reason: str) -> None:
        """The engine does not take a sample."""
        ...

    def returned(self, ids: Sequence[str]) -> None:
        """Samples are on no replica any more, and not complete."""
        ...

    def room(self) -> None:
        """A replica may have become ready or emptier."""
        ...

    def down(self, error: ServiceDownError) -> None:
        """No replica is left."""
        ...


@dataclass(slots=True)
class ServiceReplica:
    """A replica at this moment.

    Args:
        name: its name.
        starts: counts its starts, which tells apart what comes of an earlier one.
        version: the version that it serves, None while it starts or loads.
        in_flight: samples that it has.
        deaths: deaths since a sample was last completed.
        given_up: whether it died more often than it may.
    """

    name: str
    starts: int = 1
    handle: ReplicaHandle | None = None
    version: int | None = None
    in_flight: set[str] = field(default_factory=set)
    deaths: int = 0
    given_up: bool = False
    error: Exception | None = None
    seq: int = 0
    pulling: asyncio.Future[str | None] | None = None
    thread: threading.Thread | None = None

    def next_seq(self) -> int:
        """The number of the next command."""
        self.seq += 1
        return self.seq


class ServiceReplicas:
    """All replicas of a service.

    Args:
        setup: how each is started; name and seed are filled in.
        count: how many.
        start: starts one.
        owner: hears what becomes of samples.
        restarts: deaths of a replica, without a complete sample between them, after which it is given up.
        still_s: seconds without a token after which an engine that has work counts as dead; so does, after 10 s at least, a
            process that says nothing at all.
    """

    def __init__(
        self,
        setup: ReplicaSetup,
        count: int,
        start: StartReplica,
        owner: Owner,
        *,
        restarts: int,
        still_s: float,
    ) -> None:
        self._setup, self._start, self._owner = setup, start, owner
        self._restarts, self._still_s = restarts, still_s
        self.all = [ServiceReplica(f"replica-{index}") for index in range(count)]
        self.version = 0  # what replicas are to serve
        self._closing = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._held = False

    async def start(self) -> None:
        """Start all, and wait until each serves version 0.

        Raises:
            RolloutError: one does not start. The others run until `close`.
        """
        waits = []
        for replica in self.all:
            replica.pulling = self._loop.create_future()
            waits.append(replica.pulling)
            self._begin(replica)
        failed = [reason for reason in await asyncio.gather(*waits) if reason is not None]
        if failed:
            error = next((one.error for one in self.all if one.error is not None), None)
            raise error if isinstance(error, RolloutError) else ServiceDownError(failed[0]) from error

    def least_loaded(self, slots: int) -> ServiceReplica | None:
        """The replica with the fewest samples of those that are ready and have a free slot; ties to the first."""
        ready = [
            one
            for one in self.all
            if one.handle is not None and one.version == self.version and len(one.in_flight) < slots
        ]
        return None if self._held else min(ready, key=lambda one: len(one.in_flight), default=None)

    def route(self, replica: ServiceReplica, orders: Sequence[SampleOrder]) -> None:
        """Give samples to a replica."""
        replica.in_flight.update(order.id for order in orders)
        refs = tuple(TrajectoryRef(order.id, order.prompt, order.sample) for order in orders)
        self._submit(replica, Route(replica.next_seq(), replica.name, refs))

    def abort(self, ids: set[str]) -> None:
        """Stop samples wherever they are."""
        for replica in self.all:
            here = replica.in_flight & ids
            if here:
                replica.in_flight -= here
                self._submit(replica, Abort(replica.next_seq(), tuple(sorted(here))))

    async def pull(self, version: int, timeout_s: float) -> list[str]:
        """Have every replica load a version; no sample is routed meanwhile. One that dies loads it when it starts again.

        Returns:
            Why replicas could not load it. Then all that live have gone back to the version before.
        """
        before, self.version, self._held = self.version, version, True
        try:
            failed = await self._pull_all(timeout_s)
            if failed:
                self.version = before
                await self._pull_all(timeout_s)
        finally:
            self._held = False
        for replica in self.all:
            self._catch_up(replica)
        self._owner.room()
        return failed

    async def close(self) -> None:
        """Stop all."""
        self._closing.set()
        for replica in self.all:  # an update that waits for it is told
            if replica.pulling is not None and not replica.pulling.done():
                replica.pulling.set_result("the service is closed")
        await asyncio.to_thread(self._join)

    # -------------------------------------------------------------------------------------------------- event loop

    async def _pull_all(self, timeout_s: float) -> list[str]:
        if self._closing.is_set():
            return ["the service is closed"]
        live = [one for one in self.all if one.handle is not None and one.version != self.version]
        for replica in live:
            self._pull(replica)
        waits = {one.pulling: one for one in live if one.pulling is not None}
        if not waits:
            return []
        done, late = await asyncio.wait(waits, timeout=timeout_s)
        for one in late:
            self._kill(waits[one], ReplicaCrashedError(f"did not load version {self.version} within {timeout_s} s"))
        return [reason for one in done if (reason := one.result()) is not None]

    def _pull(self, replica: ServiceReplica) -> None:
        replica.version, replica.pulling = None, self._loop.create_future()
        self._submit(replica, Pull(replica.next_seq(), replica.name, self.version))

    def _catch_up(self, replica: ServiceReplica) -> None:
        loading = replica.pulling is not None and not replica.pulling.done()
        if replica.handle is not None and not self._held and not loading and replica.version != self.version:
            self._pull(replica)

    def _submit(self, replica: ServiceReplica, command: ReplicaCommand) -> None:
        if replica.handle is None:
            return
        with suppress(ReplicaCrashedError):  # its thread tells of it, with the reason, when all its events have come
            replica.handle.submit(command)

    def _up(self, replica: ServiceReplica, start: int, handle: ReplicaHandle) -> None:
        if start != replica.starts:
            return
        replica.handle = handle
        if replica.pulling is not None and not replica.pulling.done():  # the first start waits for it
            self._submit(replica, Pull(replica.next_seq(), replica.name, self.version))
        else:
            self._catch_up(replica)

    def _on_events(self, replica: ServiceReplica, start: int, events: Sequence[Event]) -> None:
        if start != replica.starts:
            return
        back = []
        for event in events:
            match event:
                case Finished() if event.trajectory in replica.in_flight:
                    replica.in_flight.discard(event.trajectory)
                    replica.deaths = 0
                    self._owner.finished(event.trajectory, event.reason)
                case Refused() if event.trajectory in replica.in_flight:
                    replica.in_flight.discard(event.trajectory)
                    self._owner.refused(event.trajectory, event.reason)
                case Interrupted() if event.trajectory in replica.in_flight:
                    replica.in_flight.discard(event.trajectory)
                    back.append(event.trajectory)
                case Pulled():
                    self._pulled(replica, event.version)
                case PullFailed():
                    self._pull_failed(replica, event)
                case Activity() if event.still_s >= self._still_s:
                    self._kill(replica, ReplicaCrashedError(f"{event.phase} without a token for {event.still_s:.0f} s"))
                    return
                case _:
                    pass
        self._owner.returned(back)
        self._owner.room()

    def _pulled(self, replica: ServiceReplica, version: int) -> None:
        replica.version = version
        if replica.pulling is not None and not replica.pulling.done() and version == self.version:
            replica.pulling.set_result(None)
        self._catch_up(replica)

    def _pull_failed(self, replica: ServiceReplica, event: PullFailed) -> None:
        reason = f"{replica.name} could not load version {event.version}: {event.reason}"
        if event.version == self.version and replica.pulling is not None and not replica.pulling.done():
            replica.pulling.set_result(reason)
        if not self._held:  # of a version that others serve: it starts anew
            self._kill(replica, ReplicaCrashedError(reason))

    def _kill(self, replica: ServiceReplica, error: Exception) -> None:
        """End a replica that does not do what it must, and start it anew."""
        self._down(replica, replica.starts, error)  # its thread ends it

    def _down(self, replica: ServiceReplica, start: int, error: Exception) -> None:
        if start != replica.starts or self._closing.is_set():
            return
        back, replica.in_flight = sorted(replica.in_flight), set()
        replica.handle, replica.version, replica.error = None, None, error
        replica.deaths += 1
        first_start, replica.starts = replica.starts == 1 and replica.seq == 0, replica.starts + 1
        if replica.pulling is not None and not replica.pulling.done():
            replica.pulling.set_result(str(error) if first_start else None)
        if first_start or replica.deaths > self._restarts:
            replica.given_up = True
        else:
            self._begin(replica)
        self._owner.returned(back)
        if all(one.given_up for one in self.all):
            self._owner.down(ServiceDownError(f"no replica is left; the last one: {error}"))
        self._owner.room()

    def _begin(self, replica: ServiceReplica) -> None:
        name = f"attend-{replica.name}"
        before = replica.thread
        replica.thread = threading.Thread(
            target=self._attend, args=(replica, replica.starts, before), name=name, daemon=True
        )
        replica.thread.start()

    # ------------------------------------------------------------------------------------------- a replica's thread

    def _attend(self, replica: ServiceReplica, start: int, before: threading.Thread | None) -> None:
        if before is not None:
            before.join(2 * _CLOSE_S)  # the device must be free
        name = f"{replica.name}#{start}"
        # each draws other samples
        seed = (int(self._setup.options.get("seed", 0)) + zlib.crc32(name.encode())) % 2**31
        try:
            options = {**self._setup.options, "seed": seed}
            handle = self._start(replace(self._setup, name=name, options=options, closing=self._closing))
        except Exception as error:
            self._tell(self._down, replica, start, error)
            return
        self._tell(self._up, replica, start, handle)
        looks, grace_s = 0, _CLOSE_S
        try:
            while not self._closing.is_set() and replica.starts == start:
                events = handle.events(_EVENTS_S)
                if events:
                    self._tell(self._on_events, replica, start, events)
                # Counted in looks: a service that stood still itself accuses nobody.
                looks = 0 if events or not self._owes(replica) else looks + 1
                if looks * _EVENTS_S >= self._patience_s(replica):
                    grace_s = 0.0
                    raise ReplicaCrashedError(f"it said nothing for {looks * _EVENTS_S:.0f} s: suspended or stuck")
        except Exception as error:
            self._tell(self._down, replica, start, error)
        finally:
            _close(handle, grace_s)

    def _owes(self, replica: ServiceReplica) -> bool:
        return bool(replica.in_flight) or replica.version is None

    def _patience_s(self, replica: ServiceReplica) -> float:
        """How long a replica with work may say nothing. While it loads weights it has nothing to say."""
        loads_s = self._setup.pull_timeout_s if replica.version is None else 0.0
        return max(self._still_s, _SILENT_S, loads_s)

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # the loop has ended without closing the service
            self._closing.set()

    def _join(self) -> None:
        for replica in self.all:
            if replica.thread is not None:
                replica.thread.join(2 * _CLOSE_S)


def _close(handle: ReplicaHandle, grace_s: float) -> None:
    with suppress(
        CloseTimeoutError
    ):  # a thread in an engine's step cannot be ended; its tokens are refused from now on
        handle.close(grace_s)
