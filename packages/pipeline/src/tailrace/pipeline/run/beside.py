"""Work beside the executor's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


def in_thread(work: Callable[[], None]) -> Future[None]:
    """Do work in a thread. Returns what comes of it."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, name="control", daemon=True).start()
    return future
