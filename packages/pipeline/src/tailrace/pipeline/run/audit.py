"""Trains a run's recorded batches again, without faults, from the weights that it began with, and compares bits.

    event log, archive ──► updates ──► ranks, a process each, as the run had ──► a checkpoint ──► its digest and the run's

Whatever died in a run, it ends on the bits of a fault-free training on the same batches: work that a fall-back undid left
nothing behind, and nothing is trained on twice. That needs one thread for each rank: with more, sums are added in any order.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import CPU_ENVIRONMENT, trainer_config
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.eventlog import Instant, read_log
from tailrace.runtime.executor.deployment import TRAINER
from tailrace.trainer.backend import TrainingBackend, build_backend
from tailrace.trainer.weights_file import weights_sha256
from tailrace.trajstore import StoreFormatError, read_trained

Operation = c.Accumulate | c.Step
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    Args:
        trained_once: whether every trajectory that counts is in one batch, by log and archive alike.
        weights_equal: whether training on the recorded batches ends on the same bits.
        weights_sha256, audited_sha256: the digests of the run's last weights, and of those that the audit made.
        updates: batches that were trained on again.
    """

    trained_once: bool
    weights_equal: bool
    weights_sha256: str
    audited_sha256: str
    updates: int


@dataclass(frozen=True, slots=True)
class Retraining:
    """A trainer without faults, and what it trains on.

    Args:
        model: the model directory that training begins from.
        backend, config: the backend plugin and its configuration.
        ranks, cells: processes, and the cells that they form.
        updates: the batches, in order.
        experiences: the trajectories in them, by name.
    """

    model: Path
    backend: str
    config: Any
    ranks: int
    cells: int
    updates: Sequence[VersionUpdate]
    experiences: dict[str, c.Experience]


def audit(directory: RunDirectory, progress: Callable[[int, int], None] = lambda *_: None) -> Audit:
    """Train a finished run's batches again and compare.

    Args:
        directory: the run.
        progress: called with the batches that are trained on so far, and all.

    Raises:
        RunDirectoryError: the run did not keep what is needed; the message says what.
        ConfigError: its configuration cannot be used any more.
    """
    config, expected = directory.configuration(), _last_weights(directory)
    rows = read_archive(directory.trained)
    made = updates(read_log(directory.events))
    _require_own_weights(directory)
    known = {row["trajectory"]: row for row in rows}
    if missing := [name for update in made for name in update.trajectories if name not in known]:
        raise RunDirectoryError(
            f"{directory.trained}: found no trajectory {missing[0]}, expected the {len(missing)} that the run was trained on"
        )
    once = trained_once(made, rows)
    model = directory.noted(str(read_json(directory.prepared)["model"]))
    if not model.is_dir():
        raise RunDirectoryError(f"{model}: found no such directory, expected the model that the run began with")
    table, experiences = config.trainer, {name: experience(row) for name, row in known.items()}
    trainer = Retraining(model, table.backend, trainer_config(config), table.processes, table.cells, made, experiences)
    found = train_again(trainer, progress)
    return Audit(once, found == expected, expected, found, len(made))


def _require_own_weights(directory: RunDirectory) -> None:
    """Refuse a run whose trainer went on from newer weights than its optimizer's state: its bits cannot be made again."""
    wanted: dict[int, int] = {}
    for instant in read_log(directory.events):
        for event in instant.events:
            if isinstance(event, c.Up) and event.answers in wanted and event.version == wanted[event.answers]:
                raise RunDirectoryError(
                    f"{directory.events}: found a trainer that took the weights of version {event.version} from "
                    "others, expected one that always went on from its checkpoint (checkpoint.newer_weights = false): an audit "
                    "cannot make these weights again"
                )
        for command in instant.commands:
            if isinstance(command, c.Restart) and command.weights is not None:
                wanted[command.seq] = command.weights.version


