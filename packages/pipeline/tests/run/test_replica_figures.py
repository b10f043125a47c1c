"""Replicas added and removed, on logs worked out by hand."""

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.figures.replicas import ReplicaFigures


def figures(*instants):
    found = ReplicaFigures()
    follow((Instant(float(now), [], commands) for now, commands in enumerate(instants)), found)
    return found.plain()


def start(name, role="replica"):
    return c.Start(1, role, name)


def test_those_of_the_start_are_not_added_and_what_failed_is_not_removed():
    begins = [start("0", "data"), start("r0"), start("r1")]
    assert figures(begins) == {"replicas_added": 0, "replicas_removed": 0}
    failed = c.Stop(5, "replica", "r0", c.Reason(c.Why.STILL, numbers={"still_s": 3.0, "limit_s": 2.0}))
    assert figures(begins, [c.Restart(4, "replica", "r1")], [failed]) == {"replicas_added": 0, "replicas_removed": 0}
    slower = {"generation_s": 5.0, "training_s": 9.0, "cost_s": 1.0}
    stop = c.Stop(7, "replica", "r2", c.Reason(c.Why.TRAINING_SLOWER, numbers=slower))
    found = figures(begins, [start("r2")], [start("1", "relay")], [stop], [start("r3")])
    assert found == {"replicas_added": 2, "replicas_removed": 1}
