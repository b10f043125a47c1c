"""The engine with a clock does what the engine does, and notes it."""

from tailrace.contracts import Request, Sampling
from tailrace.fleetsim.profile.measured_roles import MeasuredEngine
from tailrace.fleetsim.profile.samples import ReplicaSamples
from tailrace.rollout.testing import FakeEngine


def request(name, prompt=3, tokens=4, kept=()):
    return Request(name, tuple(range(1, prompt + 1)), Sampling(max_tokens=tokens), tuple(kept))


def made(**options):
    samples = ReplicaSamples()
    engine = MeasuredEngine(FakeEngine(**options), samples)
    engine.load_weights([("w", 7)])
    return engine, samples


def test_responses_are_the_engines_own():
    plain = FakeEngine()
    plain.load_weights([("w", 7)])
    engine, _ = made()
    for one in (plain, engine):
        one.submit([request("a"), request("b", prompt=5)])
    assert [plain.step() for _ in range(3)] == [engine.step() for _ in range(3)]
    assert sorted(map(repr, plain.abort(["a", "b"]))) == sorted(map(repr, engine.abort(["a", "b"])))


def test_rounds_say_what_ran_and_what_came_in():
    engine, samples = made(max_num_seqs=2)
    engine.submit([request("a"), request("b", prompt=5, tokens=2), request("c", kept=(1, 2, 3), tokens=9)])
    engine.step()
    engine.step()
    engine.step()
    first, second, third = samples.rounds
    assert (first.fresh, first.fresh_tokens, first.running, first.queued) == (3, 3 + 5 + 6, 2, 1)
    assert (first.kv_tokens, second.kv_tokens) == (4 + 6, 5 + 7)
    assert (second.fresh, second.running) == (0, 2)
    assert (third.running, third.queued, third.kv_tokens) == (2, 0, 6 + 7)  # b is through, c has begun
    assert second.since == first.ended
    assert first.since.wall_s <= first.began.wall_s <= first.ended.wall_s
    assert [(name, idle) for name, _, idle in samples.finished] == [("b", False)]
    engine.step()
    engine.abort(["c"])
    assert [name for name, _, _ in samples.finished] == ["b", "a"]


def test_an_idle_engine_is_not_at_work():
    engine, samples = made()
    engine.submit([request("a", tokens=1)])
    engine.step()
    engine.submit([request("b", tokens=1)])
    engine.step()
    first, second = samples.rounds
    assert second.since.wall_s > first.ended.wall_s
    assert [(name, idle) for name, _, idle in samples.finished] == [("a", True), ("b", True)]
    engine.submit([request("c")])
    engine.abort(["c"])
    engine.submit([request("d", tokens=1)])
    engine.step()
    assert samples.rounds[-1].fresh == 2


def test_looks_into_the_cache_only_while_nobody_waits():
    engine, samples = made(max_num_seqs=2)
    engine.stats()
    engine.submit([request("a"), request("b"), request("c")])
    engine.step()
    engine.stats()
    assert samples.looks == []
    engine.abort(["a"])
    engine.step()
    engine.stats()
    assert [sorted(look.tokens) for look in samples.looks] == [[4, 5]]
