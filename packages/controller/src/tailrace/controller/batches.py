"""Batches: which complete groups the trainer is given, and when.

    whole       waits for a complete batch, then one Step
    parts       waits for the next part of a batch: Accumulate ... Accumulate, then one Step for the last part
                (stream generation: Laminar, section 2.3 and figure 3c)
    gradients   waits for groups and for cells of the trainer: Accumulate(cell) beside each other, which change no weights, then
                one Step on the sum, once the batch is complete and no cell is at work (RollPacker, section 4.4); some policies
                give groups early only once, or only when they fill a cell (StreamRL, section 4.1)

Where admission starts batches one after the other, the Step also waits until what is launched of the next batch has started.

Accumulated groups stay part of the batch: admission keeps them trainable until the batch consumes them. If the trainer goes
down, it loses what it accumulated; those groups are still complete and are given again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import chain

from tailrace import contracts as c
from tailrace.controller.plugin_faults import answered, chosen
from tailrace.controller.rounds import Rounds
from tailrace.controller.state import State


@dataclass(frozen=True, slots=True)
class _Picking:
    """A sampler that takes the groups trained on already, lets another sampler choose the rest and checks its choice.

    Args:
        first: groups of the batch that were trained on already.
        sampler: chooses the rest.
    """

    first: Sequence[int]
    sampler: c.Sampler

    def pick(self, candidates: Sequence[c.Candidate], count: int) -> Sequence[int]:
        taken = set(self.first)
        if len(taken) == count:
            return list(self.first)
        free = [candidate for candidate in candidates if candidate.key not in taken]
        picked, keys = self.sampler.pick(free, count - len(taken)), [candidate.key for candidate in free]
        return [*self.first, *chosen("sampler", self.sampler, "pick", picked, keys, count - len(taken))]


class Batches:
    """Hands groups to the trainer.

    `free_cells` are the trainer's cells that may add gradients now, as far as devices go; None: all. `may_step` says whether
    all of the trainer has its devices.
    """

    def __init__(self, state: State, rounds: Rounds) -> None:
        spec, gate = state.spec, state.gate
        self._state, self._rounds = state, rounds
        self._ledger, self._trainer, self._gate, self._outbox = state.ledger, state.trainer, gate, state.outbox
        early = _early(spec.training)
        self._at_once, self._fetched = (0, None) if early is None else (early.groups, early.share)
        self._fills = 0 if early is None else early.tokens or 0
        self._batchwise = gate.starts_batchwise()
        self.held = False  # the step waited for groups to start
        self.free_cells: Set[int] | None = None
        self.may_step = True
        parts = _parts(spec.training, range(spec.batch_groups)) if spec.training.streams and not self._at_once else ()
        self._sizes = [len(part) for part in parts[:-1]]  # sizes of the parts that are accumulated
        self._waits_at: tuple[int, ...] | None = None  # the state in which nothing was found, to skip repeats

    @property
    def wanted(self) -> bool:
        """Whether the trainer, or a cell of it, is free for a batch or a part of one.

        Its weights must have been handed over first.
        """
        trainer = self._trainer
        free = trainer.idle or (self._at_once > 0 and trainer.up and trainer.stepping is None)
        return free and trainer.step < trainer.steps and trainer.staged

    @property
    def size(self) -> int | None:
        """Groups of the batch that the trainer computes or gets next; None after the last one."""
        if self._trainer.step >= self._trainer.steps:
            return None
        return self._rounds.due or self._state.spec.batch_groups

    def view(self) -> c.BatchView | None:
        """The batch that the trainer computes or gets next; None after the last one."""
        trainer, size = self._trainer, self.size
        if size is None:
            return None
        done = len(self._gate.trainable())  # of what is complete, the rest is of later batches
        ready = self._gate.ready() and not self.holds
        return c.BatchView(size, min(size, done), ready, trainer.making is not None, not trainer.up)

    def fell_back(self) -> None:
        """Reset after the trainer fell back to a checkpoint and admission was reset."""
        self._waits_at = None

    def give(self) -> bool:
        """Give the trainer a batch or a part of one, if it may have it now. Returns whether it got one."""
        if self._at_once:
            return self._add()
        if self._trainer.parts < len(self._sizes):
            return self._accumulate(self._sizes[self._trainer.parts])
        return self._step()

    def _step(self) -> bool:
        gate, trainer, ledger, training = self._gate, self._trainer, self._ledger, self._state.spec.training
        self.held = self.holds
        if self.held or not self.may_step or not gate.ready():
            return False
        candidates, before, due = ledger.candidates(), set(trainer.accumulated), self._rounds.due
        if before:
            candidates = sorted([*self._candidates(trainer.accumulated), *candidates], key=_order)
        consumed = gate.consume(candidates, _Picking(trainer.accumulated, self._state.spec.sampler))
        keys = [candidate.key for candidate in candidates]
        batch = chosen("admission gate", gate, "consume", consumed, keys, due)
        if not before.issubset(batch):
            raise answered(
                "admission gate", gate, "consume", batch, f"all that was accumulated, {sorted(before)!r:.120}"
            )
        rest = [index for index in batch if index not in before]
        version = self._take(rest)
        trainer.steps_on(version)
        self._rounds.consumed()
        parts = ([rest] if rest else []) if training.streams else _parts(training, rest)
        given, kind = tuple([self._names(part) for part in parts]), ledger.groups[batch[0]].kind
        self._outbox.send(c.Step, version=version, mini_batches=given, round=kind)
        return True

    @property
    def holds(self) -> bool:
        """Whether a complete batch waits until a launched group has started, which may at the trainer's version.

        One that needs the next version, as after a fallback, cannot.
        """
        waits = self._batchwise and bool(self._ledger.unstarted) and self._gate.ready()
        return waits and self._gate.tentative().allows(self._trainer.version)

    def _add(self) -> bool:
        """Have idle cells add gradients of complete groups; or step, if the batch is complete and all cells are idle."""
        trainer = self._trainer
        if not trainer.adding and self._step():
            return True
        if self._fetched is not None and trainer.accumulated:
            return False
        allowed = range(self._state.spec.cells) if self.free_cells is None else sorted(self.free_cells)
        cells = [cell for cell in allowed if cell not in trainer.adding]
        counts = self._ledger.counts
        now = (
            counts.completed,
            counts.filtered,
            counts.failed,
            counts.deferred,
            trainer.version,
            len(trainer.accumulated),
        )
        if not cells or not self._ledger.buffered or now == self._waits_at:
            return False
        due = self._rounds.due
        most = due if self._fetched is None else math.floor(round(self._fetched * due, 9))
        free, room = self._free(), most - len(trainer.accumulated)
        if not free or room < 1:
            self._waits_at = now
            return False
        tokens = sum([candidate.tokens for candidate in self._candidates(free)]) if self._fills else 0
        if tokens < self._fills:
            self._waits_at = now
            return False
        if self._fills:
            cells = cells[: tokens // self._fills]
        for place, cell in enumerate(cells):
            size = min(self._at_once, room, -(-len(free) // (len(cells) - place)))
            if size < 1:
                break
            part = list(_Picking((), self._state.spec.sampler).pick(sorted(self._candidates(free), key=_order), size))
            free, room = [index for index in free if index not in part], room - size
            version = self._take(part)
            trainer.adds(version, part, cell)
            self._outbox.send(c.Accumulate, version=version, trajectories=self._names(part), update=False, cell=cell)
        return True

    def _accumulate(self, size: int) -> bool:
        trainer, counts = self._trainer, self._ledger.counts
        if not self.may_step:
            return False
        now = (counts.completed, counts.filtered, counts.failed, counts.deferred, trainer.version, trainer.parts)
        if now == self._waits_at:
            return False
        free = self._free()
        if len(free) < size:
            self._waits_at = now
            return False
        part = list(_Picking((), self._state.spec.sampler).pick(sorted(self._candidates(free), key=_order), size))
        version = self._take(part)
        trainer.accumulates(version, part)
        self._outbox.send(c.Accumulate, version=version, trajectories=self._names(part))
        return True

    def _free(self) -> list[int]:
        """Groups of the batch that may be trained on now and were not given to the trainer."""
        taken = set(self._trainer.accumulated)
        known = [*self._ledger.buffered, *taken]
        trainable = chosen("admission gate", self._gate, "trainable", self._gate.trainable(), known)
        return [index for index in trainable if index not in taken]

    def _take(self, groups: Sequence[int]) -> int:
        """Consume groups for the next version, and return that version."""
        version = self._trainer.version + 1
        self._trainer.consumed(version, self._staleness(groups))
        self._ledger.consume(groups, version)
        return version

    def _staleness(self, groups: Sequence[int]) -> dict[int, int]:
        """Number of trajectories by staleness, of groups about to be consumed.

        Raises:
            PluginAnswerError: a trajectory exceeds the bound that admission guarantees.
        """
        counts: dict[int, int] = {}
        bound = self._gate.bound
        for index in groups:
            for produced_by, count in self._ledger.groups[index].versions().items():
                lag = self._trainer.version - produced_by
                if bound is not None and lag > bound:
                    expected = (
                        f"a staleness of at most {bound}: group {index} has a trajectory of version {produced_by}, and the "
                        f"trainer is at version {self._trainer.version}"
                    )
                    raise answered("admission gate", self._gate, "consume", groups, expected)
                counts[lag] = counts.get(lag, 0) + count
        return counts

    def _names(self, groups: Sequence[int]) -> tuple[str, ...]:
        return tuple(chain.from_iterable([self._ledger.groups[index].members for index in groups]))

    def _candidates(self, groups: Sequence[int]) -> list[c.Candidate]:
        found = [self._ledger.groups[index].candidate for index in groups]
        return [candidate for candidate in found if candidate is not None]


def _parts(training: c.TrainingPolicy, groups: Sequence[int]) -> Sequence[Sequence[int]]:
    parts = training.split(groups)
    if not isinstance(parts, Sequence) or not all(isinstance(part, Sequence) and part for part in parts):
        raise answered("training", training, "split", parts, "parts of the batch, none of them empty")
    if sorted(chain.from_iterable(parts)) != sorted(groups):
        raise answered("training", training, "split", parts, "each group of the batch in one part")
    return parts


def _early(training: c.TrainingPolicy) -> c.EarlyGradients | None:
    """How groups add gradients before their batch is complete; None if the policy adds none."""
    early = training.early_gradients()
    if early is None:
        return None
    found = isinstance(early, c.EarlyGradients) and (early.groups, 1 if early.tokens is None else early.tokens)
    if not found or not all(type(number) is int and number >= 1 for number in found):
        raise answered("training", training, "early_gradients", early, "at least 1 group, and at least 1 token or None")
    share = 1 if early.share is None else early.share
    if not isinstance(share, float | int) or not 0 < share <= 1:
        raise answered("training", training, "early_gradients", early, "a share of a batch, above 0 and at most 1")
    return early


def _order(candidate: c.Candidate) -> int:
    return candidate.order
