"""A replica whose devices are lent sleeps and loses nothing; one that gets adapters always has them on their own base."""

from contextlib import contextmanager

import pytest

from tailrace.contracts import (
    Finished,
    Interrupted,
    Lend,
    Lent,
    Pulled,
    PullFailed,
    Return,
    Returned,
    Snapshot,
)
from tailrace.rollout import EngineAsleepError, ReplicaCrashedError
from tailrace.rollout.testing import FakeEngine, MemorySource, MemoryWeights, fake_token

from .replica_harness import Adapters, Harness, Slow, prompts, route


class Counted(MemoryWeights):
    """Weights that note what was loaded."""

    def __init__(self, versions):
        super().__init__(versions)
        self.loads = []

    @contextmanager
    def load(self, version, timeout_s):
        self.loads.append(version)
        with super().load(version, timeout_s) as found:
            yield found


def versions():
    return Counted({version: {"w": 100 + version} for version in range(4)})


def served(h, weights, name="0"):
    kept = h.source.kept[name]
    return [fake_token(weights, kept.prompt, place)[0] for place in range(len(kept.tokens))] == kept.tokens


def shown(h, seq):
    h.until(f"a snapshot of {seq}", lambda: h.of(Snapshot) and h.of(Snapshot)[-1].last_seq >= seq)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_lent_replica_keeps_its_tokens_sleeps_and_goes_on_at_its_version(level):
    weights = versions()
    with Harness(MemorySource(prompts(2)), engine=Slow(), weights=weights, sleep_level=level) as h:
        h.pull(1)
        h.worker.submit(route(2, "0", "1"))
        h.until("some tokens", lambda: h.engine._made.get("0"))
        h.worker.submit(Lend(3, "r0", (0,)))
        shown(h, 3)
        ended = {event.trajectory for event in h.of(Interrupted) + h.of(Finished)}
        assert (ended, h.engine.asleep) == ({"0", "1"}, level)
        (lent,) = h.of(Lent)
        assert (lent.replica, lent.answers, lent.level) == ("r0", 3, level)
        assert (lent.awake_bytes > 0) == (lent.asleep_bytes > 0) == (level > 0)
        assert h.seen.index(lent) > max(h.seen.index(event) for event in h.of(Interrupted))  # the source has its tokens
        assert h.of(Snapshot)[-1].version == 1
        h.worker.submit(Return(4, "r0"))
        shown(h, 4)
        assert h.engine.asleep == 0
        (back,) = h.of(Returned)
        assert (back.answers, back.awake_bytes > 0) == (4, level > 0)
        left = [event.trajectory for event in h.of(Interrupted)]
        assert left, "nothing was in flight"
        h.worker.submit(route(5, *left))
        h.until("all to finish", lambda: len(h.of(Finished)) == 2)
        assert served(h, 101, "0")
        assert served(h, 101, "1")
        assert weights.loads == ([1, 1] if level == 2 else [1])


@pytest.mark.parametrize("phase", ["sleep", "wake"])
def test_an_engine_that_stands_still_as_it_sleeps_or_wakes_answers_nothing_and_can_be_closed(phase):
    def reaches(reached):
        if reached == phase:
            h.worker.stall()

    with Harness(MemorySource(prompts(1)), sleep_level=1, on_phase=reaches) as h:
        h.pull(1)
        h.worker.submit(Lend(2, "r0", (0,)))
        h.worker.submit(Return(3, "r0"))
        h.watch(0.2)
        assert [type(event) for event in h.seen if isinstance(event, Pulled | Lent | Returned)] == (
            [Pulled] if phase == "sleep" else [Pulled, Lent]
        )
        assert h.worker.alive()


@pytest.mark.parametrize("level", [1, 2])
def test_an_update_of_a_sleeping_replica_is_refused_and_the_next_one_is_served(level):
    weights = versions()
    with Harness(MemorySource(prompts(1)), weights=weights, sleep_level=level) as h:
        h.pull(1)
        h.worker.submit(Lend(2, "r0", (0,)))
        h.pull(2, seq=3)
        (failed,) = h.of(PullFailed)
        assert failed.reason == f"{EngineAsleepError.__name__}: version 2 was to be pulled while the engine sleeps"
        h.worker.submit(Return(4, "r0"))
        h.pull(3, seq=5)  # the newest, and the one before is not loaded again
        assert weights.loads == [1, 3]
        h.worker.submit(route(6, "0"))
        h.until("it to finish", lambda: h.of(Finished))
        assert served(h, 103)


def test_a_version_that_was_dropped_and_cannot_be_had_again_is_a_loud_error():
    weights = versions()
    with Harness(MemorySource(prompts(1)), weights=weights, sleep_level=2) as h:
        h.pull(1)
        del weights.versions[1]
        for command in (Lend(2, "r0", (0,)), Return(3, "r0"), route(4, "0")):
            h.worker.submit(command)
        with pytest.raises(ReplicaCrashedError, match="found no version 1"):
            h.until("the crash", lambda: False)


@pytest.mark.parametrize("level", [1, 2])
def test_an_adapter_is_always_on_its_own_base(level):
    def based():
        engine = FakeEngine()
        engine.load_weights([("w", 100)])  # as an engine begins with the model's own weights
        return engine

    expected = {1: 110, 2: 120, 3: 777, 4: 140, 5: 150}
    weights = Adapters({1: {"a": 1}, 2: {"a": 2}, 3: {"whole": -777}, 4: {"a": 4}, 5: {"a": 5}})
    with Harness(MemorySource(prompts(6)), engine=based(), weights=weights, sleep_level=level) as h:
        seq = iter(range(1, 100))
        for name, version in enumerate(expected):
            h.pull(version, next(seq))
            if version == 5:
                h.worker.submit(Lend(next(seq), "r0", (0,)))
                h.worker.submit(Return(next(seq), "r0"))
            h.worker.submit(route(next(seq), str(name)))
            h.until("it to finish", lambda count=name + 1: len(h.of(Finished)) == count)
            assert served(h, expected[version], str(name)), version
