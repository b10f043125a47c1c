"""Replicas that come and go with the lengths of responses, in virtual time (StreamRL, section 4.2)."""

import dataclasses

import pytest

from tailrace import contracts as c
from tailrace.faulttol import parse_fault
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.models import RunConfig
from tailrace.report.reason_words import why

STEPS = 60
HARDER, EASIER = 21, 41  # the first versions of harder and of easier prompts
START_S = 10.0


def config(drift=((0, 1.0),), *, fleet=(), **pipeline):
    """Generation of two replicas takes less long than training, with one it would take longer."""
    return {
        "app": "laminar",
        "task": {"name": "long-chain-sum"},
        "fleet": {
            "model": "Qwen2.5-7B",
            "trainer": {"gpus": 8, "data_s": 42.0},
            "rollout": {"gpus": 2, "start_s": START_S},
            "steady": False,
            "workload": {
                "response": {"median": 400, "sigma": 0.1},
                "correlation": 0.0,
                "drift": [list(point) for point in drift],
            },
            **dict(fleet),
        },
        "rollout": {"max_tokens": 8192},
        "pipeline": {
            "steps": STEPS,
            "prompts_per_step": 32,
            "samples_per_prompt": 8,
            "prompts_per_replica": 2,
            "admission": "one-step",
            "provisioning": "balanced",
            **pipeline,
        },
    }


class Seen:
    """A simulation, and which replicas were started and stopped after how many steps."""

    def __init__(self, content, *, seed=0, faults=()):
        fleet = build_fleet(RunConfig.model_validate(content), seed=seed)
        self.simulation = Simulation(dataclasses.replace(fleet, faults=tuple(map(parse_fault, faults))))
        self.simulation.run()
        self.run = self.simulation.controller.view
        assert self.run.failure is None
        assert self.run.step == STEPS
        self.changes, self.reasons = [], []
        step = 0
        for _, events, commands in self.simulation.log.instants:
            step += sum(isinstance(event, c.Stepped) for event in events)
            for one in commands:
                if isinstance(one, c.Start | c.Stop) and one.role == "replica" and one.reason.why is not c.Why.PLANNED:
                    self.changes.append((step, type(one).__name__, one.id))
                    self.reasons.append(one.reason)

    def complete(self):
        """Nothing is lost and nothing is trained on twice; a replica serves nothing before it has pulled."""
        counts = self.run.counts
        trained = [
            name
            for _, _, commands in self.simulation.log.instants
            for one in commands
            if isinstance(one, c.Step)
            for part in one.mini_batches
            for name in part
        ]
        assert len(trained) == len(set(trained)) == STEPS * 32 * 8
        assert counts.admitted == STEPS * 32 + counts.filtered + counts.failed + counts.deferred + self.run.open_groups
        assert max(self.run.staleness_at_consumption) <= 1
        assert self.run.contradictions == 0
        serves = set()
        for _, events, commands in self.simulation.log.instants:
            for event in events:
                if isinstance(event, c.Pulled):
                    serves.add(event.replica)
                elif isinstance(event, c.Down) and event.role == "replica":
                    serves.discard(event.id)
            for one in commands:
                assert not isinstance(one, c.Route) or one.replica in serves


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2))])
def test_harder_prompts_bring_one_within_five_iterations_and_easier_ones_remove_it(seed):
    drift = [(0, 1.0), (HARDER - 1, 1.0), (HARDER, 2.2), (EASIER - 1, 2.2), (EASIER, 1.0)]
    seen = Seen(config(drift), seed=seed)
    seen.complete()
    (came, *_), (left, *_) = seen.changes
    assert [(does, name) for _, does, name in seen.changes] == [("Start", "r2"), ("Stop", "r2")]
    # With one step of staleness, the prompts of version v are trained on in the iteration after it.
    assert HARDER < came <= HARDER + 5
    assert EASIER < left <= EASIER + 5
    assert [reason.why for reason in seen.reasons] == [c.Why.GENERATION_SLOWER, c.Why.TRAINING_SLOWER]
    assert [" training " in f" {why(reason)}" for reason in seen.reasons] == [True, True]


def test_of_two_pools_the_one_that_is_named_comes_and_goes():
    drift = [(0, 1.0), (HARDER - 1, 1.0), (HARDER, 2.2), (EASIER - 1, 2.2), (EASIER, 1.0)]
    pools = [{"name": name, "gpus": 1, "start_s": START_S} for name in ("home", "cloud")]
    seen = Seen(
        config(drift, fleet={"rollout": pools}, provisioning={"name": "balanced", "pool": "cloud", "devices": 3})
    )
    seen.complete()
    assert [(does, name) for _, does, name in seen.changes] == [("Start", "r2"), ("Stop", "r2")]
    started = [
        one.place.pool
        for _, _, commands in seen.simulation.log.instants
        for one in commands
        if isinstance(one, c.Start) and one.role == "replica"
    ]
    assert started == ["home", "cloud", "cloud"]


def test_whole_nodes_of_two_devices_come_and_go():
    drift = [(0, 1.0), (HARDER - 1, 1.0), (HARDER, 4.4), (EASIER - 1, 4.4), (EASIER, 1.0)]
    balanced = {"name": "balanced", "unit_devices": 2, "devices": 6}
    seen = Seen(config(drift, fleet={"rollout": {"gpus": 2, "start_s": START_S}}, provisioning=balanced))
    seen.complete()
    assert [does for _, does, _ in seen.changes][:2] == ["Start", "Start"]
    by_step: dict[int, int] = {}
    for step, does, _ in seen.changes:
        by_step[step] = by_step.get(step, 0) + (1 if does == "Start" else -1)
    assert all(abs(change) == 2 for change in by_step.values()), by_step
    assert sum(by_step.values()) == 0, "what came has left"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (2, 3, 4))])
@pytest.mark.cases(2)
def test_stationary_iterations_do_neither(seed):
    seen = Seen(config(), seed=seed)
    seen.complete()
    assert seen.changes == []


def test_a_joiner_that_is_killed_comes_again_and_nothing_is_lost():
    """It dies as soon as it is up, before it serves anything."""
    drift = [(0, 1.0), (HARDER - 1, 1.0), (HARDER, 2.2)]
    seen = Seen(config(drift), faults=["replica:r2@step25"])
    seen.complete()
    assert [(does, name) for _, does, name in seen.changes] == [("Start", "r2")]
    restarts = [
        one for _, _, commands in seen.simulation.log.instants for one in commands if isinstance(one, c.Restart)
    ]
    assert [one.id for one in restarts] == ["r2"]
    finished = {
        event.replica
        for _, events, _ in seen.simulation.log.instants
        for event in events
        if isinstance(event, c.Finished)
    }
    assert finished == {"r0", "r1", "r2"}


def test_stages_that_take_turns_on_the_same_devices_are_refused():
    content = config(fleet={"placement": "colocated", "trainer": {}})
    with pytest.raises(FleetError, match="'balanced', which compares the times of stages"):
        build_fleet(RunConfig.model_validate(content))
