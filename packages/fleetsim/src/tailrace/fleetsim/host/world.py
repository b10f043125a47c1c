"""The state that the members of a simulated fleet share: clock, costs, trajectories and weights; one per simulation.

Fuzzing gives it a store that checks everything, and injuries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.host.clock import VirtualTime
from tailrace.fleetsim.host.failures import Injuries
from tailrace.fleetsim.host.recorder import Metered, Recorder
from tailrace.fleetsim.host.tokens import Tokens
from tailrace.pipeline.roles.data import Dropped


class Pulsing(Protocol):
    """A replica, as the world beats time for it."""

    def pulse(self) -> None:
        """Report the load, if there is any news of it."""
        ...

    def beside(self, slows: float) -> None:
        """Work so many times longer from now on, for what runs beside it on its devices."""
        ...


class TakesTurns(Protocol):
    """A replica, which may stand on the trainer's devices."""

    @property
    def turn_s(self) -> float:
        """Seconds in which its engine gives a device to the trainer and takes it back; 0 if it does not have one of those."""
        ...


class World:
    """One fleet at work.

    `disk` are the checkpoints, `dropped` what the store dropped last, `version` what training has made.

    Args:
        fleet: the fleet.
        tokens: the trajectories; None: a new, plain `Tokens`.
        injuries: the faults.
        reorders: messages may overtake each other.
    """

    def __init__(
        self,
        fleet: SimulatedFleet,
        *,
        tokens: Tokens | None = None,
        injuries: Injuries | None = None,
        reorders: bool = False,
    ) -> None:
        self.fleet, self.reorders = fleet, reorders
        self.slows = 1.0  # the replicas' work takes so many times as long, for scores on their devices
        self.time = VirtualTime(fleet.delays.snapshot_s)
        mixes = fleet.spec.sync.mixes_versions
        self.tokens = tokens or Tokens(fleet.workload, fleet.samples, mixes_versions=mixes)
        self.injuries = injuries or Injuries()
        self.cores = Cores(fleet)
        self.meters: list[Metered] = []
        self.pulsing: list[Pulsing] = []
        self.taking_turns: list[TakesTurns] = []
        self.recorder = Recorder(self.tokens, self.meters)
        self.disk: dict[int, bool] = {}  # versions with a checkpoint, and whether it has full state
        self.version = 0
        self.dropped = Dropped()
        self._durable = [0]
        self._trained: dict[int, list[str]] = {}
        self.time.pulse = self._pulse

    def stepped(self, version: int, batch: list[str], lags: dict[int, int]) -> None:
        """A batch was trained on."""
        self._trained[version], self.version = batch, version
        self.recorder.stepped(version, batch, lags, self.time.now())

    def turn_s(self) -> float:
        """Seconds in which engines that are awake on the trainer's devices sleep and wake around a step of all of it."""
        return max((replica.turn_s for replica in self.taking_turns), default=0.0)

    def slow_replicas(self, slows: float) -> None:
        """Scores on the replicas' devices began or ended: their work takes so many times as long."""
        self.slows = slows
        for replica in self.pulsing:
            replica.beside(slows)

    def saved(self, version: int, keep: Iterable[int], *, full: bool) -> None:
        """A checkpoint is durable; of the older ones only some stay."""
        kept, disk = {*keep, version}, self.disk | {version: full}
        self.injuries.damaged.discard(version)
        self.disk = {at: disk[at] for at in sorted(disk) if at in kept or at > version}

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Versions from which a trainer can start, in ascending order."""
        return tuple(version for version, full in self.disk.items() if full)

    def durable(self, version: int) -> None:
        """Note that a version is durable; trajectories that are not needed any more lose their tokens."""
        self._durable = [*self._durable, version][-self.fleet.spec.keep_checkpoints :]
        for made in [made for made in self._trained if made <= self._durable[0]]:
            self.tokens.forget(self._trained.pop(made))

    def rolled_back(self, version: int) -> None:
        """Undo later batches, since the trainer continues from a version."""
        self.version = version
        self._durable = [at for at in self._durable if at <= version] or [version]
        self.disk = {saved: full for saved, full in self.disk.items() if saved <= version}
        for undone in [made for made in self._trained if made > version]:
            del self._trained[undone]

    def _pulse(self) -> None:
        for replica in self.pulsing:
            replica.pulse()


# Members that share processor cores slow each other down: a laptop, not a fleet.
#
# With more members computing than there are cores, each gets an equal share: the operating system's processor sharing. What
# others need beside them (data, scoring, relays, the driver) comes off the cores: `tailrace profile` measures it.


class Computing(Protocol):
    """A member that computes on shared cores."""

    @property
    def cores(self) -> float:
        """Cores that it keeps busy now, 0 while it computes nothing."""
        ...

    def share(self, share: float) -> None:
        """Run at a share of its speed from now on."""
        ...


class Cores:
    """The members that compute on shared cores.

    Args:
        fleet: has the number of cores; None if every member has its own devices.
    """

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._count = fleet.cores
        self._members: list[Computing] = []
        self._share = 1.0
        self._dirty = False

    def add(self, member: Computing) -> None:
        """One more that computes on them."""
        self._members.append(member)

    def changed(self) -> None:
        """Update the shares after a member began or stopped computing."""
        self._dirty = self._count is not None

    def settle(self) -> None:
        """Give everybody their share, if that has changed."""
        if not self._dirty:
            return
        self._dirty = False
        assert self._count is not None
        wanted = sum(member.cores for member in self._members)
        share = min(1.0, self._count / wanted) if wanted else 1.0
        if share != self._share:
            self._share = share
            for member in self._members:
                member.share(share)
