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


def test_what_loans_took_and_freed():
    """Two loans are counted, one of a replica that died asleep; times are those of the instants, in seconds."""
    found = ReplicaFigures()
    log = [
        (0.0, [], [c.Lend(1, "r0", (0,)), c.Lend(2, "r1", (1,))]),
        (1.0, [c.Lent("r0", 1, 1, 0.5, 900, 500)], []),
        (3.0, [c.Lent("r1", 2, 1, 0.5, 900, 200), c.Accumulated(1, ("0.0",), {"wall_s": 9.0}, 3, cell=0)], []),
        (4.0, [c.Stepped(1, {"onload_s": 0.25, "onload_bytes": 70.0}, 4)], [c.Offload(5, 0), c.Offload(6, 1)]),
        (6.0, [c.Offloaded(0, 5, 1.5, 80), c.Offloaded(1, 6, 0.5, 60), c.Down("replica", "r1", "killed")], []),
        (6.5, [], [c.Return(7, "r0")]),
        (7.0, [c.Returned("r0", 7, 0.4, 890), c.Returned("r0", 7, 0.4, 890)], []),
        (8.0, [], [c.Lend(8, "r0", (0,))]),
        (8.5, [c.Lent("r0", 8, 0)], []),
    ]
    follow((Instant(now, events, commands) for now, events, commands in log), found)
    assert (found.lend_s, found.return_s) == ([1.0, 3.0, 0.5], [2.5])
    plain = found.plain()
    assert plain["sleep"] == {"times": 2, "awake_bytes": 900, "asleep_bytes": 200, "awake_again_bytes": None}
    assert (plain["loans"], plain["lend_s"], plain["return_s"]) == (3, 1.5, 2.5)
    assert plain["offload"] == {"times": 2, "seconds": 1.0, "bytes": 80}
    assert plain["onload"] == {"times": 1, "seconds": 0.25, "bytes": 70}
    assert figures([start("r0")]).keys() == {"replicas_added", "replicas_removed", "served_digests_checked"}


def test_a_loan_that_the_trainer_did_not_leave_itself_counts_from_its_return():
    """The trainer leaves the first loan in 50 s, and goes down in the second."""
    found = ReplicaFigures()
    log = [
        (0.0, [], [c.Lend(1, "r0", (0,))]),
        (1.0, [c.Lent("r0", 1, 0)], [c.Offload(2, 0)]),
        (51.0, [c.Offloaded(0, 2, 49.0, 80)], [c.Return(3, "r0")]),
        (52.0, [c.Returned("r0", 3)], [c.Lend(4, "r0", (0,))]),
        (53.0, [c.Lent("r0", 4, 0)], []),
        (60.0, [c.Down("trainer", "0", "killed")], [c.Return(5, "r0")]),
        (61.0, [c.Returned("r0", 5)], []),
    ]
    follow((Instant(now, events, commands) for now, events, commands in log), found)
    assert found.return_s == [51.0, 1.0]


def test_what_sleep_freed_is_that_of_the_sleep_that_freed_most():
    found = ReplicaFigures()
    sleeps = [("r0", 900, 500, 890), ("r1", 900, 100, 880), ("r0", 900, 600, 870)]
    for number, (name, awake, asleep, again) in enumerate(sleeps):
        seq, now = 10 * number, float(number)
        instants = [
            Instant(now, [], [c.Lend(seq, name, (0,))]),
            Instant(now, [c.Lent(name, seq, 2, 0.1, awake, asleep)], [c.Return(seq + 1, name)]),
            Instant(now, [c.Returned(name, seq + 1, 0.1, again)], []),
        ]
        follow(iter(instants), found)
    assert found.plain()["sleep"] == {
        "times": 3,
        "awake_bytes": 900,
        "asleep_bytes": 100,
        "awake_again_bytes": 880,
    }
