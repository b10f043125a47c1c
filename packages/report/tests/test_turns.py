"""Turns as the log tells them: who is where at each instant, what the report and the story of a trajectory say of it."""

import dataclasses
import json
from collections import Counter

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.report.charts.chart import TimeAxis
from tailrace.report.charts.turns import turn_charts
from tailrace.report.explain import explain
from tailrace.report.final_status import standing
from tailrace.report.fold.turns import Where
from tailrace.report.record import read_record
from tailrace.report.run_page import render
from tailrace.report.run_tables import session_table, turn_facts

from .conftest import STALEFLOW, a_run, configured, folded, simulated
from .test_standing import Status, written

ENVIRONMENT = {"calls": {"counts": {"1": 0.5, "3": 0.5}}, "latency": {"median": 8.0, "sigma": 0.8}}
WORKLOAD = {"response": [{"median": 400, "sigma": 0.9}], "environment": ENVIRONMENT}


def with_turns(pipeline=None, **changes):
    pipeline = {} if pipeline is None else pipeline
    return configured(pipeline, steps=3, workload=WORKLOAD, faults=["environment@step1", "replica:r1@60s"], **changes)


class Beside(Status):
    """Looks at the controller's view at every instant, and compares it with a walk of its own over the log."""

    def __init__(self, directory, **more):
        super().__init__(directory, **more)
        self.seen, self.rows, self.away, self.calls = 0, [], {}, {}

    def observe(self, now, events, commands, run):
        super().observe(now, events, commands, run)
        for event in events:
            if isinstance(event, c.TurnEnded):
                self.away[event.trajectory] = event.replica
            elif isinstance(event, c.Turned) and self.calls.get(event.trajectory) == event.answers:
                del self.calls[event.trajectory], self.away[event.trajectory]
            elif isinstance(event, c.Down) and event.role == "environment":
                self.calls.clear()
        for command in commands:
            if isinstance(command, c.Call):
                self.calls.update(dict.fromkeys(command.trajectories, command.seq))
            elif isinstance(command, c.Abort | c.Close):
                for name in command.trajectories:
                    self.calls.pop(name, None)
                    self.away.pop(name, None)
        assert run.answering == len(self.calls), now
        assert run.answering + run.waiting_turns == len(self.away), now
        self.seen += bool(self.away)
        self.rows.append([(row.doing, row.sessions, row.answering) for row in run.environments()])


@pytest.fixture(scope="module", params=["laminar", "staleflow"])
def run(request, tmp_path_factory):
    seen = []

    def observe(directory):
        seen.append(Beside(directory))
        return seen[0]

    config = with_turns({"laminar": {}, "staleflow": STALEFLOW}[request.param])
    directory, simulation = a_run(tmp_path_factory.mktemp("runs") / "run", config, observe=observe)
    return directory, simulation, seen[0]


def test_at_each_instant_it_knows_who_is_where(run):
    _, simulation, beside = run
    assert beside.seen > 20
    assert {doing for (row,) in beside.rows for doing in row[:1]} >= {"idle", "answering", "starting"}
    assert max(answering for ((_, _, answering),) in beside.rows) > 4
    assert all(answering <= sessions for ((_, sessions, answering),) in beside.rows)
    assert simulation.controller.view.finished


def test_the_status_has_its_environments_while_it_runs_and_latencies_after(run):
    directory, simulation, beside = run
    beside.phase("done")
    status, record = written(directory), read_record(directory)
    assert (status.environments, status.waiting_turns) == ([], 0)
    assert status.turns == simulation.controller.view.counts.turns > 0
    shown = standing(record, status)
    assert shown.turns == status.turns
    assert shown.answer_p50_s == pytest.approx(status.answer_p50_s, rel=0.05)
    assert shown.answer_p99_s == pytest.approx(status.answer_p99_s, rel=0.2)
    assert 4.0 < status.answer_p50_s < 16.0 < status.answer_p99_s


def test_responses_count_by_their_turns_and_time_by_where_it_was_spent(run):
    directory, _, _ = run
    folds = read_record(directory).folds
    counts = Counter(folds.run.counts.turns_of_each)
    assert set(counts) <= {1, 2, 3, 4}  # one turn more than calls, unless a response was cut
    assert counts[2] > 0 < counts[4]
    trained = sum(len(batch.lengths) for batch in folds.batches.trained)
    assert counts.total() >= trained > 0
    shares = folds.turns.shares()
    assert sum(shares) == pytest.approx(1.0)
    assert shares[Where.ENVIRONMENT] > 0.3
    assert shares[Where.REPLICA] > 0.05


