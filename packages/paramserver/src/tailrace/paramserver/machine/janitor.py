"""A process beside a relay that frees the relay's shared memory when relay and starter were both killed.

Whoever starts a relay clears up after it, and a relay clears up when its starter dies. If a SIGKILL ends both (a scheduler
that ends a job, Ray, which kills the children of a worker that it ends), only a third process is left to do it.
"""

from __future__ import annotations

import os
import signal
import time

from tailrace.paramserver.errors import RelayNameTaken
from tailrace.paramserver.machine.segments import clear, is_left
from tailrace.processes import ProcessId

_POLL_S = 0.5
_SOON_S = 0.01


def leave_janitor(relay: str, parent: int) -> None:
    """Fork a janitor. Call it in the relay's process, before that has threads.

    Args:
        relay: the relay's name.
        parent: process id of the relay's starter.
    """
    starter, own = ProcessId.of(parent), ProcessId.current()
    ends_with_us, ready = os.pipe(), os.pipe()
    if os.fork():
        os.close(ends_with_us[0])  # the other end closes with this process, however it ends
        os.close(ready[1])
        os.read(ready[0], 1)  # signals to this process and its group do not reach the janitor any more
        os.close(ready[0])
        return
    try:
        os.close(ends_with_us[1])
        _hide()
        os.close(ready[1])
        os.read(ends_with_us[0], 1)
        _wait_and_clear(relay, own, starter)
    finally:
        os._exit(0)


def _hide() -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def _wait_and_clear(relay: str, own: ProcessId, starter: ProcessId) -> None:
    while own.alive():  # its files close a little before it is gone
        time.sleep(_SOON_S)
    while is_left(relay) and starter.alive():  # the starter, if it lives, may look at what is left, or free it
        time.sleep(_POLL_S)
    try:
        clear(relay)
    except RelayNameTaken:  # its next incarnation, which freed what was left
        return
