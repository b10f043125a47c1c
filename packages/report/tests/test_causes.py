"""Why a trainer waits, against the controller itself, which is fed the same events again."""

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.report.fold.causes import NEXT_NOT_STARTED, waiting_cause
from tailrace.report.fold.history import History

from .conftest import configured, simulated

BATCHWISE = {
    "admission": {"name": "one-step", "batchwise": True},
    "sync": "when-drained",
    "routing": "least-loaded",
    "relocation": "none",
    "prompts_per_replica": 1,
    "buffer_prompts": None,
}


@pytest.mark.parametrize("training", ["dynamic-batch", "full-batch"])
@pytest.mark.parametrize("seed", range(3))
def test_a_step_that_is_held_until_the_next_batch_has_started_says_so(training, seed):
    config = configured({**BATCHWISE, "training": training}, steps=12, faults=["replica:r1@step3"])
    simulation = simulated(config, seed=seed)
    spec = simulation.fleet.spec
    controller, history = Controller(spec), History(spec)
    held = 0
    for now, events, commands in simulation.log.instants:
        again = controller.handle_all(events, now)
        assert again == list(commands)
        history.observe(now, events, commands)
        if controller.batches.wanted and history.making is None:
            trainer = controller.batches
            trainer.give()  # asks once more, so that `held` is of now; it gives nothing
            assert not any(isinstance(one, c.Step) for one in controller.outbox.take())
            assert (waiting_cause(history) == NEXT_NOT_STARTED) == trainer.held, f"at {now} s"
            held += trainer.held
    assert controller.finished
    assert held
