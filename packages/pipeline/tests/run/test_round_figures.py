"""The figures of rounds, on logs worked out by hand."""

import pytest

from tailrace import contracts as c
from tailrace.controller.policies.batching import Redundant
from tailrace.pipeline.run.figures.rounds import RoundFigures
from tailrace.pipeline.testing.small_run import make_spec as spec
from tailrace.pipeline.testing.small_run import policy

RACES = spec(batch_groups=2, batching=policy("batching", "tail-batching"))


def figures(*instants, of=RACES):
    found = RoundFigures(of)
    for now, *happened in instants:
        events = [one for one in happened if isinstance(one, c.Event)]
        found.observe(now, events, [one for one in happened if not isinstance(one, c.Event)])
    return found


def route(group, prompt, samples):
    refs = tuple(c.TrajectoryRef(f"{group}.{sample}", group, sample, prompt=prompt) for sample in range(samples))
    return c.Route(1, "r0", refs)


def finished(name, tokens):
    return c.Finished("r0", name, tokens)


def step(version, kind, *groups, samples=2):
    names = tuple(f"{group}.{sample}" for group in groups for sample in range(samples))
    return c.Step(version, version, (names,), round=kind)


def abort(seq, why, *names):
    return c.Abort(seq, names, (), c.Reason(why))


def short_round(at, version, first):
    """Groups of three prompts, three samples each. The third prompt is deferred with one sample done; it had 4 + 7 tokens."""
    groups = [first, first + 1, first + 2]
    return (
        (at, *(route(group, group, 3) for group in groups)),
        (at + 1, finished(f"{first}.0", 10), finished(f"{first}.1", 10), abort(50, c.Why.SURPLUS_SAMPLE, f"{first}.2")),
        (at + 2, finished(f"{first + 2}.0", 4), c.Discarded(50, 6)),
        (at + 3, finished(f"{first + 1}.0", 20), finished(f"{first + 1}.1", 20)),
        (at + 3, abort(51, c.Why.SURPLUS_SAMPLE, f"{first + 1}.2")),
        (at + 3, abort(52, c.Why.DEFERRED, *(f"{first + 2}.{sample}" for sample in range(3)))),
        (at + 4, c.Discarded(51, 0), c.Discarded(52, 7)),
        (at + 4, step(version, "short", first, first + 1)),
        (at + 6, c.Stepped(version)),
    )  # fmt: skip


def long_round(at, version, groups, prompts):
    return (
        (at, *(route(group, prompt, 2) for group, prompt in zip(groups, prompts, strict=True))),
        (at + 8, *(finished(f"{group}.{sample}", 30) for group in groups for sample in range(2))),
        (at + 9, step(version, "long", *groups)),
        (at + 10, c.Stepped(version)),
    )


def test_a_short_round_throws_away_what_lost_its_race():
    found = figures(*short_round(0, 1, 0))
    (one,) = found.rounds
    assert (one.version, one.kind, one.prompts, one.deferred) == (1, "short", (0, 1), 1)
    assert (one.tokens, one.wasted) == (60, 17)
    assert (one.began_s, one.given_s, one.ended_s) == (0, 4, 6)
    assert found.plain() == {
        "rounds_short": 1,
        "rounds_long": 0,
        "step_s_short": 6.0,
        "step_s_long": 0.0,
        "speculation_waste": pytest.approx(17 / 77, abs=1e-4),
        "streamed_groups": 0,
        "scale_downs": 0,
        "resizes": 0,
        "resize_s": 0.0,
    }


def test_long_rounds_follow_short_ones():
    found = figures(*short_round(0, 1, 0), *short_round(6, 2, 3), *long_round(12, 3, (6, 7), (2, 5)))
    assert [one.kind for one in found.rounds] == ["short", "short", "long"]
    assert (found.rounds[2].deferred, found.rounds[2].wasted, found.rounds[2].tokens) == (0, 0, 120)
    plain = found.plain()
    assert (plain["rounds_short"], plain["rounds_long"]) == (2, 1)
    assert (plain["step_s_short"], plain["step_s_long"]) == (6.0, 10.0)
    assert plain["speculation_waste"] == pytest.approx(34 / (60 * 2 + 34 + 120), abs=1e-4)


