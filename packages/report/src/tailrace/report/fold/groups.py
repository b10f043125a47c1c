"""Groups as a log shows them: where each is, and how many are there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tailrace.report.fold.states import Group, Stage, Trajectory


class GroupHistory:
    """The part of a history that counts groups.

    `consumed` are the groups of the versions that the trainer may still fall back behind. `ended` counts groups that were not
    trained on, by reason.
    """

    def __init__(self) -> None:
        self.groups: dict[int, Group] = {}
        self.stages: Counter[Stage] = Counter()
        self.ended: Counter[str] = Counter()
        self.consumed: dict[int, list[Group]] = {}

    @property
    def buffered(self) -> int:
        """Groups that are complete and not consumed."""
        return self.stages[Stage.BUFFERED]

    @property
    def generating(self) -> int:
        """Groups that have started and are not complete."""
        return self.stages[Stage.GENERATING]

    @property
    def trained(self) -> int:
        """Groups that were trained on."""
        return self.stages[Stage.TRAINED]

    @property
    def dropped(self) -> int:
        """Groups that ended and were not trained on."""
        return self.ended.total()

    @property
    def started(self) -> int:
        """Groups that have started, or were dropped before."""
        return self.stages.total() + self.dropped

    def _group(self, index: int) -> Group:
        group = self.groups.get(index)
        if group is None:
            group = self.groups[index] = Group(index)
            self.stages[group.stage] += 1
        return group

    def _to(self, group: Group, stage: Stage, version: int | None = None) -> None:
        self.stages[group.stage] -= 1
        self.stages[stage] += 1
        group.stage, group.version = stage, version

    def _start_over(self, known: Sequence[Trajectory]) -> None:
        """Trajectories begin anew after all of their groups, also those that were complete or trained on."""
        for group in {each.ref.group: self.groups[each.ref.group] for each in known}.values():
            if group.version is not None and group in self.consumed.get(group.version, ()):
                self.consumed[group.version].remove(group)
            self._to(group, Stage.GENERATING)
            group.scored = 0
        for each in known:
            each.finished, each.reward, each.replica = False, None, None
