"""The trainer role: consumes batches, publishes versions, saves checkpoints. One member per rank.

step      waits for the batch's tokens from the data role, and nothing else; ends a batch of which parts were accumulated
publish   copies the weights once and goes on; a background thread hands them to the master relay
checkpoint  snapshots to host memory and goes on; a background thread makes it durable
"""

from __future__ import annotations

import queue
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import Durable, Event, Published
from tailrace.contracts.plugins import load
from tailrace.paramserver import Publisher
from tailrace.pipeline.executors.host import Caller
from tailrace.pipeline.roles.parts import merge_metrics


class TrainerRole:
    """One rank of the trainer.

    Args:
        model: Hugging Face model directory that the run starts from.
        backend: name of the backend plugin.
        config: the backend's configuration.
        rank, world_size, rendezvous: the process group.
        data: the data role.
        token: shared secret of the run's peers.
        checkpoints: directory with one checkpoint per version.
        keep: newest checkpoints to keep beside those that are still needed.
        save_timeout_s: deadline for a checkpoint to become durable.
    """

    def __init__(
        self,
        *,
        model: Path,
        backend: str,
        config: Any,
        rank: int,
        world_size: int,
        rendezvous: str | None,
        data: Caller,
        token: str,
        checkpoints: Path,
        keep: int = 2,
        save_timeout_s: float = 600.0,
    ) -> None:
        build = load("tailrace.backend", backend)
        self._worker = build(str(model), config, rank=rank, world_size=world_size, rendezvous=rendezvous)
        self._rank, self._data, self._token = rank, data, token
        self._checkpoints, self._keep, self._save_timeout_s = checkpoints, keep, save_timeout_s
        self._publisher: Publisher | None = None
        self._relay: Any = None
        self._staged: int | None = None
        self._held: Path | None = None
        self._answers: dict[int, int] = {}
        self._events: queue.Queue[Event | BaseException] = queue.Queue()
        self._saves: list[threading.Thread] = []
        self._parts: list[tuple[Sequence[str], dict[str, float]]] = []  # accumulated since the last step

    def ready(self, version: int | None) -> int:
        """Load the checkpoint of a version, or stay at the start; returns the version that is held."""
        if version is None:
            return 0
        self._worker.load(str(self._checkpoints / str(version)))
        return version

    def accumulate(self, version: int, trajectories: Sequence[str]) -> dict[str, float]:
        """Train on a part of the batch that makes a version; returns its metrics. It is consumed with the step."""
        metrics = self._train(version, [trajectories])
        self._parts.append((trajectories, metrics))
        return metrics

    def step(self, version: int, mini_batches: Sequence[Sequence[str]]) -> dict[str, float]:
        """Train on a batch, or on what is left of it, and mark all of it consumed; returns metrics of all of it."""
        metrics = self._train(version, mini_batches)
        parts, self._parts = self._parts, []
        if self._rank == 0:
            batch = [*(names for names, _ in parts), *mini_batches]
            self._data.call("consume", [name for names in batch for name in names], version)
        return merge_metrics([*(part for _, part in parts), metrics])

    def _train(self, version: int, mini_batches: Sequence[Sequence[str]]) -> dict[str, float]:
        started = time.monotonic()
        names = [name for batch in mini_batches for name in batch]
        experiences = {e.trajectory: e for e in self._data.call("experiences", names)}
        fetched = time.monotonic()
        lags = [version - 1 - e.oldest_version for e in experiences.values() if e.segments]
        metrics: dict[str, float] = self._worker.step([[experiences[name] for name in batch] for batch in mini_batches])
        metrics["fetch_s"] = fetched - started
        metrics["staleness_max"], metrics["staleness_mean"] = max(lags, default=0), sum(lags) / max(1, len(lags))
        metrics["wall_s"] = time.monotonic() - started
        return metrics

    def publish(self, seq: int, version: int, relay: Any) -> float:
        """Hand a version to the master relay; returns the seconds for which the trainer stood still."""
        if self._rank != 0:
            for _ in self._worker.weights():  # a collective: every rank takes part
                pass
            return 0.0
        self._answers[version] = seq
        if self._publisher is None:
            self._publisher = Publisher(relay, token=self._token, on_published=self._on_published)
        elif relay != self._relay:
            self._publisher.retarget(relay)
        self._relay = relay
        if version == self._staged:
            return 0.0  # the publisher holds it and has sent it, or sends it to the new master by itself
        self._staged = version
        return self._publisher.publish(version, self._weights())

    def hold(self, directory: Path) -> None:
        """Publish the weights of a model directory from now on, instead of the trained ones (for controls)."""
        self._held = directory

    def checkpoint(self, seq: int, version: int, keep: Sequence[int]) -> None:
        """Save a version in the background."""
        saved = self._worker.save(str(self._checkpoints / str(version)), version)
        if self._rank == 0:
            thread = threading.Thread(target=self._await_save, args=(seq, version, saved, set(keep)), daemon=True)
            thread.start()
            self._saves = [save for save in self._saves if save.is_alive()] + [thread]

    def events(self, timeout_s: float) -> list[Event]:
        """What became published or durable since the last call; waits up to `timeout_s` seconds."""
        found: list[Event] = []
        try:
            item = self._events.get(timeout=timeout_s)
            while True:
                if isinstance(item, BaseException):
                    raise item
                found.append(item)
                item = self._events.get_nowait()
        except queue.Empty:
            return found

    def close(self) -> None:
        """Wait for saves that are under way, then leave."""
        for save in self._saves:
            save.join(self._save_timeout_s)
        if self._publisher is not None:
            self._publisher.close()
        self._worker.close()

    def _weights(self) -> Iterator[tuple[str, Any]]:
        if self._held is None:
            yield from self._worker.weights()
        else:
            from tailrace.trainer import load_weights_file

            yield from load_weights_file(self._held)

    def _on_published(self, version: int, error: BaseException | None) -> None:
        if error is None:
            self._events.put(Published(version, answers=self._answers.pop(version, None)))
        # on an error the relay is reported down by its own watch, and the version is sent again to the next one

    def _await_save(self, seq: int, version: int, saved: Any, keep: set[int]) -> None:
        try:
            saved.result(self._save_timeout_s)
        except Exception as error:
            self._events.put(error)
            return
        self._events.put(Durable(version, answers=seq))
        versions = sorted(int(path.name) for path in self._checkpoints.iterdir() if path.name.isdigit())
        for old in versions[: -self._keep]:
            if old not in keep and old < version:
                shutil.rmtree(self._checkpoints / str(old), ignore_errors=True)
