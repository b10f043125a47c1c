"""Starts the processes of a run's members beside its preparation, and imports their libraries there.

A warm start leaves a core idle, and vLLM's import takes longer than the rest of a replica's start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL
from types import TracebackType

from tailrace.contracts import Start, Tick
from tailrace.controller.controller import Controller
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import CPU_ENVIRONMENT, build_spec
from tailrace.pipeline.run.device_shares import takes_cores, trainer_group
from tailrace.pipeline.run.engine import selected_engine
from tailrace.pipeline.run.pools import relay_count
from tailrace.processes import Child
from tailrace.runtime.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.ray import RayHost
from tailrace.trainer.backend import import_backend


def start_ahead(host: RayHost, config: RunConfig) -> None:
    """Start the first members of a run. What they import must be importable on the cluster."""
    from tailrace.rollout import import_engine

    first_commands = Controller(build_spec(config), relays=relay_count(config)).handle(Tick(), 0.0)
    places = {(one.role, one.id): one.place for one in first_commands if isinstance(one, Start)}
    group = trainer_group(config)
    for role, ids in ((DATA, ["0"]), (SCORER, ["0"]), (RELAY, [str(index) for index in range(relay_count(config))])):
        for id_ in ids:
            if (role, id_) in group:
                continue
            gpus = config.executor.scorer_gpus if role == SCORER else 0.0
            spec = RoleSpec(_nothing, gpus=gpus, home=role != RELAY, cores=takes_cores(config) and role == SCORER)
            host.prepare(role, id_, spec, places[role, id_])
    if (TRAINER, "0") not in group:
        backend = {"name": config.trainer.backend}
        gpus = config.executor.trainer_gpus
        cores = takes_cores(config)
        spec = RoleSpec(import_backend, backend, gpus=gpus, environment=CPU_ENVIRONMENT, cores=cores)
        host.prepare(TRAINER, "0", spec, places[TRAINER, "0"])
    replicas = [
        id_ for role, id_ in places if role == REPLICA and not config.rollout.pools and (role, id_) not in group
    ]
    factor = _spanning(config)
    replica = RoleSpec(
        import_engine,
        {"name": selected_engine(config)},
        gpus=factor * config.executor.replica_gpus,
        environment=CPU_ENVIRONMENT,
        nice=config.rollout.nice,
        cores=takes_cores(config),
    )
    first = None
    for id_ in replicas:  # the others find bytecode and warm files
        done = host.prepare(REPLICA, id_, replica, places[REPLICA, id_], after=first)
        first = first or done


def _spanning(config: RunConfig) -> float:
    """How many times the devices each replica has at the start that the configuration says."""
    spec = build_spec(config)
    growth = spec.provisioning.growth()
    if growth is None or growth.spans is None:
        return 1.0
    return growth.spans / spec.tp


def _nothing() -> None:
    """The process is all that is wanted."""


# Makes imports cheap for the processes of a run: torch, Ray and vLLM are tens of thousands of lines.
#
# If Python is told not to write bytecode, every process compiles them again, which on two cores takes half a minute before a
# run starts. The run's processes then keep bytecode in Tailrace's own cache directory instead.

HEAVY = ("torch", "transformers", "ray", "reasoning_gym", "vllm.v1.engine.llm_engine")


def keep_bytecode(cache: Path) -> None:
    """Have child processes keep bytecode, in `cache` if they must not keep it beside the sources."""
    if sys.dont_write_bytecode and not os.environ.get("PYTHONPYCACHEPREFIX"):
        os.environ["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
        os.environ["PYTHONDONTWRITEBYTECODE"] = ""


class ImportsAhead:
    """Imports heavy modules once in another process, so that later processes find bytecode and cached files.

    Modules that are not installed are skipped. Leaving this context ends the process, even if it is not done.
    """

    def __init__(self, modules: Sequence[str] = HEAVY) -> None:
        lines = [f"try:\n    import {module}\nexcept ImportError:\n    pass" for module in modules]
        self._child = Child([sys.executable, "-c", "\n".join(lines)], stdout=DEVNULL, stderr=DEVNULL)

    def __enter__(self) -> ImportsAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