def _last_weights(directory: RunDirectory) -> str:
    """The digest of the run's last weights."""
    if not directory.summary.is_file():
        raise RunDirectoryError(f"{directory.root}: found no summary.json, expected a run that has finished")
    for change in directory.changes():
        if changed := [key for key in change["changed"] if key.startswith("trainer.")]:
            raise RunDirectoryError(
                f"{directory.config}: found that {changed[0]} was changed while the run was resumed, expected one trainer for "
                "all batches"
            )
    found = read_json(directory.summary).get("weights_sha256")
    if not isinstance(found, str):
        raise RunDirectoryError(f"{directory.summary}: found no weights_sha256, expected that of the last weights")
    return found


def train_again(job: Retraining, progress: Callable[[int, int], None] = lambda *_: None) -> str:
    """Train, in processes of their own, with one thread each. Returns the digest of the weights (see `weights_sha256`).

    Raises:
        RunDirectoryError: a process ended before it was done.
    """
    with tempfile.TemporaryDirectory(prefix="tailrace-audit-") as work:
        out = Path(work)
        context = multiprocessing.get_context("spawn")
        done: Any = context.Queue()
        with _one_thread():
            ranks = [
                context.Process(target=_rank, args=(job, rank, out, done), daemon=True) for rank in range(job.ranks)
            ]
            for rank in ranks:
                rank.start()
        try:
            _wait(ranks, done, len(job.updates), progress)
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
        return weights_sha256(out / "weights")


