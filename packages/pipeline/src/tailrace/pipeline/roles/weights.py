"""A replica's weights: from the relays, from other replicas or, for a version that they dropped, from its checkpoint.

Relays: Laminar, section 4. Other replicas: RobustRL, section 5.2.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import AdapterWeights
from tailrace.paramserver import (
    ParamServerError,
    ProtocolError,
    RelayProcess,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
    fetch,
)
from tailrace.paramserver.clients.origin import RelayOrigin
from tailrace.pipeline.roles.transfer import ReadOptions, WeightTransfer
from tailrace.runtime.errors import RoleError
from tailrace.trainer import AdapterConfig


@dataclass(frozen=True, slots=True)
class Base:
    """What a replica keeps on its disk while only adapters travel.

    Args:
        directory: the model directory that the engine was started with.
        config: the adapter's settings.
        merges: whether each version is merged into it anew, one tensor at a time, for an engine that takes whole weights;
            otherwise the engine applies the adapter.
    """

    directory: Path
    config: AdapterConfig
    merges: bool = True

    def with_adapter(self, published: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]] | AdapterWeights:
        """What the engine takes of a version. What a control publishes is whole already.

        Raises:
            AdapterError: the version has no adapter, or none that fits the base.
        """
        from tailrace.trainer import load_weights_file
        from tailrace.trainer.adapters import Adapter, of_adapter

        named = dict(published)
        if named and not any(map(of_adapter, named)):
            return named.items()
        adapter = Adapter(named, self.config)
        if self.merges:
            return adapter.merged(load_weights_file(self.directory))
        return AdapterWeights(
            adapter.layers, self.config.rank, adapter.scale, lambda: load_weights_file(self.directory)
        )


class RelayWeights:
    """Weight versions for a replica.

    Args:
        token: shared secret of the run's peers.
        checkpoints: directory with one checkpoint per version.
        transfer: the transport and codec.
        base: what versions are adapters of; None: they are whole.
        offered: the replica's own relay, through which versions come and which others pull from; None: relays are read where
            they are.
    """

    def __init__(
        self,
        *,
        token: str,
        checkpoints: Path,
        transfer: WeightTransfer = WeightTransfer(),  # noqa: B008
        base: Base | None = None,
        offered: OfferedWeights | None = None,
    ) -> None:
        self._transfer, self._base, self._offered = transfer, base, offered
        self._came: dict[int, str] = {}  # the versions of its own relay, by number, and their sources
        self._token, self._checkpoints = token, checkpoints
        self._sources: tuple[str, ...] = ()
        self._best = ""  # the best of the sources that the reader was created for
        self._reader: RelayReader | None = None

    def use(self, sources: Sequence[str]) -> None:
        """Set the addresses of the live relays, best first. Any thread may call it; a load under way may use them."""
        self._sources = tuple(sources)

    @contextmanager
    def load(self, version: int, timeout_s: float) -> Iterator[Iterable[tuple[str, Any]] | AdapterWeights]:
        """The tensors of a version, valid inside the context; its adapter, for an engine that applies it.

        Raises:
            RoleError: no relay is known, and the version has no checkpoint.
            ParamServerError: no relay serves the version, and it has no checkpoint.
        """
        directory = self._checkpoints / str(version)
        saved = directory.is_dir()
        if not self._sources and not saved:
            raise RoleError(f"found neither a relay nor a checkpoint of version {version}, expected one of them")
        served = (
            self._served(version) if self._offered is None else self._fetched(self._offered, version, saved, timeout_s)
        )
        if saved and not served:
            from tailrace.trainer import load_weights_file

            yield self._for_engine(list(self._transfer.as_published(load_weights_file(directory))))
            return
        reader, reading = self._open(), self._reading
        origin = RelayOrigin(version, self._where(), self._token, reading.same_host, reading.transports)
        with reader.lease(version, timeout_s=timeout_s) as weights:
            yield self._for_engine(self._transfer.restored(weights, origin))

    def _for_engine(self, published: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]] | AdapterWeights:
        return published if self._base is None else self._base.with_adapter(published)

    def source_of(self, version: int) -> str:
        """The source of a version that was loaded, see `Pulled`."""
        return self._came.get(version, "")

    def close(self) -> None:
        """Leave the relays."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _fetched(self, offered: OfferedWeights, version: int, saved: bool, timeout_s: float) -> bool:
        """Have a version on the replica's own relay. Returns whether it is there; if not, it has a checkpoint."""
        try:
            source = offered.fetch(version, self._sources, timeout_s, patient=not saved)
        except ParamServerError:
            if not saved:
                raise
            self._came.pop(version, None)
            return False
        if source:  # "" where it was here already
            self._came[version] = source
        while len(self._came) > SLOTS:
            del self._came[next(iter(self._came))]
        return True

    @property
    def _reading(self) -> ReadOptions:
        """How versions are read: from the replica's own relay out of shared memory, whatever the transport between machines."""
        return self._transfer.reading if self._offered is None else ReadOptions()

    def _where(self) -> tuple[str, ...]:
        return self._sources if self._offered is None else (self._offered.address,)

    def _served(self, version: int) -> bool:
        """Whether a relay has the version or can still get it; a relay with a newer one cannot."""
        if not self._sources:
            return False
        try:
            visible = self._open().versions()
        except (RelayUnreachable, RelayTimeout, ProtocolError):
            return False
        return version in visible or (bool(visible) and max(visible) < version)

    def _open(self) -> RelayReader:
        """A reader of the current sources. It keeps a working source until another one becomes the best."""
        best = self._where()[0]
        if self._reader is None or best != self._best:
            self.close()
            reading = self._reading
            self._reader = RelayReader(
                self._where,
                token=self._token,
                same_host=reading.same_host,
                transports=reading.transports,
            )
            self._best = best
        return self._reader


