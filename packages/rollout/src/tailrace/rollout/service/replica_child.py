"""The child of a `ReplicaProcess`: a replica worker whose trajectory source is the pipe to its service.

Run as ``python -m``, with the file descriptor of the pipe.

Invariant: it ends when the pipe does, whatever its engine is doing, loading too, so it never outlives the service.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tailrace.contracts import PartialDelta, Resume, Sampling, TrajectoryRef
from tailrace.rollout.engine_selection import build_engine
from tailrace.rollout.errors import ReplicaCrashedError
from tailrace.rollout.replica import ReplicaWorker
from tailrace.rollout.service.staged_weights import StagedWeights

_LOOK_S = 0.1
_CLOSE_S = 5.0


class _Here:
    """The child's trajectory source: what came with the commands, and the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._sending = pipe, threading.Lock()
        self._resumes: dict[str, tuple[Resume, Sampling]] = {}

    def put(self, resumes: Sequence[tuple[Resume, Sampling]]) -> None:
        self._resumes.update({resume.trajectory: (resume, sampling) for resume, sampling in resumes})

    def begin(self, replica: str, version: int, refs: Sequence[TrajectoryRef], seq: int) -> list[Resume]:
        del replica, version, seq
        return [self._resumes[ref.trajectory][0] for ref in refs if ref.trajectory in self._resumes]

    def sampling(self, ref: TrajectoryRef) -> Sampling:
        return self._resumes.pop(ref.trajectory)[1]

    def append(self, replica: str, deltas: Sequence[PartialDelta]) -> list[str]:
        del replica
        self.send("tokens", list(deltas))
        return []  # what the service took away it aborts by a command

    def send(self, kind: str, what: Any) -> None:
        with self._sending:
            self._pipe.send((kind, what))


def _child(pipe: Connection) -> int:
    name, model, engine, options, staged, flush_s, pull_timeout_s = pipe.recv()
    here, gone = _Here(pipe), threading.Event()
    loaded: Future[ReplicaWorker] = Future()
    threading.Thread(target=_obey, args=(pipe, here, loaded, gone), name="commands", daemon=True).start()
    try:
        worker = ReplicaWorker(
            name,
            build_engine(engine, model, options) if isinstance(engine, str) else engine(model, options),
            here,
            StagedWeights(Path(model), Path(staged)),
            sampling=here.sampling,
            flush_s=flush_s,
            pull_timeout_s=pull_timeout_s,
        )
    except Exception as error:
        here.send("failed", f"{type(error).__name__}: {error}")
        return 1
    loaded.set_result(worker)
    here.send("up", None)
    try:
        while not gone.is_set():
            events = worker.events(_LOOK_S)
            if events:
                here.send("events", events)
    except ReplicaCrashedError as error:
        here.send("crashed", str(error))
        return 1
    worker.close(_CLOSE_S)
    return 0


def _obey(pipe: Connection, here: _Here, loaded: Future[ReplicaWorker], gone: threading.Event) -> None:
    while True:
        try:
            command, resumes = pipe.recv()
        except (EOFError, OSError):
            gone.set()
            if loaded.done():
                time.sleep(_CLOSE_S)
            os._exit(0)  # the service is gone, and the engine loads or is in a step that takes long
        here.put(resumes)
        try:
            loaded.result().submit(command)  # none comes before it is loaded
        except ReplicaCrashedError:
            return  # the main thread tells of it


def main(arguments: Sequence[str]) -> int:
    """Run a replica whose pipe is an open file descriptor."""
    try:
        return _child(Connection(int(arguments[0])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # the service is gone


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # engines leave threads behind that would keep the process
