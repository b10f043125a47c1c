"""A child that ends with its parent: by the kernel, by a pipe that closes, or by looking."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
LOOK_S = 1.0
"""How often a child looks whether its parent still is."""


def die_with_parent(parent: int | None = None) -> bool:
    """Have the kernel kill this process when its parent dies, even if the parent is killed without cleaning up.

    To the kernel, the parent is the *thread* that forked: start such children from a thread that lives as long as they should.

    Args:
        parent: process id of the parent, if known. If the parent died before this call, this process exits at once.

    Returns:
        Whether the kernel will do so. Only Linux can.

    Raises:
        OSError: the kernel refused.
    """
    if not _signal_at_parents_death(signal.SIGKILL):
        return False
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return True


class Ending:
    """A request to end, which a signal's handler may make at any time.

    Python runs handlers between any two instructions of the main thread. A `threading.Event` would stand still for ever if
    one came within its own `wait` or `set`, which hold a lock that `set` needs. This one has a pipe and no lock.
    """

    def __init__(self) -> None:
        self._asked, self._ask = os.pipe()
        os.set_blocking(self._ask, False)

    def ask(self, *_: object) -> None:
        """Ask for the end; a handler of signals, for example."""
        with contextlib.suppress(BlockingIOError):  # the pipe is full: it was asked for often enough
            os.write(self._ask, b".")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is asked for. Returns whether it was."""
        poll = select.poll()
        poll.register(self._asked, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else 1000 * timeout_s))


def wait_for_parent(parent: int, stop: Ending) -> None:
    """Return at `stop`, or when the parent is gone. Takes SIGHUP; for the main thread.

    Unlike `die_with_parent`, it does not mind from which thread this process was started.

    Args:
        parent: process id of the parent.
        stop: asked by whoever wants this process to end, such as a signal's handler.
    """
    # The kernel signals the death of the *thread* that started us, which may not be that of the process: the signal only
    # makes us look at once. Elsewhere the poll does.
    signal.signal(signal.SIGHUP, lambda *_: stop.ask() if os.getppid() != parent else None)
    _signal_at_parents_death(signal.SIGHUP)
    while os.getppid() == parent and not stop.wait(LOOK_S):
        pass


def at_end_of(pipe: int, then: Callable[[], object]) -> None:
    """Call `then`, in a thread, once nobody holds the other end of a pipe any more. What comes through it is thrown away.

    Args:
        pipe: a descriptor; 0 is stdin, which a parent holds open as long as it lives.
        then: ends this process, say.
    """

    def wait() -> None:
        # An unbuffered read: in a buffered one, this daemon thread would hold its lock while the interpreter shuts down.
        with contextlib.suppress(OSError):  # a terminal that hung up has ended too
            while os.read(pipe, 1 << 16):
                continue
        then()

    threading.Thread(target=wait, name="owner", daemon=True).start()


def _signal_at_parents_death(number: signal.Signals) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return True
