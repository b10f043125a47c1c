"""Predicted lengths of responses: asked for ahead of the launch, and from events to the views of policies.

    prompts that may be launched soon ──Predict──► ranker ──Predicted──► ledger ──► what waits and runs, as policies see it
                                                     │ down: the next one is asked for all that is missing

Nothing waits for a prediction: what has none is routed without it, and its reason says so. The numbers are in the events, so a
replay needs no ranker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.members import RANKER, Members
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.refill import Refill
from tailrace.pipeline.controller.states import GroupPhase, GroupState
from tailrace.pipeline.errors import ControllerError

_COMMANDS = 8  # in which the prompts that may be launched soon are asked for, as launches go on


class Predictions:
    """Asks for predictions, notes them in the ledger, which owns them, and brings the views up to date.

    Args:
        ledger: what waits and runs.
        fleet: the replicas, whose views of what they run may be older than a prediction.
        members: all members, the ranker among them if the run has one.
        source: the batching source.
        refill: says how much may be launched soon.
        outbox: takes the commands.
        wanted: whether the run has a ranker.
    """

    def __init__(
        self,
        ledger: Ledger,
        fleet: Replicas,
        members: Members,
        source: c.BatchingSource,
        refill: Refill,
        outbox: Outbox,
        *,
        wanted: bool,
    ) -> None:
        self._ledger, self._fleet, self._members = ledger, fleet, members
        self._source, self._refill, self._outbox, self._wanted = source, refill, outbox, wanted
        self.asked_at: int | None = None  # groups admitted when the ranker that is up was last asked

        self.updates = 0  # of rankers, in the whole run

    # ---- what became of them --------------------------------------------------------------------------------------

    def completed(self, group: GroupState) -> None:
        """All trajectories of a group have ended: see how well they were predicted."""
        if self._wanted:
            self._ledger.predictions.record.completed(group)

    def trained(self, version: int) -> None:
        """The groups that were consumed for a version were trained on."""
        ledger = self._ledger
        if self._wanted:
            ledger.predictions.record.stepped(version, [ledger.groups[at] for at in ledger.consumed.get(version, ())])

    # ---- asking ---------------------------------------------------------------------------------------------------

    def went_down(self) -> None:
        """Note that the ranker is gone with all that it was asked. The next one is asked for what is missing."""
        self._ledger.predictions.asked.clear()
        self.asked_at = None

    def ask(self) -> None:
        """Ask the ranker, if it is up, for the prompts that wait or run, and for those that may be launched soon.

        As many are asked for ahead as may be open at once, and as the run still launches. It happens as the ranker comes up,
        and then each time that an eighth of them was launched, so that one command has many prompts.
        """
        if not self._members.is_up(RANKER):
            return
        source, admitted = self._source, self._ledger.counts.admitted
        ahead = self._refill.soon if isinstance(source, c.LooksAhead) else 0
        if self.asked_at is not None and admitted < self.asked_at + max(1, ahead // _COMMANDS):
            return
        self.asked_at = admitted
        ledger, predictions = self._ledger, self._ledger.predictions
        generating = [group.prompt for group in ledger.groups.values() if group.phase is GroupPhase.GENERATING]
        coming = source.ahead(ahead) if isinstance(source, c.LooksAhead) and ahead else ()
        wanted = [prompt for prompt in dict.fromkeys((*generating, *coming)) if predictions.missing(prompt)]
        if wanted:
            predictions.asked.update(dict.fromkeys(wanted))
            self._outbox.send(c.Predict, prompts=tuple(wanted))

    # ---- answers --------------------------------------------------------------------------------------------------

    def failed(self, event: c.PredictionFailed) -> None:
        """Leave a prompt without a prediction. It counts as asked for until the ranker has learned."""
        del event
        self._members.worked(RANKER)

    def learned(self, event: c.Activity) -> None:
        """A ranker has learned: ask it for what it had no length for, and, if it learned anew, for all that has not started."""
        known = self._ledger.predictions
        if event.phase == "updated":
            self.updates += 1
            started = {group.prompt for group in self._ledger.groups.values() if group.version is not None}
            known.old = {prompt: None for prompt in known.tokens if prompt not in started}
        known.asked = {prompt: None for prompt in known.asked if prompt in known.tokens and prompt not in known.old}
        self.asked_at = None

    def heard(self, events: Iterable[c.Predicted]) -> None:
        """Take in predictions that came together: of prompts that wait or run, and of prompts that are launched later.

        One of a prompt that is done, or that nobody asked for and that is not open, changes nothing.

        Raises:
            ControllerError: a length is not a finite number of at least 1, or `p90` is below the median.
        """
        new = {event.prompt: _checked(event) for event in events}
        self._members.worked(RANKER)
        ledger, predictions = self._ledger, self._ledger.predictions
        found = [group for group in ledger.groups.values() if group.prompt in new]
        open_prompts = {group.prompt for group in found}
        for prompt, event in new.items():
            if prompt in predictions.asked or prompt in open_prompts:
                predictions.predict(event)
        for group in found:
            if group.phase is not GroupPhase.GENERATING:
                continue
            if group.version is None:
                ledger.waiting.unstarted.predict(group.index, *predictions.of(group.prompt, 0))
            for state in group.states:
                ledger.waiting.predict(state.id, *predictions.of(group.prompt, state.generated))
                if state.replica is not None:
                    self._fleet.replicas[state.replica].assigned.outdated()


def _checked(event: c.Predicted) -> c.Predicted:
    if not (event.tokens >= 1 and math.isfinite(event.tokens)):
        raise ControllerError(
            f"found {event.tokens!r} tokens predicted for prompt {event.prompt}, expected a finite number of at least 1"
        )
    if event.p90 is not None and not (event.p90 >= event.tokens and math.isfinite(event.p90)):
        raise ControllerError(
            f"found a 0.9-quantile of {event.p90!r} tokens predicted for prompt {event.prompt}, expected a finite number of at "
            f"least its median, {event.tokens!r}"
        )
    if event.mean is not None and not (event.mean >= 1 and math.isfinite(event.mean)):
        raise ControllerError(
            f"found a mean of {event.mean!r} tokens predicted for prompt {event.prompt}, expected a finite number of at least 1"
        )
    return event
