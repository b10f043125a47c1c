"""What provisioning sees of rounds: the open one and its milestones, those that are over, and the lengths of responses."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.rounds import Rounds
from tailrace.pipeline.spec import PipelineSpec

_RECORDS, _LENGTHS = 64, 4_096


class RoundHistory:
    """Watches rounds for a provisioning policy that asks for it (`WatchesRounds`); otherwise it does nothing."""

    def __init__(self, spec: PipelineSpec, rounds: Rounds, fleet: Replicas) -> None:
        policy = spec.provisioning
        self._milestones: Sequence[float] | None = policy.milestones if isinstance(policy, c.WatchesRounds) else None
        self._rounds, self._fleet = rounds, fleet
        self.records: deque[c.RoundRecord] = deque(maxlen=_RECORDS)
        self.lengths: deque[int] = deque(maxlen=_LENGTHS)
        self.open: c.RoundView | None = None
        self._began_s = 0.0
        self._preempted = 0  # as the round began
        self._passed = 0  # milestones of the open round

    @property
    def used(self) -> bool:
        """Whether the policy asks for it."""
        return self._milestones is not None

    def finished(self, tokens: int) -> None:
        """Note the length of a response."""
        if self._milestones is not None:
            self.lengths.append(tokens)

    def look(self, now: float) -> bool:
        """Look at the open round. Returns whether the policy must be asked: a round began or ended, or passed a milestone."""
        if self._milestones is None or not self._rounds.used:
            return False
        before, self.open = self.open, self._rounds.view()
        if _number(before) != _number(self.open):
            if before is not None:
                tp = max([replica.member.tp for replica in self._fleet.up()], default=1)
                preempted = self._preemptions() - self._preempted
                lasted_s = now - self._began_s
                self.records.append(c.RoundRecord(before.number, before.kind, before.size, tp, preempted, lasted_s))
            self._began_s, self._preempted, self._passed = now, self._preemptions(), 0
            return True
        if self.open is None:
            return False
        share = self.open.generated / max(1, self.open.samples)
        passed = sum(share >= milestone for milestone in self._milestones)
        new, self._passed = passed > self._passed, max(self._passed, passed)
        return new

    def _preemptions(self) -> int:
        return sum(replica.preempted for replica in self._fleet.replicas.values())


def _number(view: c.RoundView | None) -> int:
    return -1 if view is None else view.number
