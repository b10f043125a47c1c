"""A child that ends with its parent: by the kernel, by a pipe that closes, or by looking."""

from __future__ import annotations

import contextlib
import ctypes
import os
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


def wait_for_parent(parent: int, stop: threading.Event) -> None:
    """Return at `stop`, or when the parent is gone. Takes SIGHUP; for the main thread.

    Unlike `die_with_parent`, it does not mind from which thread this process was started.

    Args:
        parent: process id of the parent.
        stop: set by whoever wants this process to end, such as a signal's handler.
    """
    # The kernel signals the death of the *thread* that started us, which may not be that of the process: the signal only
    # makes us look at once. Elsewhere the poll does.
    signal.signal(signal.SIGHUP, lambda *_: stop.set() if os.getppid() != parent else None)
    _signal_at_parents_death(signal.SIGHUP)
    while os.getppid() == parent and not wait_aside(stop, LOOK_S):
        pass


def wait_aside(stop: threading.Event, timeout_s: float | None = None) -> bool:
    """Wait, in a thread, for an event that a signal's handler sets. Returns whether it is set.

    Handlers run in the main thread, between any two of its instructions. If that thread waited itself, the handler could come
    while the wait holds the event's lock, which `set` needs: neither would ever go on.
    """
    waiter = threading.Thread(target=stop.wait, args=(timeout_s,), name="stop", daemon=True)
    waiter.start()
    waiter.join()
    return stop.is_set()


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
