"""The reward scheduler's pool, with backends that wait until they are told."""

import asyncio

import pytest

from tailrace.reward import ScoreItem, ScorerClosedError, ScoringError, ScoringFailure, ScoringResult
from tailrace.reward.scheduler import Job, Pool


class Held:
    """Scores one item at a time, once it is let go. `fails` is how often each item fails first."""

    def __init__(self, fails=0):
        self.go = asyncio.Event()
        self.begun, self.cancelled, self.fails, self.closed = [], [], dict.fromkeys("abcdefgh", fails), 0

    async def score(self, item):
        self.begun.append(item.trajectory)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(item.trajectory)
            raise
        if self.fails[item.trajectory]:
            self.fails[item.trajectory] -= 1
            raise ScoringError("out of order")
        return ScoringResult(item.trajectory, 1.0)

    async def close(self):
        self.closed += 1


class Together(Held):
    """Takes up to three that wait together; those in `apart` have no result then."""

    apart = ()

    def together(self, items):
        return min(3, len(list(items)))

    async def score_together(self, items):
        names = "".join(item.trajectory for item in items)
        found = await self.score(ScoreItem(names, "", "", "exact"))
        return [None if name in self.apart else ScoringResult(name, found.reward) for name in names]


def job(name, told):
    return Job(ScoreItem(name, "", "", "exact"), lambda outcome: told.append((name, outcome)))


async def until(holds):
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0)


def run(test):
    asyncio.run(test())


def test_a_full_pool_holds_back_who_brings_more():
    async def test():
        backend, told = Held(), []
        pool = Pool([backend], queue=2, attempts=1)
        for name in "abc":  # one is under way, two wait
            await asyncio.wait_for(pool.put(job(name, told)), 20)
            await until(lambda: backend.begun)
        assert pool.full
        fourth = asyncio.create_task(pool.put(job("d", told)))
        await asyncio.sleep(0.01)
        assert not fourth.done()
        backend.go.set()
        await until(lambda: len(told) == 4)
        assert [name for name, _ in told] == ["a", "b", "c", "d"]
        await pool.close()

    run(test)


def test_backends_work_side_by_side_and_outcomes_come_as_they_are_known():
    async def test():
        slow, quick, told = Held(), Held(), []
        quick.go.set()
        pool = Pool([slow, quick], queue=9, attempts=1)
        for name in "abcd":
            await pool.put(job(name, told))
        await until(lambda: len(told) == 3)
        assert [name for name, _ in told] == ["b", "c", "d"]
        await pool.close()
        assert told[-1][0] != "a"  # it was never scored, and nothing was said of it
        assert (slow.closed, quick.closed, slow.cancelled) == (1, 1, ["a"])

    run(test)


@pytest.mark.parametrize(("fails", "outcome"), [(1, ScoringResult("a", 1.0)), (2, ScoringFailure("a", "out of order"))])
def test_what_fails_is_tried_again_and_never_a_reward(fails, outcome):
    async def test():
        backend, told = Held(fails), []
        backend.go.set()
        pool = Pool([backend], queue=1, attempts=2)
        await pool.put(job("a", told))
        await until(lambda: told)
        assert told == [("a", outcome)]
        await pool.close()

    run(test)


def test_a_cancelled_score_stops_wherever_it_is_and_is_told_once():
    async def test():
        backend, told = Held(), []
        pool = Pool([backend], queue=9, attempts=1)
        jobs = {name: job(name, told) for name in "abc"}
        for one in jobs.values():
            await pool.put(one)
        await until(lambda: backend.begun)
        jobs["b"].cancel()
        jobs["a"].cancel()
        jobs["a"].cancel()
        backend.go.set()
        await until(lambda: len(told) == 3)
        assert told == [("b", None), ("a", None), ("c", ScoringResult("c", 1.0))]
        assert (backend.begun, backend.cancelled) == (["a", "c"], ["a"])
        await pool.close()

    run(test)


def test_what_waits_goes_together_and_what_fails_so_goes_alone():
    async def test():
        backend, told = Together(), []
        backend.fails, backend.apart = dict.fromkeys(("a", "bcd", "c", "ef"), 0), "c"
        pool = Pool([backend], queue=9, attempts=1)
        for name in "abcdef":
            await pool.put(job(name, told))
            await until(lambda: backend.begun)
        backend.go.set()
        await until(lambda: len(told) == 6)
        assert backend.begun == ["a", "bcd", "c", "ef"]
        assert sorted(told, key=lambda one: one[0]) == [(name, ScoringResult(name, 1.0)) for name in "abcdef"]
        await pool.close()

    run(test)


def test_backends_that_take_several_leave_each_other_their_share():
    async def test():
        backends, told = [Together(), Together()], []
        for backend in backends:
            backend.fails = dict.fromkeys(("a", "b", "cd", "e", "f"), 0)
        pool = Pool(backends, queue=9, attempts=1)
        for number, name in enumerate("abcdef"):
            await pool.put(job(name, told))
            if number < 2:
                await until(lambda: backends[number].begun)  # noqa: B023 - it is over before the next one
        for backend in backends:
            backend.go.set()
        await until(lambda: len(told) == 6)
        assert [backend.begun[:2] for backend in backends] == [["a", "cd"], ["b", "e"]]
        await pool.close()

    run(test)


@pytest.mark.parametrize(("cancelled", "stopped"), [("b", []), ("bcd", ["bcd"])])
def test_scores_made_together_stop_once_none_of_them_is_wanted(cancelled, stopped):
    async def test():
        backend, told = Together(), []
        backend.fails = dict.fromkeys(("a", "bcd"), 0)
        pool = Pool([backend], queue=9, attempts=1)
        jobs = {name: job(name, told) for name in "abcd"}
        await pool.put(jobs["a"])
        await until(lambda: backend.begun)
        for name in "bcd":
            await pool.put(jobs[name])
        jobs["a"].cancel()
        await until(lambda: len(backend.begun) == 2)
        for name in cancelled:
            jobs[name].cancel()
        await until(lambda: backend.cancelled == ["a", *stopped])
        backend.go.set()
        left = [name for name in "bcd" if name not in cancelled]
        await until(lambda: len(told) == 4)
        assert told == [("a", None), *((name, None) for name in cancelled), *((n, ScoringResult(n, 1.0)) for n in left)]
        await pool.close()

    run(test)


def test_who_waits_for_room_hears_of_the_end():
    async def test():
        pool = Pool([Held()], queue=1, attempts=1)
        told = []
        await pool.put(job("a", told))
        await until(lambda: not pool.full)
        await pool.put(job("b", told))
        waiting = asyncio.create_task(pool.put(job("c", told)))
        await asyncio.sleep(0.01)
        await pool.close()
        with pytest.raises(ScorerClosedError):
            await waiting

    run(test)


def test_a_backend_with_a_mistake_of_its_own_is_a_failure_too():
    class Mistaken(Held):
        async def score(self, item):
            raise ZeroDivisionError("by nothing")

    async def test():
        told = []
        pool = Pool([Mistaken()], queue=1, attempts=1)
        await pool.put(job("a", told))
        await until(lambda: told)
        assert told == [("a", ScoringFailure("a", "ZeroDivisionError: by nothing"))]
        await pool.close()

    run(test)
