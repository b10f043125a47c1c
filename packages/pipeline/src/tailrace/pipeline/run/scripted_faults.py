"""The faults that a configuration scripts, those that it has drawn, and which of them could never strike."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from random import Random

from tailrace.faulttol import CONTROLLER, Fault, FaulttolError, at_steps, parse_fault, random_faults
from tailrace.faulttol.injection import LENDING, LOAD, MACHINE, WORKER, FaultKind
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.pipeline.run.engine_abilities import lends_devices
from tailrace.pipeline.run.environment_setup import environment_of
from tailrace.pipeline.run.machines import PEER, machine_names
from tailrace.pipeline.run.pools import relay_count
from tailrace.runtime.executor.deployment import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER

_LATER = re.compile(r"r?\d+")


def members_of(config: RunConfig) -> dict[str, list[str]]:
    """The members of a run's start, by role."""
    members = {role: ["0"] for role in (DATA, SCORER, TRAINER)}
    if config.ranker is not None:
        members[RANKER] = ["0"]
    if environment_of(config) is not None:
        members[ENVIRONMENT] = [str(index) for index in range(config.environment.members)]
    members[RELAY] = [str(index) for index in range(relay_count(config))]
    members[REPLICA] = [f"r{index}" for index in range(config.rollout.replicas)]
    return members


def build_faults(config: RunConfig) -> list[Fault]:
    """The scripted faults, with the steps that were drawn for those with ``everyN``.

    Raises:
        ConfigError: a fault is not valid.
    """
    random = Random(f"faults {config.fault_seed}")
    return at_steps(_written(config), config.pipeline.steps, random, lends=lends_devices(config))


def further_faults(config: RunConfig, begin_s: float = 0.0) -> Iterator[Fault]:
    """The faults at random that `mtbf_s` asks for; none without it.

    Args:
        config: the configuration.
        begin_s: seconds of the run at which they begin.
    """
    if config.mtbf_s is None:
        return iter(())
    random = Random(f"further faults {config.fault_seed} {begin_s:.3f}")
    return random_faults(members_of(config), config.mtbf_s, random, begin_s=begin_s, lends=lends_devices(config))


def check_faults(config: RunConfig, adds_replicas: Callable[[], bool]) -> None:
    """Check that every scripted fault can strike: it names a member of the run's start, a step before its end, and a phase.

    Args:
        adds_replicas: whether replicas may join later, which a fault may name too.

    Raises:
        ConfigError: one cannot; a line for each.
    """
    members = members_of(config)
    gathered = Gathered()
    faults = _written(config)
    for fault in faults:
        for wrong in (
            _wrong_machine(fault, config) if fault.role == MACHINE else _wrong_member(fault, members, adds_replicas),
            _wrong_step(fault, config.pipeline.steps),
            _never_loads(fault, faults, config),
            _never_lends(fault, config),
        ):
            if wrong:
                gathered.add(f"key 'faults': {fault}: {wrong}")
                break
    machines, struck = len(machine_names(config)), [fault for fault in build_faults(config) if fault.role == MACHINE]
    if machines and len(struck) >= machines:
        gathered.add(
            f"keys 'faults' and 'executor.machines': found {len(struck)} faults of {machines} machines, expected at most "
            f"{machines - 1}: a machine that was killed does not come back, and the last one must live"
        )
    gathered.done()


def _written(config: RunConfig) -> list[Fault]:
    try:
        return [parse_fault(text) for text in config.faults]
    except FaulttolError as error:
        raise ConfigError(f"key 'faults': {error}") from error


def _wrong_member(fault: Fault, members: dict[str, list[str]], adds_replicas: Callable[[], bool]) -> str:
    if fault.role == CONTROLLER:
        alone = fault.member in (None, "0")
        return "" if alone else f"found controller {fault.member!r}, expected no id: there is one"
    known = members.get(fault.role, [])
    if not known:
        return f"found no {fault.role} in this run, expected one of {', '.join((*members, CONTROLLER))}"
    name = fault.member if fault.worker is None else fault.worker
    if not name or {name, f"r{name}"} & set(known):
        return ""
    if fault.role == REPLICA and _LATER.fullmatch(name) and adds_replicas():
        return ""
    known = known if fault.worker is None else [f"{id_}.{WORKER}" for id_ in known]
    return f"found {fault.role} {fault.member!r}, expected one of {', '.join(known)}"


def _wrong_machine(fault: Fault, config: RunConfig) -> str:
    known = machine_names(config)
    if not known:
        return "found no machine of this run's own, expected executor.machines = 2 or more"
    if fault.member is not None and fault.member not in known:
        return f"found machine {fault.member!r}, expected one of {', '.join(known)}"
    if fault.kind is not FaultKind.KILL:
        return f"found {fault.kind} of a machine, expected kill"
    if PEER not in config.checkpoint.domains:
        return (
            "found checkpoints on the trainer's disk only, which is gone with its machine, expected "
            'checkpoint.domains = ["disk", "peer"]'
        )
    return ""


def _wrong_step(fault: Fault, steps: int) -> str:
    if fault.at_step is not None and fault.at_step >= steps:
        return f"found step {fault.at_step}, expected one below pipeline.steps = {steps}, with which the run ends"
    if fault.every is not None and fault.every > steps:
        return f"found once in {fault.every} steps, expected at most pipeline.steps = {steps}, with which the run ends"
    return ""


def _never_lends(fault: Fault, config: RunConfig) -> str:
    if fault.phase not in LENDING or lends_devices(config):
        return ""
    name = config.pipeline.provisioning.name
    return (
        f"found the phase {fault.phase!r} and provisioning {name!r}, expected one that lends devices, such as 'hybrid' or "
        "'scale-down': otherwise nobody passes it"
    )


def _never_loads(fault: Fault, faults: list[Fault], config: RunConfig) -> str:
    """Only a trainer that is restarted loads a checkpoint."""
    others = any(other.role == TRAINER and other.phase != LOAD for other in faults)
    if fault.phase != LOAD or others or config.mtbf_s is not None:
        return ""
    return "found no other fault of the trainer, expected one before it: only a trainer that is restarted loads a checkpoint"
