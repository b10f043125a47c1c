"""What a run's last weights were made of: from its log without what was undone, and from its archive bit for bit."""

import json
import math
import random

import pytest

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.audit import experience, read_archive, trained_once, updates
from tailrace.pipeline.run.eventlog import Instant


def log(*happened):
    """An instant for each event or command, in order."""
    return [
        Instant(float(at), [one] if isinstance(one, c.Event) else [], [one] if isinstance(one, c.Command) else [])
        for at, one in enumerate(happened)
    ]


def step(version, *names):
    return c.Step(version, version, (names,))


def back(version=None):
    """The trainer is restarted, and comes up with a checkpoint."""
    return c.Restart(0, "trainer", "0", version), c.Up("trainer", "0", version)


def made(*happened):
    return [(update.version, update.trajectories) for update in updates(log(*happened))]


def test_a_batch_counts_once_its_step_is_done_with_its_parts_in_order():
    parts = [c.Accumulate(1, 1, ("a", "b")), c.Accumulate(2, 1, ("c",), update=False, cell=1)]
    assert made(*parts, step(1, "d"), c.Stepped(1), step(2, "e")) == [(1, ["a", "b", "c", "d"])]
    (update,) = updates(log(*parts, step(1, "d"), c.Stepped(1)))
    assert update.operations == (*parts, step(1, "d"))


def test_what_a_fall_back_undid_does_not_count():
    first = (step(1, "a"), c.Stepped(1), step(2, "b"), c.Stepped(2), c.Accumulate(9, 3, ("c",)))
    assert made(*first, *back(1), step(4, "b"), c.Stepped(4)) == [(1, ["a"]), (4, ["b"])]
    assert made(*first, *back(), step(3, "b"), c.Stepped(3)) == [(3, ["b"])]
    again = (*first, *back(1), step(4, "b"), c.Stepped(4), c.Up("replica", "r0"))
    assert made(*again, *back(3), step(6, "b"), c.Stepped(6)) == [(1, ["a"]), (6, ["b"])]


def test_what_is_told_again_changes_nothing():
    first = (step(1, "a"), c.Stepped(1), step(2, "b"), c.Stepped(2))
    assert made(*first, c.Stepped(2), c.Up("trainer", "0")) == [(1, ["a"]), (2, ["b"])]


def row(name, version):
    return {"trajectory": name, "consumed_version": version}


def test_each_is_trained_on_once_by_both_accounts():
    found = updates(log(step(1, "a", "b"), c.Stepped(1), step(2, "c"), c.Stepped(2)))
    rows = [row("a", 1), row("b", 1), row("c", 2)]
    assert trained_once(found, rows)
    for wrong in (rows[1:], [*rows, rows[0]], [*rows, row("d", 2)], [row("a", 2), *rows[1:]]):
        assert not trained_once(found, wrong)
    twice = updates(log(step(1, "a", "a"), c.Stepped(1)))
    assert not trained_once(twice, [row("a", 1), row("a", 1)])


@pytest.mark.parametrize("seed", range(20))
def test_a_trajectory_comes_back_from_the_archive_as_it_was(seed, tmp_path):
    from tailrace.trajstore import Assignment, TrajectoryStore

    draw = random.Random(seed)
    versions = sorted(draw.randint(0, 3) for _ in range(draw.randint(1, 12)))
    tokens = [draw.randint(0, 99) for _ in versions]
    values = [-draw.expovariate(1.0) if draw.random() < 0.8 else -math.pi * 1e-30 for _ in versions]
    with TrajectoryStore(tmp_path / "store.sqlite", mixed_versions=True) as store:
        asked = Assignment("t", 7, (1, 2, 3), "train", {"prompt": 4})
        store.begin("r0", versions[0], [asked])
        for place, (version, token, value) in enumerate(zip(versions, tokens, values, strict=True)):
            finish = c.FinishReason.STOP if place == len(versions) - 1 else None
            store.append("r0", [c.PartialDelta("t", place, version, (token,), (value,), finish)])
        store.set_reward("t", 0.1 + draw.random())
        before = store.experiences(["t"])[0]
        store.consume(["t"], 4)
        store.export_jsonl(tmp_path / "trained.jsonl")
    (found,) = read_archive(tmp_path / "trained.jsonl")
    after = experience(found)
    assert (after.tokens, after.logprobs, after.generated) == (before.tokens, before.logprobs, before.generated)
    assert (after.prompt, after.reward, after.group, after.finish) == (
        before.prompt,
        before.reward,
        before.group,
        before.finish,
    )
    assert (after.oldest_version, after.completed_version) == (before.oldest_version, before.completed_version)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "found no archive of trained trajectories, expected that of a run that has finished"),
        ("{", "line 1: found no trained trajectory"),
        (json.dumps({"trajectory": "a"}), "line 1: found no trained trajectory"),
        ("3", "line 1: found no trained trajectory"),
    ],
)
def test_an_archive_that_is_none_is_one_line(tmp_path, content, says):
    if content is not None:
        (tmp_path / "trained.jsonl").write_text(content + "\n")
    with pytest.raises(RunDirectoryError, match=says):
        read_archive(tmp_path / "trained.jsonl")