def test_a_resize_takes_until_the_replica_is_up():
    found = figures(
        (1, c.Resize(70, "r0", 2)),
        (2, c.Resize(71, "r1", 2)),
        (4, c.Up("replica", "r0", answers=70)),
        (8, c.Up("replica", "r1", answers=71)),
        (9, c.Up("replica", "r2", answers=72)),
    )
    assert (found.plain()["resizes"], found.plain()["resize_s"]) == (2, 4.5)


def test_a_group_that_no_replica_had_yet_is_deferred_too():
    before = short_round(0, 1, 0)
    found = figures(*before[:-2], (3.5, abort(60, c.Why.DEFERRED, "7.0", "7.1", "7.2")), *before[-2:])
    assert (found.rounds[0].deferred, found.rounds[0].wasted) == (2, 17)


def test_a_drop_that_a_new_store_is_told_of_again_counts_once():
    names = tuple(f"2.{sample}" for sample in range(3))
    before = short_round(0, 1, 0)
    found = figures(*before[:6], (3.5, abort(61, c.Why.DEFERRED, *names)), (4, c.Discarded(61, 7)), *before[-2:])
    assert (found.rounds[0].deferred, found.rounds[0].wasted) == (1, 4 + 6 + 7)


def test_a_trajectory_that_begins_anew_stays_in_its_group():
    batch = (route(0, 0, 2), route(1, 1, 2))
    found = figures(
        (0, *batch),
        (1, abort(60, c.Why.VERSION_GONE, "0.0")),
        (2, finished("0.1", 30), c.Discarded(60, 5)),
        (3, c.Route(2, "r0", (c.TrajectoryRef("0.0", 0, 0, prompt=0),))),
        (8, *(finished(name, 30) for name in ("0.0", "1.0", "1.1"))),
        (9, step(1, "long", 0, 1)),
    )
    (one,) = found.rounds
    assert (one.prompts, one.tokens, one.began_s, one.deferred) == ((0, 1), 120, 0, 0)
    assert (found.generated, found.wasted) == (125, 0)


def test_rounds_that_a_crash_undid_are_gone_and_come_again():
    before = (*short_round(0, 1, 0), (6, c.Checkpoint(9, 1)), (7, c.Durable(1)), *long_round(7, 2, (3, 4), (2, 5)))
    again = figures(*before, (20, c.Up("trainer", "0", version=1)), (20, step(3, "long", 3, 4)), (21, c.Stepped(3)))
    assert [(one.version, one.kind, one.prompts) for one in again.rounds] == [(1, "short", (0, 1)), (3, "long", (2, 5))]
    assert again.rounds[1].tokens == 120
    assert figures(*before, (20, c.Up("trainer", "0", version=1))).plain()["rounds_long"] == 0


def test_groups_that_were_streamed_belong_to_the_batch():
    gradients = c.Accumulate(5, 1, ("0.0", "0.1"), update=False)
    found = figures(*long_round(0, 1, (0, 1), (0, 1))[:2], (8, gradients), (9, step(1, "long", 1)), (10, c.Stepped(1)))
    assert (found.rounds[0].prompts, found.rounds[0].tokens, found.streamed) == ((0, 1), 120, 1)


def test_resizes_are_counted():
    assert figures((1, c.Resize(3, "r0", 2), c.Resize(4, "r1", 2)), (9, c.Resize(5, "r0", 1))).resizes == 3


def test_replicas_that_lend_at_once_scale_down_once():
    lend = (c.Lend(3, "r0", 1), c.Lend(4, "r1", 1))
    assert figures((1, *lend), (2, c.Return(5, "r0"), c.Return(6, "r1")), (9, *lend)).scale_downs == 2


def test_a_pipeline_without_rounds_has_none_but_may_waste():
    redundant = spec(batch_groups=2, batching=Redundant(samples=2, surplus_samples=1))
    found = figures(*short_round(0, 1, 0), of=redundant)
    assert found.rounds == []
    assert found.plain()["speculation_waste"] > 0
