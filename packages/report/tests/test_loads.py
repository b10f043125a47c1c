"""Loads: what runs on each replica, between snapshots too, against a plain walk over the log's lines."""

import json

import pytest

from tailrace import contracts as c
from tailrace.report.charts.chart import TimeAxis
from tailrace.report.charts.loads import heat_charts, throughput_chart
from tailrace.report.fold.loads import FIRST_LAG, Loads
from tailrace.report.fold.timeline import Doing
from tailrace.report.record import read_record

from .conftest import a_run, configured


class Fleet:
    """What a controller says of replicas: those that are named, which hold so many trajectories on version 1."""

    def __init__(self, *names):
        self.version = 1
        self.counts = dict.fromkeys(names, 0)

    def holds(self, replica, count):
        self.counts[replica] = count

    def held(self, replica):
        return self.counts.get(replica, 0)

    def serves(self, replica):
        return 1 if replica in self.counts else None


def hear(loads, now, *ones):
    """One instant."""
    for one in ones:
        if type(one) in loads.hears:
            loads.hears[type(one)](float(now), one)
    loads.settle(float(now))


def route(replica):
    return c.Route(1, replica, ())


def snapshot(replica, running, waiting=0):
    return c.Snapshot(replica, running / 10, running, waiting, 0, 1, 1)


def test_what_comes_and_goes_between_snapshots_runs():
    """A snapshot before the route says that nothing runs, and one behind the end says so too."""
    fleet = Fleet("r0")
    loads = Loads(fleet)  # type: ignore[arg-type]
    loads.watch(["r0"], ["r0"])
    hear(loads, 0, snapshot("r0", 0))
    fleet.holds("r0", 4)
    hear(loads, 1, route("r0"))
    fleet.holds("r0", 1)
    hear(loads, 3, c.Finished("r0", "0.0", 1))
    fleet.holds("r0", 0)
    hear(loads, 4, c.Interrupted("r0", "0.1", 1), snapshot("r0", 0))
    hear(loads, 10, c.Tick())
    loads.close()
    assert loads.running.row(0) == pytest.approx([(2 * 4 + 1) / 10])
    assert loads.busy.row(0) == pytest.approx([3 / 10])
    assert loads.while_busy(0.0, 10.0) == pytest.approx((3.0, 0.0))


def test_what_queues_in_an_engine_does_not_run():
    """One snapshot's queue may be of the moment at which the engine took its work over."""
    fleet = Fleet("r0")
    loads = Loads(fleet)  # type: ignore[arg-type]
    loads.watch(["r0"], ["r0"])
    fleet.holds("r0", 10)
    hear(loads, 0, route("r0"))
    hear(loads, 1, snapshot("r0", 0, 10), c.Tick())
    hear(loads, 2, snapshot("r0", 6, 4), c.Tick())
    hear(loads, 3, c.Tick())
    loads.close()
    assert loads.running.row(0) == [10, 10, 6]


def test_one_that_joins_has_a_row_and_one_that_is_down_runs_nothing():
    fleet = Fleet("r0")
    loads = Loads(fleet)  # type: ignore[arg-type]
    loads.watch(["r0"], ["r0"])
    fleet.holds("r0", 4)
    hear(loads, 0, route("r0"), snapshot("r0", 4))
    hear(loads, 1, c.Tick())
    hear(loads, 2, c.Start(1, "replica", "r1"), c.Start(2, "relay", "1"), c.Tick())
    fleet.holds("r1", 2)
    hear(loads, 2, c.Up("replica", "r1"), route("r1"), snapshot("r1", 2))
    hear(loads, 3, c.Tick())
    fleet.holds("r0", 0)
    hear(loads, 3, c.Down("replica", "r0", "killed", c.Cause.DIED))
    hear(loads, 4, c.Tick())
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
    loads = Loads(Fleet("r0", "r1"))  # type: ignore[arg-type]
    loads.watch(["r0"], ["r0", "r1"])
    hear(loads, 1, c.Start(1, "replica", "r1"), c.Start(2, "replica", "r2"), snapshot("r2", 3), c.Tick())
    assert (loads.replicas, loads.of) == (("r0",), 3)
    assert loads.running.row(0) == [0]


