"""The replica role: one engine and the worker that drives it, in its own process."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import (
    Abort,
    Command,
    Engine,
    Event,
    Interrupt,
    Lend,
    PartialDelta,
    Pull,
    Pulled,
    Resume,
    Return,
    Route,
    TrajectoryRef,
)
from tailrace.faulttol import FaultKind
from tailrace.pipeline.roles.calls import DATA_DOOR, DataCalls
from tailrace.pipeline.roles.phase_stops import Stops
from tailrace.pipeline.roles.prompts import SamplingTable
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.roles.weights import Base, OfferedWeights, RelayWeights
from tailrace.rollout import ReplicaWorker, WeightComparison, build_engine
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready, StopCalls
from tailrace.runtime.executor.seam import MemberStart
from tailrace.trainer import AdapterConfig

SNAPSHOT_S = 0.25
"""Seconds between two snapshots of a replica, unless a run says otherwise."""


class _Source:
    """The data role as the worker's source. The owner's name has the incarnation, so that writes of a dead one are refused."""

    def __init__(self, data: DataCalls, owner: str) -> None:
        self._data, self._owner = data, owner

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> Sequence[Resume]:
        del replica
        return self._data.begin(self._owner, version, list(refs), seq)

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> Sequence[str]:
        del replica
        return self._data.append(self._owner, list(deltas))


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Settings of the replicas, or of those of a pool.

    Args:
        engine: name of the engine plugin.
        model: Hugging Face model directory.
        options: engine options.
        sampling: how trajectories are drawn.
        checkpoints, transfer: see `RelayWeights`.
        snapshot_s: seconds between two snapshots, with which the ends of responses travel.
        flush_s: seconds between two appends of tokens of responses that go on, see `ReplicaWorker`.
        still_report_s: seconds between two reports that the engine stands still.
        adapter: what is published is an adapter of `model` with these settings; None: whole weights are.
        merges: whether an adapter is merged into `model`, for an engine that takes whole weights; otherwise the engine applies
            it.
        sleep_level, versions: see `ReplicaWorker`.
        comparison: how much of the weights is compared with what the engine has, see `ReplicaWorker`.
        offers: whether it offers the versions that it serves to other replicas.
    """

    engine: str
    model: Path
    options: Mapping[str, Any]
    sampling: SamplingTable
    checkpoints: Path
    transfer: WeightTransfer = field(default_factory=WeightTransfer)
    snapshot_s: float = SNAPSHOT_S
    flush_s: float = 0.5
    still_report_s: float = 5.0
    adapter: AdapterConfig | None = None
    merges: bool = True
    sleep_level: int = 0
    versions: int = 1
    comparison: WeightComparison | None = None
    offers: bool = False


class ReplicaRole:
    """Owns an engine, and a relay if it offers what it serves."""

    def __init__(self, settings: ReplicaSettings, start: MemberStart) -> None:
        name, options = f"{start.id}#{start.incarnation}", settings.options
        base = None if settings.adapter is None else Base(settings.model, settings.adapter, settings.merges)
        self._offered = OfferedWeights(start.name, start.token, settings.transfer) if settings.offers else None
        self._weights = RelayWeights(
            token=start.token,
            checkpoints=settings.checkpoints,
            transfer=settings.transfer,
            base=base,
            offered=self._offered,
        )
        # a different seed for each incarnation of each replica, so that each draws other samples
        seed = (int(options.get("seed", 0)) + zlib.crc32(name.encode())) % 2**31
        size = {} if start.tp is None else {"tensor_parallel_size": start.tp}
        self._engine = self.build_engine(settings.engine, settings.model, {**options, "seed": seed, **size})
        self.stops = Stops()
        self._worker = ReplicaWorker(
            start.id,
            self._engine,
            _Source(DATA_DOOR.open(start.data, start.data_s), name),
            self._weights,
            sampling=settings.sampling,
            finished_s=settings.snapshot_s,
            partial_s=settings.flush_s,
            snapshot_s=settings.snapshot_s,
            sleep_level=settings.sleep_level,
            versions=settings.versions,
            still_report_s=settings.still_report_s,
            flush_timeout_s=start.data_s,
            on_phase=self.stops.at,
            comparison=settings.comparison,
        )

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> Engine:
        """Build the engine. Tests and embedding code may override it."""
        return build_engine(engine, str(model), options)

    def ready(self) -> Ready:
        """Returns once the engine is loaded, with the address at which it offers what it serves."""
        return Ready() if self._offered is None else Ready(address=self._offered.address)

    def submit(self, commands: Sequence[Command]) -> None:
        """Queue commands for the worker."""
        for command in commands:
            if not isinstance(command, Route | Interrupt | Abort | Pull | Lend | Return):
                raise RoleError(f"a replica got {type(command).__name__} {command.seq}, which is not its own")
            if isinstance(command, Pull):
                self._weights.use(command.sources)
            self._worker.submit(command)

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` seconds for the first.

        Raises:
            RoleError: the process is gone with which it offers what it serves.
        """
        if self._offered is None:
            return list(self._worker.events(timeout_s))
        self._offered.check()
        found = self._worker.events(timeout_s)
        return [
            replace(event, source=self._weights.source_of(event.version)) if isinstance(event, Pulled) else event
            for event in found
        ]

    def adopt(self) -> None:
        """Prepare for another controller, which numbers its commands anew."""
        self.stops.forget()
        self._worker.adopt()

    def stop_at(self, phase: str, timeout_s: float) -> bool:
        """See `Stops.stop_at`."""
        return self.stops.stop_at(phase, timeout_s)

    def strike(self, kind: FaultKind) -> bool:
        """Inject a stall into the engine. Returns False for other faults, which concern the process."""
        if kind is not FaultKind.STALL:
            return False
        self.stall()
        return True

    def stall(self) -> None:
        """Let the engine stand still while the process lives."""
        self._worker.stall()

    def close(self) -> None:
        """Stop the worker, which closes its engine, and leave the relays."""
        self.stops.close()
        if self._offered is not None:
            self._offered.close()
        try:
            self._worker.close(timeout_s=10.0)
        finally:
            self._weights.close()


if TYPE_CHECKING:
    _: type[StopCalls] = ReplicaRole  # mypy checks it here
