"""What members did when: their spans follow each other without gap or overlap, whatever dies, and marks name every event."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.evaluations import EvaluationPlan
from tailrace.pipeline.run.reporting.timeline_chart import drawable, merged, utilisation
from tailrace.pipeline.run.timeline import Doing, Mark, MarkKind, Span, Timeline
from tailrace.pipeline.spec import PipelineSpec
from tailrace.pipeline.testing import World


def spec(steps=6):
    def policy(axis, name, **options):
        return load(f"tailrace.{axis}", name)(**options)

    return PipelineSpec(
        admission=policy("admission", "inherent"),
        batching=policy("batching", "plain", samples=4),
        routing=policy("routing", "least-loaded"),
        sync=policy("sync", "on-idle"),
        relocation=policy("relocation", "best-fit", kv_threshold=0.99, roofline_batch=64),
        training=policy("training", "full-batch"),
        provisioning=policy("provisioning", "static", count=3),
        recovery=policy("recovery", "isolate", max_restarts=1_000),
        sampler=policy("sampler", "fifo"),
        steps=steps,
        batch_groups=4,
        replica_batch=16,
        buffer_groups=16,
        evaluation=EvaluationPlan(size=10, every=3, modes=("sampled",), first=("greedy",), last=("greedy",)),
    )


def recorded(seed, **world):
    """The timeline of a random run, beside the world that it happened in."""
    played = World(Controller(spec()), seed, **world)
    played.run()
    timeline, fresh = Timeline(), Controller(spec())
    for now, event in played.log:
        timeline.observe(now, event, fresh.handle(event, now), fresh)
    timeline.close(played.now)
    return timeline, played


@given(seed=st.integers(0, 2**32), kill=st.sampled_from([0.0, 0.05]))
@settings(max_examples=25, deadline=None)
def test_spans_of_a_member_cover_the_run_without_overlap(seed, kill):
    timeline, world = recorded(seed, kill_rate=kill, trainer_kill_rate=kill / 2)
    members = defaultdict(list)
    for span in timeline.spans:
        members[span.role, span.member].append(span)
    assert set(members) == {("trainer", "0"), ("relay", "0"), *(("replica", f"r{i}") for i in range(3))}
    for spans in members.values():
        assert spans[0].start_s == world.log[0][0]
        assert spans[-1].end_s == world.now
        for before, after in pairwise(spans):
            assert before.end_s == after.start_s
            assert before.duration_s > 0


@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_a_timeline_of_some_replicas_is_a_part_of_the_whole(seed):
    whole, world = recorded(seed, kill_rate=0.03)
    some, fresh = Timeline(lambda replica: replica == "r1"), Controller(spec())
    for now, event in world.log:
        some.observe(now, event, fresh.handle(event, now), fresh)
    some.close(world.now)

    def of(members):
        return [one for one in members if one.role != "replica" or one.member == "r1"]

    assert sorted(map(str, some.spans)) == sorted(map(str, of(whole.spans)))
    assert some.marks == of(whole.marks)


@given(seed=st.integers(0, 2**32))
@example(seed=205)  # a replica dies in the moment in which it is to pull
@settings(max_examples=15, deadline=None)
def test_every_step_pull_and_death_is_seen(seed):
    timeline, world = recorded(seed, kill_rate=0.03)
    commands = [command for answers in world.commands for command in answers]
    events = [event for _, event in world.log]

    def seen(kind):
        return sum(mark.kind is kind for mark in timeline.marks)

    assert seen(MarkKind.DOWN) == sum(isinstance(event, c.Down) for event in events)
    assert seen(MarkKind.REPACK) == world.controller.moves
    downs, ups = _pairs(world.log)
    assert seen(MarkKind.RESTART) == ups <= downs
    assert seen(MarkKind.PUBLISHED) == sum(isinstance(event, c.Published) for event in events)
    trained = sum(span.doing is Doing.TRAINING for span in timeline.spans)
    assert trained == sum(isinstance(command, c.Step) for command in commands)
    pulling = sum(span.doing is Doing.PULLING for span in timeline.spans)
    died = {(now, event.id) for now, event in world.log if isinstance(event, c.Down)}  # at once: no time to pull
    times = [now for now, _ in world.log]
    pulls = [
        (at, x.replica)
        for at, answers in zip(times, world.commands, strict=True)
        for x in answers
        if isinstance(x, c.Pull)
    ]
    assert pulling == sum(pull not in died for pull in pulls)
    assert any(span.doing is Doing.EVALUATING for span in timeline.spans)


def _pairs(log):
    """How many members went down, and how many of them came up again."""
    down, downs, ups = set(), 0, 0
    for _, event in log:
        if isinstance(event, c.Down):
            down.add((event.role, event.id))
            downs += 1
        elif isinstance(event, c.Up) and (event.role, event.id) in down:
            down.discard((event.role, event.id))
            ups += 1
    return downs, ups


def test_a_resumed_driver_is_marked_and_every_member_starts_anew():
    world = World(Controller(spec()), 3)
    world.run(stop_after=200)
    timeline, fresh = Timeline(), Controller(spec())
    for now, event in [*world.log, (world.now, world.crash())]:
        timeline.observe(now, event, fresh.handle(event, now), fresh)
    timeline.close(world.now + 5.0)
    assert [mark.kind for mark in timeline.marks][-1] is MarkKind.RESUMED
    last = {(span.role, span.member): span for span in timeline.spans}
    assert {span.doing for span in last.values()} == {Doing.STARTING}


def test_the_trainer_spends_what_the_step_did_not_take_on_handing_weights_over():
    timeline, controller = Timeline(), Controller(spec())
    world = World(controller, 5)
    world.run()
    fresh = Controller(spec())
    for now, event in world.log:
        if isinstance(event, c.Stepped):
            event = c.Stepped(event.version, {"wall_s": 0.1}, event.answers)
        timeline.observe(now, event, fresh.handle(event, now), fresh)
    timeline.close(world.now)
    training = [span.duration_s for span in timeline.spans if span.doing is Doing.TRAINING]
    assert training == pytest.approx([0.1] * len(training))
    assert any(span.doing is Doing.PUBLISHING and span.role == "trainer" for span in timeline.spans)


def test_utilisation_adds_up_and_names_the_bubbles():
    timeline, world = recorded(11)
    rows = utilisation(timeline.spans, 0.0, world.now)
    assert [row.role for row in rows] == ["trainer", "replica"]
    for row in rows:
        assert row.busy + row.pulling + row.idle + row.out == pytest.approx(1.0)
        assert sum(share for _, _, share in row.bubbles) == pytest.approx(1.0 - row.busy)


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