def test_its_charts_and_its_table_show_all_of_it(run):
    directory, _, _ = run
    record = read_record(directory)
    counts = Counter(record.folds.run.counts.turns_of_each)
    where, lengths, latency = turn_charts(record, TimeAxis.for_length(record.last_s))
    assert sum(lengths.data[0]["y"]) == counts.total()
    assert [trace["name"] for trace in latency.data] == ["p99", "p50"]
    assert all(high >= low for high, low in zip(latency.data[0]["y"], latency.data[1]["y"], strict=True))
    assert any(trace["name"].startswith("an environment answers (") for trace in where.data)
    rows = {row[0]: int(row[1].replace(",", "")) for row in session_table(record).rows}
    assert sum(rows.values()) == record.folds.run.counts.turns
    assert rows["answered in a session replayed from its first turn"] > 0
    html = render(record)
    assert '<section id="turns">' in html
    drawn = {chart["id"] for chart in json.loads(html.split('id="charts">')[1].split("</script>")[0])}
    assert drawn >= {"turns", "turns-where", "turns-latency"}


def test_responses_that_a_limit_ended_are_told_from_those_that_ended_by_themselves():
    low = dataclasses.replace(build_fleet(with_turns()), batches=None)
    low.workload.max_tokens = 300  # as if every response of so many had been ended by it
    simulation = Simulation(low)
    simulation.run()
    folds = folded(simulation)
    lengths = [length for batch in folds.batches.trained for length in batch.lengths]
    truncated = sum(folds.batches.truncated[batch.version] for batch in folds.batches.trained)
    assert 0 < truncated < len(lengths)
    assert truncated == sum(length >= 300 for length in lengths)


def test_the_story_of_a_trajectory_tells_its_turns_and_the_death_of_its_environment(run):
    directory, simulation, _ = run
    calls, died, struck = {}, None, None
    for _, events, commands in simulation.log.instants:
        if died is None and any(isinstance(event, c.Down) and event.role == "environment" for event in events):
            died, struck = True, sorted(calls)
        for event in events:
            if isinstance(event, c.Turned):
                calls.pop(event.trajectory, None)
        for command in commands:
            if isinstance(command, c.Call):
                calls.update(dict.fromkeys(command.trajectories))
    told = [line.text for name in struck for line in explain(directory, name)]
    assert any("environment 0 is down: " in text and "its turn waits for one that is up" in text for text in told)
    for name in struck[:4]:
        told = [line.text for line in explain(directory, name)]
        asked = [text for text in told if text.startswith("environment 0 is to answer turn ")]
        ended = [text for text in told if text.startswith("ended turn ")]
        assert [text.split()[2] for text in ended] == [str(1 + place) for place in range(len(ended))], told
        assert {text.rsplit(" ", 1)[1] for text in asked} == {str(1 + place) for place in range(len(ended))}, told
        assert len(asked) > len(ended)  # the answer that was under way was asked for again


def test_a_run_without_turns_has_none_of_it(tmp_path):
    directory, _ = a_run(tmp_path / "run", configured(steps=1))
    record = read_record(directory)
    assert turn_charts(record, TimeAxis.for_length(record.last_s)) == []
    assert session_table(record).rows == []
    assert record.folds.turns.shares() == []
    assert 'id="turns"' not in render(record)
    assert set(record.folds.run.counts.turns_of_each) == {1}


def test_a_run_with_turns_says_so_in_its_facts():
    folds = folded(simulated(with_turns()))
    turns, ended = folds.turns, folds.run.counts.turns
    assert sum(turns.answers.values()) == turns.latencies.count == ended > 0
    (name, said), (sessions, became) = turn_facts(folds)
    assert (name, sessions) == ("turns", "sessions restored / replayed / lost")
    assert said.startswith(f"{ended:,}; an environment takes ")
    assert became == f"0 / {turns.answers[c.SessionOrigin.REPLAYED]} / 0"
    assert turn_facts(folded(simulated(configured(steps=1)))) == []
