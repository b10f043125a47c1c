"""A modelled trainer, which carries out one command after the other.

Publishing stalls it for one copy to the first relay, whatever the number of replicas (Laminar, section 8.3). A checkpoint is
copied at once and durable later. A step prepares the experience of its batch and updates once for each mini-batch. Cells of the
trainer, each with its share of the devices, add gradients beside each other; what all of them do together waits for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from tailrace import contracts as c
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.phases import CHECKPOINT, ONLOAD, shares
from tailrace.fleetsim.host.recorder import Totals
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.members.relays import Relays
from tailrace.runtime.errors import CheckpointUnusableError
from tailrace.runtime.executor.doors import Ready

PULSE_S = 60.0  # a real trainer says more often which micro-batches are done; no window is so short


def _share(command: c.Checkpoint) -> float:
    """This checkpoint's bytes over a full one's. Per parameter: 2 of weights, and 12 of float32 master and moments."""
    return 1.0 if command.full else 2 / 14


class _Work:
    """A command that is carried out: seconds left of it at full speed, and when that was so. `order` numbers its end.

    `began_s` is when it began, `metrics` are those of moving the trainer's state back to its devices first.
    """

    __slots__ = ("began_s", "command", "left_s", "metrics", "order", "since_s", "whole_s")

    def __init__(self, command: c.Command, whole_s: float, since_s: float, metrics: Mapping[str, float]) -> None:
        self.command, self.whole_s, self.left_s = command, whole_s, whole_s
        self.began_s = self.since_s = since_s
        self.metrics = metrics
        self.order = 0


class Trainer(RoleModel):
    """The trainer of a simulation. `busy_s` is the time that it spent on steps, `publishing_s` on publishing."""

    def __init__(self, world: World, relays: Relays) -> None:
        self.world, self.relays, self.time = world, relays, world.time
        self.member: VirtualMember | None = None
        self.incarnation = 0
        self.up = self.hung = False
        self.version = 0
        self.busy_s = self.publishing_s = self.preparing_s = 0.0
        self.parts: list[tuple[str, ...]] = []
        self.added: list[tuple[str, ...]] = []  # whose gradients were added since the last step
        self.away: set[int] = set()  # cells that have left their devices
        self._optimizer_away: set[int] = set()  # cells whose optimizer has; gradients are added without it
        self._left = False  # a step's own time has what its cells take to leave after it
        self._queue: deque[c.Command] = deque()
        self._at_work: dict[int | None, _Work] = {}  # by cell; None: the whole trainer
        self._speed = 1.0
        self._order = self._pulses = 0
        self._offered: c.Publish | None = None  # the newest version that was published
        self._sealed: dict[int, c.Publish] = {}  # versions that wait to be revealed, with the newest command for each
        self._revealed = -1  # the newest version that was
        self._taken = -1  # the newest version that a relay took
        world.meters.append(self)
        world.cores.add(self)

    # ---- life -----------------------------------------------------------------------------------------------------

    def starts_s(self, incarnation: int) -> float:
        return self.world.fleet.delays.trainer_restart_s if incarnation > 1 else 0.0

    def ready(self, version: int | None, weights: c.HeldWeights | None = None) -> Ready:
        """Start a fresh process with a checkpoint's weights, or newer ones. Later consumption is rolled back in the store."""
        if version is not None and (version in self.world.injuries.damaged or not self.world.disk.get(version, False)):
            raise CheckpointUnusableError(f"the checkpoint of version {version} is damaged, or has weights alone")
        if weights is not None and not self.relays.source(weights.version, weights.sources):
            raise CheckpointUnusableError(f"nobody has the weights of version {weights.version} any more")
        self._reset()
        self.loaded(version or 0)
        if weights is not None:
            version = weights.version
            self.took(version)
        self.up, self.hung, self.version = True, False, version or 0
        self.world.rolled_back(self.version)
        self.world.tokens.roll_back(self.version)
        return Ready(version)

    def die(self) -> None:
        """End the process, with its queued commands."""
        self._account()
        self._reset()
        self.up = False
        self.world.cores.changed()

    def hang(self) -> None:
        """Stop the whole process, which lives on."""
        self.set_speed(0.0)
        self.hung = True
        self.world.cores.changed()

    def set_speed(self, factor: float) -> None:
        """Run at a share of the modelled speed from now on."""
        if factor == self._speed or self.hung:
            return
        self._account()
        self._speed = factor
        for work in self._at_work.values():
            self._schedule(work)

    def _reset(self) -> None:
        self.incarnation += 1
        self._queue.clear()
        self.parts, self.added = [], []
        self.away.clear()
        self._optimizer_away.clear()
        self._left = False
        self._at_work, self._speed = {}, 1.0
        self._offered, self._taken = None, -1
        self.relays.retire(self._sealed)
        self._sealed, self._revealed = {}, -1

    # ---- seams for checks -----------------------------------------------------------------------------------------

    def loaded(self, version: int) -> None:
        """Called when it has loaded the weights of a checkpoint."""

    def took(self, version: int) -> None:
        """Called when it has taken the weights of a newer version from others."""

    def stages(self, version: int) -> None:
        """Called when it copies its weights to publish them as a version."""

    def shows(self, version: int) -> None:
        """Called when a version may be seen from now on."""

    def saves(self, version: int) -> None:
        """Called when it copies its weights for a checkpoint."""

    def trained(self, version: int) -> None:
        """Called when training has made a version."""

    # ---- commands -------------------------------------------------------------------------------------------------

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Take commands. Each is carried out after those before it."""
        if not self.up:
            return
        for command in commands:
            if isinstance(command, c.Reveal) and not self.hung:
                self._reveal(command.version)
        self._queue.extend([command for command in commands if not isinstance(command, c.Reveal)])
        self._next()

    def _next(self) -> None:
        """Begin what can begin: in order, and nothing beside what the whole trainer does."""
        while self._queue:
            cell = self._queue[0].cell if isinstance(self._queue[0], c.Accumulate | c.Offload) else None
            if cell in self._at_work or None in self._at_work or (cell is None and self._at_work):
                break
            command, now = self._queue.popleft(), self.time.now()
            brought = self._brings(command, cell)
            if brought and self.member is not None:
                self.member.phases.at(ONLOAD)
            whole_s = self._duration(command) + brought.get("onload_s", 0.0)
            work = self._at_work[cell] = _Work(command, whole_s, now, brought)
            self._schedule(work)
            if work.left_s > PULSE_S and isinstance(command, c.Step | c.Accumulate):
                self.time.at(now + PULSE_S, self._pulse, (cell, work))
        self.world.cores.changed()

    def _brings(self, command: c.Command, cell: int | None) -> dict[str, float]:
        """Have a cell, or all, on its devices again for what is computed.

        Returns metrics of it, as a real cell says them: seconds, and the bytes of its devices. None if all is there.
        """
        if not isinstance(command, c.Step | c.Accumulate):
            return {}
        cost, steps = self.world.fleet.hand_over, isinstance(command, c.Step) or command.update
        back = {*self.away} if cell is None else self.away & {cell}
        self.away -= back
        brings = bool(back)
        size = cost.parameters + (cost.gradients if self.added else 0.0) if back else 0.0
        if steps:
            optimizer = {*self._optimizer_away} if cell is None else self._optimizer_away & {cell}
            self._optimizer_away -= optimizer
            brings, size = brings or bool(optimizer), size + (cost.optimizer if optimizer else 0.0)
        self._left = self._left and not brings
        return {"onload_s": cost.seconds(size), "onload_bytes": size * cost.devices} if brings else {}

    def _leaves(self, cell: int) -> float:
        """Bytes that a cell moves from each of its devices to leave them."""
        cost = self.world.fleet.hand_over
        size = 0.0 if cell in self.away else cost.parameters + (cost.gradients if self.added else 0.0)
        return size + (0.0 if cell in self._optimizer_away else cost.optimizer)

    def _turn_s(self) -> float:
        """Seconds by which a step is longer since engines are awake on its devices: they sleep, it leaves, they wake."""
        engines_s, cost = self.world.turn_s(), self.world.fleet.hand_over
        self._left = engines_s > 0
        return engines_s + cost.seconds(cost.parameters + cost.optimizer) if self._left else 0.0

    def _pulse(self, computing: tuple[int | None, _Work]) -> None:
        """Say that micro-batches go on ending, as a real trainer does."""
        cell, work = computing
        if self._at_work.get(cell) is not work or self.hung or self.member is None:
            return
        if self._speed > 0:
            self._pulses += 1
            self._account()
            share = 1.0 - work.left_s / work.whole_s
            self.member.say([c.Activity("trainer", self.member.id, "training", self._pulses, share=share)])
        self.time.at(self.time.now() + PULSE_S, self._pulse, computing)

    def _schedule(self, work: _Work) -> None:
        self._order = work.order = self._order + 1
        if self._speed > 0:
            self._watch(work)
            self.time.at(self.time.now() + work.left_s / self._speed, self._done, work.order)

    def watch_phases(self) -> None:
        """Notice the phases that somebody waits for, also in what is at work already."""
        self._account()
        for work in self._at_work.values():
            self._watch(work)

    def _watch(self, work: _Work) -> None:
        if self.member is None or self._speed <= 0:
            return
        for phase, share in shares(work.command).items():
            ahead_s = work.left_s - work.whole_s * (1 - share)
            if ahead_s >= 0 and self.member.phases.waited_for(phase):
                self.time.at(self.time.now() + ahead_s / self._speed, self._passes, (work.order, phase))

    def _passes(self, passed: tuple[int, str]) -> None:
        order, phase = passed
        if self.member is not None and any(work.order == order for work in self._at_work.values()):
            self.member.phases.at(phase)

    def _account(self) -> None:
        """Add the time since the last change to the totals of what is at work."""
        now = self.time.now()
        for cell, work in self._at_work.items():
            spent, work.since_s = now - work.since_s, now
            work.left_s -= spent * self._speed
            if isinstance(work.command, c.Step | c.Accumulate):
                self.busy_s += spent if cell is None else spent / self.world.fleet.spec.cells
            elif isinstance(work.command, c.Publish):
                self.publishing_s += spent

    def _duration(self, command: c.Command) -> float:
        fleet = self.world.fleet
        if isinstance(command, c.Publish):
            again = self._offered is not None and self._offered.version == command.version
            return 0.0 if again else fleet.weights.stall_s
        if isinstance(command, c.Accumulate) and not command.update:
            return self._gradients_s(command.trajectories) * (1 if command.cell is None else fleet.spec.cells)
        if isinstance(command, c.Accumulate):
            return self._compute((command.trajectories,), fleet.data_s / fleet.parts)
        if isinstance(command, c.Step) and self.added:
            rest = tuple(name for part in command.mini_batches for name in part)
            return self._turn_s() + self._gradients_s(rest) + fleet.training.update_s(0, 0.0)
        if isinstance(command, c.Step):
            data_s = fleet.data_s / (fleet.parts if self.parts else 1)
            return self._turn_s() + self._compute(command.mini_batches, data_s)
        if isinstance(command, c.Offload):
            return 0.0 if self._left else fleet.hand_over.seconds(self._leaves(command.cell))
        return fleet.delays.copy_s * _share(command) if isinstance(command, c.Checkpoint) else 0.0

    def _gradients_s(self, names: tuple[str, ...]) -> float:
        """Seconds of the gradients of a part of a batch on all devices, without an optimizer step."""
        fleet = self.world.fleet
        total, squares = self.world.tokens.load(names)
        preparing = fleet.training.preparation_s(total, squares, len(names))
        self.preparing_s += preparing
        data_s = fleet.data_s * len(names) / (fleet.spec.batch_groups * fleet.needed)
        return data_s + preparing + fleet.training.update_s(total, squares, 0, len(names))

    def _compute(self, mini_batches: tuple[tuple[str, ...], ...], data_s: float) -> float:
        fleet, tokens = self.world.fleet, self.world.tokens
        loads = [(*tokens.load(names), len(names)) for names in mini_batches]
        preparing = sum(fleet.training.preparation_s(*load) for load in loads)
        self.preparing_s += preparing
        return (
            data_s
            + preparing
            + sum(fleet.training.update_s(total, squares, 1, count) for total, squares, count in loads)
        )

    def _done(self, order: int) -> None:
        cell = next((cell for cell, work in self._at_work.items() if work.order == order), -1)
        if cell == -1 or self.member is None:
            return
        self._account()
        work = self._at_work.pop(cell)
        command, took_s = work.command, self.time.now() - work.began_s
        if isinstance(command, c.Offload):
            size = int(self._leaves(command.cell) * self.world.fleet.hand_over.devices)
            self.away.add(command.cell)
            self._optimizer_away.add(command.cell)
            self.member.say([c.Offloaded(command.cell, command.seq, took_s, size)])
        elif isinstance(command, c.Publish):
            self._publish(command)
        elif isinstance(command, c.Checkpoint):
            self.saves(command.version)
            self.member.phases.at(CHECKPOINT)
            durable_s = self.time.now() + self.world.fleet.delays.checkpoint_s * _share(command)
            self.time.at(durable_s, self._durable, (command, self.incarnation))
        elif isinstance(command, c.Accumulate):
            (self.parts if command.update else self.added).append(command.trajectories)
            metrics = {"wall_s": took_s, **work.metrics}
            self.member.say(
                [c.Accumulated(command.version, command.trajectories, metrics, command.seq, cell=command.cell)]
            )
        elif isinstance(command, c.Step):
            batch = [name for part in (*self.added, *self.parts, *command.mini_batches) for name in part]
            lags = self.world.tokens.lags(batch, command.version - 1)
            self.parts, self.added, self.version = [], [], command.version
            self.world.tokens.consume(batch, command.version)
            self.trained(command.version)
            self.world.stepped(command.version, batch, lags)
            metrics = {"staleness_max": float(max(lags, default=0)), "wall_s": took_s, **work.metrics}
            self.member.say([c.Stepped(command.version, metrics, command.seq)])
        self._next()

    def _publish(self, command: c.Publish) -> None:
        """Give the version to the live relays; without any, offer it again to relays that come up."""
        assert self.member is not None
        if self._offered is None or self._offered.version != command.version:
            self.stages(command.version)
        self._offered = command
        if command.sealed and command.version > self._revealed:
            self._sealed[command.version] = command
            self.relays.published(command, sealed=True)
            return
        self.shows(command.version)
        if self.relays.published(command) or self._taken == command.version:
            self._taken = command.version
            self.member.say([c.Published(command.version, command.seq)])

    def _reveal(self, version: int) -> None:
        """Let a version be seen. Relays that are gone by then had it in vain: the controller publishes it again."""
        assert self.member is not None
        self._revealed = max(self._revealed, version)
        command = self._sealed.pop(version, None)
        if command is None:
            return
        self.shows(version)
        if self.relays.published(command):
            self._taken = max(self._taken, version)
            self.member.say([c.Published(version, command.seq)])

    def _durable(self, saving: tuple[c.Checkpoint, int]) -> None:
        command, incarnation = saving
        if self.incarnation != incarnation or self.member is None or self.hung:
            return
        if self.world.injuries.sticks_checkpoint():
            return
        if self.world.injuries.loses_checkpoint():
            self.member.end(f"the checkpoint of version {command.version} could not be written")
            return
        self.world.saved(command.version, command.keep, full=command.full)
        self.member.say([c.Durable(command.version, command.seq, full=command.full)])

    # ---- what it computes -----------------------------------------------------------------------------------------

    @property
    def cores(self) -> float:
        """Cores on which it trains now: all, or those of the cells at work."""
        computing = [cell for cell, work in self._at_work.items() if isinstance(work.command, c.Step | c.Accumulate)]
        if not computing or not self.up or self.hung:
            return 0.0
        share = 1.0 if None in computing else len(computing) / self.world.fleet.spec.cells
        return self.world.fleet.trainer_cores * share

    def share(self, share: float) -> None:
        self.set_speed(share)

    def add_to(self, totals: Totals) -> None:
        self._account()
        totals.trainer_busy_s += self.busy_s
        totals.publishing_s += self.publishing_s
        totals.preparing_s += self.preparing_s
