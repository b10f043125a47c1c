"""Where a version is, for other processes of the reader's machine that read it themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.paramserver.clients.needs import Needs
from tailrace.paramserver.clients.reader import RelayReader


@dataclass(frozen=True, slots=True)
class RelayOrigin:
    """A version on relays. It can be pickled.

    Args:
        version: the version's number.
        addresses: the relays, best first.
        token: shared secret.
        same_host, transports: as for `RelayReader`.
    """

    version: int
    addresses: tuple[str, ...]
    token: str = field(repr=False)
    same_host: bool | None = None
    transports: tuple[str, ...] = ()

    def reader(self, needs: Needs | None = None) -> RelayReader:
        """A reader of these relays.

        Args:
            needs: what of a version it reads; None: all.
        """
        return RelayReader(
            lambda: self.addresses,
            token=self.token,
            same_host=self.same_host,
            transports=self.transports,
            needs=needs,
        )