# The weights that a replica offers to others: a relay process of its own, outside the tree (RobustRL, section 5.2.1).
#
#     other replicas, relays ──fetch──► its relay ──shared memory──► the engine
#                                           └──────pull──────► one other replica at a time
#
# It takes only versions that are visible at their source, checks each chunk against the trainer's checksum, and shows a version
# once all of it is here. The controller names the replica as a source once its engine serves the version.

SLOTS = 2
"""Versions that a replica's relay holds: it serves one while the next arrives."""


class OfferedWeights:
    """A replica's own relay, which ends with its process.

    Args:
        name: a name that is unique on the machine. A relay of this name that still lives is the replica's last incarnation's.
        token: shared secret of the run's peers.
        transfer: the transport and codec, and the address to listen on.
    """

    def __init__(self, name: str, token: str, transfer: WeightTransfer) -> None:
        sending = transfer.sending
        self._token = token
        self._process = RelayProcess.start(
            f"{name}-weights",
            host=transfer.address,
            token=token,
            replace=True,
            slots=SLOTS,
            pullers=1,
            transports=sending.transports,
            codecs=sending.codecs,
            always_encode=sending.always_encode,
        )
        self.address = self._process.address

    def fetch(self, version: int, sources: Sequence[str], timeout_s: float, *, patient: bool) -> str:
        """Have a version here. Returns the source with which it was complete; "" if it was here already.

        Args:
            patient: whether to wait for a source that may still get it.

        Raises:
            ParamServerError: see `tailrace.paramserver.fetch`.
        """
        return fetch(self.address, version, sources, token=self._token, timeout_s=timeout_s, patient=patient)

    @property
    def pid(self) -> int:
        """Process id of the relay."""
        return self._process.pid

    def check(self) -> None:
        """Raise unless the process lives.

        Raises:
            RoleError: it has ended.
        """
        if not self._process.alive():
            raise RoleError(f"the relay process {self._process.pid} of this replica is gone")

    def close(self) -> None:
        """End the process and free its shared memory."""
        self._process.close()
