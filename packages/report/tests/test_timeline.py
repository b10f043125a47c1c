"""What members did when: their spans follow each other without gap or overlap, whatever dies, and marks name every event."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from tailrace import contracts as c
from tailrace.controller.view import MemberRow
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.trial import FuzzSimulation
from tailrace.report.charts.chart import TimeAxis
from tailrace.report.charts.timeline import drawable, merged, timeline_chart
from tailrace.report.figures.system import utilisation
from tailrace.report.fold.interruptions import Interruptions, Mark, MarkKind
from tailrace.report.fold.outages import Outages
from tailrace.report.fold.timeline import Doing, Span, Timeline
from tailrace.report.reason_words import OTHERS, WAITS

from .conftest import STALEFLOW, a_run, configured, folded, simulated

CAUSES = {*WAITS.values(), OTHERS}
FAULTS = ("replica:r1@30s", "trainer@step3", "relay@40s", "scorer@50s", "data@60s", "replica:r0@66s")


def seen(simulation, **options):
    return folded(simulation, **options).timeline


def happened(simulation, kind):
    return [
        one for _, events, commands in simulation.log.instants for one in (*events, *commands) if isinstance(one, kind)
    ]


@pytest.fixture(scope="module")
def hurt():
    simulation = simulated(configured(faults=FAULTS, relays=2))
    return simulation, seen(simulation)


def test_spans_of_a_member_cover_the_run_without_overlap(hurt, deep):
    fuzzed = []
    for seed in range(20 if deep else 4):
        fuzz = FuzzSimulation(draw_case(seed))
        fuzz.run()
        fuzzed.append((fuzz.simulation, seen(fuzz.simulation)))
    for simulation, timeline in [hurt, *fuzzed]:
        members = defaultdict(list)
        for span in timeline.spans:
            members[span.role, span.member].append(span)
        started = {(command.role, command.id) for command in happened(simulation, c.Start)}
        assert set(members) == started
        remain = simulation.controller.members.states  # not those that were stopped, or that a resumed run left out
        for member, spans in members.items():
            if member in remain:
                assert spans[-1].end_s == simulation.log.instants[-1][0]
            for before, after in pairwise(spans):
                assert before.end_s == after.start_s
                assert before.duration_s > 0
        idle = {span.label for span in timeline.spans if span.doing in (Doing.IDLE, Doing.WAITING)}
        assert idle <= CAUSES


def test_a_timeline_of_some_replicas_is_a_part_of_the_whole(hurt):
    simulation, whole = hurt
    some = seen(simulation, most=1)

    def of(members):
        return [one for one in members if one.role != "replica" or one.member == "r0"]

    assert sorted(map(str, some.spans)) == sorted(map(str, of(whole.spans)))
    assert some.marks == of(whole.marks)


@pytest.mark.parametrize("pipeline", [None, STALEFLOW], ids=["laminar", "staleflow"])
def test_every_step_pull_death_and_interruption_is_seen(pipeline):
    simulation = simulated(configured(*([pipeline] if pipeline else []), faults=FAULTS, relays=2))
    timeline, run = seen(simulation), simulation.controller.view
    marks = Counter(mark.kind for mark in timeline.marks)
    assert marks[MarkKind.DOWN] == len(happened(simulation, c.Down)) == len(FAULTS)
    assert marks[MarkKind.RESTART] == len(happened(simulation, c.Restart))
    assert marks[MarkKind.REPACK] == run.moves
    assert marks[MarkKind.PULL] == run.interrupting_pulls
    assert marks[MarkKind.PUBLISHED] == len(happened(simulation, c.Published))
    doing = Counter(span.doing for span in timeline.spans)
    assert doing[Doing.TRAINING] >= len(happened(simulation, c.Step))
    assert doing[Doing.PULLING] >= len(happened(simulation, c.Pulled))
    assert doing[Doing.EVALUATING] > 0
    assert {mark.role for mark in timeline.marks if mark.kind is MarkKind.DOWN} == {
        "replica", "trainer", "relay", "scorer", "data",
    }  # fmt: skip


def test_who_was_restarted_is_starting_until_it_is_up(hurt):
    _, timeline = hurt
    for role, member in (("relay", "0"), ("data", "0"), ("trainer", "0")):
        up = next(mark.at_s for mark in timeline.marks if (mark.role, mark.kind) == (role, MarkKind.RESTART))
        starting = [s for s in timeline.spans if (s.role, s.member, s.doing) == (role, member, Doing.STARTING)]
        assert starting[-1].end_s == up


def test_a_barrier_is_what_replicas_wait_for_that_pull_together():
    barrier = {"admission": "one-step", "sync": "barrier", "routing": "least-loaded", "relocation": "none"}
    timeline = seen(simulated(configured(barrier)))
    assert OTHERS in {span.label for span in timeline.spans if span.doing is Doing.IDLE}


def test_who_waits_for_scores_alone_is_said_to():
    on_policy = {"admission": "on-policy", "sync": "barrier", "routing": "least-loaded", "relocation": "none"}
    simulation = simulated(configured(on_policy, delays={"reward_s": 3.0}))
    spans = [span for span in seen(simulation).spans if span.label == WAITS[c.Why.SCORING]]
    assert {span.role for span in spans} == {"replica", "trainer"}
    scored = [now for now, events, _ in simulation.log.instants if any(isinstance(e, c.Scored) for e in events)]
    for span in spans:
        assert any(span.start_s < at <= span.end_s for at in scored)


def test_a_resumed_driver_is_marked_and_every_member_starts_anew(tmp_path):
    _, simulation = a_run(tmp_path / "run", crash_at_step=2)
    timeline = seen(simulation)
    (resumed,) = [mark for mark in timeline.marks if mark.kind is MarkKind.RESUMED]
    starting = {span.member for span in timeline.spans if span.start_s == resumed.at_s and span.doing is Doing.STARTING}
    assert starting == {"r0", "r1", "r2"}  # the others are up at once
    assert MarkKind.DOWN not in {mark.kind for mark in timeline.marks}


def test_the_trainer_spends_what_the_step_did_not_take_on_handing_weights_over():
    simulation = simulated(configured())
    timeline = folded(
        simulation, lambda e: c.Stepped(e.version, {"wall_s": 0.1}, e.answers) if isinstance(e, c.Stepped) else e
    ).timeline
    training = [span.duration_s for span in timeline.spans if span.doing is Doing.TRAINING]
    assert training == pytest.approx([0.1] * 6)
    assert any(span.doing is Doing.PUBLISHING and span.role == "trainer" for span in timeline.spans)


class Trainer:
    """What a controller says of its trainer."""

    def __init__(self):
        self.health, self.making, self.occupied = c.Health.STARTING, None, {}

    def take(self, one):
        self.health = c.Health.UP if isinstance(one, c.Up) else self.health
        self.making = 1 if isinstance(one, c.Step | c.Accumulate) else None

    def member(self, role, id_):
        return MemberRow(role, id_, self.health)

    def why_idle(self, role, id_):
        return c.Reason(c.Why.NO_BATCH) if self.health is c.Health.UP else None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, [(Doing.PUBLISHING, 5.0, 6.0)]),
        (
            {"publish_blocking_s": 0.25, "save_blocking_s": 0.125},
            [(Doing.PUBLISHING, 5.0, 5.375), (Doing.WAITING, 5.375, 6.0)],
        ),
        ({"publish_blocking_s": 7.0}, [(Doing.PUBLISHING, 5.0, 6.0)]),
    ],
)
def test_gradients_that_were_added_before_the_step_are_training_and_the_copies_of_weights_are_not(told, expected):
    run = Trainer()
    timeline = Timeline(run, Interruptions(run), Outages())  # type: ignore[arg-type]
    for now, one in (
        (0.0, c.Start(1, "trainer", "0")),
        (1.0, c.Up("trainer", "0", None, answers=1)),
        (2.0, c.Accumulate(2, 1, ("0.0",), update=False, cell=0)),
        (5.0, c.Accumulated(1, ("0.0",), answers=2, cell=0)),
        (5.0, c.Step(3, 1, (("1.0",),))),
        (9.0, c.Stepped(1, {"wall_s": 3.0, **told}, answers=3)),
    ):
        run.take(one)
        timeline.hears[type(one)](now, one)
        timeline.settle(now)
    timeline.close(9.0)
    spans = [(span.doing, span.start_s, span.end_s) for span in timeline.spans if span.role == "trainer"]
    assert spans[-2 - len(expected) :] == [(Doing.TRAINING, 2.0, 5.0), *expected, (Doing.TRAINING, 6.0, 9.0)]


def test_utilisation_adds_up_and_names_the_bubbles(hurt):
    simulation, timeline = hurt
    rows = utilisation(timeline.spans, 0.0, simulation.now)
    assert [row.role for row in rows] == ["trainer", "replica"]
    for row in rows:
        assert row.busy + row.pulling + row.idle + row.out == pytest.approx(1.0)
        assert sum(share for _, _, share in row.bubbles) == pytest.approx(1.0 - row.busy)


def test_every_role_has_its_row(hurt):
    simulation, timeline = hurt
    chart = timeline_chart(timeline.spans, timeline.marks, (0.0, simulation.now), TimeAxis.for_length(simulation.now))
    rows = chart.layout["yaxis"]["categoryarray"][::-1]
    assert rows == ["trainer", "data", "scorer", "relay 0", "relay 1", "r0", "r1", "r2"]
    (down,) = [trace for trace in chart.data if trace["name"] == "down" and trace["type"] == "scatter"]
    assert set(down["y"]) == {"trainer", "data", "scorer", "relay 0", "r0", "r1"}


def test_many_spans_are_drawn_coarser_and_still_cover_the_same_time():
    doing = (Doing.GENERATING, Doing.PULLING, Doing.IDLE)
    spans = [Span("replica", "r0", doing[i % 3], float(i), float(i + 1), "x") for i in range(3_000)]
    shown, shortest_s = drawable(spans, 500)
    assert len(shown) <= 500
    assert shortest_s > 0
    assert sum(span.duration_s for span in shown) == pytest.approx(3_000)
    assert drawable(spans[:400], 500) == (spans[:400], 0.0)


def test_frequent_marks_become_one_for_each_replica_and_moment():
    marks = [Mark(MarkKind.PULL, "replica", f"r{i % 2}", i / 10, str(i)) for i in range(20)]
    marks.append(Mark(MarkKind.DOWN, "replica", "r0", 0.55, "killed"))
    found = merged(marks, {MarkKind.PULL}, 1.0)
    assert [(mark.kind, mark.member, mark.at_s) for mark in found] == [
        (MarkKind.PULL, "r0", 0.0),
        (MarkKind.PULL, "r1", 0.1),
        (MarkKind.DOWN, "r0", 0.55),
        (MarkKind.PULL, "r0", 1.2),
        (MarkKind.PULL, "r1", 1.3),
    ]
    assert found[0].label == "0; 2; 4 and 3 times more"


def test_of_very_many_marks_some_are_drawn_from_begin_to_end():
    spans = [Span("replica", "r0", Doing.GENERATING, 0.0, 6000.0, "x")]
    marks = [Mark(MarkKind.REPACK, "replica", "r0", float(at), "x") for at in range(6000)]
    chart = timeline_chart(spans, marks, (0.0, 6000.0), TimeAxis.for_length(0.0))
    (drawn,) = [trace for trace in chart.data if trace["name"] == "repack"]
    assert len(drawn["x"]) < 2000
    assert drawn["x"][0] < 10.0
    assert drawn["x"][-1] == 5999.0


def test_a_run_with_turns_shows_its_environment_and_who_waits_for_it():
    environment = {"calls": {"counts": {"2": 1.0}}, "latency": {"median": 8.0}}
    workload = {"response": [{"median": 400, "sigma": 0.9}], "environment": environment}
    simulation = simulated(configured(steps=3, workload=workload, faults=["environment@step1"]))
    folds = folded(simulation)
    timeline = folds.timeline
    chart = timeline_chart(timeline.spans, timeline.marks, (0.0, simulation.now), TimeAxis.for_length(simulation.now))
    assert any("environment 0" in str(trace) for trace in chart.data)
    assert "its trajectories are in environments" in {span.label for span in timeline.spans}
