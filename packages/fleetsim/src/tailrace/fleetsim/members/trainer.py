"""The trainer: one command after the other, each as long as it takes.

Publishing stalls it for one copy to the master relay (Laminar, section 8.3), whatever the number of replicas; a checkpoint is
copied at once and durable later; a step prepares the experience of its batch and updates once for each mini-batch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tailrace import contracts as c

if TYPE_CHECKING:
    from tailrace.fleetsim.simulator import Simulation


class Trainer:
    """The trainer of a simulation. `busy_s` is what it spent on steps, `publishing_s` on handing weights over."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.incarnation = 0
        self.up = self.hung = self.starting = False
        self.version = 0
        self.busy_s = self.publishing_s = self.preparing_s = 0.0
        self.parts: list[tuple[str, ...]] = []
        self._queue: deque[c.Command] = deque()
        self._current: c.Command | None = None
        self._left_s = 0.0  # of the current command, at full speed
        self._began_s = self._since_s = 0.0
        self._speed = 1.0
        self._order = 0

    @property
    def computing(self) -> bool:
        """Whether it trains now."""
        return self.up and not self.hung and isinstance(self._current, c.Step | c.Accumulate)

    def start(self, version: int) -> None:
        """A fresh process with the weights of a version."""
        self._reset()
        self.up, self.hung, self.starting, self.version = True, False, False, version

    def die(self) -> None:
        """The process is gone, with what it had queued."""
        self._account()
        self._reset()
        self.up = self.starting = False

    def hang(self) -> None:
        """The process lives and does nothing any more."""
        self.set_speed(0.0)
        self.hung = True

    def _reset(self) -> None:
        self.incarnation += 1
        self._queue.clear()
        self.parts = []
        self._current, self._speed = None, 1.0

    def take(self, command: c.Command) -> None:
        """A command; it is carried out when those before it have been."""
        if not self.up:
            return
        self._queue.append(command)
        if self._current is None:
            self._next()

    def set_speed(self, factor: float) -> None:
        """It runs at a share of the modelled speed from now on."""
        if factor == self._speed or self.hung:
            return
        self._account()
        self._speed = factor
        if self._current is not None:
            self._schedule()

    def _next(self) -> None:
        if self._queue:
            self._current = self._queue.popleft()
            self._left_s = self._duration(self._current)
            self._since_s = self.simulation.now
            if not self.parts:
                self._began_s = self._since_s  # of what is carried out, or of the first part of its batch
            self._schedule()
        self.simulation.cores.changed()

    def _schedule(self) -> None:
        self._order += 1
        if self._speed > 0:
            self.simulation.at(self.simulation.now + self._left_s / self._speed, self._done, self._order)

    def _account(self) -> None:
        """Book the time since the last change on what is being done."""
        now = self.simulation.now
        spent, self._since_s = now - self._since_s, now
        self._left_s -= spent * self._speed
        if isinstance(self._current, c.Step | c.Accumulate):
            self.busy_s += spent
        elif isinstance(self._current, c.Publish):
            self.publishing_s += spent

    def account(self) -> None:
        """Bring `busy_s` up to now."""
        if self._current is not None:
            self._account()

    def _duration(self, command: c.Command) -> float:
        fleet = self.simulation.fleet
        if isinstance(command, c.Publish):
            return fleet.weights.stall_s
        if isinstance(command, c.Accumulate):
            return self._compute((command.trajectories,), fleet.data_s / fleet.parts)
        if isinstance(command, c.Step):
            return self._compute(command.mini_batches, fleet.data_s / (fleet.parts if self.parts else 1))
        return 0.0

    def _compute(self, mini_batches: tuple[tuple[str, ...], ...], data_s: float) -> float:
        fleet, tokens = self.simulation.fleet, self.simulation.tokens
        loads = [tokens.load(names) for names in mini_batches]
        preparing = sum(fleet.training.preparation_s(total, squares) for total, squares in loads)
        self.preparing_s += preparing
        return data_s + preparing + sum(fleet.training.update_s(total, squares) for total, squares in loads)

    def _done(self, order: int) -> None:
        if order != self._order or self._current is None:
            return
        self._account()
        command, self._current = self._current, None
        simulation = self.simulation
        if isinstance(command, c.Publish):
            simulation.relays.published(command)
        elif isinstance(command, c.Checkpoint):
            simulation.checkpoint(command)
        elif isinstance(command, c.Accumulate):
            self.parts.append(command.trajectories)
            simulation.post(c.Accumulated(command.version, command.trajectories, answers=command.seq))
        elif isinstance(command, c.Step):
            batch = [name for part in (*self.parts, *command.mini_batches) for name in part]
            lags = simulation.tokens.lags(batch, command.version - 1)
            self.parts, self.version = [], command.version
            simulation.stepped(command, batch, simulation.now - self._began_s, lags)
        self._next()
