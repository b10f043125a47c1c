"""Runs to look at: small pipelines on a simulated fleet, which leave what real ones leave."""

import dataclasses

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Models, Simulation
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.results.log import InstantLog
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.pipeline.run.figures.metrics import MetricsObserver
from tailrace.report.fold.folds import Folds
from tailrace.runtime.executor.executor import Executor

LAMINAR = {"admission": "inherent", "sync": "on-idle", "routing": "least-loaded", "relocation": "best-fit"}
STALEFLOW = {
    "admission": {"name": "bounded", "bound": 1},
    "routing": {"name": "marginal-throughput", "mu": 0.3},
    "sync": "when-useful",
    "relocation": "migration",
    "batching": {"name": "redundant", "filter_equal_rewards": True},
}
FLEET = {
    "model": "Qwen2.5-7B",
    "trainer": {"gpus": 4},
    "rollout": {"gpus": 3, "max_running": 12, "start_s": 5.0, "restart_s": 20.0},
    "delays": {"trainer_restart_s": 30.0, "relay_restart_s": 10.0, "data_restart_s": 5.0},
    "workload": {"response": [{"median": 400, "sigma": 0.9}], "correlation": 0.3},
    "steady": False,
    "warm_up": 0,
}


def configured(pipeline=LAMINAR, *, steps=6, faults=(), relays=1, **fleet):
    """A pipeline of 4 prompts with 4 samples on three replicas, with evaluations."""
    shape = {"steps": steps, "prompts_per_step": 4, "samples_per_prompt": 4, "prompts_per_replica": 4}
    content = {
        "app": "laminar",
        "task": {"name": "long-chain-sum", "held_out_size": 12},
        "pipeline": {"buffer_prompts": 16, **shape, **pipeline},
        "rollout": {"max_tokens": 8192, "replicas": 3},
        "evaluation": {"every": 3},
        "relay": {"count": relays},
        "fleet": {**FLEET, **fleet},
        "faults": list(faults),
    }
    return validate([("test", content)])


def fleet_of(config):
    """A fleet on which a run goes to its very end, last evaluations included."""
    return dataclasses.replace(build_fleet(config), batches=None)


def simulated(config, *, seed=0, **changes):
    """The simulation of a configuration, run to its end, with its instants in `log`."""
    fleet = dataclasses.replace(build_fleet(config, seed=seed), batches=None, **changes)
    simulation = Simulation(fleet)
    simulation.run()
    return simulation


def folded(simulation, change=lambda event: event, **options):
    """What is folded from the instants of a simulation, which a new controller is shown again.

    Args:
        change: what becomes of each event before.
    """
    controller = Controller(simulation.fleet.spec, relays=simulation.fleet.relays)
    folds = Folds(controller.view, **options)
    for now, events, commands in simulation.log.instants:
        changed = [change(event) for event in events]
        assert controller.handle_all(changed, now) == list(commands)
        folds.observe(now, changed, commands)
    folds.close()
    return folds


class Enriched(InstantLog):
    """A log of what a simulation does, with what only real members measure. Metrics are written beside."""

    def __init__(self, directory):
        super().__init__(keep=True)
        self.file, self.metrics = EventLog(directory.events), MetricsObserver(directory.metrics)

    def append(self, now, events, commands, heard):
        events = [enriched(event) for event in events]
        super().append(now, events, commands, heard)
        self.file.append(now, events, commands)

    def observe(self, now, events, commands, run):
        self.metrics.observe(now, [enriched(event) for event in events], commands, run)

    def tick(self, now, executor):
        pass

    def close(self):
        self.file.close()
        self.metrics.close()


def enriched(event):
    if isinstance(event, c.Stepped):
        figures = {
            "loss": 0.1,
            "clip_fraction": 0.0,
            "approx_kl": 0.0,
            "grad_norm": 1.0,
            "reward_mean": 0.5,
            "tokens": 9.0,
        }
        return dataclasses.replace(event, metrics={**event.metrics, **figures})
    if isinstance(event, c.Snapshot):
        return dataclasses.replace(event, tokens_per_s=100.0)
    return event


def a_run(root, config=None, *, until_step=None, crash_at_step=None, observe=None):
    """The directory of a run, and the simulation that it was.

    Args:
        observe: from the directory, one more observer of the run.
        until_step: the driver stops there.
        crash_at_step: the driver dies there with every process, and the run goes on.
    """
    config = config or configured()
    fleet = fleet_of(config)
    directory = RunDirectory.create(root, fleet.config.model_dump(mode="json"), beside=fleet.beside)
    log = Enriched(directory)
    observers = (log,) if observe is None else (log, observe(directory))
    simulation = Simulation(fleet, log=log, observers=observers, models=Models(World(fleet)))
    stop = crash_at_step if until_step is None else until_step
    if stop is None:
        simulation.run()
    else:
        view = simulation.controller.view
        simulation.executor.run(simulation.controller, log, faults=fleet.faults, until=lambda: view.step >= stop)
    if crash_at_step is not None:
        _crash(simulation)
        simulation.run(c.Resumed(tuple(simulation.world.disk)))
    log.close()
    directory.unlock()
    return directory, simulation


def _crash(simulation):
    simulation.host.close()
    simulation.host.reporting.clear()
    simulation.world.time.clear()
    simulation.executor = Executor(simulation.host, simulation.deployment, observers=simulation.observers)
