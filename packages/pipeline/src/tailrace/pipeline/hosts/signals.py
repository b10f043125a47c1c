"""Keeps a process's own signal handlers from libraries that replace them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep the driver's signal handlers. Ray replaces them by its own, which abort the driver without cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
