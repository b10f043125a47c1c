"""How many tokens prompts have: asked for ahead of the launch, and from the answers to what policies see that plan with them.

    prompts that are open or may be launched soon ──Measure──► data role ──Measured──► ledger ──► what waits and runs
                                                                  │ down: the next one is asked for all that is missing

What an engine will hold of a trajectory is its prompt and its response (StaleFlow, equation 3). Nothing waits for an answer: a
prompt that is not measured yet counts as long as those that are, on average. The numbers are in the events, for a replay.
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.pipeline.controller.fleet import Replicas
from tailrace.pipeline.controller.ledger import Ledger
from tailrace.pipeline.controller.members import DATA, Members
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.refill import Refill
from tailrace.pipeline.controller.states import GroupPhase
from tailrace.pipeline.errors import ControllerError

_COMMANDS = 8  # in which the prompts that may be launched soon are asked for, as launches go on


class Measuring:
    """Asks the data role how long prompts are, and brings the views up to date.

    Args:
        source: the batching source.
        refill: says how much may be launched soon.
        wanted: whether a policy of the run plans with tokens.
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
        self.asked_at: int | None = None  # groups admitted when the data role that is up was last asked

    def went_down(self) -> None:
        """Note that the data role is gone with what it was asked. The next one is asked for what is missing."""
        self._ledger.prompts.asked.clear()
        self.asked_at = None

    def ask(self) -> None:
        """Ask for the prompts that wait or run, and for those that may be launched soon, an eighth of them at a time."""
        if not (self._wanted and self._members.is_up(DATA)):
            return
        source, admitted = self._source, self._ledger.counts.admitted
        ahead = self._refill.soon if isinstance(source, c.LooksAhead) else 0
        if self.asked_at is not None and admitted < self.asked_at + max(1, ahead // _COMMANDS):
            return
        self.asked_at = admitted
        lengths = self._ledger.prompts
        generating = [group.prompt for group in self._ledger.groups.values() if group.phase is GroupPhase.GENERATING]
        coming = source.ahead(ahead) if isinstance(source, c.LooksAhead) and ahead else ()
        wanted = [
            prompt
            for prompt in dict.fromkeys((*generating, *coming))
            if prompt not in lengths.tokens and prompt not in lengths.asked
        ]
        if wanted:
            lengths.asked.update(dict.fromkeys(wanted))
            self._outbox.send(c.Measure, prompts=tuple(wanted))

    def heard(self, event: c.Measured) -> None:
        """Take in how long prompts are. One that is done meanwhile changes nothing but the mean.

        Raises:
            ControllerError: there is not one length for each prompt, or one is below 0.
        """
        if len(event.prompts) != len(event.tokens) or min(event.tokens, default=0) < 0:
            raise ControllerError(
                f"found {len(event.tokens)} lengths from {min(event.tokens, default=0)} tokens on for "
                f"{len(event.prompts)} prompts, expected one of at least 0 for each"
            )
        ledger, lengths = self._ledger, self._ledger.prompts
        new = dict(zip(event.prompts, event.tokens, strict=True))
        lengths.measured += len(new)
        lengths.total += sum(new.values())
        found = [group for group in ledger.groups.values() if group.prompt in new]
        wanted = lengths.asked.keys() | {group.prompt for group in found}
        for prompt, tokens in new.items():
            if prompt in wanted:
                lengths.tokens[prompt] = tokens
            lengths.asked.pop(prompt, None)
        for group in found:
            if group.version is None:
                ledger.waiting.unstarted.measure(group.index, new[group.prompt])
            for state in group.states:
                ledger.waiting.measure(state.id, new[group.prompt], state.tokens)
                if state.replica is not None:
                    self._fleet.replicas[state.replica].assigned.outdated()
