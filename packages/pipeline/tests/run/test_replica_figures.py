"""Replicas added and removed, on logs worked out by hand."""

import dataclasses

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
    none = {"replicas_added": 0, "replicas_removed": 0, "served_digests_checked": 0}
    assert figures(begins) == none
    failed = c.Stop(5, "replica", "r0", c.Reason(c.Why.STILL, numbers={"still_s": 3.0, "limit_s": 2.0}))
    assert figures(begins, [c.Restart(4, "replica", "r1")], [failed]) == none
    slower = {"generation_s": 5.0, "training_s": 9.0, "cost_s": 1.0}
    stop = c.Stop(7, "replica", "r2", c.Reason(c.Why.TRAINING_SLOWER, numbers=slower))
    found = figures(begins, [start("r2")], [start("1", "relay")], [stop], [start("r3")])
    assert found == {**none, "replicas_added": 2, "replicas_removed": 1}


def test_pulls_whose_weights_were_compared_are_counted():
    found = ReplicaFigures()
    pulls = [c.Pulled("r0", version, compared=share) for version, share in ((0, 0.3), (1, 0.0), (2, 1.0))]
    follow((Instant(float(now), [event], []) for now, event in enumerate(pulls)), found)
    assert found.plain()["served_digests_checked"] == 2


def test_pulls_from_replicas_are_counted_where_they_offer_what_they_serve():
    found = ReplicaFigures()
    ups = [
        c.Up("relay", "0", address="relay at"),
        c.Up("replica", "r0", address="r0 at"),
        c.Up("replica", "r1", address="r1 at"),
    ]
    pulls = [c.Pulled("r0", 0, source="relay at"), c.Pulled("r1", 0, source="r0 at"), c.Pulled("r0", 1, source="r1 at")]
    found.observe(0.0, ups, [])
    found.observe(1.0, [*pulls, c.Pulled("r1", 1)], [])
    assert found.plain()["pulled_from_replicas"] == 2
    assert "pulled_from_replicas" not in figures([start("r0")])


def test_what_sleep_freed_is_that_of_the_sleep_that_freed_most():
    def shown(name, asleep, awake_bytes, memory_bytes):
        snapshot = c.Snapshot(name, 0.0, 0, 0, 0, 1, 1)
        return dataclasses.replace(snapshot, asleep=asleep, awake_bytes=awake_bytes, memory_bytes=memory_bytes)

    found = ReplicaFigures()
    looks = [
        shown("r0", 0, 0, 0),
        shown("r0", 1, 900, 500),
        shown("r0", 1, 900, 500),  # still asleep
        shown("r1", 1, 900, 200),
        shown("r0", 0, 900, 890),
        shown("r1", 0, 0, 0),  # another process took its place, which never slept
        shown("r1", 1, 900, 100),
        shown("r0", 1, 900, 600),
        shown("r1", 0, 900, 880),
        shown("r1", 0, 900, 880),
    ]
    follow((Instant(float(now), [event], []) for now, event in enumerate(looks)), found)
    assert found.plain()["sleep"] == {
        "times": 4,
        "awake_bytes": 900,
        "asleep_bytes": 100,
        "awake_again_bytes": 880,
    }
    assert "sleep" not in figures([start("r0")])
