"""The child's side: it answers each line of JSON with a line of JSON, and ends with its owner, whatever it does meanwhile."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from tailrace.processes.death import LOOK_S
from tailrace.processes.lines import decode, encode

_READ_BYTES = 1 << 16


def private_streams() -> tuple[int, int]:
    """Descriptors that requests come from and replies go to, which were stdin and stdout.

    From now on stdin is empty and what is printed goes to stderr, also by what this process starts: no print can garble a
    reply, and nobody else can read a request.
    """
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return requests, replies


def serve(answer: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answer requests, in this thread, until the process ends: with its owner, or when that closes its input.

    It ends at once, also while `answer` is at work.

    Args:
        answer: the reply to a request.

    Raises:
        LineError: the owner sent what is no message.
    """
    parent = os.getppid()
    requests, replies = private_streams()
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(requests, parent, lines), name="requests", daemon=True).start()
    while True:
        reply = memoryview(encode(answer(decode(lines.get()))))
        try:
            while reply:
                reply = reply[os.write(replies, reply) :]
        except BrokenPipeError:
            os._exit(0)


def _read(requests: int, parent: int, lines: SimpleQueue[bytes]) -> None:
    """Read requests. A fork of the owner may hold the pipe open after it has died, so the parent is looked at besides."""
    pending = bytearray()
    waiting = select.poll()
    waiting.register(requests, select.POLLIN)
    while os.getppid() == parent:
        if not waiting.poll(1000 * LOOK_S):
            continue
        part = os.read(requests, _READ_BYTES)
        if not part:
            break
        pending += part
        if b"\n" in part:
            *whole, pending = pending.split(b"\n")
            for line in whole:
                lines.put(bytes(line))
    os._exit(0)
