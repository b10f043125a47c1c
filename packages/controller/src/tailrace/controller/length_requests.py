"""Lengths of prompts and responses: asked for ahead of the launch, and from the answers to the views of policies.

    prompts that wait or run, or    ──Predict──► ranker    ──Predicted──► ledger ──► what waits and runs, as policies see it
    may be launched soon            ──Measure──► data role ──Measured──►
                                                   │ down: the next one is asked for all that is missing

Nothing waits for an answer: what has no prediction is routed without it, and its reason says so; a prompt that is not measured
counts as long as those that are, on average (an engine holds prompt and response: StaleFlow, equation 3). The numbers are in
the events, so a replay needs no ranker.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tailrace import contracts as c
from tailrace.controller.errors import ControllerError
from tailrace.controller.lengths import PredictedLengths, PromptLengths
from tailrace.controller.members import DATA, RANKER
from tailrace.controller.refill import Refill
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.state import State
from tailrace.controller.trajectories import GroupPhase

_COMMANDS = 8  # in which the prompts that may be launched soon are asked for, as launches go on


class LengthRequests:
    """Asks for lengths, if the run has a ranker or a policy plans with tokens. The ledger owns them."""

    def __init__(self, state: State, refill: Refill) -> None:
        self._ledger, self._fleet, self._members = state.ledger, state.fleet, state.members
        self._source, self._refill, self._outbox = state.source, refill, state.outbox
        self._measures = _plans_tokens(state.spec)
        self._looks_ahead = state.source.ahead(1) is not None
        self.updates = 0  # of rankers, in the whole run

    def ask(self) -> None:
        """Ask the ranker for predictions and the data role for the lengths of prompts, as far as they are up."""
        if self._members.is_up(RANKER):
            self._ask(self._ledger.predictions, c.Predict)
        if self._measures and self._members.is_up(DATA):
            self._ask(self._ledger.prompts, c.Measure)

    def _ask(self, known: PredictedLengths | PromptLengths, kind: type[c.Predict | c.Measure]) -> None:
        """Ask for the prompts that wait or run, and for those that may be launched soon.

        As many are asked for ahead as may be open at once, and as the run still launches. It happens as the member comes up,
        and then each time that an eighth of them was launched, so that one command has many prompts.
        """
        source, admitted = self._source, self._ledger.counts.admitted
        ahead = self._refill.soon if self._looks_ahead else 0
        if known.asked_at is not None and admitted < known.asked_at + max(1, ahead // _COMMANDS):
            return
        known.asked_at = admitted
        generating = [group.prompt for group in self._ledger.groups.values() if group.phase is GroupPhase.GENERATING]
        coming = (source.ahead(ahead) if ahead else ()) or ()
        wanted = [prompt for prompt in dict.fromkeys((*generating, *coming)) if known.missing(prompt)]
        if wanted:
            known.ask(wanted)
            self._outbox.send(kind, prompts=tuple(wanted))

    # ---- answers --------------------------------------------------------------------------------------------------

    def failed(self, event: c.PredictionFailed) -> None:
        """Leave a prompt without a prediction. It counts as asked for until the ranker has learned."""
        del event
        self._members.worked(RANKER)

    def learned(self, event: c.Activity) -> None:
        """A ranker has learned: ask it for what it had no length for, and, if it learned anew, for all that has not started."""
        if event.phase == "updated":
            self.updates += 1
            self._ledger.predictions_are_old()
        self._ledger.predictions.ask_again()

    def predicted(self, events: Iterable[c.Predicted]) -> None:
        """Take in predictions that came together: of prompts that wait or run, and of prompts that are launched later.

        One of a prompt that is done, or that nobody asked for and that is not open, changes nothing.

        Raises:
            ControllerError: a length is not a finite number of at least 1, or `p90` is below the median.
        """
        new = {event.prompt: _checked(event) for event in events}
        self._members.worked(RANKER)
        self._outdated(self._ledger.predicted(new))

    def measured(self, event: c.Measured) -> None:
        """Take in how long prompts are. One that is done meanwhile changes nothing but the mean.

        Raises:
            ControllerError: there is not one length for each prompt, or one is below 0.
        """
        if len(event.prompts) != len(event.tokens) or min(event.tokens, default=0) < 0:
            raise ControllerError(
                f"found {len(event.tokens)} lengths from {min(event.tokens, default=0)} tokens on for "
                f"{len(event.prompts)} prompts, expected one of at least 0 for each"
            )
        self._outdated(self._ledger.measured(dict(zip(event.prompts, event.tokens, strict=True))))

    def _outdated(self, replicas: Iterable[str]) -> None:
        for replica in replicas:
            self._fleet.replicas[replica].assigned.outdated()


def _plans_tokens(spec: PipelineSpec) -> bool:
    """Whether a policy of a pipeline plans with the tokens of trajectories."""
    return spec.routing.plans_tokens() or spec.relocation.plans_tokens()


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
