"""Keeps an elastic group as its policies say: who is down, what becomes of it, how many there are (Figure 10: ElasticPolicy).

    probe ──► dead ────────────────────────► recovery.on_down ──► replaced, evicted, all replaced, or the group has failed
        └───► silent ──► detection.suspects ──┘                          then: scaled to `wanted`

`look` is one round, for a loop of yours; `start` has a thread do it. Policies are those of Tailrace: whatever is registered
under `tailrace.recovery` and `tailrace.detection`, built-in or your own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tailrace.contracts import Cause, DetectionPolicy, Failure, RecoveryAction, RecoveryPolicy, Signs
from tailrace.faulttol.detection import RoleAware
from tailrace.faulttol.elastic.group import ElasticGroup
from tailrace.faulttol.errors import GroupError
from tailrace.faulttol.heartbeat import HeartbeatMonitor
from tailrace.faulttol.recovery import Isolate

_ALL = (RecoveryAction.RESTART_TASK, RecoveryAction.START_OVER)
_OUT = (RecoveryAction.EVICT, RecoveryAction.EVICT_MACHINE)


class Does(StrEnum):
    """What a keeper did."""

    REPLACED = "replaced"
    EVICTED = "evicted"
    CREATED = "created"
    DESTROYED = "destroyed"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that a keeper did, and why.

    Args:
        id: of the worker.
        reason: in one line.
    """

    does: Does
    id: str
    reason: str


class GroupKeeper:
    """Looks after a group.

    Args:
        group: the group; nobody else changes it while this looks.
        wanted: how many workers there should be, asked in each round.
        recovery, detection: the policies.
        together: whether the death of one ends them all, as of ranks that compute one step together: all are replaced.
        start_s: seconds that a worker may take until it answers for the first time, such as to load a model.
        patience_s: seconds without an answer after which a worker is silent.
        every_s: seconds between two rounds of the thread.
        tell: takes what was done; called from the thread.
        clock: seconds, never decreasing.
    """

    def __init__(
        self,
        group: ElasticGroup,
        wanted: Callable[[], int],
        *,
        recovery: RecoveryPolicy | None = None,
        detection: DetectionPolicy | None = None,
        together: bool = False,
        start_s: float = 600.0,
        patience_s: float = 5.0,
        every_s: float = 1.0,
        tell: Callable[[Change], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group, self._wanted, self._together = group, wanted, together
        self._recovery: RecoveryPolicy = Isolate() if recovery is None else recovery
        self._detection: DetectionPolicy = RoleAware() if detection is None else detection
        self._silences, self._start_s = HeartbeatMonitor(patience_s), start_s
        self._starting: dict[str, float] = {}
        self._every_s, self._tell, self._clock = every_s, tell, clock
        self._failed: dict[str, list[float]] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: GroupError | None = None
        """Why the thread has ended; None while it goes on."""

    def look(self) -> list[Change]:
        """One round. Returns what was done.

        Raises:
            GroupError: the recovery policy gives the group up.
        """
        group, before, now = self._group, dict(self._group.members), self._clock()
        self._begin(now)
        alive = group.probe(min(1.0, self._every_s))
        now = self._clock()
        for id_ in alive.answered:
            if self._starting.pop(id_, None) is not None:
                self._silences.expect(id_, now)
            self._silences.beat(id_, now)
        down = [(id_, Cause.DIED, why) for id_, why in alive.dead.items()]
        late = [id_ for id_, since in self._starting.items() if now - since > self._start_s and id_ not in alive.dead]
        down += [(id_, Cause.SILENT, f"it did not come up within {self._start_s:.0f} s") for id_ in late]
        living = [self._signs(id_, now) for id_ in self._silences.members if id_ not in alive.dead]
        down += [
            (one.id, Cause.SILENT, f"{one.reason.why}: {dict(one.reason.numbers)}")
            for one in self._detection.suspects(living)
        ]
        done: list[Change] = []
        for id_, cause, why in down:
            if id_ in before and group.members.get(id_) is before[id_]:  # otherwise it went with another one
                done += self._recover(id_, cause, why, now)
        done += self._scaled()
        self._begin(self._clock())
        for change in done:
            self._tell(change)
        return done

    def _begin(self, now: float) -> None:
        """Give time to workers that are new."""
        for id_ in self._group.members:
            if id_ not in self._silences.members:
                self._starting.setdefault(id_, now)

    def _forget(self, id_: str) -> None:
        self._silences.forget(id_)
        self._starting.pop(id_, None)

    def _signs(self, id_: str, now: float) -> Signs:
        silent_s = self._silences.silent_s(id_, now)
        silent_s = silent_s if silent_s > self._silences.after_s else 0.0
        return Signs(self._group.role, id_, silent_s=silent_s, quiet_s=silent_s)

    def _recover(self, id_: str, cause: Cause, why: str, now: float) -> list[Change]:
        times = self._failed.setdefault(id_, [])
        times.append(now)
        for each, before in self._failed.items():
            if each not in self._starting:  # one that has not come up since fails as before, whatever time lies between
                before[:] = [at for at in before if now - at <= self._recovery.window_s]
        failure = Failure(
            self._group.role,
            id_,
            cause=cause,
            reason=why,
            failures=len(times),
            role_failures=sum(map(len, self._failed.values())),
            starting=id_ in self._starting,
            others=len(self._group.members) - 1,
        )
        action = self._recovery.on_down(failure)
        if action is RecoveryAction.FAIL:
            raise GroupError(f"{self._group.role} {id_} is given up after {len(times)} failures: {why}")
        if action in _OUT:
            self._group.destroy(id_)
            self._forget(id_)
            return [Change(Does.EVICTED, id_, why)]
        all_ = self._together or action in _ALL
        ids = list(self._group.members) if all_ else [id_]
        for each in ids:  # all end before the first starts again
            self._group.destroy(each)
            self._forget(each)
        for each in ids:
            self._group.create(each)
        return [Change(Does.REPLACED, each, why if each == id_ else f"with {id_}: {why}") for each in ids]

    def _scaled(self) -> list[Change]:
        before, wanted = dict(self._group.members), self._wanted()
        self._group.scale(wanted)
        for id_ in before.keys() - self._group.members.keys():
            self._forget(id_)
        reason = f"found {len(before)}, wanted {wanted}"
        created = [Change(Does.CREATED, id_, reason) for id_ in self._group.members if id_ not in before]
        return created + [Change(Does.DESTROYED, id_, reason) for id_ in before if id_ not in self._group.members]

    def start(self) -> None:
        """Look every `every_s` seconds in a thread, until `close` or the group's failure."""
        self._thread = threading.Thread(target=self._run, name=f"keeper of {self._group.role}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self.look()
            except GroupError as error:
                self.failure = error
                return
            except BaseException as error:  # of `wanted`, a hook, a policy or Ray
                self.failure = GroupError(
                    f"{self._group.role}: a round was broken off: {type(error).__name__}: {error}"
                )
                self.failure.__cause__ = error
                raise
            self._over.wait(self._every_s)

    def close(self) -> None:
        """End the thread. The workers stay."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> GroupKeeper:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
