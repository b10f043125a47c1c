"""What Ctrl-C, SIGTERM and a terminal that closes do to a run: a line and an orderly end; the second one ends it at once.

A thread that the signal itself wakes does both, since the main thread may be inside a library for seconds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from tailrace.cli.errors import INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # schedulers send SIGTERM, a terminal that closes SIGHUP


class Stopping:
    """Calls `stop` at the first signal, while in this context.

    Args:
        say: shows a line; called from another thread.
        go_on: how to go on with the run, in words.
        stop: lets the run end in order; called from another thread.
        end: ends the process at a second signal, with an exit status.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        go_on: str,
        *,
        stop: Callable[[], object],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._say, self._go_on, self._stop, self._end = say, go_on, stop, end
        self.told = threading.Event()
        """Set at the first signal."""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._woken_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # a shell's background job ignores Ctrl-C, nohup the terminal's end
                self._before[number] = signal.signal(number, _nothing)
        self._thread = threading.Thread(target=self._watch, name="stopping", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._write)  # ends the thread
        self._thread.join()
        os.close(self._read)

    def _watch(self) -> None:
        while woken := os.read(self._read, 64):
            for number in woken:
                if number not in self._before:
                    continue
                if self.told.is_set():
                    self._tell(f"tailrace: ended at once; {self._go_on}")
                    self._end(INTERRUPTED)
                else:
                    self.told.set()
                    self._tell(
                        f"tailrace: stopping ({signal.Signals(number).name}): the log is safe, members close, which takes "
                        "some seconds; press Ctrl-C again to end at once"
                    )
                    self._stop()

    def _tell(self, text: str) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._say(text)


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGTERM, and a terminal that closes, raise KeyboardInterrupt in this context, as Ctrl-C does."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: found for number, found in before.items() if found is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The thread does what is to be done."""
    del number, frame
