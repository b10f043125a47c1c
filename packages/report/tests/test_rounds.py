"""Rounds in the report and in the story of a trajectory whose prompt was deferred."""

import pytest

from tailrace import contracts as c
from tailrace.controller.view import MemberRow
from tailrace.pipeline.config.task import TaskConfig
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.folding import follow
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.report.charts.rounds import round_charts
from tailrace.report.explain import explain
from tailrace.report.figures.system import utilisation
from tailrace.report.fold.interruptions import Interruptions
from tailrace.report.fold.outages import Outages
from tailrace.report.fold.timeline import Doing, Timeline
from tailrace.report.reason_words import WAITS
from tailrace.report.record import read_record
from tailrace.report.run_page import render
from tailrace.report.run_tables import loan_table, round_table
from tailrace.trajstore import MixOrder

from .conftest import a_run, configured

TAIL_BATCHING = {
    "admission": "on-policy",
    "sync": "barrier",
    "relocation": "none",
    "batching": {"name": "tail-batching", "prompt_factor": 1.5, "sample_factor": 1.25},
}
MIX = TaskConfig(mix={"short-chain-sum": 3.0, "programs": 1.0}, held_out_size=12)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = configured(TAIL_BATCHING, steps=9).model_copy(update={"task": MIX})
    directory, simulation = a_run(tmp_path_factory.mktemp("runs") / "run", config)
    return directory, simulation, read_record(RunDirectory.open(directory.root))


def test_every_round_has_a_row_and_every_prompt_is_in_one(run):
    _, simulation, record = run
    rounds, queued = record.folds.rounds, simulation.controller.view.counts.queued
    assert [one.version for one in rounds.rounds] == list(range(1, 10))
    assert {one.kind for one in rounds.rounds} == {"short", "long"}
    kept = [prompt for one in rounds.rounds for prompt in one.prompts]
    assert len(set(kept)) == len(kept) == 9 * 4
    assert queued.keys().isdisjoint(kept)
    assert sum(one.deferred for one in rounds.rounds) == sum(
        len(one.prompts) for one in rounds.rounds if one.kind == "long"
    ) + len(queued)
    rows = round_table(record).rows
    assert [row[1] for row in rows] == [one.kind for one in rounds.rounds]
    assert all(one.wasted > 0 for one in rounds.rounds if one.kind == "short")


def test_charts_show_kinds_waste_and_the_mix(run):
    _, _, record = run
    seconds, waste, mix = round_charts(record)
    assert [trace["name"].split()[0] for trace in seconds.data] == ["short", "long"]
    assert sum(len(trace["x"]) for trace in seconds.data) == 9
    assert sum(waste.data[1]["y"]) == sum(one.wasted for one in record.folds.rounds.rounds)
    assert [trace["name"] for trace in mix.data] == ["short-chain-sum", "programs"]
    order = MixOrder(MIX.shares, shuffle_seed=record.config.seed)
    share = sum(order.pool(prompt) for prompt in record.folds.rounds.rounds[0].prompts) / 4
    assert mix.data[1]["y"][0] == share
    assert '<section id="rounds">' in render(record)


def test_the_story_of_a_deferred_prompt_says_so_and_that_it_comes_again(run):
    directory, simulation, _ = run
    routed = {}
    deferred = []
    for _, _, commands in simulation.log.instants:
        for command in commands:
            if isinstance(command, c.Route):
                routed |= {r.trajectory: r for r in command.trajectories if r.purpose is c.Purpose.TRAIN}
            elif isinstance(command, c.Abort) and command.reason.why is c.Why.DEFERRED:
                deferred += [name for name in command.trajectories if name in routed]
    first = routed[deferred[0]]
    again = [ref for ref in routed.values() if ref.prompt == first.prompt and ref.group != first.group]
    assert again, "its prompt came again"
    told = [line.text for line in explain(directory, first.trajectory)]
    assert any("its prompt comes again in a long round" in text for text in told), told
    assert told[-1] == f"its prompt comes again, as group {again[0].group}"
    later = [line.text for line in explain(directory, again[0].trajectory)]
    assert any(f"was deferred before, as group {first.group}" in text for text in later), later


class Lending:
    """What a controller says of a replica."""

    def __init__(self):
        self.health, self.cells, self.occupied = c.Health.STARTING, (), {}

    def take(self, one):
        healths = {c.Up: c.Health.UP, c.Down: c.Health.STARTING}
        self.health = healths.get(type(one), self.health)
        self.occupied = {one.id: c.Reason(c.Why.FAILED)} if isinstance(one, c.Down) else {}
        self.cells = one.cells if isinstance(one, c.Lend) else ()

    def member(self, role, id_):
        return MemberRow(role, id_, self.health, cells=self.cells)

    def why_idle(self, role, id_):
        if id_ in self.occupied:
            return c.Reason(c.Why.OCCUPIED)
        return c.Reason(c.Why.HELD_BACK) if self.health is c.Health.UP else None


def test_lent_devices_are_on_the_timeline():
    run, outages = Lending(), Outages()
    timeline = Timeline(run, Interruptions(run), outages)  # type: ignore[arg-type]
    for now, one in (
        (0.0, c.Start(1, "replica", "r0")),
        (1.0, c.Up("replica", "r0", answers=1)),
        (2.0, c.Lend(2, "r0", (1,))),
        (5.0, c.Return(3, "r0")),
        (6.0, c.Lend(4, "r0", (1,))),
        (7.0, c.Down("replica", "r0", "killed")),
        (9.0, c.Restart(5, "replica", "r0")),
    ):
        run.take(one)
        if type(one) in outages.hears:
            outages.hears[type(one)](now, one)
        timeline.hears[type(one)](now, one)
        timeline.settle(now)
    timeline.close(10.0)
    lent = [(span.start_s, span.end_s) for span in timeline.spans if span.doing is Doing.LENT]
    assert lent == [(2.0, 5.0), (6.0, 7.0)]
    starting = [(span.start_s, span.end_s, span.label) for span in timeline.spans if span.doing is Doing.STARTING]
    assert starting[1:] == [(7.0, 9.0, WAITS[c.Why.OCCUPIED]), (9.0, 10.0, "process starts")]
    (replicas,) = [row for row in utilisation(timeline.spans, 1.0, 7.0) if row.role == "replica"]
    assert replicas.busy == 4 / 6


def test_a_run_without_rounds_shows_none(tmp_path):
    directory, _ = a_run(tmp_path / "run", configured(steps=2))
    record = read_record(RunDirectory.open(directory.root))
    assert round_charts(record) == []
    assert '<section id="rounds">' not in render(record)


def test_what_loans_took_is_a_table_where_there_were_some():
    found = ReplicaFigures()
    assert loan_table(found).rows == []
    log = [
        Instant(0.0, [], [c.Lend(1, "r0", (0,))]),
        Instant(2.0, [c.Lent("r0", 1, 2, 1.5, 5 << 20, 2 << 20)], []),
        Instant(4.0, [], [c.Offload(2, 0)]),
        Instant(5.0, [c.Offloaded(0, 2, 0.5, 7 << 20)], [c.Return(3, "r0")]),
        Instant(5.5, [c.Returned("r0", 3, 0.4, 5 << 20)], []),
    ]
    follow(iter(log), found)
    assert [row[1:] for row in loan_table(found).rows] == [
        ["1", "2.000", "2.000", "3"], ["1", "0.500", "0.500", "7"], ["1", "1.500", "1.500", "none"],
    ]  # fmt: skip
