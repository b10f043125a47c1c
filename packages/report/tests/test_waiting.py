"""Why a member waits, as the controller says it: against what it then does, and without a trace of having been asked."""

import copy

import pytest

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.trial import FuzzSimulation

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
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2))])
def test_a_step_that_is_held_until_the_next_batch_has_started_says_so(training, seed):
    config = configured({**BATCHWISE, "training": training}, steps=12, faults=["replica:r1@step3"])
    simulation = simulated(config, seed=seed)
    controller, held = Controller(simulation.fleet.spec), 0
    for now, events, commands in simulation.log.instants:
        assert controller.handle_all(events, now) == list(commands)
        if controller.batches.wanted and controller.trainer.making is None:
            said = controller.view.why_idle("trainer", "0")
            trainer = controller.batches
            trainer.give()  # asks once more, so that `held` is of now; it gives nothing
            assert not any(isinstance(one, c.Step) for one in controller.outbox.take())
            assert (said.why is c.Why.NEXT_NOT_STARTED) == trainer.held, f"at {now} s"
            held += trainer.held
    assert controller.finished
    assert held


@pytest.mark.parametrize(
    "seed", [*range(40, 44), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(44, 52))]
)
def test_who_looks_changes_nothing_and_every_idle_member_has_a_reason(seed):
    """A controller that is asked for everything at every instant stays equal to one that nobody asks."""
    fuzz = FuzzSimulation(draw_case(seed))
    fuzz.run()
    simulation = fuzz.simulation
    asked, alone = (Controller(simulation.fleet.spec, relays=simulation.fleet.relays) for _ in range(2))
    for number, (now, events, commands) in enumerate(simulation.log.instants):
        assert asked.handle_all(events, now) == alone.handle_all(copy.deepcopy(events), now) == list(commands), seed
        run = asked.view
        for role, id_ in run.members():
            row, reason = run.member(role, id_), run.why_idle(role, id_)
            works = row.pulling is not None or row.held or row.cells or (role == "trainer" and run.making is not None)
            if role in ("replica", "trainer") and row.health is c.Health.UP:
                assert (reason is None) == bool(works), (seed, now, role, id_)
            else:
                waits = role == "replica" and id_ in run.occupied
                assert reason == (c.Reason(c.Why.OCCUPIED) if waits else None)
        assert run.answering + run.waiting_turns + run.pooled_started + run.on_replicas >= 0
        assert sum(run.unsettled()) >= 0
        if number % 50 == 0:
            assert asked.state() == alone.state(), (seed, now)
    assert asked.state() == alone.state(), seed


def test_a_trainer_that_waits_for_the_rest_of_a_batch_counts_what_it_added():
    config = configured({"training": "streamed"}, steps=6)
    simulation = simulated(config, seed=3)
    controller, seen = Controller(simulation.fleet.spec), 0
    for now, events, _ in simulation.log.instants:
        controller.handle_all(events, now)
        added, said = len(controller.trainer.accumulated), controller.view.why_idle("trainer", "0")
        if added and said is not None and said.why is c.Why.NO_BATCH:
            assert said.numbers["buffered"] >= added, f"at {now} s"
            seen += 1
    assert seen
