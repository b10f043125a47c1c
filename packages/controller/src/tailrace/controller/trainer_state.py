"""The controller's knowledge of the trainer.

If the trainer falls back to a checkpoint while anybody may have seen newer weights, it does not reuse their numbers: its
weights are published under a new one. So a version that is seen always names one set of weights. Behind a fence nobody has seen
what is undone: the trainer keeps the checkpoint's number, and what was generated with it is as fresh as before.

Invariant: nobody else changes it. It works on one step, or one part of a batch, or adds gradients in different cells; what does
not fit raises `ControllerError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.controller.errors import ControllerError

LEAST_KEPT = 2
"""Checkpoints with full state that stay however large they are: the newest may be damaged."""


@dataclass(slots=True)
class TrainerState:
    """The trainer.

    `steps` is the number of batches that the run trains on, `first` the version of the model that it began with. `batches` maps
    each version that training made to the number of batches consumed by then, so that a fall-back knows its step.
    `staleness_at_completion` counts trajectories by staleness, `consumed_staleness` by the version made and then by staleness,
    so that a fall-back can undo batches. `returns_to` is the version that the store was told to return to while the trainer,
    which is to come up with it, is not up yet.
    `taking` is the version whose weights it is to take from others as it starts, and `refused` one that it could not take.
    `newest` is the newest version that was ever made, though the trainer may have fallen back behind it. `shown` is the newest
    version that anybody may see: published, or to be revealed.
    `published_before_durable` counts versions that replicas could pull while the trainer could not have come back to them.
    `staged` says whether its weights were handed over for publication since it came up. `saving` are versions whose
    checkpoints are under way. `fallbacks` are the versions it can fall back to, oldest first: the newest durable checkpoints
    with full state, or `first` while there is none. `weights` are the durable checkpoints of weights alone that are kept, and
    `sizes` has the bytes of each durable checkpoint. At most `keep_bytes` of all together are kept (0: any number), and the
    newest two with full state in any case.
    Of a batch that is trained on before it is complete, `accumulated` lists the groups given so far and `parts` counts their
    parts; `accumulating` is the batch's version while the trainer works on a part. Where gradients are only added, `adding` has
    that version for each cell of the trainer that works on some, and `added_s` is the seconds that those of this batch took so
    far, in seconds of all cells.
    Where replicas stand on the cells' devices, `leaving` has the number of the command for each cell that is to move away what
    it has there, and `away` those that have.
    """

    first: int = 0
    keep: int = 2
    steps: int = 0
    keep_bytes: int = 0
    up: bool = False
    version: int = 0
    step: int = 0
    newest: int = 0
    returns_to: int | None = None
    taking: int | None = None
    refused: int | None = None
    published: int = -1
    shown: int = -1
    published_before_durable: int = 0
    publishing: int = -1
    staged: bool = False
    durable: int = -1
    fallbacks: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    saving: list[int] = field(default_factory=list)
    stepping: int | None = None
    accumulating: int | None = None
    accumulated: list[int] = field(default_factory=list)
    parts: int = 0
    adding: dict[int, int] = field(default_factory=dict)
    added_s: float = 0.0
    leaving: dict[int, int] = field(default_factory=dict)
    away: set[int] = field(default_factory=set)
    batches: dict[int, int] = field(default_factory=dict)
    consumed_staleness: dict[int, dict[int, int]] = field(default_factory=dict)
    staleness_at_completion: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.version = self.newest = self.first
        self.batches, self.fallbacks = {self.first: 0}, [self.first]

    @property
    def idle(self) -> bool:
        """Whether a step may start."""
        return self.up and self.making is None

    @property
    def awaited(self) -> int:
        """The newest version that replicas can pull, or soon can: it was handed over for publication, and not sealed."""
        return max(self.published, self.shown) if self.staged else self.published

    @property
    def done(self) -> bool:
        """Whether every batch is trained on."""
        return self.step >= self.steps and self.idle

    @property
    def making(self) -> int | None:
        """The version of the batch, or part of one, that the trainer or a cell of it works on; None if it has none."""
        if self.stepping is None and self.accumulating is None:
            return next(iter(self.adding.values()), None)
        return self.accumulating if self.stepping is None else self.stepping

    # ---- work -----------------------------------------------------------------------------------------------------

    def computes(self, cell: int) -> bool:
        """Whether a cell computes: alone, or with all others."""
        return self.stepping is not None or self.accumulating is not None or cell in self.adding

    def steps_on(self, version: int) -> None:
        """Give it the batch that makes a version, or what is left of one.

        Raises:
            ControllerError: it is down, or works on something.
        """
        self._expect_idle(self.making)
        self.stepping = version
        self._all_are_back()

    def accumulates(self, version: int, groups: Sequence[int]) -> None:
        """Give it a part of the batch that makes a version: it changes its weights with it.

        Raises:
            ControllerError: it is down, or works on something.
        """
        self._expect_idle(self.making)
        self.accumulating, self.parts = version, self.parts + 1
        self.accumulated += groups
        self._all_are_back()

    def adds(self, version: int, groups: Sequence[int], cell: int) -> None:
        """Have a cell of it add gradients of groups of the batch that makes a version.

        Raises:
            ControllerError: it is down, or steps, or the cell works on something.
        """
        self._expect_idle(self.adding.get(cell, self.stepping))
        self.adding[cell] = version
        self.accumulated += groups
        self.leaving.pop(cell, None)
        self.away.discard(cell)

    def part_ended(self, version: int, cell: int | None, seconds: float) -> None:
        """Note that it, or a cell of it, has trained on a part of a batch.

        Args:
            seconds: that this took, in seconds of all cells.

        Raises:
            ControllerError: it was given none of this version.
        """
        making = self.accumulating if cell is None else self.adding.get(cell)
        if making != version:
            where = "the trainer" if cell is None else f"its cell {cell}"
            raise ControllerError(f"found Accumulated({version}) while {where} works on {making}")
        if cell is None:
            self.accumulating = None
        else:
            del self.adding[cell]
        self.added_s += seconds

    def leaves(self, cell: int, seq: int) -> None:
        """Note that a cell was told to move away what it has on its devices, with the command of this number."""
        self.leaving[cell] = seq

    def has_left(self, event: c.Offloaded) -> None:
        """Note that a cell has moved that away. It may have been given work since, and then has it back."""
        if event.answers is not None and self.leaving.get(event.cell) == event.answers:
            del self.leaving[event.cell]
            self.away.add(event.cell)

    def _all_are_back(self) -> None:
        self.leaving.clear()
        self.away.clear()

    def _expect_idle(self, making: int | None) -> None:
        if not self.up or making is not None:
            found = "is down" if not self.up else f"works on version {making}"
            raise ControllerError(f"the trainer {found}, expected one that is up and free")

    def completed(self, version: int) -> None:
        """Count a trajectory of a version that is complete now, by its staleness."""
        lag = self.version - version
        self.staleness_at_completion[lag] = self.staleness_at_completion.get(lag, 0) + 1

    def consumed(self, version: int, staleness: dict[int, int]) -> None:
        """Count the trajectories that are trained on for a version, by staleness."""
        counts = self.consumed_staleness.setdefault(version, {})
        for lag, count in staleness.items():
            counts[lag] = counts.get(lag, 0) + count

    def came_up(self) -> None:
        """Note that the trainer is up. `fall_back` sets its version."""
        self.up = True

    def goes_on_to(self, steps: int | None) -> None:
        """Set the number of batches that a resumed run trains on; None keeps it."""
        self.steps = self.steps if steps is None else steps

    def went_down(self) -> None:
        """Note that the trainer is gone. Its batch stays consumed until it falls back."""
        self.up, self.staged, self.stepping, self.accumulating = False, False, None, None
        self.adding, self.added_s = {}, 0.0
        self._all_are_back()

    def stepped(self, version: int) -> None:
        """Note that the step that made a version is done.

        Raises:
            ControllerError: it was given none of this version.
        """
        if self.stepping != version:
            raise ControllerError(f"found Stepped({version}) while the trainer makes {self.stepping}")
        self.version, self.stepping, self.newest = version, None, max(self.newest, version)
        self.accumulated, self.parts, self.added_s = [], 0, 0.0
        self.step += 1
        self.batches[version] = self.step

    @property
    def staleness_at_consumption(self) -> dict[int, int]:
        """Number of trajectories that were trained on, by staleness. Those of a batch under way are not among them yet."""
        counts: dict[int, int] = {}
        for version, batch in self.consumed_staleness.items():
            for lag, count in batch.items() if version in self.batches else ():
                counts[lag] = counts.get(lag, 0) + count
        return counts

    # ---- versions that others may see -----------------------------------------------------------------------------

    def hands_over(self, fence: bool) -> tuple[int, bool]:
        """Hand its weights over for publication. Returns their version, and whether it is sealed.

        Args:
            fence: whether one is sealed that could not be had again if the trainer died.
        """
        version = self.publishing if self.staged and self.making is not None else self.version
        self.publishing, self.staged = max(self.publishing, version), True
        sealed = fence and not self.is_safe(version)
        if not sealed:
            self.shown = max(self.shown, version)
        return version, sealed

    def reveals(self, version: int) -> bool:
        """Reveal a version whose checkpoint is durable, if it was handed over sealed. Returns whether it was."""
        if not self.staged or not self.published < version <= self.publishing:
            return False
        self.shown = max(self.shown, version)
        return True

    def was_published(self, version: int) -> None:
        """Note that a version may be pulled.

        Raises:
            ControllerError: nobody has it, since it was never made.
        """
        self.expect_made("Published", version)
        self.published_before_durable += version > self.published and not self.is_safe(version)
        self.published = max(self.published, version)

    def expect_made(self, event: str, version: int) -> None:
        """Check that there ever were weights of a version.

        Raises:
            ControllerError: it is newer than the newest.
        """
        if version > self.newest:
            raise ControllerError(
                f"found {event}({version}), expected at most {self.newest}, the newest version that was made"
            )

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def saves(self, needed: Iterable[int]) -> tuple[int, ...]:
        """Begin a checkpoint of its version. Returns the older checkpoints to keep.

        These are the fallbacks, those of weights alone since the oldest of them, checkpoints that are not durable yet (their
        end may never be reported), and versions that are still needed.
        """
        kept = {*self.fallbacks, *self.weights, *self.saving, *needed}
        self.saving.append(self.version)
        return tuple(sorted(kept))

    def is_safe(self, version: int) -> bool:
        """Whether the weights of a version can be had again if the trainer dies."""
        return version <= self.fallbacks[-1]

    def became_durable(self, version: int, *, full: bool = True, nbytes: int = 0) -> int:
        """Note that a checkpoint is durable. Returns the oldest version that the trainer may still fall back to.

        One behind which the trainer fell back comes late, and changes nothing. To one of weights alone nobody falls back.

        Args:
            version: its version.
            full: whether it has the optimizer's state.
            nbytes: bytes of its files.

        Raises:
            ControllerError: nobody has it, since it was never made.
        """
        self.expect_made("Durable", version)
        if version > self.version:
            return self.fallbacks[0]
        self.sizes[version] = nbytes
        if full:
            self.durable = max(self.durable, version)
            self.weights = [other for other in self.weights if other != version]  # they were saved alone before
            self.saving = [later for later in self.saving if later > version]
            if version in self.batches and version not in self.fallbacks:
                self.fallbacks = sorted([*self.fallbacks, version])[-self.keep :]
        else:  # one with full state that was begun before may still wait for its copy on another machine
            self.saving = [other for other in self.saving if other != version]
            self.weights = sorted({*self.weights, version})
        self._keep_within_bytes()
        return self.fallbacks[0]

    def _keep_within_bytes(self) -> None:
        """Keep no weights before the oldest fallback, and no more bytes than allowed: the oldest weights go first."""
        self.weights = [version for version in self.weights if version > self.fallbacks[0]]
        self.sizes = {at: size for at, size in self.sizes.items() if at in self.weights or at in self.fallbacks}
        while self.keep_bytes and sum(self.sizes.values()) > self.keep_bytes:
            if self.weights:
                self.sizes.pop(self.weights.pop(0), None)
            elif len(self.fallbacks) > LEAST_KEPT:
                self.sizes.pop(self.fallbacks.pop(0), None)
            else:
                break

    def found(self, checkpoints: Sequence[int]) -> bool:
        """Note the checkpoints that exist after a crash. One may be newer than all that were reported durable.

        The relays are new, so no version is published until the trainer hands one over. Returns whether the run can continue
        from a checkpoint; if not, `fallbacks` is unchanged.
        """
        self.published = -1
        can = self._can_use(self.usable(checkpoints))
        self.returns_to = self.fallbacks[-1] if can else self.returns_to
        return can

    def usable(self, checkpoints: Sequence[int]) -> list[int]:
        """The versions that a run can go on from, oldest first, of the checkpoints that exist after a crash.

        One that came after the store was told to return to an older version is none: the store has taken its batches back.
        """
        known = [version for version in checkpoints if version in self.batches and version > self.fallbacks[-1]]
        known = known if self.returns_to is None else []
        left = [version for version in self.fallbacks if version == self.first or version in checkpoints]
        return [*left, *sorted(known)]

    def takes(self, version: int | None) -> None:
        """Note the version whose weights it is to take from others as it starts; None for those of its checkpoint."""
        self.taking = version

    def took_none(self) -> int | None:
        """Note that a start failed by what it was to load. Returns the version that it was to take, which it tries no more."""
        if self.taking is not None:
            self.refused, self.taking = self.taking, None
            return self.refused
        return None

    def unusable(self, version: int) -> bool:
        """Note that a checkpoint is damaged. Returns whether there is another."""
        return self._can_use([other for other in self.fallbacks if other != version])

    def _can_use(self, fallbacks: list[int]) -> bool:
        self.fallbacks = fallbacks or self.fallbacks
        return bool(fallbacks)

    @property
    def checkpoint(self) -> int | None:
        """The checkpoint that a new trainer starts from; None for the model that the run began with."""
        return None if self.fallbacks[-1] == self.first else self.fallbacks[-1]

    def expect_checkpoint(self, version: int) -> None:
        """Check that a trainer may come up with the weights of a version.

        Raises:
            ControllerError: no batch made it.
        """
        if version not in self.batches:
            raise ControllerError(
                f"found a trainer at version {version}, expected one of {[*self.batches]}, which were made"
            )

    def fall_back(self, version: int) -> None:
        """Set the trainer back to the weights of a checkpoint, or to newer ones that it took."""
        self.saving, self.returns_to = [], None
        self.taking = self.refused = None
        self.stepping, self.accumulating, self.accumulated, self.parts = None, None, [], 0
        self.adding, self.added_s = {}, 0.0
        self.consumed_staleness = {v: counts for v, counts in self.consumed_staleness.items() if v <= version}
        self.step = self.batches[version]
        self.version = version if self.shown <= version else self.shown + 1
        self.newest = max(self.newest, self.version)
        self.publishing = min(self.publishing, self.version)
        self.batches = {made: step for made, step in self.batches.items() if made <= version}
        self.batches[self.version] = self.step
        self.durable = min(self.durable, version)
        self.fallbacks = [other for other in self.fallbacks if other <= version] or [version]
        self.weights = [other for other in self.weights if other <= version]
