"""Role- and phase-aware detection (RobustRL, section 4), and the two baselines that it is compared with.

    trainer   training, and no micro-batch ended for 300 s ─────────────────────────────► down
    replica   no token for 60 s ──► suspect ──► heartbeat ──no answer──────────────────► down
                                                   └─answers─► work runs, no token ────► down: its engine hangs
                                                             └► all in tools, or idle ─► healthy
    others    no answer for the window of their role ───────────────────────────────────► down
    machine   no answer of anybody there for 30 s ──────────────────────────────────────► down, all of them

Entry-point group ``tailrace.detection``. Pure: time comes as ages in the `Signs`. The heartbeat is asked all the while, so that
a suspect need not be probed: `Signs.silent_s` says whether it answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated

from tailrace.contracts import DetectionPolicy, Facts, Reason, Signs, Suspected, Tried, Why
from tailrace.faulttol.errors import DetectionError

REPLICA, TRAINER = "replica", "trainer"
GENERATING, PULLING, TRAINING = "generating", "pulling", "training"


@dataclass(frozen=True, slots=True)
class RoleAware(DetectionPolicy):
    """Look at each role for what it should do in its phase (RobustRL, section 4). Plugin ``role-aware``.

    The trainer is watched in its training phase only, for micro-batches that end: it is quiet while it waits for rollouts. A
    replica without tokens is a suspect, and down only if it does not answer, or answers, has work and does not move: waiting
    for an environment, for work or for weights is none of these. Every role has a window of silence of its own, and a machine
    one for all its members.

    Args:
        replica_s: seconds without a token after which a replica is suspected. The paper has 60.
        slow_factor: a replica that holds work, and the trainer, may stand still for so many times the slowest step that they
            took so far, where that is longer than their window: a slow machine is not a broken one.
        heartbeat_s: seconds of silence after which a suspected replica is down.
        phase_s: seconds without progress after which the trainer is down, by phase. The paper has 300 in training alone; a
            phase that is not named is not watched.
        silent_s: seconds of silence after which a member of any role is down.
        role_silent_s: the same for single roles, by role.
        machine_s: seconds for which nobody on a machine of several members has answered, after which all of them are down.
        look_s: seconds between two looks while nobody is silent or stands still.

    Raises:
        DetectionError: a window is out of its range.
    """

    replica_s: Annotated[float, Tried((60.0, 60.0, 5.0))] = 60.0
    slow_factor: float = 20.0
    heartbeat_s: Annotated[float, Tried((30.0, 4.0))] = 30.0
    phase_s: Mapping[str, float] = field(default_factory=lambda: {TRAINING: 300.0}, hash=False)
    silent_s: float = 60.0
    role_silent_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    machine_s: Annotated[float, Tried((30.0, 5.0))] = 30.0
    look_s: float = 5.0

    def __post_init__(self) -> None:
        _check(self, ("replica_s", "heartbeat_s", "silent_s", "machine_s", "look_s"))
        if not (math.isfinite(self.slow_factor) and self.slow_factor >= 0):
            raise DetectionError(f"found slow_factor={self.slow_factor}, expected a number of at least 0")
        for name in ("phase_s", "role_silent_s"):
            for key, seconds in getattr(self, name).items():
                if not 0 < seconds < math.inf:
                    raise DetectionError(f"found {name}={{{key}: {seconds}}}, expected a number of seconds above 0")

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's own window of silence."""
        return {"silent_s": facts.silent_s}

    def suspects(self, signs: Sequence[Signs]) -> Sequence[Suspected]:
        """Members that do not answer within their window, and those that answer and do not do what their phase asks for."""
        found = []
        machines = _silent_machines(signs, self.machine_s)
        for one in signs:
            reason = self._reason(one) or machines.get(one.machine)
            if reason is not None:
                found.append(Suspected(one.role, one.id, reason))
        return found

    def within_s(self, role: str) -> float:
        """The window of its silence, or of its work where that is longer."""
        window_s = self._silence_s(role)
        if role == REPLICA:
            return max(window_s, self.replica_s)
        return max(window_s, *self.phase_s.values()) if role == TRAINER and self.phase_s else window_s

    def _silence_s(self, role: str) -> float:
        return self.role_silent_s.get(role, self.silent_s)

    def _reason(self, one: Signs) -> Reason | None:
        limit_s = self._silence_s(one.role)
        if one.role == REPLICA and one.phase != PULLING and max(one.quiet_s, one.silent_s) >= self.replica_s:
            limit_s = min(limit_s, self.heartbeat_s)
        if one.silent_s >= limit_s:
            return Reason(Why.SILENT, numbers={"silent_s": one.silent_s, "limit_s": limit_s})
        if one.role == REPLICA and one.phase == GENERATING and one.work:
            return _beyond(one.still_s, max(self.replica_s, self.slow_factor * one.slowest_s))
        if one.role == TRAINER and one.phase in self.phase_s:
            return _beyond(one.quiet_s, max(self.phase_s[one.phase], self.slow_factor * one.slowest_s))
        return None


