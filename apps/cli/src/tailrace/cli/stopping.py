"""What Ctrl-C and SIGTERM do to a run: a line at once, then an orderly end; a second one ends the process where it is.

The line comes from a thread that the signal itself wakes, since the main thread may be inside a library for seconds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # schedulers send SIGTERM


class Stopping:
    """Raises `KeyboardInterrupt` in the main thread at the first signal, while in this context.

    Args:
        say: shows a line; called from another thread.
        go_on: how to go on with the run, in words.
        end: ends the process at a second signal, with an exit status.
    """

    def __init__(self, say: Callable[[str], None], go_on: str, *, end: Callable[[int], object] = os._exit) -> None:
        self._say, self._go_on, self._end = say, go_on, end
        self._stopping = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stopping:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._woken_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in _SIGNALS:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # a shell's background job ignores Ctrl-C
                self._before[number] = signal.signal(number, self._interrupt)
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

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if not self._stopping:
            self._stopping = True
            raise KeyboardInterrupt

    def _watch(self) -> None:
        told = False
        while woken := os.read(self._read, 64):
            for number in woken:
                if number not in self._before:
                    continue
                if told:
                    self._say(f"tailrace: ended at once; {self._go_on}")
                    self._end(INTERRUPTED)
                else:
                    told = True
                    self._say(
                        f"tailrace: stopping ({signal.Signals(number).name}): the log is safe, members close, which takes "
                        "some seconds; press Ctrl-C again to end at once"
                    )
