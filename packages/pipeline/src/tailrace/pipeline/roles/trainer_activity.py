"""What the trainer says of its own work: its phase, and which of its micro-batches are done.

    command begins ──► phase ──► micro-batches end ──every REPORT_S──► Activity ──► command ends ──► slowest_s of the phase

A micro-batch that ended is the sign of life of a trainer that computes: a rank that waits for another in a collective answers
its heartbeat all the while. Of a backend that does not say when one ends, tensor cores that work are the sign (RobustRL,
section 4), where they can be read. Only once they were seen to work is it missed: a backend may compute without them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tailrace.contracts import Accumulate, Activity, Checkpoint, Command, Publish, Step
from tailrace.faulttol.tensor_cores import TensorCores, UnreadableError

NOISE = 0.001  # tensor cores that work for less of the time are taken to stand still
TRAINING, STEPPING, PUBLISHING, SAVING, IDLE = "training", "stepping", "publishing", "saving", "idle"
REPORT_S = 5.0  # shorter commands are told by their phase alone
CLOSE_S = 10.0  # a reading takes milliseconds, and a driver that answers nothing holds nobody up


class TrainerActivity:
    """Tells phases as they change, and progress every `REPORT_S`. Any thread may use it.

    Args:
        member: the trainer's id.
        tell: takes the events.
        watched: whether the backend says when a micro-batch ends; otherwise it is `STEPPING` while it trains.
        clock: seconds, never decreasing.
        expected: about how many micro-batches the command under way has; 0 if the backend does not say.
    """

    def __init__(
        self,
        member: str,
        tell: Callable[[Activity], None],
        *,
        watched: bool,
        clock: Callable[[], float] = time.monotonic,
        expected: Callable[[], int] = lambda: 0,
    ) -> None:
        self._member, self._tell, self._clock = member, tell, clock
        self._computing = TRAINING if watched else STEPPING
        self._phase, self._done, self._done_before = IDLE, 0, 0
        self._expected = expected
        self._slowest_s: dict[str, float] = {}
        self._began_s = self._told_s = self._moved_s = clock()
        self._lock = threading.RLock()

    def begins(self, command: Command) -> None:
        """A command begins."""
        with self._lock:
            self._began_s = self._moved_s = self._clock()
            self._done_before = self._done
            self._at(self._phase_of(command))

    def ended_micro_batch(self) -> None:
        """A micro-batch ended."""
        with self._lock:
            self._progressed()

    def fetched(self) -> None:
        """A slice of the batch came: the trainer goes on, though no micro-batch ended."""
        with self._lock:
            now = self._clock()
            if now - self._told_s >= REPORT_S:
                self._say(now)

    def tensor_cores_worked(self) -> None:
        """Since the last call or before. While no batch is computed it is another's work, as of a replica on these devices."""
        with self._lock:
            if self._phase != self._computing:
                return
            self._computing = TRAINING
            self._at(TRAINING)
            self._progressed()

    def tensor_cores_unreadable(self) -> None:
        """They are not missed any more."""
        with self._lock:
            if self._phase == self._computing:
                self._at(STEPPING)
            self._computing = STEPPING

    def ended(self, command: Command) -> None:
        """A command ended. Where no part of it is told, it counts as one."""
        with self._lock:
            if self._phase_of(command) != TRAINING:
                self._slower(self._clock() - self._began_s)

    def idle(self) -> None:
        """There is no further command."""
        with self._lock:
            self._at(IDLE)

    def _phase_of(self, command: Command) -> str:
        match command:
            case Step() | Accumulate():
                return self._computing
            case Publish():
                return PUBLISHING
            case Checkpoint():
                return SAVING
        return IDLE

    def _progressed(self) -> None:
        self._done += 1
        now = self._clock()
        self._slower(now - self._moved_s)
        self._moved_s = now
        if now - self._told_s >= REPORT_S:
            self._say(now)

    def _slower(self, seconds: float) -> None:
        self._slowest_s[self._phase] = max(self._slowest_s.get(self._phase, 0.0), seconds)

    def _at(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._say(self._clock())

    def _say(self, now: float) -> None:
        self._told_s = now
        slowest_s = self._slowest_s.get(self._phase, 0.0)
        done = self._done - self._done_before if self._phase == TRAINING else 0
        share = min(1.0, done / max(done, self._expected())) if done and self._expected() else 0.0
        self._tell(Activity("trainer", self._member, self._phase, self._done, slowest_s=slowest_s, share=share))


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
        """Read no more. A reading that goes on is waited for, `CLOSE_S` seconds at most."""
        self._closing.set()
        self._thread.join(CLOSE_S)

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
