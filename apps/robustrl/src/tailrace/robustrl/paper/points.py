"""The points of RobustRL's evaluation: three workloads in three modes, by RobustRL, by ByteRobust, and without a fault."""

from __future__ import annotations

from itertools import product

from tailrace.fleetsim.reproduce import Parameters, Point

PACKAGE = "tailrace.robustrl.paper"
PARAMETERS = Parameters(PACKAGE)
value = PARAMETERS.value

WORKLOADS = ("8b-math", "32b-math", "32b-swe")
MODES = ("async", "semi-sync", "sync")
SETTINGS = tuple(product(WORKLOADS, MODES))
STEPS, QUICK_STEPS = 100, 30
"""The paper's steps, and those of a quick look: one fault of the trainer in each ten."""


def robustrl(workload: str, mode: str, *, quick: bool) -> Point:
    """RobustRL, with a fault of the trainer in every ten steps (section 7.1)."""
    steps = QUICK_STEPS if quick else STEPS
    return Point(PACKAGE, f"fleet-{workload}-{mode}", (("pipeline.steps", steps),), probe="effective")


def byterobust(workload: str, mode: str, *, quick: bool) -> Point:
    """The baseline: every fault restarts the whole task, from its last checkpoint."""
    return robustrl(workload, mode, quick=quick).over(
        pipeline__recovery="restart-task",
        publish__fence=False,
        checkpoint__every=int(value("checkpoint.every")),
        fleet__delays__trainer_restart_s=value("task_restart_s"),  # replicas wait for its weights
    )


def fault_free(workload: str, mode: str, *, quick: bool) -> Point:
    """The same without a fault."""
    return robustrl(workload, mode, quick=quick).over(faults=())
