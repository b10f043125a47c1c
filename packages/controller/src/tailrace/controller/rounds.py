"""Rounds: tells admission which batches there are, where batching launches groups in rounds.

The truth is in the ledger, so it holds after a crash too, and after the trainer fell back: a round is what is left of its
groups.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.controller.errors import PolicyError
from tailrace.controller.spec import PipelineSpec
from tailrace.controller.state import State
from tailrace.controller.trajectories import GroupPhase, Phase

_WAITED_FOR = (GroupPhase.GENERATING, GroupPhase.BUFFERED)
_GENERATED = (Phase.DONE, Phase.SCORED)


class Rounds:
    """The rounds that the trainer has not consumed. Where batching knows none, it does nothing.

    Raises:
        PolicyError: batching launches rounds, and admission does not know them, or training takes parts of a fixed size.
    """

    def __init__(self, state: State) -> None:
        source, gate = state.source, state.gate
        self._source = source if source.launches_rounds() else None
        self._gate = gate if gate.admits_rounds() else None
        self._ledger, self._trainer, self._batch_groups = state.ledger, state.trainer, state.spec.batch_groups
        self._told: tuple[list[int], int] | None = None
        self._counted: tuple[tuple[object, ...], tuple[list[int], int]] | None = None
        if self._source is not None:
            check_rounds(state.spec)

    @property
    def used(self) -> bool:
        """Whether batching launches rounds."""
        return self._source is not None

    @property
    def due(self) -> int:
        """Groups of the next batch; 0 if no round of one was launched yet."""
        if self._source is None:
            return self._batch_groups
        sizes, _ = self._sizes()
        return sizes[0] if sizes else 0

    def tell(self) -> None:
        """Tell admission of the batches, if they have changed. Call it before admission is asked."""
        if self._gate is None or self._source is None:
            return
        sizes = self._sizes()
        if sizes != self._told:
            self._told = sizes
            self._gate.rounds(*sizes)

    def consumed(self) -> None:
        """Note that admission has consumed the first batch."""
        self._told = self._counted = None

    def fell_back(self) -> None:
        """Note that the trainer fell back, so that batches that were consumed are there again."""
        self._counted = None
        self.tell()

    def may_launch(self) -> bool:
        """Whether the next group is wanted: a round begins if a step is left for it, and admission has room for its batch."""
        source, trainer = self._source, self._trainer
        if source is None or source.open_round() is not None:
            return True
        sizes, _ = self._sizes()
        left = trainer.steps - trainer.step - (trainer.stepping is not None)
        return len(sizes) < left and self._room() > sum(sizes)

    def completed(self, group: int) -> None:
        """Tell batching of a group that is complete and kept."""
        if self._source is not None:
            self._source.completed(group)

    def surplus(self) -> Sequence[int]:
        """Groups that their round does not need."""
        return () if self._source is None else self._source.surplus()

    def view(self) -> c.RoundView | None:
        """The open round."""
        found = None if self._source is None else self._source.open_round()
        if found is None:
            return None
        generated = 0
        for group in self._ledger.groups.values():
            if group.round == found.number:
                done = sum([state.phase in _GENERATED for state in group.states])
                generated += min(done, group.needed)
        return dataclasses.replace(found, generated=min(generated, found.samples))

    def _room(self) -> float:
        room = None if self._gate is None else self._gate.room
        return math.inf if room is None else room

    def _sizes(self) -> tuple[list[int], int]:
        """Groups of each round that is not consumed, oldest first, and how many of the rounds are closed.

        They are counted anew only when a group came, ended or was given to the trainer, since every event asks.
        """
        counts, trainer, source = self._ledger.counts, self._trainer, self._source
        assert source is not None
        ended = (counts.completed, counts.filtered, counts.failed, counts.deferred)
        now = (counts.admitted, *ended, trainer.stepping, len(trainer.accumulated), source.unlaunched())
        if self._counted is None or self._counted[0] != now:
            self._counted = now, self._count()
        return self._counted[1]

    def _count(self) -> tuple[list[int], int]:
        source, given = self._source, set(self._trainer.accumulated) if self._trainer.stepping is None else ()
        assert source is not None
        found: dict[int, int] = {}
        for group in self._ledger.groups.values():
            if group.round is not None and (group.phase in _WAITED_FOR or group.index in given):
                found[group.round] = found.get(group.round, 0) + 1
        open_round = source.open_round()
        if open_round is not None:
            found[open_round.number] = found.get(open_round.number, 0) + source.unlaunched()
        sizes = [found[number] for number in sorted(found) if found[number]]
        opened = open_round is not None and bool(found[open_round.number])
        return sizes, len(sizes) - opened


def check_rounds(spec: PipelineSpec) -> None:
    """Check that the policies of a pipeline fit together, if its batching launches rounds.

    Raises:
        PolicyError: they do not.
    """
    if not spec.batching.open().launches_rounds():
        return
    if not spec.admission.gate(spec.batch_groups).admits_rounds():
        raise PolicyError(
            f"found batching in rounds, whose batches differ in size, and the admission {spec.admission!r:.80}, "
            "expected one that knows rounds: on-policy or one-step"
        )
    if spec.training.streams and spec.training.early_gradients() is None:
        raise PolicyError(
            f"found batching in rounds, whose batches differ in size, and training on parts of a fixed size "
            f"({spec.training!r:.80}), expected full-batch, mini-batch or streamed"
        )
