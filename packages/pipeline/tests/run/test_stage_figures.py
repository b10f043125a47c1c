"""What a run's log says of its stages, worked out by hand."""

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.stages import stage_figures


def figures(*instants, cells=1):
    log = (
        Instant(
            float(now),
            [one for one in each if isinstance(one, c.Event)],
            [one for one in each if isinstance(one, c.Route)],
        )
        for now, each in enumerate(instants)
    )
    return stage_figures(log, cells)


def route(*names, purpose=c.Purpose.TRAIN):
    refs = tuple(c.TrajectoryRef(name, 0, 0, purpose) for name in names)
    return c.Route(1, "r0", refs)


def test_a_run_without_a_step_or_a_response_says_nothing():
    assert figures() == figures([route("a")])
    found = figures([])
    assert (found.train_s, found.lengths) == (None, ())


def test_lengths_are_those_of_training_at_equal_distances():
    names = [f"0.{number}" for number in range(100)]
    rows = [c.Finished("r0", name, number + 1) for number, name in enumerate(names)]
    found = figures([route(*names), route("e0", purpose=c.Purpose.EVAL)], [*rows, c.Finished("r0", "e0", 9_999)])
    assert found.lengths == tuple(range(2, 101, 2))
    assert figures([route("a")], [c.Finished("r0", "a", 7)]).lengths == (7,) * 50


def test_lengths_are_without_what_environments_answered():
    turns = [
        c.TurnEnded("r0", "a", 4),
        c.Turned("a", 1, 14),
        c.TurnEnded("r0", "a", 17),
        c.Turned("a", 2, 17, done=True),
    ]
    assert figures([route("a")], turns).lengths == (7,) * 50


def test_seconds_of_training_count_every_part_of_a_batch_and_the_last_batches():
    parts = [[c.Accumulated(1, (), {"wall_s": 2.0})], [c.Accumulated(1, (), {"wall_s": 3.0})]]
    assert figures(*parts, [c.Stepped(1, {"wall_s": 1.0})]).train_s == 6.0
    slow = [[c.Stepped(version, {"wall_s": 100.0})] for version in range(1, 5)]
    fast = [[c.Stepped(version, {"wall_s": 2.0})] for version in range(5, 13)]
    assert figures(*slow, *fast).train_s == 2.0


def test_seconds_of_a_cell_are_those_of_its_share_of_the_trainer():
    beside = [c.Accumulated(1, (), {"wall_s": 6.0}, cell=cell) for cell in (0, 1)]
    assert figures(beside, [c.Stepped(1, {"wall_s": 1.0})], cells=2).train_s == 7.0


def test_what_a_trainer_lost_of_a_batch_does_not_count():
    added = [c.Accumulated(1, (), {"wall_s": 6.0})]
    again = [c.Up("trainer", "0", version=0)], added, [c.Stepped(1, {"wall_s": 1.0})]
    assert figures(added, *again).train_s == 7.0
