"""Predicted lengths of responses: from events to the views of policies. Nothing waits for a prediction."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tailrace.contracts import Predicted
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.states import GroupPhase
from tailrace.pipeline.errors import ControllerError


class Predictions:
    """Notes what is predicted in the ledger, which owns it, and brings the views up to date.

    Args:
        ledger: what waits and runs.
        fleet: the replicas, whose views of what they run may be older than a prediction.
    """

    def __init__(self, ledger: Ledger, fleet: Replicas) -> None:
        self._ledger, self._fleet = ledger, fleet

    def heard(self, events: Iterable[Predicted]) -> None:
        """Take in predictions that came together: of prompts that wait or run, and of prompts that are launched later.

        Raises:
            ControllerError: a length is not a finite number of at least 1.
        """
        new: dict[int, float] = {}
        for event in events:
            if not (event.tokens >= 1 and math.isfinite(event.tokens)):
                raise ControllerError(
                    f"found {event.tokens!r} tokens predicted for prompt {event.prompt}, expected a finite number of at least 1"
                )
            new[event.prompt] = event.tokens
        ledger = self._ledger
        ledger.predictions |= new
        for group in ledger.groups.values():
            tokens = new.get(group.prompt)
            if tokens is None or group.phase is not GroupPhase.GENERATING:
                continue
            if group.version is None:
                ledger.waiting.unstarted.predicted[group.index] = tokens
            for state in group.states:
                ledger.waiting.predict(state.id, tokens)
                if state.replica is not None:
                    self._fleet.replicas[state.replica].assigned.outdated()
