"""A replica: an engine, the weights that it serves, and its commands in order.

It reports finished trajectories at multiples of `report_s`, and its load at multiples of `snapshot_s` and whenever it has
become idle or has pulled. So a fleet costs what finishes in it, not what time passes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.fleetsim.engine import Engine, Work
from tailrace.rollout.order import Order

if TYPE_CHECKING:
    from tailrace.fleetsim.simulator import Simulation


class Replica:
    """One replica of a simulation.

    Args:
        id: its name.
        speed: 1.0 as modelled; below for a slow machine.
    """

    __slots__ = (
        "engine",
        "finished",
        "hung",
        "id",
        "incarnation",
        "last_seq",
        "order",
        "pulling",
        "reported",
        "scheduled_s",
        "simulation",
        "speed",
        "starting",
        "up",
        "version",
    )

    def __init__(self, simulation: Simulation, id_: str, engine: Engine, speed: float) -> None:
        self.simulation, self.id, self.engine, self.speed = simulation, id_, engine, speed
        self.incarnation = 0
        self.up = self.hung = self.starting = False
        self.version: int | None = None
        self.pulling = False
        self.order = Order()
        self.last_seq = self.finished = 0
        self.reported = True  # the controller knows that it is idle
        self.scheduled_s = math.inf

    # ---- life -----------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """A fresh process: no weights, no work, a new chain of commands."""
        self._drop_work(now)
        self.up, self.hung, self.starting, self.version, self.pulling = True, False, False, None, False
        self.order, self.last_seq = Order(), 0
        self.incarnation += 1

    def die(self, now: float) -> None:
        """The process is gone; the tokens that it had generated are in the partial-response pool."""
        self._drop_work(now)
        self.up, self.starting, self.version, self.pulling = False, False, None, False
        self.incarnation += 1

    def hang(self, now: float) -> None:
        """The process lives and does nothing any more."""
        self.hung = True
        self.set_speed(0.0, now)

    def set_speed(self, factor: float, now: float) -> None:
        """Its engine runs at a share of the modelled speed."""
        self.engine.set_speed(factor, now)
        self.schedule(now)

    def _drop_work(self, now: float) -> None:
        left = self.engine.clear(now)
        self.flush()  # the store has what was complete before
        self.simulation.tokens.keep(left)

    # ---- commands -------------------------------------------------------------------------------------------------

    def receive(self, command: c.Route | c.Interrupt | c.Pull) -> None:
        """A command has arrived; it is carried out when those before it have been."""
        if not self.up or self.hung:
            return
        self.order.add(command)
        for ready in self.order.take():
            self.last_seq = ready.seq
            kind = type(ready)
            if kind is c.Route:
                self._route(ready)  # type: ignore[arg-type]
            elif kind is c.Interrupt:
                self._interrupt(ready)  # type: ignore[arg-type]
            elif kind is c.Pull:
                self._pull(ready)  # type: ignore[arg-type]

    def _route(self, command: c.Route) -> None:
        assert self.version is not None, f"{self.id} was given work and serves no version"
        simulation = self.simulation
        works = simulation.tokens.works(command.trajectories, self.id, self.version, simulation.now)
        self.engine.add(works, simulation.now)
        self.reported = False
        simulation.cores.changed()
        self.schedule(simulation.now)

    def _interrupt(self, command: c.Interrupt) -> None:
        simulation = self.simulation
        left = self.engine.remove(command.trajectories, simulation.now)
        self.flush()
        simulation.tokens.keep(left)
        simulation.say(self, [c.Interrupted(self.id, name, tokens, command.seq) for name, tokens in left])
        self.reported = False  # a snapshot must show this command, even if there was nothing to interrupt
        self.idle_now()
        self.schedule(simulation.now)

    def abort(self, names: tuple[str, ...]) -> None:
        """Drop trajectories, if they are here."""
        now = self.simulation.now
        self.engine.remove(names, now)
        self.flush()
        self.idle_now()
        self.schedule(now)

    def _pull(self, command: c.Pull) -> None:
        simulation = self.simulation
        self._drop_work(simulation.now)  # an abort may have overtaken the command that routed what is here
        self.version, self.pulling = None, True
        simulation.cores.changed()
        simulation.relays.pull(self, command)

    def pulled(self, command: c.Pull) -> None:
        """The weights are complete."""
        self.version, self.pulling = command.version, False
        self.simulation.say(self, [c.Pulled(self.id, command.version, command.seq), self.snapshot()])

    def pull_failed(self, command: c.Pull, reason: str) -> None:
        """The weights could not be had, or arrived damaged."""
        self.version, self.pulling = None, False
        self.simulation.say(self, [c.PullFailed(self.id, command.version, reason, command.seq)])

    # ---- reports --------------------------------------------------------------------------------------------------

    def schedule(self, now: float) -> None:
        """Wake up when the next trajectory has finished, or may have."""
        at = self.engine.next_finish_s()
        if at == math.inf:
            return
        step = self.simulation.report_s
        at = max(math.ceil(at / step - 1e-9) * step, at, now)  # rounding must not put it before the finish
        if at < self.scheduled_s or self.scheduled_s <= now:
            self.scheduled_s = at
            self.simulation.at(at, self._wake, self.incarnation)

    def _wake(self, incarnation: int) -> None:
        now = self.simulation.now
        if incarnation != self.incarnation or now < self.scheduled_s:
            return
        self.scheduled_s = math.inf
        self.engine.advance(now)
        self.flush()
        self.idle_now()
        self.schedule(now)

    def flush(self) -> None:
        """Report what has finished."""
        finished = self.engine.take_finished()
        if finished:
            self.finished += len(finished)
            simulation, name = self.simulation, self.id
            simulation.tokens.complete(finished)
            simulation.say(self, [c.Finished(name, trajectory, tokens) for _, trajectory, tokens in finished])

    def idle_now(self) -> None:
        """Report the load as soon as there is none."""
        engine = self.engine
        if not self.reported and not (engine.running or engine.waiting or engine.in_environment):
            self.reported = True
            self.simulation.cores.changed()
            self.simulation.say(self, [self.snapshot()])

    def snapshot(self) -> c.Snapshot:
        """Its load now; the engine must have been advanced."""
        engine = self.engine
        return c.Snapshot(
            self.id,
            engine.kv_share,
            engine.running,
            engine.waiting,
            self.finished,
            self.version,
            self.last_seq,
            kv_capacity_tokens=self.simulation.fleet.kv_capacity_tokens,
            in_environment=engine.in_environment,
        )

    @property
    def busy(self) -> bool:
        """Whether it computes: work is on its devices."""
        return self.up and (self.engine.running > 0 or self.engine.waiting > 0)


__all__ = ["Replica", "Work"]
