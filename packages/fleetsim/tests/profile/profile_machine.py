"""A small machine, and clocks of known work."""

from tailrace.fleetsim.profile.machine import (
    Curve,
    DecodePart,
    DelaysPart,
    MachineProfile,
    PrefillPart,
    SharingPart,
    TrainingPart,
    WeightsPart,
    WorkloadPart,
)
from tailrace.fleetsim.profile.samples import ClockReading

FLAT = Curve(points=((0.0, 0.0),))
GROUPS = (
    (0, 12, (10, 10, 12, 11), (1.0, 0.0, 1.0, 0.0)),
    (1, 15, (40, 44, 41, 40), (0.0, 0.0, 0.0, 0.0)),
    (2, 13, (20, 20, 21, 22), (1.0, 1.0, 1.0, 1.0)),
    (3, 11, (5, 6, 5, 9), (0.0, 1.0, 0.0, 0.0)),
)


def machine(**changes):
    parts = {
        "format": 1,
        "name": "small",
        "measured": "by hand",
        "engine": "fake",
        "replicas": 2,
        "decode": DecodePart(k1=1e-6, k2=2e-3, k3=1e-4, k4=5e-3, kv_capacity_tokens=4096, block_tokens=32),
        "prefill": PrefillPart(per_token_s=1e-5, per_trajectory_s=1e-4),
        "training": TrainingPart(fixed_s=0.01, per_token_s=4e-5, per_square_token_s=1e-7, batch_s=0.02),
        "weights": WeightsPart(publish_s=0.002, visible_s=0.01, pull_s=0.02),
        "delays": DelaysPart(
            route_s=0.01,
            report_s=0.05,
            snapshot_s=0.25,
            score_s=0.02,
            checkpoint_s=0.01,
            durable_s=0.1,
            start_replica_s=2.0,
            start_trainer_s=1.0,
        ),
        "sharing": SharingPart(cores=2, others=0.2),
        "workload": WorkloadPart(groups=GROUPS, signal=FLAT, length=FLAT),
    }
    return MachineProfile(**{**parts, **changes})


def clock(wall_s, busy_s=None):
    """A moment of a process that computed for so long."""
    busy_s = wall_s if busy_s is None else busy_s
    return ClockReading(wall_s, busy_s, busy_s)