@dataclass(frozen=True, slots=True)
class RankLevel(DetectionPolicy):
    """Suspect every member of the trainer and every replica on its own that shows no activity. Plugin ``rank-level``.

    The baseline of RobustRL (Figure 2a), from pre-training (ByteRobust), where all ranks do the same all the time. Here a
    replica whose trajectories wait for tools is quiet, and so is a trainer that waits for a batch: both are taken for down.

    Args:
        device_s: seconds without a token of a replica, or without progress of the trainer. ByteRobust has 10.
        network_s: seconds of silence. ByteRobust has 30.
        look_s: seconds between two looks while nobody is silent or stands still.

    Raises:
        DetectionError: a window is out of its range.
    """

    device_s: Annotated[float, Tried((600.0,))] = 10.0  # with less, whoever waits is restarted without end
    network_s: float = 30.0
    look_s: float = 5.0

    def __post_init__(self) -> None:
        _check(self, ("device_s", "network_s", "look_s"))

    def suspects(self, signs: Sequence[Signs]) -> Sequence[Suspected]:
        """Members that are silent or quiet for too long."""
        found = []
        for one in signs:
            reason = _unanswered(one, self.network_s) or _quiet(one, self.device_s)
            if reason is not None:
                found.append(Suspected(one.role, one.id, reason))
        return found

    def within_s(self, role: str) -> float:
        """Its device's window, or that of the network for a role without a device."""
        return max(self.device_s, self.network_s) if role in (REPLICA, TRAINER) else self.network_s


@dataclass(frozen=True, slots=True)
class ClusterLevel(DetectionPolicy):
    """Suspect the trainer and all replicas once none of them shows any activity. Plugin ``cluster-level``.

    The other baseline of RobustRL (Figure 2b). It is not fooled by a replica that waits for tools while others generate, and
    so a fault stays unnoticed until the last of them has nothing left to do.

    Args:
        device_s: seconds for which nobody shows activity.
        silent_s: seconds of silence after which a member of another role is down.
        look_s: seconds between two looks while nobody is silent or stands still.

    Raises:
        DetectionError: a window is out of its range.
    """

    device_s: Annotated[float, Tried((150.0, 300.0))] = 300.0  # with less than a step takes, it never ends
    silent_s: float = 60.0
    look_s: float = 5.0

    def __post_init__(self) -> None:
        _check(self, ("device_s", "silent_s", "look_s"))

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's own window of silence."""
        return {"silent_s": facts.silent_s}

    def suspects(self, signs: Sequence[Signs]) -> Sequence[Suspected]:
        """All that compute, if none does; and silent members of other roles."""
        computing = [one for one in signs if one.role in (REPLICA, TRAINER)]
        quiet = [Suspected(one.role, one.id, why) for one in computing if (why := _quiet(one, self.device_s))]
        others = [one for one in signs if one.role not in (REPLICA, TRAINER)]
        silent = [Suspected(one.role, one.id, why) for one in others if (why := _unanswered(one, self.silent_s))]
        return [*silent, *(quiet if len(quiet) == len(computing) else ())]

    def within_s(self, role: str) -> float:
        """Unbounded where others compute on."""
        return math.inf if role in (REPLICA, TRAINER) else self.silent_s


def _quiet(one: Signs, limit_s: float) -> Reason | None:
    """A member of a computing role that showed no progress; a silent one shows none."""
    return _beyond(max(one.quiet_s, one.silent_s), limit_s) if one.role in (REPLICA, TRAINER) else None


def _unanswered(one: Signs, limit_s: float) -> Reason | None:
    if one.silent_s < limit_s:
        return None
    return Reason(Why.SILENT, numbers={"silent_s": one.silent_s, "limit_s": limit_s})


def _beyond(still_s: float, limit_s: float) -> Reason | None:
    """No progress for longer than a limit."""
    return Reason(Why.STILL, numbers={"still_s": still_s, "limit_s": limit_s}) if still_s > limit_s else None


def _silent_machines(signs: Sequence[Signs], limit_s: float) -> dict[str, Reason]:
    """The reason for each machine of two members or more of which nobody has answered for so long.

    All of them fall silent together, so that takes less evidence than one member alone.
    """
    ages: dict[str, list[float]] = {}
    for one in signs:
        if one.machine:
            ages.setdefault(one.machine, []).append(one.silent_s)
    return {
        machine: Reason(Why.MACHINE_SILENT, who=machine, numbers={"silent_s": min(silent), "limit_s": limit_s})
        for machine, silent in ages.items()
        if len(silent) > 1 and min(silent) >= limit_s
    }


def _check(policy: RoleAware | RankLevel | ClusterLevel, names: Sequence[str]) -> None:
    """Check windows in seconds.

    Raises:
        DetectionError: one is not above 0, or not finite.
    """
    for each in fields(policy):
        value = getattr(policy, each.name)
        if each.name in names and not 0 < value < math.inf:
            raise DetectionError(f"found {each.name}={value}, expected a number of seconds above 0")
