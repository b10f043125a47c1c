"""From a configuration to a controller's spec and an executor's deployment."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.contracts import PluginError, plugins
from tailrace.faulttol import Fault, FaulttolError, parse_fault
from tailrace.pipeline.config.models import Choice, RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.executor.deployment import DATA, RELAY, REPLICA, SCORER, TRAINER, Deadlines, Deployment
from tailrace.pipeline.executor.seam import Host, RoleSpec
from tailrace.pipeline.hosts.local import LocalHost
from tailrace.pipeline.roles.data import DataRole
from tailrace.pipeline.roles.prompts import SamplingTable
from tailrace.pipeline.roles.relay import RelayRole
from tailrace.pipeline.roles.replica import ReplicaRole
from tailrace.pipeline.roles.scorer import ScorerRole
from tailrace.pipeline.roles.trainer import TrainerRole
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.prepare import FORCED, FORCED_GREEDY, GREEDY, SAMPLED, Prepared
from tailrace.pipeline.spec import AXES, EvaluationPlan, PipelineSpec

CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def build_spec(config: RunConfig, *, controls: bool = False) -> PipelineSpec:
    """The policies and quantities.

    Args:
        controls: the spec that only evaluates a model which was not trained by RL.

    Raises:
        ConfigError: a policy is unknown or does not take an option.
    """
    pipeline = config.pipeline
    if pipeline.buffer_prompts is not None and pipeline.buffer_prompts < pipeline.prompts_per_step:
        raise ConfigError(
            f"keys 'pipeline.buffer_prompts' and 'pipeline.prompts_per_step': found {pipeline.buffer_prompts} and "
            f"{pipeline.prompts_per_step}, expected room for one batch at least: otherwise none is ever complete"
        )
    given = {
        "batching": {"samples": pipeline.samples_per_prompt},
        "provisioning": {"count": config.rollout.replicas},
    }
    policies: dict[str, Any] = {
        axis: _build("pipeline", axis, getattr(pipeline, axis), given.get(axis, {}), _cost_model(config))
        for axis in (*AXES, "sampler")
    }
    if policies["batching"].surplus_groups:  # admission has to make room for them
        surplus = {"surplus": policies["batching"].surplus_groups}
        policies["admission"] = _build("pipeline", "admission", pipeline.admission, surplus)
    forced = (FORCED, FORCED_GREEDY) if config.task.name is not None and config.evaluation.controls else ()
    size = config.task.held_out_size if config.task.name is not None or config.task.held_out is not None else 0
    if controls:
        plan = EvaluationPlan(size=size, modes=(SAMPLED, GREEDY))
    else:
        plan = EvaluationPlan(size, config.evaluation.every, (SAMPLED,), first=(GREEDY, *forced), last=(GREEDY,))
    return PipelineSpec(
        **policies,
        steps=0 if controls else pipeline.steps,
        batch_groups=pipeline.prompts_per_step,
        replica_batch=pipeline.prompts_per_replica * pipeline.samples_per_prompt,
        buffer_groups=pipeline.buffer_prompts,
        cycle_s=pipeline.cycle_s,
        checkpoint_every=config.checkpoint.every,
        keep_checkpoints=config.checkpoint.keep,
        evaluation=plan,
    )


def check(config: RunConfig) -> None:
    """Find what is wrong with a configuration before minutes of preparation.

    Raises:
        ConfigError: a policy, a fault, an engine, a backend or one of their options is wrong.
    """
    from tailrace.rollout import EngineOptions

    build_spec(config)
    _check_faults(config)
    _engine(config)
    _trainer_config(config)
    try:
        plugins.load("tailrace.backend", config.trainer.backend)
        EngineOptions.read(config.rollout.options)
    except (PluginError, ValueError) as error:
        raise ConfigError(f"keys 'trainer.backend', 'rollout.options': {error}") from error


def build_deployment(config: RunConfig, prepared: Prepared, directory: RunDirectory, *, token: str) -> Deployment:
    """What each role is started with.

    Raises:
        ConfigError: an engine, a backend or an option of the trainer is unknown.
    """
    engine = _engine(config)
    device = {} if config.executor.device == "auto" else {"device": config.executor.device}
    trainer = _trainer_config(config)
    modes = prepared.modes()
    sampling = SamplingTable(config.rollout.temperature, config.rollout.max_tokens, stop_tokens(prepared.model), modes)
    data = {
        "store": directory.store.absolute(),
        "prompts": {
            "tokenizer": prepared.model / "tokenizer.json",
            "train": prepared.train,
            "held_out": prepared.held_out,
            "modes": modes,
            "shuffle_seed": config.seed,
        },
        "verifier": prepared.verifier,
        "mixed_versions": _build("pipeline", "sync", config.pipeline.sync, {}, _cost_model(config)).mixes_versions,
    }
    checkpoints = directory.checkpoints.absolute()
    trainer_arguments = {
        "model": prepared.model.absolute(),
        "backend": config.trainer.backend,
        "config": trainer,
        "checkpoints": checkpoints,
    }
    replica_arguments = {
        "engine": engine,
        "model": prepared.model.absolute(),
        "options": {**device, "seed": config.seed, **config.rollout.options},
        "sampling": sampling,
        "checkpoints": checkpoints,
    }
    known = {field.name for field in dataclasses.fields(Deadlines)}
    deadlines = {name: value for name, value in config.deadlines.model_dump().items() if name in known}
    rendezvous = directory.root.absolute() / "rendezvous"
    if config.trainer.processes > 1:
        rendezvous.mkdir(exist_ok=True)
    scorer = {"timeout_s": config.deadlines.verify_s, "verifier": prepared.verifier}
    return Deployment(
        name="tailrace-" + hashlib.sha256(str(directory.root.absolute()).encode()).hexdigest()[:10],
        token=token,
        roles={
            DATA: RoleSpec(DataRole, data),
            SCORER: RoleSpec(ScorerRole, scorer),
            RELAY: RoleSpec(RelayRole, {"host": config.relay.host}),
            TRAINER: RoleSpec(
                TrainerRole, trainer_arguments, gpus=config.executor.trainer_gpus, environment=CPU_ENVIRONMENT
            ),
            REPLICA: RoleSpec(
                ReplicaRole, replica_arguments, gpus=config.executor.replica_gpus, environment=CPU_ENVIRONMENT
            ),
        },
        trainer_ranks=config.trainer.processes,
        rendezvous=rendezvous,
        deadlines=Deadlines(**deadlines),
    )


def holding(deployment: Deployment, held: Path) -> Deployment:
    """The same roles, but the trainer publishes the weights of a model directory instead of those that it trained."""
    trainer = deployment.roles[TRAINER]
    return dataclasses.replace(
        deployment,
        roles={
            **deployment.roles,
            TRAINER: dataclasses.replace(trainer, arguments={**trainer.arguments, "held": held}),
        },
        adopting={TRAINER: {"held": held}},
    )


def build_host(config: RunConfig, *, started_s: float = 0.0) -> Host:
    """Where the roles run.

    Args:
        started_s: what the run's clock shows now.
    """
    if config.executor.name == "local":
        return LocalHost(started_s)
    from tailrace.pipeline.hosts.ray import RayHost

    return RayHost(config.executor.ray_address, started_s=started_s)


def build_faults(config: RunConfig) -> list[Fault]:
    """The scripted faults.

    Raises:
        ConfigError: one cannot be read.
    """
    try:
        return [parse_fault(text) for text in config.faults]
    except FaulttolError as error:
        raise ConfigError(f"key 'faults': {error}") from error


def _check_faults(config: RunConfig) -> None:
    """The scripted faults name members that the run begins with."""
    members = {role: ["0"] for role in (DATA, SCORER, TRAINER)}
    members[RELAY] = [str(index) for index in range(config.relay.count)]
    members[REPLICA] = [f"r{index}" for index in range(config.rollout.replicas)]
    for fault in build_faults(config):
        known = members[fault.role]
        if fault.member is not None and not {fault.member, f"r{fault.member}"} & set(known):
            raise ConfigError(
                f"key 'faults': {fault}: found {fault.role} {fault.member!r}, expected one of {', '.join(known)}"
            )


def _engine(config: RunConfig) -> str:
    from tailrace.rollout import RolloutError, select_engine

    # vLLM takes over torch's process group and threads: in one process with the trainer it is the wrong engine
    local = config.executor.name == "local" and config.rollout.engine == "auto"
    try:
        return select_engine("transformers" if local else config.rollout.engine)
    except (RolloutError, PluginError) as error:
        raise ConfigError(f"key 'rollout.engine': {error}") from error


def _trainer_config(config: RunConfig) -> Any:
    from tailrace.trainer import TrainerConfig

    options = {"device": config.executor.device, "seed": config.seed, **config.trainer.options}
    lists_as_tuples: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    try:
        return TrainerConfig(**lists_as_tuples)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"key 'trainer.options': {_plain(error)}") from error


def stop_tokens(model: Path) -> tuple[int, ...]:
    """The end-of-sequence tokens of a model directory."""
    found: Any = None
    for name in ("generation_config.json", "config.json"):
        path = model / name
        if found is None and path.is_file():
            found = json.loads(path.read_text()).get("eos_token_id")
    if found is None:
        raise ConfigError(f"{model}: found no eos_token_id in its configuration, expected one: responses could not end")
    return tuple(found) if isinstance(found, list) else (found,)


def _cost_model(config: RunConfig) -> dict[str, Any]:
    return {} if config.rollout.cost_model is None else config.rollout.cost_model.model_dump()


def _build(
    table: str, axis: str, choice: Choice, given: dict[str, Any], where_taken: Mapping[str, Any] | None = None
) -> Any:
    """A policy. What is given must be an option of it; of `where_taken`, it gets the options that it has."""
    try:
        factory = plugins.load(f"tailrace.{axis}", choice.name)
    except PluginError as error:
        raise ConfigError(f"key '{table}.{axis}': {error}") from error
    takes = inspect.signature(factory).parameters
    _check_kinds(f"key '{table}.{axis}': {choice.name!r}", takes, choice.options)
    offered = {name: value for name, value in (where_taken or {}).items() if name in takes}
    try:
        return factory(**{**offered, **given, **choice.options})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"key '{table}.{axis}': {choice.name!r}: {_plain(error)}") from error


KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
}


def _check_kinds(where: str, takes: Mapping[str, inspect.Parameter], options: Mapping[str, Any]) -> None:
    """A policy's options are of the kind that it declares, as far as that is simple."""
    for name, value in options.items():
        kind = KINDS.get(str(takes[name].annotation)) if name in takes else None
        if kind is not None and (not isinstance(value, kind[0]) or isinstance(value, bool) != (bool in kind[0])):
            raise ConfigError(f"{where}: option {name!r}: found {value!r}, expected {kind[1]}")


def _plain(error: Exception) -> str:
    return re.sub(r"(\w+\.)?__init__\(\) got an unexpected keyword argument", "found the unknown option", str(error))
