"""Turns as the log tells them: who is where at each instant, what the report and the story of a trajectory say of it."""

import dataclasses
import json

import pytest

from tailrace import contracts as c
from tailrace.controller.trajectories import Phase
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.run.build import build_spec
from tailrace.report.charts.chart import TimeAxis
from tailrace.report.charts.turns import turn_charts
from tailrace.report.explain import explain
from tailrace.report.fold.folds import Folds
from tailrace.report.fold.whereabouts import Where
from tailrace.report.record import read_record
from tailrace.report.run_page import render
from tailrace.report.run_tables import session_table, turn_facts
from tailrace.report.standing import standing

from .conftest import STALEFLOW, a_run, configured, simulated
from .test_standing import Status, written

ENVIRONMENT = {"calls": {"counts": {"1": 0.5, "3": 0.5}}, "latency": {"median": 8.0, "sigma": 0.8}}
WORKLOAD = {"response": [{"median": 400, "sigma": 0.9}], "environment": ENVIRONMENT}


def with_turns(pipeline=None, **changes):
    pipeline = {} if pipeline is None else pipeline
    return configured(pipeline, steps=3, workload=WORKLOAD, faults=["environment@step1", "replica:r1@60s"], **changes)


class Beside(Status):
    """Folds as the run goes on, and compares with the controller at every instant."""

    def __init__(self, directory, **more):
        super().__init__(directory, **more)
        self.simulation, self.folds, self.seen, self.rows = None, None, 0, []

    def observe(self, now, events, commands, run):
        super().observe(now, events, commands, run)
        if self.folds is None:
            self.folds = Folds(run._parts.spec)
        self.folds.observe(now, events, commands)
        parts, history = run._parts, self.folds.history
        known = parts.ledger.trajectories
        away = {name for name, state in known.items() if state.phase is Phase.IN_ENVIRONMENT}
        assert history.away.keys() == away, now
        if not any(member["role"] == "environment" for member in run.members_down()):
            assert history.answering == len(parts.sessions.calls), now
        pooled = {
            name for name, state in known.items() if state.phase is Phase.PENDING and name in history.trajectories
        }
        assert history.pending.keys() == pooled, now
        self.seen += bool(away)
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
    counts = folds.history.turns_of_each
    assert set(counts) <= {1, 2, 3, 4}  # one turn more than calls, unless a response was cut
    assert counts[2] > 0 < counts[4]
    trained = sum(len(batch.lengths) for batch in folds.batches.trained)
    assert counts.total() >= trained > 0
    shares = folds.whereabouts.shares()
    assert sum(shares) == pytest.approx(1.0)
    assert shares[Where.ENVIRONMENT] > 0.3
    assert shares[Where.REPLICA] > 0.05


def test_its_charts_and_its_table_show_all_of_it(run):
    directory, _, _ = run
    record = read_record(directory)
    history = record.folds.history
    where, lengths, latency = turn_charts(record, TimeAxis.for_length(record.last_s))
    assert sum(lengths.data[0]["y"]) == history.turns_of_each.total()
    assert [trace["name"] for trace in latency.data] == ["p99", "p50"]
    assert all(high >= low for high, low in zip(latency.data[0]["y"], latency.data[1]["y"], strict=True))
    assert any(trace["name"].startswith("an environment answers (") for trace in where.data)
    rows = {row[0]: int(row[1].replace(",", "")) for row in session_table(record).rows}
    assert sum(rows.values()) == history.turns
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
    folds = Folds(simulation.fleet.spec)
    for instant in simulation.log.instants:
        folds.observe(*instant)
    lengths = [length for batch in folds.batches.trained for length in batch.lengths]
    truncated = sum(folds.batches.truncated[batch.version] for batch in folds.batches.trained)
    assert 0 < truncated < len(lengths)
    assert truncated == sum(length >= 300 for length in lengths)


def test_a_turn_may_be_the_last_for_its_length():
    folds = Folds(build_spec(configured(steps=1)))
    ref = c.TrajectoryRef("0.0", 0, 0, prompt=0)
    for events, commands in (
        ([], [c.Start(1, "replica", "r0")]),
        ([c.Up("replica", "r0"), c.Pulled("r0", 0)], [c.Route(2, "r0", (ref,))]),
        ([c.TurnEnded("r0", "0.0", 9)], [c.Call(3, "0", ("0.0",))]),
        ([c.Turned("0.0", 1, 12, True, 0.5, 3, reason=c.FinishReason.LENGTH)], []),
    ):
        folds.observe(1.0, events, commands)  # type: ignore[arg-type]
    known = folds.history.trajectories["0.0"]
    assert (known.finished, known.truncated, known.turns) == (True, True, 0)
    assert folds.history.turns_of_each == {1: 1}


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
    assert record.folds.whereabouts.shares() == []
    assert 'id="turns"' not in render(record)
    assert set(record.folds.history.turns_of_each) == {1}


def test_a_run_with_turns_says_so_in_its_facts():
    simulation = simulated(with_turns())
    folds = Folds(simulation.fleet.spec)
    for instant in simulation.log.instants:
        folds.observe(*instant)
    history = folds.history
    assert history.turns == simulation.controller.view.counts.turns > 0
    assert sum(history.answers.values()) == history.latencies.count == history.turns
    (turns, said), (sessions, became) = turn_facts(history)
    assert (turns, sessions) == ("turns", "sessions restored / replayed / lost")
    assert said.startswith(f"{history.turns:,}; an environment takes ")
    assert became == f"0 / {history.answers[c.SessionOrigin.REPLAYED]} / 0"
    assert turn_facts(Folds(build_spec(configured(steps=1))).history) == []
