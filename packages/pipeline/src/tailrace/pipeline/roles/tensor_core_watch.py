"""Reads tensor cores now and then, for what a trainer says of its work."""

from __future__ import annotations

import logging
import threading

from tailrace.faulttol.tensor_cores import TensorCores, UnreadableError
from tailrace.pipeline.roles.trainer_activity import REPORT_S, TrainerActivity

NOISE = 0.001  # tensor cores that work for less of the time are taken to stand still


class TensorCoreWatch:
    """Reads in a thread of its own.

    Args:
        cores: the reader, which is closed at the end.
        activity: is told when they worked, and when they cannot be read any more.
        every_s: seconds between two readings.
    """

    def __init__(self, cores: TensorCores, activity: TrainerActivity, every_s: float = REPORT_S) -> None:
        self._cores, self._activity, self._every_s = cores, activity, every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensor-core-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Read no more."""
        self._closing.set()
        self._thread.join(self._every_s)

    def _run(self) -> None:
        try:
            while not self._closing.wait(self._every_s):
                if self._cores.busy() > NOISE:
                    self._activity.tensor_cores_worked()
        except UnreadableError as error:
            logging.getLogger(__name__).warning("the trainer's tensor cores are not watched any more: %s", error)
        finally:
            self._activity.tensor_cores_unreadable()
            self._cores.close()
