"""Faults at random: once in so many steps, or with exponential spacing over the roles. The caller gives the randomness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from tailrace.faulttol.errors import FaultError
from tailrace.faulttol.injection import CONTROLLER, LENDING, LOAD, PHASES, Fault, FaultKind

_HANGS = 1 / 3
_IN_A_PHASE = 2 / 3
_WHILE_LOADING = 0.2


def at_steps(faults: Iterable[Fault], steps: int, random: Random, *, lends: bool = False) -> list[Fault]:
    """Faults with the steps, and phases, that were drawn for those that strike once in N steps.

    Of each N steps in a row one is drawn, and a phase that a step passes, if the role has some. The last N steps may lie partly
    beyond the end, so that the run has one fault in N steps on average, however long it is. Other faults stay as they are.

    Args:
        faults: the faults. Each draws from a stream of its own, so that one more at the end changes none before it.
        steps: of the run.
        random: where the streams begin.
        lends: whether devices change hands between replicas and trainer, so that members may be struck in those phases.
    """
    found = []
    for fault in faults:
        stream = Random(random.getrandbits(64))
        if fault.every is None:
            found.append(fault)
            continue
        for first in range(0, steps, fault.every):
            step, phase = first + stream.randrange(fault.every), stream.choice(_passed(fault.role, lends))
            if step < steps:
                found.append(replace(fault, every=None, at_step=step, phase="" if fault.worker is not None else phase))
    return found


def random_faults(
    members: Mapping[str, Sequence[str]],
    mtbf_s: float,
    random: Random,
    *,
    begin_s: float = 0.0,
    together: float = 0.0,
    lends: bool = False,
) -> Iterator[Fault]:
    """Kills and hangs without end, in the order of their times, which are a Poisson process.

    The role is drawn first, so that one with many members is struck no more often than one with a single member. Two of three
    faults of a role with phases strike in a phase, one of three is a hang; the controller is only killed, since nobody would
    notice its hang. A replica hangs as often by a stalled engine as by a stopped process.

    Args:
        members: those that may be struck, by role.
        mtbf_s: mean seconds from one to the next, above 0.
        random: where all is drawn from.
        begin_s: seconds of the run at which the first may strike.
        together: share of faults that strike two members at once, 0 to 1. Of these, a fifth of a trainer's strike its
            successor while that loads the checkpoint.
        lends: see `at_steps`.

    Raises:
        FaultError: a number is out of its range, or there is nobody to strike.
    """
    if not 0 < mtbf_s < math.inf or not 0 <= together <= 1:
        raise FaultError(
            f"found mtbf_s={mtbf_s!r} and together={together!r}, expected seconds above 0 and a share from 0 to 1"
        )
    roles = [role for role, names in members.items() if names]
    if not roles:
        raise FaultError("found no member that could be struck, expected one")
    return _faults(members, roles, mtbf_s, random, begin_s, together, lends)


def _faults(
    members: Mapping[str, Sequence[str]],
    roles: Sequence[str],
    mtbf_s: float,
    random: Random,
    now_s: float,
    share: float,
    lends: bool,
) -> Iterator[Fault]:
    while True:
        now_s += random.expovariate(1 / mtbf_s)
        first = _drawn(random, random.choice(roles), members, now_s, lends)
        yield first
        if random.random() >= share:
            continue
        others = [role for role in roles if role != first.role]
        if first.role == "trainer" and random.random() < _WHILE_LOADING:
            yield replace(first, kind=FaultKind.KILL, phase=LOAD)
        elif others:
            yield _drawn(random, random.choice(others), members, now_s, lends)


def _drawn(random: Random, role: str, members: Mapping[str, Sequence[str]], at_s: float, lends: bool) -> Fault:
    kind = FaultKind.HANG if random.random() < _HANGS and role != CONTROLLER else FaultKind.KILL
    if kind is FaultKind.HANG and role == "replica" and random.random() < 0.5:
        kind = FaultKind.STALL
    phase = random.choice(_passed(role, lends)) if random.random() < _IN_A_PHASE else ""
    return Fault(kind, role, random.choice(members[role]), at_s=round(at_s, 3), phase=phase)


def _passed(role: str, lends: bool) -> Sequence[str]:
    """The phases that a member passes while it works; one without a name for a role that has none."""
    left_out = {LOAD} if lends else {LOAD, *LENDING}
    return [phase for phase in PHASES.get(role, ()) if phase not in left_out] or [""]