def walked(path):
    """When how many trajectories were on each replica: plain JSON, and nothing of the folds."""
    held, steps = {}, {}
    for line in path.read_text().splitlines()[1:]:
        instant = json.loads(line)
        for event in instant["events"]:
            if event["is"] in ("Finished", "Interrupted", "Refused", "TurnEnded"):
                held.setdefault(event["replica"], set()).discard(event["trajectory"])
            elif event["is"] == "Down" and event["role"] == "replica":
                held[event["id"]] = set()
        for command in instant["commands"]:
            if command["is"] == "Route":
                held.setdefault(command["replica"], set()).update(ref["trajectory"] for ref in command["trajectories"])
        for replica, names in held.items():
            steps.setdefault(replica, []).append((instant["t"], len(names)))
    return steps


def trajectory_seconds(steps, until_s):
    ends = [at for at, _ in steps[1:]] + [until_s]
    return sum(count * (min(end, until_s) - at) for (at, count), end in zip(steps, ends, strict=True) if at < until_s)


def test_the_heat_map_is_what_the_log_says(tmp_path):
    """Its area is that of the plain walk, and nowhere is it empty while the timeline says that its replica generates."""
    directory, _ = a_run(tmp_path / "run", configured(faults=["replica:r1@30s"]))
    record = read_record(directory)
    loads, steps = record.folds.loads, walked(directory.events)
    ends = loads.running.ends_s
    assert set(loads.replicas) == set(steps)
    for place, name in enumerate(loads.replicas):
        row = loads.running.row(place)
        shown = sum(mean * (end - begin) for mean, begin, end in zip(row, [0.0, *ends], ends, strict=False))
        assert shown == pytest.approx(trajectory_seconds(steps[name], ends[-1]), rel=1e-9)
        for span in record.folds.timeline.spans:
            if (span.role, span.member, span.doing) == ("replica", name, Doing.GENERATING):
                inside = [mean for mean, end in zip(row, ends, strict=True) if span.start_s < end <= span.end_s]
                assert all(mean > 0 for mean in inside), (name, span)


def test_a_log_whose_snapshots_come_between_its_work_shows_the_work():
    """The engine is faster than its snapshots: each of these says that nothing runs."""
    fleet = Fleet("r0")
    loads = Loads(fleet)  # type: ignore[arg-type]
    loads.watch(["r0"], ["r0"])
    for second in range(10):
        hear(loads, second, snapshot("r0", 0), c.Tick())
        fleet.holds("r0", 1)
        hear(loads, second, route("r0"))
        fleet.holds("r0", 0)
        hear(loads, second + 0.9, c.Finished("r0", f"900.{second}", 5))
    hear(loads, 10, snapshot("r0", 0), c.Tick())
    loads.close()
    assert loads.running.row(0)[-10:] == pytest.approx([0.9] * 10)


def test_the_share_of_the_kv_cache_is_that_of_the_time_in_which_work_runs():
    """Half of each stretch between two samples is idle: what was in use in the other half is no less for it."""
    fleet = Fleet("r0")
    loads = Loads(fleet)  # type: ignore[arg-type]
    loads.watch(["r0"], ["r0"])
    for second in range(0, 20, 2):
        fleet.holds("r0", 8)
        hear(loads, second, route("r0"), snapshot("r0", 8))
        fleet.holds("r0", 0)
        hear(loads, second + 1, c.Finished("r0", "0.0", 1), *([snapshot("r0", 0)] if second % 4 else []))
        hear(loads, second + 2, c.Tick())
    loads.close()
    assert loads.kv.row(0) == pytest.approx([0.4] * 10)
    assert loads.while_busy(0.0, 20.0) == pytest.approx((8.0, 0.8))


def test_a_step_s_rate_is_drawn_over_the_time_until_its_end(tmp_path):
    """The area below the curve is what was trained on, step by step."""
    record = read_record(a_run(tmp_path / "run", configured())[0])
    time = TimeAxis.for_length(record.last_s)
    trained = throughput_chart(record, time).data[-1]
    assert (trained["name"], trained["line"]["shape"]) == ("trained on", "vh")
    begins, ends, rates = trained["x"], trained["x"][1:], trained["y"][1:]
    areas = [rate * (end - begin) for begin, end, rate in zip(begins, ends, rates, strict=False)]
    assert areas == pytest.approx([sum(batch.lengths) * time(1.0) for batch in record.batches], rel=1e-3)
