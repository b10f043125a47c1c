"""Detection in virtual time: tool waits, hangs and deaths under each policy, by the executor and controller of real runs."""

import pytest

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.figures.detection import DetectionFold

HOURS = 20.0


class Observed:
    def __init__(self, fold):
        self.hears = fold.hears

    def observe(self, now, events, commands, run):
        for one in (*events, *commands):
            hear = self.hears.get(type(one))
            if hear is not None:
                hear(now, one)

    def tick(self, now, executor):
        pass


def figures(policy, hours, *faults):
    unlimited = {"max_restarts": 10**9, "trainer_restarts": 10**9, "data_restarts": 10**9}
    waits = {"calls": {"counts": {"8": 1.0}}, "latency": {"median": 600.0, "sigma": 1.5, "cap": 20_000.0}}
    config = {
        "faults": list(faults),
        "pipeline": {
            "detection": policy, "steps": 10_000, "prompts_per_step": 8, "samples_per_prompt": 4, "open_batches": 2,
            "recovery": {"name": "isolate", **unlimited},
        },
        "rollout": {"max_tokens": 9_000},
        "fleet": {
            "model": "Qwen2.5-7B", "steady": False, "rollout": {"gpus": 2}, "trainer": {"gpus": 2},
            "delays": {"snapshot_s": 4.0, "report_s": 4.0},
            "workload": {"prompt": 512, "response": 1_024, "environment": waits},
        },
    }  # fmt: skip
    fleet = build_fleet(validate([("test", config)]), seed=1)
    fold = DetectionFold(fleet.spec.detection)
    simulation = Simulation(fleet, keep_events=False, observers=(Observed(fold),))
    end_s = hours * 3600
    simulation.executor.run(
        simulation.controller, simulation.log, faults=fleet.faults, until=lambda: simulation.now >= end_s
    )
    return fold.figures()


@pytest.mark.deep
def test_whoever_waits_for_tools_is_well():
    """Figure 2 of RobustRL: the baselines restart those who wait, or everybody once all do."""
    assert figures("role-aware", HOURS).detections == 0
    assert figures("rank-level", HOURS).false_detections > 100
    assert figures("cluster-level", HOURS).false_detections > 0


@pytest.mark.parametrize("role", ["replica:0", "trainer", "relay", "data", "scorer", "environment"])
def test_a_hang_is_noticed_within_its_window_and_a_death_within_five_seconds(role):
    found = figures("role-aware", 2.0, f"hang:{role}@1500s", f"kill:{role}@4500s")
    assert (found.detections, found.false_detections, found.late_detections) == (1, 0, 0)


def test_an_engine_that_stands_still_is_noticed_while_its_process_answers():
    found = figures("role-aware", 2.0, "stall:replica:1@1500s")
    assert (found.detections, found.false_detections, found.late_detections) == (1, 0, 0)
