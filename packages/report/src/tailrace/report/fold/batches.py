"""Batches as a log shows them, and the buffer that they are taken from."""

from __future__ import annotations

import math

from tailrace import contracts as c
from tailrace.pipeline.controller.view import BatchMember
from tailrace.pipeline.run.figures import Batch, standard_error
from tailrace.pipeline.run.folding import Hears
from tailrace.report.fold.history import History


class TrainedBatches:
    """Hears of every batch that is given to the trainer.

    `occupancy` holds what the buffer held each time that it changed: when, groups that are complete, groups that are generated.
    `truncated` counts the responses of each batch that a limit ended. `reward_errors` holds the standard error of each batch's
    mean reward, clustered by prompt.
    """

    def __init__(self, history: History) -> None:
        self.hears: Hears = {c.Step: self._given, c.Stepped: self._trained}
        self.begun: dict[int, Batch] = {}
        self.truncated: dict[int, int] = {}
        self.reward_errors: dict[int, float] = {}
        self.occupancy: list[tuple[float, int, int]] = []
        self._history = history

    @property
    def trained(self) -> list[Batch]:
        """The batches behind the trainer's weights, in order: those that a crash undid are left out."""
        kept = [batch for version, batch in self.begun.items() if version in self._history.made]
        return sorted((batch for batch in kept if batch.ended_s < math.inf), key=lambda batch: batch.version)

    def settle(self, now: float) -> None:
        """The end of an instant."""
        counts = (self._history.buffered, self._history.generating)
        if not self.occupancy or self.occupancy[-1][1:] != counts:
            self.occupancy.append((now, *counts))

    def _given(self, now: float, command: c.Step) -> None:
        version, history = command.version, self._history
        members = history.batch(version)
        generated = [BatchMember(each.version or 0, each.completed_at, each.generated) for each in members]
        self.truncated[version] = sum(each.truncated for each in members)
        self.begun[version] = Batch.of(version, history.version, generated, now)
        scored = [(member.reward, member.ref.prompt) for member in members if member.reward is not None]
        self.reward_errors[version] = standard_error([reward for reward, _ in scored], [prompt for _, prompt in scored])

    def _trained(self, now: float, event: c.Stepped) -> None:
        if event.version in self.begun:
            self.begun[event.version].ended_s = now
