"""Builds a machine's profile from a short run, with figures on how well it fits."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.fit_costs import fit_decode, fit_prefill, fit_training
from tailrace.fleetsim.profile.fit_delays import Shared, fit_delays, fit_sharing, fit_weights, route_s, sharing_table
from tailrace.fleetsim.profile.fit_workload import fit_workload
from tailrace.fleetsim.profile.machine import FORMAT, MachineProfile
from tailrace.fleetsim.profile.run import MeasuredRun, Progress, measure
from tailrace.fleetsim.profile.samples import ClockKind, timing_of
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.roles.replica import SNAPSHOT_S
from tailrace.pipeline.run.directory import RunDirectory

LEAST_STEPS = 5


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured machine, and how reliable the measurement is.

    Args:
        machine: the machine.
        shared: the share of its cores that members got.
        others_cores: cores that other programs used during the run; above about 0.1, measure again.
    """

    machine: MachineProfile
    shared: list[Shared]
    others_cores: float = 0.0


def fit_machine(measured: MeasuredRun, name: str) -> Profile:
    """The profile of the machine that a run was measured on.

    Raises:
        ProfileError: the run was too short.
    """
    config = measured.config
    replicas, trainer = list(measured.replicas.values()), measured.trainer
    processes = config.executor.name == "ray"
    rounds = chain.from_iterable(samples.rounds for samples in replicas)
    of_replica = timing_of(replicas[0].device, processes=processes, spans=((one.since, one.ended) for one in rounds))
    alone = trainer.sizes or trainer.updates
    of_trainer = timing_of(trainer.device, processes=processes, spans=((one.began, one.ended) for one in alone))
    longest = config.rollout.max_tokens + max(measured.prompts.values(), default=0)
    decode = fit_decode(replicas, of_replica, config.rollout.options.get("max_num_seqs"), longest)
    routes_s = route_s(measured)
    passed_s = sum(one.ended.wall_s - one.began.wall_s for one in trainer.updates)
    computing = min(1.0, sum(of_trainer.spent_s(one.began, one.ended) for one in trainer.updates) / passed_s)
    shares = of_replica.kind is not ClockKind.WALL and measured.usages
    sharing = fit_sharing(measured, of_replica, of_trainer) if shares else None
    machine = MachineProfile(
        format=FORMAT,
        name=name,
        measured=_measured(measured),
        engine=config.rollout.engine,
        replicas=config.rollout.replicas,
        decode=decode,
        prefill=fit_prefill(replicas, of_replica, decode),
        training=fit_training(trainer, of_trainer),
        weights=fit_weights(measured, routes_s, computing),
        delays=fit_delays(measured, routes_s, computing, SNAPSHOT_S),
        sharing=sharing,
        workload=fit_workload(measured),
    )
    shared = sharing_table(measured, of_replica, of_trainer, sharing) if sharing is not None else []
    return Profile(machine, shared, measured.others.cores if measured.others is not None else 0.0)


def _measured(measured: MeasuredRun) -> str:
    config = measured.config
    return (
        f"{config.app}, {config.pipeline.steps} steps with {config.rollout.replicas} replicas, "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, on {measured.cores} cores of {processor()}, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    )


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, if the system has it."""
    try:
        lines = info.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "an unknown processor")


def profile_machine(config: RunConfig, root: Path, name: str, *, steps: int, progress: Progress) -> Profile:
    """Run the configuration for a few steps in a new directory, with measured roles, and fit the machine's profile.

    Args:
        config: the configuration.
        root: the new run directory.
        name: the machine's name.
        steps: number of training steps.
        progress: called with the current phase and its progress.

    Raises:
        ProfileError: too few steps to fit to.
        TailraceError: the run failed.
    """
    if min(steps, config.pipeline.steps) < LEAST_STEPS:
        raise ProfileError(
            f"found {min(steps, config.pipeline.steps)} steps to measure, expected at least {LEAST_STEPS}"
        )
    directory = RunDirectory.create(root, config.model_dump(mode="json"))
    try:
        return fit_machine(measure(config, directory, steps, progress), name)
    finally:
        directory.unlock()
