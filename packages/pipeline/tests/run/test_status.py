"""What the status of a run says, while it runs and after, on real and on virtual clocks."""

import dataclasses

import pytest

from tailrace import contracts as c
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.directory import read_json
from tailrace.pipeline.run.figures.results import results_of
from tailrace.pipeline.run.figures.status import StatusObserver

BOUNDED = {"admission": {"name": "bounded", "bound": 1}, "sync": "when-useful", "routing": "marginal-throughput"}


def configured(pipeline=None, *, faults=()):
    """A pipeline of 4 prompts with 4 samples on three replicas, with evaluations."""
    shape = {"steps": 6, "prompts_per_step": 4, "samples_per_prompt": 4, "prompts_per_replica": 4, "buffer_prompts": 16}
    rollout = {"gpus": 3, "max_running": 12, "start_s": 5.0, "restart_s": 20.0}
    workload = {"response": [{"median": 400, "sigma": 0.9}]}
    fleet = {"model": "Qwen2.5-7B", "trainer": {"gpus": 4}, "rollout": rollout, "workload": workload, "warm_up": 0}
    content = {
        "app": "laminar",
        "task": {"name": "long-chain-sum", "held_out_size": 12},
        "pipeline": {**shape, **(pipeline or {})},
        "rollout": {"max_tokens": 8192},
        "evaluation": {"every": 3},
        "fleet": {**fleet, "steady": False},
        "faults": list(faults),
    }
    return validate([("test", content)])


def fleet_of(config):
    """A fleet on which a run goes to its very end, last evaluations included."""
    return dataclasses.replace(build_fleet(config), batches=None)


class Followed(StatusObserver):
    """Keeps a copy of what was told."""

    def __init__(self, path, **more):
        self.told, self.trainer = [], []
        super().__init__(path, app="x", run_dir=path.parent, listener=self._keep, **more)

    def _keep(self, status):
        self.told.append((status.phase, status.wall_s, status.step, status.left_s, list(status.down)))
        self.trainer.append(status.trainer)


def watched(path, config, **more):
    status = Followed(path, simulated=True, **more)
    simulation = Simulation(fleet_of(config), observers=(status,))
    status.phase("training")
    simulation.run()
    return simulation, status


@pytest.mark.parametrize("left", ["", "\0\0", '{"step": 3', "[]"])
def test_what_a_crash_of_the_machine_left_of_it_keeps_no_run_from_going_on(tmp_path, left):
    path = tmp_path / "status.json"
    path.write_text(left)
    StatusObserver(path, app="x", run_dir=tmp_path).phase("training")
    assert read_json(path)["phase"] == "training"


def test_it_shows_what_the_run_shows(tmp_path):
    simulation, status = watched(tmp_path / "status.json", configured(BOUNDED, faults=["relay@30s", "replica@40s"]))
    status.phase("done")
    found, run = read_json(tmp_path / "status.json"), simulation.controller.view
    assert (found["phase"], found["step"], found["steps"], found["version"]) == ("done", 6, 6, run.version)
    assert (found["simulated"], found["wall_s"]) == (True, simulation.now)
    assert (found["bound"], found["staleness_max"]) == (1, max(run.staleness_at_consumption))
    assert found["replica_restarts"] == 1
    measured = results_of(run.evaluations, baseline="x")
    assert (found["accuracy_before"], found["accuracy"]) == (
        measured.before.accuracy.value,
        measured.after.accuracy.value,
    )
    assert (found["held_out_reward_before"], found["held_out_reward"]) == (
        None,
        None,
    )  # it is the accuracy by another name
    assert (found["over"], found["replicas"], found["members"], found["waits"]) == (True, [], [], [])
    assert {"role": "relay", "id": "0", "health": "starting"} in [member for *_, down in status.told for member in down]
    assert found["down"] == []


def test_a_trainer_that_starts_is_not_down(tmp_path):
    _, status = watched(tmp_path / "status.json", configured(faults=["trainer@step3"]))
    assert status.trainer[0] == "starting"
    assert "down" not in status.trainer  # it is restarted in the instant in which its death is known
    up = status.trainer.index("waiting for a batch")
    assert "starting" in status.trainer[up:]


def test_its_clock_is_that_of_the_run(tmp_path):
    simulation, status = watched(tmp_path / "status.json", configured())
    seconds = [wall_s for _, wall_s, *_ in status.told]
    assert seconds == sorted(seconds)
    assert seconds[-1] <= simulation.now
    assert len(seconds) > simulation.now / simulation.host.tick_s  # at every tick
    left = [left_s for *_, left_s, _ in status.told if left_s is not None]
    assert 0 <= left[-1] < left[0] < simulation.now


def test_a_simulation_writes_seldom_and_yet_what_is_true_at_the_end(tmp_path):
    _, status = watched(tmp_path / "status.json", configured(), every_s=3600.0, steps=4)
    assert len(status.told) == 1
    status.phase("done")
    found = read_json(tmp_path / "status.json")
    assert (found["step"], found["steps"], found["left_s"]) == (6, 4, None)


def test_a_replica_that_is_gone_generates_nothing(tmp_path):
    status = Followed(tmp_path / "status.json")
    simulation = Simulation(fleet_of(configured()))
    run = simulation.controller.view
    shot = c.Snapshot("r0", 0.5, 3, 0, 0, 1, 1, tokens_per_s=100.0)
    for gone in ([c.Down("replica", "r0", "died")], []):
        commands = [] if gone else [c.Restart(1, "replica", "r0", reason=c.Reason(c.Why.STILL))]
        status.observe(1.0, [shot], [], run)
        status.phase("training")
        assert status.status.generated_tokens_per_s == 100.0
        status.observe(2.0, gone, commands, run)
        status.phase("training")
        assert status.status.generated_tokens_per_s == 0.0


def test_what_is_not_the_runs_own_is_not_taken_over(tmp_path):
    status = Followed(tmp_path / "status.json")
    status.follows = False
    run = Simulation(fleet_of(configured())).controller.view
    status.observe(1.0, [c.Stepped(1, {"reward_mean": 0.7})], [], run)
    status.phase("control: evaluation")
    assert (status.status.reward, status.status.step) == (None, 0)


def test_a_run_that_goes_on_has_the_figures_of_the_driver_before_until_it_is_under_way(tmp_path):
    simulation, first = watched(tmp_path / "status.json", configured())
    first.phase("interrupted")
    again = Followed(tmp_path / "status.json")
    again.phase("starting roles")
    found = read_json(tmp_path / "status.json")
    assert (found["step"], found["version"], found["accuracy"]) == (
        6,
        simulation.controller.view.version,
        first.status.accuracy,
    )
    assert found["accuracy"] is not None
    assert (found["over"], found["replicas"]) == (False, [])
    assert found["wall_s"] >= first.status.wall_s
    again.settle(simulation.controller.view)
    assert (again.status.step, again.status.over) == (6, True)
