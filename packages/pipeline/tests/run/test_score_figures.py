"""The figures of scores, on logs worked out by hand."""

from tailrace import contracts as c
from tailrace.pipeline.run.figures.log import ScoreFigures


def figures(*instants):
    found = ScoreFigures()
    for now, *happened in instants:
        events = [one for one in happened if isinstance(one, c.Event)]
        found.observe(now, events, [one for one in happened if not isinstance(one, c.Event)])
    return found


def finished(name):
    return c.Finished("r0", name, 5)


def step(version, *names):
    return c.Step(version, version, (names,))


def test_what_training_waits_for_is_the_time_between_the_last_response_and_the_last_reward():
    found = figures(
        (1, finished("a")), (4, finished("b")), (5, c.Scored("a", 1.0)), (6.5, c.Scored("b", 0.0), step(1, "a", "b"))
    )
    assert found.exposed_s == 2.5


def test_a_response_that_its_environment_ends_is_complete_then():
    turn = c.Turned("a", 1, 9), c.Turned("a", 2, 20, done=True)
    assert figures((1, turn[0]), (3, turn[1]), (5, c.Scored("a", 1.0)), (5, step(1, "a"))).exposed_s == 2


def test_scores_beside_generation_or_training_cost_nothing():
    beside = figures(
        (1, finished("a")), (3, c.Scored("a", 1.0)), (4, finished("b")), (4, c.Scored("b", 1.0), step(1, "a", "b"))
    )
    assert beside.exposed_s == 0
    training = [(0, finished("x")), (0, c.Scored("x", 0.0), step(1, "x")), (1, finished("a")), (9, c.Scored("a", 1.0))]
    assert figures(*training, (8, c.Stepped(1)), (10, step(2, "a"))).exposed_s == 1  # it was idle from 8 on
    assert figures(*training, (12, c.Stepped(1)), (13, step(2, "a"))).exposed_s == 0


def test_what_is_dropped_or_trained_on_again_counts_for_nothing():
    found = figures((1, finished("a"), finished("b")), (2, c.Scored("b", 0.0)), (3, c.Abort(1, ("a",)), step(2, "b")))
    assert found.exposed_s == 1
    assert figures((1, step(3, "old"))).exposed_s == 0


def test_counts():
    over = c.Scored("a", 0.0, over_budget="cpu 2 s")
    others = (c.Activity("scorer", "0", "bubblewrap"), c.Activity("trainer", "0", "training"))
    found = figures(
        (
            1,
            over,
            *others,
            c.ScoringFailed("b", "x"),
            c.ScoringFailed("b", "x"),
            c.Rechecked("a", True),
            c.Rechecked("c", False),
        )
    )
    assert found.plain() == {
        "scores_over_budget": 1,
        "scores_failed": 2,
        "scores_rechecked": 2,
        "false_timeouts": 1,
        "reward_exposed_s": 0.0,
        "sandbox": "bubblewrap",
    }
