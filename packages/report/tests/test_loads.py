"""Loads of replicas that come and go: each has its row from the moment at which it is started."""

from types import SimpleNamespace

from tailrace import contracts as c
from tailrace.report.charts.chart import TimeAxis
from tailrace.report.charts.loads import heat_charts
from tailrace.report.fold.loads import FIRST_LAG, Loads


def hear(loads, now, *events):
    for event in events:
        if type(event) in loads.hears:
            loads.hears[type(event)](float(now), event)


def snapshot(replica, running):
    return c.Snapshot(replica, running / 10, running, 0, 0, 1, 1)


def test_one_that_joins_has_a_row_and_one_that_is_down_runs_nothing():
    loads = Loads(SimpleNamespace(version=1))
    loads.watch(["r0"], ["r0"])
    hear(loads, 1, snapshot("r0", 4), c.Tick())
    hear(loads, 2, c.Start(1, "replica", "r1"), c.Start(2, "relay", "1"), c.Tick())
    hear(loads, 3, c.Up("replica", "r1"), snapshot("r1", 2), c.Tick())
    hear(loads, 4, c.Down("replica", "r0", "killed", c.Cause.DIED), c.Tick())
    hear(loads, 5, c.Start(3, "replica", "r1"), c.Tick())  # again, by another driver
    loads.close()
    assert (loads.replicas, loads.of) == (("r0", "r1"), 2)
    assert [loads.running.row(place) for place in range(2)] == [[4, 4, 4, 0, 0], [0, 0, 2, 2, 2]]
    assert [loads.kv.row(place) for place in range(2)] == [[0.4, 0.4, 0.4, 0, 0], [0, 0, 0.2, 0.2, 0.2]]
    assert loads.flow.row(FIRST_LAG) == [4, 4, 6, 2, 2]  # none is behind
    running, kv = heat_charts(loads, (0.0, 5.0), TimeAxis.for_length(5.0))
    assert running.data[0]["y"] == kv.data[0]["y"] == ["r0", "r1"]
    assert "of the" not in running.note


def test_where_only_some_are_watched_a_later_one_is_counted():
    loads = Loads(SimpleNamespace(version=1))
    loads.watch(["r0"], ["r0", "r1"])
    hear(loads, 1, c.Start(1, "replica", "r1"), c.Start(2, "replica", "r2"), snapshot("r2", 3), c.Tick())
    assert (loads.replicas, loads.of) == (("r0",), 3)
    assert loads.running.row(0) == [0]
