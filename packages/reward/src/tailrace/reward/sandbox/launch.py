"""Starts a program's first process: it leads a group of its own, inherits its three streams and nothing else."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tailrace.processes import die_with_parent
from tailrace.reward.sandbox.limits import Ended, Limits, kernel_limits
from tailrace.reward.sandbox.process_group import ProcessGroup
from tailrace.reward.sandbox.seccomp import asking_filter, install_filter

_FIRST_FREE_FD = 3
_LISTENER = b"\0"  # goes along with the descriptor
_MESSAGE_BYTES = 1 << 12


class SandboxFailureError(Exception):
    """The sandbox failed, not the program."""


class Launcher(Protocol):
    """One kind of isolation, as a supervisor uses it; one program at a time."""

    def start(self, program: Path, scratch: Path, limits: Limits, streams: tuple[int, int, int]) -> ProcessGroup:
        """Start a program file with these descriptors as stdin, stdout and stderr.

        Raises:
            SandboxFailureError: it could not be started.
        """

    def helpers(self, group: ProcessGroup) -> frozenset[int]:
        """Processes of ours among the program's. May tell the group of another process group that belongs to it."""

    def scratch_bytes(self, scratch: Path, group: ProcessGroup) -> int:
        """Bytes of files in the scratch directory, a small amount for each file's entry included."""

    def ended(self, group: ProcessGroup) -> Ended:
        """How the program ended, once its group is gone.

        Raises:
            SandboxFailureError: it was not the program that ended.
        """


def start_group(
    command: Sequence[str],
    streams: tuple[int, int, int],
    limits: Limits,
    confine: Callable[[], None] = lambda: None,
    *,
    system_calls: bytes = b"",
    kept: Sequence[int] = (),
) -> ProcessGroup:
    """Run a command in a new process group, whose every start of a process or a thread waits for the group's answer.

    Args:
        command: the absolute path of a program and its arguments. It gets no environment.
        streams: descriptors for its stdin, stdout and stderr.
        limits: what the kernel enforces of them is set.
        confine: called in the new process; it starts no process or thread.
        system_calls: a filter of system calls that is set after that.
        kept: descriptors that it inherits besides, under the same numbers.

    Raises:
        SandboxFailureError: the process could not be made, or failed before it ran the command.
    """
    told, tell = socket.socketpair()
    supervisor = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        told.close()
        tell.close()
        raise SandboxFailureError(f"fork: {error}") from None
    if pid == 0:
        try:
            os.setsid()
            for theirs, ours in enumerate(streams):
                os.dup2(ours, theirs)
            _close_all_but({tell.fileno(), *kept})
            for fd in kept:
                os.set_inheritable(fd, True)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            die_with_parent(supervisor)
            os.umask(0o077)
            for kind, value in kernel_limits(limits):
                resource.setrlimit(kind, (value, value))
            confine()
            socket.send_fds(tell, [_LISTENER], [install_filter(asking_filter(), listen=True)])
            if system_calls:
                install_filter(system_calls)
            os.execve(command[0], list(command), {})  # noqa: S606 (no shell is wanted)
        except BaseException as error:
            with contextlib.suppress(OSError):
                tell.send(f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)
    tell.close()
    with told:
        said, listener = _heard(told)
    group = ProcessGroup(pid, listener)
    if said or listener is None:
        group.kill(1.0)
        raise SandboxFailureError(said or "the program's process died before it ran")
    return group


def _heard(told: socket.socket) -> tuple[str, int | None]:
    """What a new process said until it ran its command: why it could not, and its listener."""
    said, listeners = b"", []
    while True:
        part, fds, _, _ = socket.recv_fds(told, _MESSAGE_BYTES, 1)
        listeners += fds
        if not part:
            return said.removeprefix(_LISTENER).decode(errors="replace"), next(iter(listeners), None)
        said += part


def _close_all_but(kept: set[int]) -> None:
    lowest = _FIRST_FREE_FD
    for fd in (*sorted(kept), 1 << 20):
        os.closerange(lowest, fd)
        lowest = fd + 1
