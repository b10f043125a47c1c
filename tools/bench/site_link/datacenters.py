"""Two datacenters on one machine: two network namespaces, between them a link whose rate is limited in both directions.

    with Datacenters(rate=20e6, replicas=4) as there:
        there.publisher.publish(...)       # from home, beside the master relay
        there.reader(3)                    # a replica beyond the link, beside its own relay

The trainer's datacenter has one relay; the other has one for each replica, as if each stood on a machine of its own. What the
link carried is counted by the kernel, headers included.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

from weight_transfer.hosts import Hosts

from tailrace.paramserver import Publisher, RelayGroup, RelayProcess, RelayReader, new_token

HOME, FAR = 0, 1
_DEAD_AFTER_S = 15.0


class Datacenters:
    """A context with a link between two datacenters, their relays, and a publisher.

    Args:
        rate: of the link, bytes per second on the wire.
        replicas: relays beyond it.
        codec: `delta` or, for whole copies, `none`.
        chunk_bytes: of the publisher.
        slots: versions that each relay holds.
    """

    def __init__(self, rate: float, replicas: int, *, codec: str, chunk_bytes: int, slots: int = 3) -> None:
        self.hosts, self.token = Hosts(2, rate), new_token()
        self._replicas, self._slots, self._chunk_bytes = replicas, slots, chunk_bytes
        # /dev/shm is shared by the namespaces, unlike by datacenters: weights cross on connections alone
        encodes = {"codecs": ("delta",), "always_encode": True} if codec == "delta" else {"codecs": ()}
        self._sending = {"transports": (), **encodes}
        self._open = contextlib.ExitStack()
        self.relays: list[RelayProcess] = []

    def __enter__(self) -> Datacenters:
        with contextlib.ExitStack() as opening:
            opening.enter_context(self.hosts)
            for number, place in enumerate([HOME, *[FAR] * self._replicas]):
                with self.hosts.inside(place):
                    relay = RelayProcess.start(
                        f"sites-{os.getpid()}-{number}",
                        host=self.hosts.addresses[place],
                        token=self.token,
                        slots=self._slots,
                        **self._sending,
                    )
                self.relays.append(opening.enter_context(relay))
            with self.hosts.inside(HOME):
                self.publisher = opening.enter_context(
                    Publisher(None, token=self.token, chunk_bytes=self._chunk_bytes, **self._sending)
                )
                sites = {relay.name: "far" for relay in self.relays[1:]}
                addresses = {relay.name: relay.address for relay in self.relays}
                # On a machine that is short of cores, silence is no death.
                self.group = opening.enter_context(
                    RelayGroup(
                        addresses,
                        token=self.token,
                        sites=sites,
                        on_master=self.publisher.retarget,
                        dead_after_s=_DEAD_AFTER_S,
                    )
                )
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def reader(self, replica: int, *, across: bool = False) -> RelayReader:
        """A replica beyond the link: it reads at its own relay or, `across`, pulls from the trainer's for itself."""
        with self.hosts.inside(FAR):
            source = self.relays[0 if across else 1 + replica]
            reader = RelayReader(source.address, token=self.token, same_host=not across)
            reader.versions()  # connected from here
        self._open.enter_context(reader)
        return reader

    def crossed_bytes(self) -> int:
        """Bytes that the link has carried out of the trainer's datacenter so far."""
        return self.hosts.received_bytes(FAR)
