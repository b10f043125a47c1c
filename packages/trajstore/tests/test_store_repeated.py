"""The process of the store dies after a call and before its answer: the caller repeats the call, and nothing changes."""

import random

import pytest

from tailrace.contracts import FinishReason
from tailrace.trajstore import (
    AlreadyConsumedError,
    Assignment,
    PartialDelta,
    Recovery,
    Status,
    TrajectoryStore,
)


class Once:
    """Calls a store."""

    def __init__(self, path, **options):
        self.path, self.options = path, options
        self.store = TrajectoryStore(path, **options)

    def __call__(self, method, *arguments):
        return getattr(self.store, method)(*arguments)


class Twice(Once):
    """Calls a store whose answers are lost: it is opened anew, and called again."""

    def __call__(self, method, *arguments):
        super().__call__(method, *arguments)
        self.store.close()
        self.store = TrajectoryStore(self.path, **self.options)
        assert self.store.recover(keep_owners=True) == self.store.recover(keep_owners=True)
        return super().__call__(method, *arguments)


def live(call, seed):
    """Trajectories in all walks of life: moved, resumed, finished, discarded, begun anew, consumed, rolled back."""
    draw = random.Random(seed)
    names = [f"t{number}" for number in range(8)]
    lengths = dict.fromkeys(names, 0)
    answers = []
    for number, name in enumerate(names):
        answers.append(call("begin", f"r{number % 2}", 3, [Assignment(name, number // 2, (1, number))]))
    for _ in range(30):
        number = draw.randrange(len(names))
        name, owner = names[number], f"r{number % 2}"
        if draw.random() < 0.2:  # a restarted replica takes it over, or the same one goes on with it
            answers.append(call("begin", owner, 3, [Assignment(name, number // 2, (1, number))]))
        if draw.random() < 0.1:
            answers.append(call("append", "nobody", [PartialDelta(name, lengths[name], 3, (9,), (-1.0,))]))
        tokens = tuple(draw.randrange(50) for _ in range(draw.randrange(1, 4)))
        logprobs = tuple(-draw.random() for _ in tokens)
        answers.append(call("append", owner, [PartialDelta(name, lengths[name], 3, tokens, logprobs)]))
        lengths[name] += len(tokens)
    for number, name in enumerate(names[:6:2]):  # a turn, and what an environment answers
        ends = (3,) if number % 2 else ()
        delta = PartialDelta(name, lengths[name], 3, ends, (-1.0,) * len(ends), turn_ends=True)
        answers.append(call("append", "r0", [delta]))
        serial = call("conversations", [name])[0].turns[-1].serial
        answers.append(call("observe", name, serial, (60, 61)))
        lengths[name] += len(ends) + 2
    for number, name in enumerate(names[:6]):
        last = ((), ()) if number % 2 else ((7,), (-0.5,))
        delta = PartialDelta(name, lengths[name], 3, *last, FinishReason.STOP)  # type: ignore[call-arg]
        answers.append(call("append", f"r{number % 2}", [delta]))
    answers += [call("set_reward", name, 0.25) for name in names[:5]]
    call("discard", [names[6], "unknown"], "no longer wanted")
    answers.append(call("begin", "r1", 4, [Assignment(names[6], 3, (1, 6))]))
    call("consume", names[:2], 4)
    call("consume", names[2:4], 5)
    call("rollback", 4)
    call("consume", [names[3], names[2]], 5)
    call("discard", [names[4]], "surplus")
    return answers


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.cases(3)
def test_a_repeated_call_answers_and_leaves_what_one_call_does(tmp_path, seed):
    once, twice = Once(tmp_path / "once.db"), Twice(tmp_path / "twice.db")
    assert live(once, seed) == live(twice, seed)
    for read in ("audit", "consumed", "recover"):
        assert getattr(once.store, read)() == getattr(twice.store, read)(), read
    by_name = [sorted(each.store.partials(), key=lambda partial: partial.trajectory) for each in (once, twice)]
    assert by_name[0] == by_name[1]
    held = ["t0", "t1", "t2", "t3", "t5"]
    assert once.store.experiences(held) == twice.store.experiences(held)
    for each in (once, twice):
        each.store.close()


def finished(store, *names):
    store.begin("r0", 0, [Assignment(name, 0, (1,)) for name in names])
    store.append("r0", [PartialDelta(name, 0, 0, (5,), (-1.0,), FinishReason.STOP) for name in names])
    for name in names:
        store.set_reward(name, 1.0)


def test_only_the_very_batch_counts_as_repeated():
    with TrajectoryStore() as store:
        finished(store, "a", "b", "c")
        store.consume(["a", "b"], 1)
        store.consume(["b", "a"], 1)
        assert store.stats().consumed == 2
        for batch, version in ((["a"], 1), (["a", "b", "c"], 1), (["a", "b"], 2)):
            with pytest.raises(AlreadyConsumedError, match="consumed for version 1"):
                store.consume(batch, version)
        store.rollback(0)
        store.consume(["a", "c"], 1)
        with pytest.raises(AlreadyConsumedError):
            store.consume(["a", "b"], 1)
        assert store.audit()["consumed_twice"] == []


def test_an_end_is_repeated_only_where_it_was():
    whole, shorter = (
        PartialDelta("a", 0, 0, (5, 6)[:count], (-1.0, -2.0)[:count], FinishReason.STOP) for count in (2, 1)
    )
    with TrajectoryStore() as store:
        store.begin("r0", 0, [Assignment("a", 0, (1,))])
        store.append("r0", [whole])
        store.set_reward("a", 1.0)
        assert store.append("r0", [whole]) == []
        assert store.append("r0", [shorter]) == ["a"]


def test_those_who_write_go_on_where_they_were(tmp_path):
    path = tmp_path / "store.db"
    with TrajectoryStore(path) as store:
        store.begin("r0", 2, [Assignment("a", 0, (1,))])
        store.append("r0", [PartialDelta("a", 0, 2, (5, 6), (-1.0, -1.0))])
    with TrajectoryStore(path) as store:
        assert store.recover(keep_owners=True) == Recovery(held={}, partial={"a": (2, 2)})
        assert store.append("r0", [PartialDelta("a", 2, 2, (7,), (-1.0,), FinishReason.STOP)]) == []
        assert store.statuses(["a"]) == {"a": Status.COMPLETE}


def test_finished_leaves_out_what_is_not():
    with TrajectoryStore() as store:
        finished(store, "a", "b", "c")
        store.begin("r0", 0, [Assignment("running", 0, (1,))])
        store.consume(["b"], 1)
        store.discard(["c"], "no longer wanted")
        found = store.finished(["running", "c", "a", "b", "unknown"])
        assert [experience.trajectory for experience in found] == ["a"]
