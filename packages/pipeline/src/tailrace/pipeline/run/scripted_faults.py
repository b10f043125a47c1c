"""The faults that a configuration scripts."""

from __future__ import annotations

import re
from collections.abc import Callable

from tailrace.faulttol import Fault, FaulttolError, parse_fault
from tailrace.pipeline.config.gathered import Gathered
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.executor.deployment import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.pipeline.run.environments import environment_of
from tailrace.pipeline.run.pools import relay_count

_LATER = re.compile(r"r?\d+")


def build_faults(config: RunConfig) -> list[Fault]:
    """The scripted faults.

    Raises:
        ConfigError: a fault is not valid.
    """
    try:
        return [parse_fault(text) for text in config.faults]
    except FaulttolError as error:
        raise ConfigError(f"key 'faults': {error}") from error


def check_faults(config: RunConfig, adds_replicas: Callable[[], bool]) -> None:
    """Check that the scripted faults name members of the run's start, and steps before its end.

    Args:
        adds_replicas: whether replicas may join later, which a fault may name too.

    Raises:
        ConfigError: one does not; a line for each.
    """
    members = {role: ["0"] for role in (DATA, SCORER, TRAINER)}
    if config.ranker is not None:
        members[RANKER] = ["0"]
    if environment_of(config) is not None:
        members[ENVIRONMENT] = [str(index) for index in range(config.environment.members)]
    members[RELAY] = [str(index) for index in range(relay_count(config))]
    members[REPLICA] = [f"r{index}" for index in range(config.rollout.replicas)]
    gathered = Gathered()
    for fault in build_faults(config):
        known = members.get(fault.role, [])
        if not known:
            gathered.add(
                f"key 'faults': {fault}: found no {fault.role} in this run, expected one of {', '.join(members)}"
            )
            continue
        if fault.member is None or {fault.member, f"r{fault.member}"} & set(known):
            pass
        elif not (fault.role == REPLICA and _LATER.fullmatch(fault.member) and adds_replicas()):
            gathered.add(
                f"key 'faults': {fault}: found {fault.role} {fault.member!r}, expected one of {', '.join(known)}"
            )
        if fault.at_step is not None and fault.at_step >= config.pipeline.steps:
            gathered.add(
                f"key 'faults': {fault}: found step {fault.at_step}, expected one below pipeline.steps = "
                f"{config.pipeline.steps}, with which the run ends"
            )
    gathered.done()
