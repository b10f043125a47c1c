"""The contract suite of engines: a test that fails leaves nothing to those after it, which share its engine."""

from tailrace.contracts import Request, Sampling
from tailrace.rollout.testing import FakeEngine
from tailrace.rollout.testing.contract import emptied


def test_what_a_failed_test_left_in_flight_is_aborted():
    engine = FakeEngine()
    engine.load_weights([("w", 1)])
    for again in range(2):
        with emptied(engine):
            engine.submit([Request(str(number), (1,), Sampling(max_tokens=9)) for number in range(3)])
            engine.abort(["2"])
            assert engine.stats().running == 2
        assert engine.stats().running == engine.stats().waiting == 0
        engine.load_weights([("w", again)])  # as the next test's fixture does: it was EngineBusyError
    assert "submit" not in vars(engine)
