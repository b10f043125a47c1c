"""The replica role: one engine and the worker that drives it, in a process of its own."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import Engine, Event, Pull, TrajectoryRef
from tailrace.pipeline.executors.host import Caller
from tailrace.pipeline.roles.prompts import SamplingTable
from tailrace.pipeline.roles.weights import RelayWeights
from tailrace.rollout import ReplicaCommand, ReplicaWorker, build_engine
from tailrace.rollout.ports import PartialDelta, Resume


class _Source:
    """The data role as the worker's source of trajectories. The owner's name carries the incarnation: it fences the dead."""

    def __init__(self, data: Caller, owner: str, timeout_s: float) -> None:
        self._data, self._owner, self._timeout_s = data, owner, timeout_s

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef]) -> Sequence[Resume]:
        del replica
        return list(self._data.call("begin", self._owner, version, list(refs), timeout_s=self._timeout_s))

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> Sequence[str]:
        del replica
        return list(self._data.call("append", self._owner, list(deltas), timeout_s=self._timeout_s))


class ReplicaRole:
    """Owns an engine.

    Args:
        replica: its id.
        incarnation: counts restarts of the same id.
        engine: name of the engine plugin.
        model: Hugging Face model directory.
        options: engine options.
        data: the data role.
        sampling: how trajectories are drawn.
        token, checkpoints: where weights come from.
    """

    def __init__(
        self,
        *,
        replica: str,
        incarnation: int,
        engine: str,
        model: Path,
        options: Mapping[str, Any],
        data: Caller,
        sampling: SamplingTable,
        token: str,
        checkpoints: Path,
        snapshot_s: float = 0.25,
        data_timeout_s: float = 60.0,
    ) -> None:
        self._weights = RelayWeights(token=token, checkpoints=checkpoints)
        # every incarnation of every replica draws its own samples
        seed = (int(options.get("seed", 0)) + zlib.crc32(f"{replica}#{incarnation}".encode())) % 2**31
        self._engine = self.build_engine(engine, model, {**options, "seed": seed})
        self._worker = ReplicaWorker(
            replica,
            self._engine,
            _Source(data, f"{replica}#{incarnation}", data_timeout_s),
            self._weights,
            sampling=sampling,
            snapshot_s=snapshot_s,
        )

    def build_engine(self, engine: str, model: Path, options: Mapping[str, Any]) -> Engine:
        """The engine; a seam for tests and for embedding."""
        return build_engine(engine, str(model), options)

    def ready(self) -> bool:
        """Answers once the engine is loaded."""
        return True

    def submit(self, command: ReplicaCommand) -> None:
        """Queue a command for the worker."""
        self._worker.submit(command)

    def adopt(self) -> None:
        """Another run takes over the replica, with a controller that numbers its commands anew."""
        self._worker.adopt()

    def pull(self, command: Pull, relay: Any) -> None:
        """Queue a `Pull` from the relay at an address."""
        self._weights.use(relay)
        self._worker.submit(command)

    def events(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; waits up to `timeout_s` seconds for something."""
        return list(self._worker.events(timeout_s))

    def close(self) -> None:
        """Stop the worker, which closes its engine, and leave the relay."""
        self._worker.close(timeout_s=10.0)
        self._weights.close()
