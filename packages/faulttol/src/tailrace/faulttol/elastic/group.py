"""A group of equal workers on Ray that grows, shrinks and replaces its members (RobustRL, section 6 and Figure 10).

    create ──► before_create ──► a named actor ──► after_create        destroy ──► before_destroy ──► ended ──► after_destroy
    replace: the next incarnation under the same id, which callers by name find          scale: create or destroy the rest

The group decides nothing: `GroupKeeper` does, by its policies. One thread at a time uses a group.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.faulttol.elastic.actors import NamedActors, NamedCaller
from tailrace.faulttol.errors import GroupError

_LAST_WORDS = re.compile(r"^(Fatal Python error: .+|(?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
_DETAIL = re.compile(r"Worker exit detail: (.+)")
_SILENT = "End of file"  # how Ray describes a connection whose other end is just gone
_READ_BYTES = 1 << 16


def cause_of_death(message: str, logs: Path | None, pid: int | None) -> str:
    """The cause in one line.

    Args:
        message: the message of Ray's error.
        logs: the directory of the cluster's logs, if it is on this machine.
        pid: the actor's process, if it is known.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    said = _last_words(logs, pid)
    if said:
        return said
    detail = _DETAIL.search(plain)
    if detail is not None:
        if _SILENT in detail[1]:
            of = "" if pid is None else f" {pid}"
            return f"its process{of} was killed from outside (SIGKILL), ran out of memory, or ended without a word"
        return detail[1].strip().removeprefix("Worker exits unexpectedly. ").rstrip(".")
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    # the last line of a traceback, otherwise the first
    return lines[-1] if any("Traceback" in line or "Error" in line for line in lines[1:]) else lines[0]


def _last_words(logs: Path | None, pid: int | None) -> str:
    """The last line of an error in what the process wrote on stderr; empty if there is none."""
    if logs is None or pid is None:
        return ""
    for path in logs.glob(f"worker-*-{pid}.err"):
        try:
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_BYTES))
                found = _LAST_WORDS.findall(file.read().decode(errors="replace"))
        except OSError:
            continue
        if found:
            return str(found[-1]).strip()
    return ""


_THREADS = 2  # one answers whether it lives while the other works


@dataclass(frozen=True, slots=True)
class Worker:
    """A member of a group.

    Args:
        incarnation: from 1; a replacement has the next.
        actor: Ray's handle.
    """

    id: str
    incarnation: int
    actor: Any


def _nothing(*_: Any) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Hooks:
    """What is done around the creation and the end of each worker, such as renewing addresses. A hook that raises stops it.

    Args:
        before_create: takes id and incarnation.
        after_create: takes the worker, whose constructor may still run.
        before_destroy: takes the worker, which may be dead.
        after_destroy: takes the worker, which is gone.
    """

    before_create: Callable[[str, int], object] = _nothing
    after_create: Callable[[Worker], object] = _nothing
    before_destroy: Callable[[Worker], object] = _nothing
    after_destroy: Callable[[Worker], object] = _nothing


@dataclass(slots=True)
class Liveness:
    """What a probe found.

    Args:
        answered: members that answer.
        dead: why each member died that did, by id.
    """

    answered: list[str] = field(default_factory=list)
    dead: dict[str, str] = field(default_factory=dict)


class ElasticGroup:
    """The workers of a role.

    Args:
        actors: the run's actors.
        role: the role, such as "trainer" for ranks, "replica" or "environment".
        worker: their class. It is built as ``worker(id, *arguments)``.
        arguments: further arguments of the class.
        options: of each actor, as Ray's ``options``, such as ``{"num_gpus": 1}``. With ``max_concurrency`` 1 a worker that
            works does not answer a probe.
        hooks: see `Hooks`.
    """

    def __init__(
        self,
        actors: NamedActors,
        role: str,
        worker: Any,
        *arguments: Any,
        options: Mapping[str, Any] | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.role, self._actors, self._worker, self._arguments = role, actors, worker, arguments
        self._options = {"max_concurrency": _THREADS, **(options or {})}
        self._hooks = hooks or Hooks()
        self.members: dict[str, Worker] = {}
        """Workers by id, in the order in which they were created."""
        self._incarnations: dict[str, int] = {}
        self._probes: dict[str, Any] = {}

    def create(self, id_: str | None = None) -> Worker:
        """Start a worker. Returns at once.

        Args:
            id_: its id; None: the first number that no worker has had.

        Raises:
            GroupError: a worker of the id is there.
        """
        if id_ is None:
            id_ = next(
                str(number) for number in range(len(self._incarnations) + 1) if str(number) not in self._incarnations
            )
        if id_ in self.members:
            raise GroupError(f"found {self.role} {id_} in the group already, expected an id without a worker")
        incarnation = self._incarnations[id_] = self._incarnations.get(id_, 0) + 1
        self._hooks.before_create(id_, incarnation)
        options = self._actors.options(self.role, id_, incarnation) | self._options
        found = Worker(id_, incarnation, self._actors.start(self._worker, options, id_, *self._arguments))
        self.members[id_] = found
        self._hooks.after_create(found)
        return found

    def destroy(self, id_: str) -> None:
        """End a worker, alive or dead.

        Raises:
            GroupError: there is none of the id.
        """
        found = self.members.get(id_)
        if found is None:
            raise GroupError(
                f"found no {self.role} {id_} in the group, expected one of {', '.join(self.members) or 'none'}"
            )
        self._hooks.before_destroy(found)
        del self.members[id_]
        self._probes.pop(id_, None)
        self._actors.end(found.actor)
        self._hooks.after_destroy(found)

    def replace(self, id_: str) -> Worker:
        """End a worker, and start its successor under the same id."""
        self.destroy(id_)
        return self.create(id_)

    def scale(self, count: int) -> None:
        """Create or destroy workers until there are `count`, the newest ones first.

        Raises:
            GroupError: `count` is negative.
        """
        if count < 0:
            raise GroupError(f"found {count} workers asked for, expected at least 0")
        while len(self.members) < count:
            self.create()
        while len(self.members) > count:
            self.destroy(next(reversed(self.members)))

    def probe(self, timeout_s: float = 1.0) -> Liveness:
        """Ask all workers whether they live. Who has not answered within `timeout_s` is neither alive nor dead, and asked no
        second time: its late answer counts at a later probe."""
        import ray

        found = Liveness()
        for worker in self.members.values():
            if worker.id not in self._probes:
                self._probes[worker.id] = worker.actor.__ray_ready__.remote()
        until = time.monotonic() + timeout_s
        for id_, asked in list(self._probes.items()):
            try:
                ray.get(asked, timeout=max(0.0, until - time.monotonic()))
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError as error:
                found.dead[id_] = cause_of_death(str(error), None, None)
            else:
                found.answered.append(id_)
            del self._probes[id_]
        return found

    def caller(self, id_: str) -> NamedCaller:
        """A caller that finds whoever has the id at the time of a call; it can be given to other workers."""
        return NamedCaller(self._actors, self.role, id_, max(0, self._incarnations.get(id_, 0) - 1))

    def close(self) -> None:
        """End all workers."""
        self.scale(0)
