"""The machine of a run's own cluster on which each member stands. Pure.

    machine   0           1           2
              trainer     replica r0  replica r1     a replica leaves the trainer its machine while there is another
              relay 0     relay 1     relay 2        of every other role each machine has about as many

A hybrid stands where the trainer does, whose devices it shares, and the trainer comes back to where hybrids are.

Data, scorer and ranker stand beside the controller, on none of them: a machine's death costs nobody's work but its own members'
(RobustRL, section 3). A machine that is given up is chosen only where no other is left.
"""

from __future__ import annotations

from collections.abc import Sequence

TRAINER, REPLICA, HYBRID = "trainer", "replica", "hybrid"
BESIDE = frozenset({"data", "scorer", "ranker"})
"""Roles that stand on no machine."""


def machine_for(role: str, machines: Sequence[str], standing: Sequence[tuple[str, str]]) -> str:
    """The machine for a member that is about to start; empty for a role that stands on none.

    Args:
        role: its role; that of a replica on the trainer's devices is "hybrid" here.
        machines: names of the machines that may be used, in order, at least one.
        standing: role and machine of every other member, of those too that are starting there.
    """
    if role in BESIDE:
        return ""

    def cost(machine: str) -> tuple[int, ...]:
        here = [other for other, where in standing if where == machine]
        if role == TRAINER:
            return (-here.count(HYBRID), here.count(REPLICA))
        if role == HYBRID:
            return (int(TRAINER not in here), -here.count(HYBRID), len(here))
        return (int(role == REPLICA and TRAINER in here), here.count(role), len(here))

    return min(machines, key=cost)