@contextmanager
def _one_thread() -> Iterator[None]:
    """The environment of the trainer's processes in a run."""
    before = {name: os.environ.get(name) for name in CPU_ENVIRONMENT}
    os.environ.update(CPU_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _wait(ranks: Sequence[Any], done: Any, count: int, progress: Callable[[int, int], None]) -> None:
    """Follow the first rank until all have ended.

    Raises:
        RunDirectoryError: one broke.
    """
    while any(rank.is_alive() for rank in ranks):
        try:
            told = done.get(timeout=_POLL_S)
        except queue.Empty:
            told = None
        if isinstance(told, str):
            raise RunDirectoryError(f"the recorded batches could not be trained on: {told}")
        if isinstance(told, int):
            progress(told, count)
        if broken := [rank for rank in ranks if rank.exitcode]:
            raise RunDirectoryError(f"a process of the audit ended with status {broken[0].exitcode}, expected 0")


def _rank(job: Retraining, rank: int, out: Path, done: Any) -> None:
    """Carry out one rank's part of every update, as the trainer role does."""
    try:
        rendezvous = f"file://{out}/rendezvous" if job.ranks > 1 else None
        backend = build_backend(
            job.backend, str(job.model), job.config, rank=rank, world_size=job.ranks, rendezvous=rendezvous
        )
        cell = rank // (job.ranks // job.cells)
        for number, update in enumerate(job.updates, 1):
            _update(backend, update, job.experiences, cell)
            if rank == 0:
                done.put(number)
        backend.save(str(out / "weights"), len(job.updates)).result()
        backend.close()
    except Exception as error:
        done.put(f"{type(error).__name__}: {error}")
        raise


def _update(backend: TrainingBackend, update: VersionUpdate, experiences: dict[str, c.Experience], cell: int) -> None:
    added = False
    for operation in update.operations:
        if isinstance(operation, c.Accumulate):
            part = [experiences[name] for name in operation.trajectories]
            if operation.update:
                backend.step([part])
            elif operation.cell == cell:
                backend.accumulate(part)
            added = added or not operation.update
        else:
            batches = [[experiences[name] for name in names] for names in operation.mini_batches]
            if added:
                backend.apply(batches[0] if batches else ())
            else:
                backend.step(batches)


# The batches that a run's weights were made of: their order from the event log, their tokens from the trajectory archive.
#
# events.jsonl ──► what each version was made of, without what a fall-back undid
# trajectories/trained.packed ──► the trajectories by name


@dataclass(frozen=True, slots=True)
class VersionUpdate:
    """What made a version from the one before it.

    Args:
        version: the version.
        operations: the trainer's commands in order; the last one is the `Step`.
    """

    version: int
    operations: tuple[Operation, ...]

    @property
    def trajectories(self) -> list[str]:
        """Names of what was trained on, in order."""
        found: list[str] = []
        for operation in self.operations:
            parts = (operation.trajectories,) if isinstance(operation, c.Accumulate) else operation.mini_batches
            found += [name for part in parts for name in part]
        return found


@dataclass(slots=True)
class _Updates:
    made: dict[int, VersionUpdate] = field(default_factory=dict)
    begun: dict[int, list[Operation]] = field(default_factory=dict)
    restarting: bool = False  # an `Up` that is told again, to another controller, undoes nothing

    def hear(self, event: c.Event) -> None:
        if isinstance(event, c.Stepped) and event.version in self.begun:
            self.made[event.version] = VersionUpdate(event.version, tuple(self.begun.pop(event.version)))
        elif isinstance(event, c.Up) and event.role == TRAINER and self.restarting:
            self.restarting = False  # what its checkpoint does not hold is undone
            self.begun.clear()
            self.made = {version: update for version, update in self.made.items() if version <= (event.version or 0)}

    def note(self, command: c.Command) -> None:
        if isinstance(command, c.Accumulate | c.Step):
            self.begun.setdefault(command.version, []).append(command)
        elif isinstance(command, c.Restart) and command.role == TRAINER:
            self.restarting = True


def updates(log: Iterable[Instant]) -> list[VersionUpdate]:
    """What the newest weights of a run were made of, in order, from its event log.

    A version that is published again under a new number after a fall-back has no update: no batch made it.
    """
    found = _Updates()
    for instant in log:
        for event in instant.events:
            found.hear(event)
        for command in instant.commands:
            found.note(command)
    return list(found.made.values())


def trained_once(made: Sequence[VersionUpdate], rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether each trajectory is in one batch, and the archive has just these, each with the version that it helped to make."""
    by_log = [(name, update.version) for update in made for name in update.trajectories]
    by_archive = Counter((str(row["trajectory"]), int(row["consumed_version"])) for row in rows)
    return len({name for name, _ in by_log}) == len(by_log) and Counter(by_log) == by_archive


def read_archive(path: Path) -> list[dict[str, Any]]:
    """The rows of the trajectories that were trained on; see `TrajectoryStore.export`.

    Raises:
        RunDirectoryError: there are none, or they are damaged.
    """
    if not path.is_file():
        raise RunDirectoryError(
            f"{path}: found no archive of trained trajectories, expected that of a run that has finished"
        )
    try:
        return list(read_trained(path))
    except StoreFormatError as error:
        raise RunDirectoryError(str(error)) from error


def experience(row: Mapping[str, Any]) -> c.Experience:
    """A trajectory as the trainer had it, bit for bit."""
    fresh = set(row.get("contexts", ()))
    kinds = [c.SpanKind.GENERATED] * len(row["tokens"])
    for begin, end in row["observations"]:
        kinds[begin:end] = [c.SpanKind.FRESH if begin in fresh else c.SpanKind.OBSERVATION] * (end - begin)
    places = zip(row["versions"], kinds, row["tokens"], row["logprobs"], strict=True)
    segments = []
    for (version, kind), run in groupby(places, key=lambda found: found[:2]):
        tokens = [(token, value) for _, _, token, value in run]
        own, values = tuple(token for token, _ in tokens), tuple(value for _, value in tokens)
        segments.append(c.Segment(version, own, values, bool(kind), kind == c.SpanKind.FRESH))
    return c.Experience(
        trajectory=row["trajectory"],
        group=row["group"],
        prompt=tuple(row["prompt"]),
        segments=tuple(segments),
        finish=c.FinishReason(row["finish"]),
        reward=row["reward"],
        completed_version=row["completed_version"],
    )
