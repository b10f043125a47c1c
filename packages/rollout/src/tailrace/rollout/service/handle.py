"""What the service needs of a replica. `ReplicaWorker` is one, in a thread; `ReplicaProcess` is one in a process of its own.

An engine keeps global state and a thread of Python's, so two need two processes:

service ── setup, commands with prompts and kept tokens ──► child (`replica_child`): ReplicaWorker
        ◄── tokens, then the events about them ──────────── one pipe, so in that order
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tailrace.contracts import EngineFactory, Event, Resume, Route, Sampling
from tailrace.processes import Child
from tailrace.rollout.command_order import ReplicaCommand
from tailrace.rollout.errors import CloseTimeoutError, ReplicaCrashedError
from tailrace.rollout.replica import ReplicaWorker
from tailrace.rollout.service.book import Book
from tailrace.rollout.service.staged_weights import StagedWeights


@dataclass(frozen=True, slots=True)
class ReplicaSetup:
    """How a replica is started.

    Args:
        name: its name, another one at each start.
        model: Hugging Face model directory.
        engine: name of the engine plugin.
        options: engine options, with a seed of its own.
        book: prompts and tokens.
        weights: weight versions.
        flush_s: seconds between two batches of tokens.
        pull_timeout_s: deadline of a load of weights.
        start_timeout_s: deadline of a process's start, until its engine is loaded.
        closing: set when the service closes; a start that is under way gives up.
    """

    name: str
    model: Path
    engine: str
    options: Mapping[str, Any]
    book: Book
    weights: StagedWeights
    flush_s: float
    pull_timeout_s: float
    start_timeout_s: float
    closing: threading.Event = field(default_factory=threading.Event)


class ReplicaHandle(Protocol):
    """A running replica. `submit` is called from one thread, `events` from another."""

    def submit(self, command: ReplicaCommand) -> None:
        """Give it a command; raises ReplicaCrashedError if it has stopped."""
        ...

    def events(self, timeout_s: float) -> list[Event]:
        """What happened since the last call; raises ReplicaCrashedError after the last event of one that stopped."""
        ...

    def close(self, timeout_s: float) -> None:
        """Stop it and free what it holds; 0 s: one that does not answer."""
        ...


StartReplica = Callable[[ReplicaSetup], ReplicaHandle]
"""Starts a replica, and returns when its engine is loaded. It raises if it cannot, or if the service closes meanwhile."""


_CHILD = "tailrace.rollout.service.replica_child"
_LOOK_S = 0.1
_STATUS_S = 0.5
_CLOSE_S = 10.0
_MESSAGE_S = 30
"""Seconds for which a process may stand still in the middle of a message: who reads it has no other deadline there."""


class ReplicaProcess:
    """A replica worker in a child process (a `ReplicaHandle`).

    Args:
        setup: how it is started.
        build: builds the engine, in the child, which imports it by its name; None: the engine plugin that `setup` names.

    Raises:
        ReplicaCrashedError: the engine did not load, and the message has its error; or not before the deadline, or before the
            service closed.
    """

    def __init__(self, setup: ReplicaSetup, build: EngineFactory | None = None) -> None:
        self._name, self._book = setup.name, setup.book
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _MESSAGE_S, 0))
        with theirs:
            # Engines print; the service's own output is for its caller.
            command = [sys.executable, "-m", _CHILD, str(theirs.fileno())]
            self._child = Child(command, stdout=2, pass_fds=[theirs.fileno()])
        self._pipe = Connection(ours.detach())
        self._sending = threading.Lock()
        self._reason = ""
        engine = setup.engine if build is None else build
        sent = (setup.name, str(setup.model), engine, dict(setup.options), str(setup.weights.directory))
        try:
            self._send((*sent, setup.flush_s, setup.pull_timeout_s))
            kind, what = self._first_word(setup)
            if kind != "up":
                raise ReplicaCrashedError(f"replica {self._name!r} did not start: {what}")
        except BaseException as error:
            status = self._status() if isinstance(error, EOFError | OSError) else ""
            self._child.kill()
            self.close(_CLOSE_S)
            if isinstance(error, EOFError | OSError):
                what = f"replica {self._name!r} ended while its engine loaded{status}"
                raise ReplicaCrashedError(what) from error
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def submit(self, command: ReplicaCommand) -> None:
        """Send a command, with the prompts and tokens that it needs.

        Raises:
            ReplicaCrashedError: the process has ended.
        """
        resumes: list[tuple[Resume, Sampling]] = []
        if isinstance(command, Route):
            samplings = {ref.trajectory: self._book.sampling(ref) for ref in command.trajectories}
            begun = self._book.begin(self._name, 0, command.trajectories, command.seq)
            resumes = [(resume, samplings[resume.trajectory]) for resume in begun]
        try:
            self._send((command, resumes))
        except OSError as error:
            raise ReplicaCrashedError(f"replica {self._name!r} has ended{self._status()}") from error

    def events(self, timeout_s: float) -> list[Event]:
        """Events since the last call; waits for the first until the deadline.

        Raises:
            ReplicaCrashedError: the process has ended, and all its events have been returned.
        """
        events: list[Event] = []
        deadline = time.monotonic() + timeout_s
        try:
            while not events and self._pipe.poll(max(0.0, deadline - time.monotonic())):
                while self._pipe.poll(0):
                    kind, what = self._pipe.recv()
                    if kind == "tokens":
                        self._book.append(self._name, what)  # of samples taken away meanwhile they are refused
                    elif kind == "events":
                        events += what
                    else:
                        self._reason = what
                if time.monotonic() >= deadline:
                    break
        except BlockingIOError as error:
            # What else came is the service's to ask for again: its samples are in the book.
            stuck = f"replica {self._name!r} broke off in the middle of a message and said nothing for {_MESSAGE_S} s"
            raise ReplicaCrashedError(stuck) from error
        except (EOFError, OSError) as error:
            if not events:
                raise ReplicaCrashedError(f"replica {self._name!r} died{self._status()}") from error
        return events

    def close(self, timeout_s: float) -> None:
        """End the process: in order if it still answers, else by a signal.

        Raises:
            CloseTimeoutError: it is there after the deadline, and some seconds more, all the same.
        """
        deadline = time.monotonic() + timeout_s
        if self._sending.acquire(timeout=timeout_s):  # who sends to a process that reads nothing waits for its end
            self._pipe.close()
            self._sending.release()
        status = self._child.wait(max(0.0, deadline - time.monotonic()))
        if status is None and self._child.kill(_CLOSE_S) is None:
            raise CloseTimeoutError(f"replica {self._name!r} (process {self.pid}) did not end within {timeout_s} s")
        with self._sending:
            self._pipe.close()

    def _first_word(self, setup: ReplicaSetup) -> tuple[str, str]:
        """What the process says first: that its engine is loaded, or why it is not."""
        deadline = time.monotonic() + setup.start_timeout_s
        while not self._pipe.poll(_LOOK_S):
            if setup.closing.is_set():
                raise ReplicaCrashedError(f"replica {self._name!r} was ended while its engine loaded")
            if time.monotonic() > deadline:
                raise ReplicaCrashedError(f"replica {self._name!r} did not start within {setup.start_timeout_s} s")
        said: tuple[str, str] = self._pipe.recv()
        return said

    def _send(self, message: object) -> None:
        with self._sending:
            self._pipe.send(message)

    def _status(self) -> str:
        status = self._child.wait(_STATUS_S)
        if status is None:
            return ""
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return f" {how}{': ' if self._reason else ''}{self._reason}"


def in_thread(build: EngineFactory) -> StartReplica:
    """Start replicas as threads here, with engines of a factory. What such a replica holds ends with this process only."""

    def start(setup: ReplicaSetup) -> ReplicaHandle:
        return ReplicaWorker(
            setup.name,
            build(str(setup.model), setup.options),
            setup.book,
            setup.weights,
            sampling=setup.book.sampling,
            flush_s=setup.flush_s,
            pull_timeout_s=setup.pull_timeout_s,
        )

    return start
