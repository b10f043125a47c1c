"""The trainer role: consumes batches, publishes versions, saves checkpoints. One member per rank, each with the same commands.

Step, Accumulate   wait only for the batch's tokens from the data role
Accumulate(cell)   only the ranks of a cell carry it out: it adds gradients without the others, and changes no weights
Offload(cell)      its ranks move parameters, gradients and optimizer into host memory; what a later command needs comes back
Publish            copies this rank's weights once; relays get them in the background (see `Publishing`)
Reveal             is carried out at once, beside the others
Checkpoint         copies the state to host memory, once the batch is marked as consumed; a background thread makes it durable

A thread carries the commands out in order. They are collectives: from the commands alone, every rank decides in the same way
whether to stage weights. Every rank sends its own shards to the master relay. Only the first rank chooses the master relay,
deletes old checkpoints, marks trajectories as consumed, and sends events; but that a cell has added gradients is said by the
first rank of the cell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import (
    Accumulate,
    Accumulated,
    Checkpoint,
    Command,
    Event,
    Experience,
    HeldWeights,
    Offload,
    Offloaded,
    PackedTokens,
    Publish,
    Published,
    Reveal,
    Step,
    Stepped,
)
from tailrace.faulttol.injection import LOAD
from tailrace.faulttol.tensor_cores import open_tensor_cores, own_devices
from tailrace.pipeline.roles.calls import DATA_DOOR, RankCalls
from tailrace.pipeline.roles.checkpoint_retention import CheckpointRetention, on_own_disk
from tailrace.pipeline.roles.peer_memory import PeerMemory, machine, node_address
from tailrace.pipeline.roles.phase_stops import Stops
from tailrace.pipeline.roles.publishing import Publishing
from tailrace.pipeline.roles.rank_publisher import Follower, Shards
from tailrace.pipeline.roles.trainer_activity import TensorCoreWatch, TrainerActivity
from tailrace.pipeline.roles.transfer import WeightTransfer, taken
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberStart
from tailrace.runtime.role_worker import RoleWorker
from tailrace.trainer import TrainerConfig
from tailrace.trainer.backend import TrainingBackend, build_backend
from tailrace.trainer.metrics import merge_metrics
from tailrace.trainer.rendezvous import meeting_url

_CLOSE_S = 5.0
_PREDECESSOR_S = 30.0
_one_at_a_time = threading.Lock()
"""Torch's process group is global in a process. If members are threads, a trainer waits until the previous one has left."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """Settings of the trainer's ranks.

    Args:
        model: Hugging Face model directory that the run starts from.
        backend: name of the backend plugin.
        config: the backend's configuration.
        checkpoints: directory with one checkpoint per version.
        transfer: how weights are published.
        held: a model directory whose weights are published instead of the trained ones (for controls). Consumption is then
            never rolled back.
        save_timeout_s: deadline until more bytes of a checkpoint are written, or it is durable.
        interface: the network interface on which ranks speak, see `meeting_url`.
        offloads: whether `Offload` moves what the backend can move; otherwise only what torch keeps for reuse is freed.
        weights_are_taken: whether a later trainer may go on from published weights without their checkpoint. So none are
            published before their batch is marked as consumed.
    """

    model: Path
    backend: str
    config: TrainerConfig
    checkpoints: Path
    transfer: WeightTransfer = field(default_factory=WeightTransfer)
    held: Path | None = None
    save_timeout_s: float = 600.0
    interface: str = ""
    offloads: bool = True
    weights_are_taken: bool = False


class TrainerRole:
    """One rank of the trainer."""

    def __init__(self, settings: TrainerSettings, start: MemberStart) -> None:
        rank, world_size, meets, transfer = start.rank, start.world_size, start.rendezvous, settings.transfer
        on_own_disk(settings.checkpoints)
        self._alone = _one_at_a_time.acquire(timeout=_PREDECESSOR_S)
        try:
            self._backend: TrainingBackend = build_backend(
                settings.backend,
                str(settings.model),
                settings.config,
                rank=rank,
                world_size=world_size,
                rendezvous=None if meets is None else meeting_url(meets, settings.interface, node_address()),
            )
        except BaseException:
            self._let_others()
            raise
        self.stops = Stops()
        self._backend.on_phase = self.stops.at
        self._data = DATA_DOOR.open(start.data, start.data_s)
        self._held = settings.held
        self._token, self._transfer, self._weights_are_taken = start.token, transfer, settings.weights_are_taken
        self._made: int | None = (
            None  # version of the last step; a checkpoint's weights may be published as a newer version
        )
        self._staged: int | None = None
        self._parts: list[tuple[Sequence[str], dict[str, float]]] = []  # accumulated since the last step
        # Consumption is marked beside the way of `Stepped` to the controller and back, and before a checkpoint is begun.
        self._marking = ThreadPoolExecutor(1, thread_name_prefix="consumption")
        self._marked: Future[None] | None = None
        self._marks_s = start.data_s + _CLOSE_S
        # The optimizer's part stays where `TrainerConfig.offload` has it between steps.
        self._moves = self._backend.offloads - {*settings.config.offload} if settings.offloads else frozenset[str]()
        self._away: set[str] = set()  # parts in host memory, since replicas have the devices
        self._handed: dict[str, float] = {}  # seconds that the weights before a step held its thread up
        self._added: list[str] = []  # since the last step, by all cells; their gradients changed no weights yet
        self._cell, self._place = divmod(rank, world_size // start.cells)
        self._cells = start.cells
        watched = self._backend.watch_micro_batches(lambda: self._activity.ended_micro_batch())
        self._activity = TrainerActivity(
            start.id, self._tell, watched=watched, expected=lambda: self._backend.expected_micro_batches
        )
        cores = None if watched else open_tensor_cores(own_devices())
        self._tensor_cores = None if cores is None else TensorCoreWatch(cores, self._activity)
        self._worker = RoleWorker(f"trainer-{rank}", self._run)
        self._saving = CheckpointRetention(
            settings.checkpoints,
            self._data,
            self._worker,
            save_timeout_s=settings.save_timeout_s,
            peers=PeerMemory(start.holders, start.token, machine()) if start.holders else None,
            first=rank == 0,
        )
        self._shards = Shards(self._backend, transfer, rank, start.incarnation) if world_size > 1 else None
        self._publishing: Publishing | None = None
        self._follower: Follower | None = None
        if rank == 0:
            self._publishing = Publishing(
                token=start.token,
                transfer=transfer,
                published=self._published,
                broke=self._worker.fail,
                shards=self._shards,
                followers=start.followers,
            )
        else:
            self._follower = Follower(start.token, transfer, self._shards, self._worker.fail)

    # ---- for the executor -----------------------------------------------------------------------------------------

    def ready(self, version: int | None = None, stops: bool = False, weights: HeldWeights | None = None) -> Ready:
        """Load the checkpoint of a version; None for the model that the run began with. What came later is undone.

        Args:
            version: the version.
            stops: whether to stop before it is loaded, since a scripted fault strikes there.
            weights: newer weights, which others hold, to take in place of the checkpoint's. What was trained on up to them
                stays consumed.

        Raises:
            CheckpointUnusableError: the checkpoint is missing, damaged, or of another model; or nobody has the newer weights.
        """
        if stops:
            self.stops.stop_at(LOAD)
        lost: tuple[str, ...] = ()
        if version is not None:
            self.stops.at(LOAD)
            if weights is None:
                self._saving.restore(version, self._backend.load)
            else:
                said, version = self._take(version, weights), weights.version
                lost = (said,) if self._publishing is not None else ()  # all ranks would say the same
        if self._publishing is not None and self._held is None:
            self._saving.undo(version or 0)
            self._data.roll_back(version or 0)
        return Ready(version, notes=(*self._backend.notes, *lost))

    def submit(self, commands: Sequence[Command]) -> None:
        """Queue commands; what only lets a version be seen is carried out at once."""
        for command in commands:
            if isinstance(command, Reveal) and self._publishing is not None:
                self._publishing.reveal(command.version)
        self._worker.submit([command for command in commands if not isinstance(command, Reveal)])

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits up to `timeout_s` seconds for the first."""
        return self._worker.events(timeout_s)

    def adopt(self, held: Path | None = None) -> None:
        """Prepare for another controller. Call it on every rank, when no command is under way.

        Args:
            held: a model directory whose weights are published from now on, instead of the trained ones (for controls).
        """
        self._worker.forget()
        self.stops.forget()
        if self._publishing is not None:
            self._publishing.forget()
        self._held, self._staged = held, None

    def stop_at(self, phase: str, timeout_s: float) -> bool:
        """See `Stops.stop_at`."""
        return self.stops.stop_at(phase, timeout_s)

    def close(self) -> None:
        """Carry out no further command, wait for checkpoints under way, and leave the process group."""
        self.stops.close()
        if self._tensor_cores is not None:
            self._tensor_cores.close()
        idle = self._worker.close(_CLOSE_S)
        if self._marked is not None:
            wait([self._marked], _CLOSE_S)
        self._marking.shutdown(wait=False, cancel_futures=True)
        with ExitStack() as ending:  # the last first, and all of them whatever one raises
            for sends in (self._follower, self._publishing):
                if sends is not None:
                    ending.callback(sends.close)
            ending.callback(self._let_others)
            if idle:  # otherwise it is in use
                ending.callback(self._backend.close)
            ending.callback(self._saving.close)

    # ---- for the first rank ---------------------------------------------------------------------------------------

    def follow(self, address: str) -> None:
        """Send to this relay from now on, beginning with what it lacks of the newest version."""
        if self._follower is not None:
            self._follower.retarget(address)

    def _take(self, version: int, wanted: HeldWeights) -> str:
        """Load a checkpoint with newer weights in place of its own. Returns what was lost, in words."""
        with taken(wanted, self._token, self._transfer) as (lease, source):
            self._saving.restore(version, lambda directory: self._backend.load(directory, lease))
            digest, kinds = lease.digest, {str(tensor.dtype) for tensor in lease.tensors.values()}
        bits = (
            "" if kinds == {"float32"} else ", and so are the bits of parameters below " + " and ".join(sorted(kinds))
        )
        return (
            f"it took the weights of version {wanted.version} (digest {digest}) from {source}; the optimizer's state and "
            f"schedule are of checkpoint {version}: {wanted.steps} step{'' if wanted.steps == 1 else 's'} of them "
            f"{'is' if wanted.steps == 1 else 'are'} lost{bits}"
        )

    def _let_others(self) -> None:
        alone, self._alone = self._alone, False
        if alone:
            _one_at_a_time.release()

    # ---- commands -------------------------------------------------------------------------------------------------

    def carry_out(self, command: Command) -> None:
        """Carry out a command. All ranks must do so together."""
        match command:
            case Step(seq, version, mini_batches):
                metrics = self._step(version, mini_batches)
                self._tell(Stepped(version, metrics, answers=seq))
            case Accumulate(update=False):
                self._add(command)
            case Offload():
                self._offload(command)
            case Accumulate(seq, version, trajectories):
                brought = self._bring(self._away)
                metrics = self._step_on(version, [trajectories])
                self._parts.append((trajectories, metrics))
                self._tell(Accumulated(version, trajectories, metrics | brought, answers=seq))
            case Publish():
                self._publish(command)
            case Checkpoint():
                self._checkpoint(command)
            case _:
                raise RoleError(f"the trainer got {type(command).__name__} {command.seq}, which is not its own")

    def update(self, mini_batches: Sequence[Sequence[Experience]]) -> dict[str, float]:
        """Make an optimizer step on each mini-batch. Returns metrics. It may be overridden, so that it is measured."""
        return self._backend.step(mini_batches)

    def _run(self, command: Command) -> None:
        self._activity.begins(command)
        self.carry_out(command)
        self._activity.ended(command)
        if not self._worker.waiting:
            self._activity.idle()

    def _tell(self, event: Event) -> None:
        if self._publishing is not None:
            self._worker.put(event)

    def _add(self, command: Accumulate) -> None:
        """Add gradients, if this rank is of the cell. Every rank notes what was added, since the batch consumes it."""
        if command.cell is None or not 0 <= command.cell < self._cells:
            raise RoleError(f"found cell {command.cell} in command {command.seq}, expected one of {self._cells}")
        if self._parts:
            raise RoleError(f"found gradients to add in command {command.seq} after optimizer steps on the same batch")
        self._added += command.trajectories
        if command.cell != self._cell:
            return
        brought = self._bring({"parameters", "gradients"})
        metrics = self._train(command.version, [command.trajectories], lambda batch: self._backend.accumulate(batch[0]))
        metrics |= brought
        if self._place == 0:
            found = Accumulated(command.version, command.trajectories, metrics, answers=command.seq, cell=self._cell)
            self._worker.put(found)

    def _step(self, version: int, mini_batches: Sequence[Sequence[str]]) -> dict[str, float]:
        """Train on a batch or its last part, and mark the whole batch as consumed. Returns the whole batch's metrics."""
        added, self._added = self._added, []
        train, brought = self._apply if added else self._step_on, self._bring(self._away)
        metrics = train(version, mini_batches) | brought
        parts, self._parts = self._parts, []
        if self._publishing is not None and not self._worker.closing:
            batch = [added, *(names for names, _ in parts), *mini_batches]
            names = [name for part in batch for name in part]
            self._wait_for_marks()
            self._marked = self._marking.submit(self._data.consume, names, version)
        self._made = version
        handed, self._handed = self._handed, {}
        if self._publishing is not None and self._publishing.newest_s is not None:
            handed["publish_s"] = self._publishing.newest_s
        return merge_metrics([*(part for _, part in parts), metrics]) | handed

    def _offload(self, command: Offload) -> None:
        """Leave the devices, if this rank is of the cell."""
        if not 0 <= command.cell < self._cells:
            raise RoleError(f"found cell {command.cell} in command {command.seq}, expected one of {self._cells}")
        if command.cell != self._cell:
            return
        self.stops.at("offload")
        started = time.monotonic()
        moved = self._backend.offload(self._moves)
        self._away = {*self._moves}
        if self._place == 0:
            self._worker.put(Offloaded(command.cell, command.seq, time.monotonic() - started, moved))

    def _bring(self, wanted: Collection[str]) -> dict[str, float]:
        """Bring parts back that are away. Returns metrics of it; none if they are all here."""
        parts = self._away.intersection(wanted)
        if not parts:
            return {}
        self.stops.at("onload")
        started = time.monotonic()
        moved = self._backend.onload(parts)
        self._away -= parts
        return {"onload_s": time.monotonic() - started, "onload_bytes": float(moved)}

    @contextmanager
    def _brought(self, *wanted: str) -> Iterator[None]:
        """Bring parts back for this context, and move those away again that were away: replicas still have the devices."""
        parts = self._away.intersection(wanted)
        self._bring(parts)
        try:
            yield
        finally:
            if parts:
                self._backend.offload(parts)
                self._away |= parts

    def _wait_for_marks(self) -> None:
        """Return once all batches so far are marked as consumed.

        A checkpoint whose batch is not could be gone on from, and the batch be trained on again; so could published weights.

        Raises:
            Exception: one could not be marked.
        """
        marked, self._marked = self._marked, None
        if marked is not None:
            marked.result(self._marks_s)

    def _step_on(self, version: int, mini_batches: Sequence[Sequence[str]]) -> dict[str, float]:
        """Make an optimizer step on each mini-batch."""
        return self._train(version, mini_batches, self.update)

    def _apply(self, version: int, rest: Sequence[Sequence[str]]) -> dict[str, float]:
        """Make one optimizer step of the gradients that cells have added and of what is left. Returns the batch's metrics."""
        if len(rest) > 1:
            raise RoleError(
                f"found {len(rest)} mini-batches for gradients that were added, expected one optimizer step"
            )
        metrics = self._train(version, rest, lambda batch: self._backend.apply(batch[0] if batch else ()))
        if "version_oldest" in metrics:  # of the whole batch
            metrics["staleness_max"] = version - 1 - metrics.pop("version_oldest")
            metrics["staleness_mean"] = version - 1 - metrics.pop("version_mean")
        return metrics

    def _train(
        self,
        version: int,
        mini_batches: Sequence[Sequence[str]],
        train: Callable[[Sequence[Sequence[Experience]]], dict[str, float]],
    ) -> dict[str, float]:
        """Have trajectories trained on; the backend fetches the tokens that this rank computes.

        Args:
            version: the version of their batch.
            mini_batches: their names.
            train: trains on them, and returns metrics.
        """
        started = time.monotonic()
        self.stops.at("fetch")
        self._backend.weights_version = version - 1
        names = [name for batch in mini_batches for name in batch]
        from tailrace.trainer.packed import PackedBatch  # brings numpy

        packed = PackedBatch(self._data.outlines(names) if names else [], self._fetch)
        outlined_s = time.monotonic() - started
        experiences = {experience.trajectory: experience for experience in packed.experiences}
        lags = [version - 1 - e.oldest_version for e in packed.experiences if e.spans]
        metrics = train([[experiences[name] for name in batch] for batch in mini_batches])
        packed.release()
        metrics["fetch_s"] = outlined_s + packed.fetched_s
        metrics["staleness_max"], metrics["staleness_mean"] = max(lags, default=0), sum(lags) / max(1, len(lags))
        metrics["wall_s"] = time.monotonic() - started
        return metrics

    def _fetch(self, wanted: Sequence[tuple[str, bool]]) -> Sequence[PackedTokens]:
        """A slice of a batch; each has a deadline of its own."""
        found = self._data.packed(wanted)
        self._activity.fetched()
        return found

    def _publish(self, command: Publish) -> None:
        started = time.monotonic()
        fresh = command.version != self._staged
        if fresh and self._held is None:
            self._require(command.version, "publish")
            if self._weights_are_taken:
                self._wait_for_marks()
        with self._brought(*(("parameters",) if fresh and self._held is None else ())):
            if self._publishing is not None:
                self._publishing.publish(command, self._weights if fresh else None)
            elif self._follower is not None and fresh:
                self._follower.publish(command.version, self._weights(), sealed=command.sealed)
            elif self._follower is not None:
                self._follower.offer_again()
        self._staged = command.version
        self._held_up("publish_blocking_s", started)

    def _held_up(self, what: str, since: float) -> None:
        self._handed[what] = self._handed.get(what, 0.0) + time.monotonic() - since

    def _checkpoint(self, command: Checkpoint) -> None:
        started = time.monotonic()
        self._require(command.version, "save")
        self._wait_for_marks()
        with self._brought("parameters", "optimizer"):
            saved = self._backend.save(str(self._saving.directory(command.version)), command.version, full=command.full)
        self.stops.at("checkpoint")
        if self._publishing is not None:
            self._saving.follow(command, saved)
        self._held_up("save_blocking_s", started)

    def _require(self, version: int, what: str) -> None:
        """Check that the weights are those of a version."""
        if self._parts or self._made not in (None, version):
            found = "some in the middle of a batch" if self._parts else f"those of version {self._made}"
            raise RoleError(f"the trainer was to {what} the weights of version {version}, found {found}")

    def _weights(self) -> Iterator[tuple[str, Any]]:
        """This rank's weights; in its phase of publishing it stops in the middle of them."""
        for place, named in enumerate(self._all_weights()):
            if place == 1:
                self.stops.at("publish")
            yield named

    def _all_weights(self) -> Iterator[tuple[str, Any]]:
        if self._shards is not None:
            yield from self._shards.weights(self._held)
        elif self._held is None:
            yield from self._backend.weights()
        else:
            from tailrace.trainer import load_weights_file

            yield from load_weights_file(self._held)

    # ---- other threads --------------------------------------------------------------------------------------------

    def _published(self, version: int, seq: int) -> None:
        self._worker.put(Published(version, answers=seq))


if TYPE_CHECKING:
    _: type[RankCalls] = TrainerRole  # mypy checks it here
