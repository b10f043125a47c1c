"""Builds a controller's spec and an executor's deployment from a configuration."""

from __future__ import annotations

import dataclasses
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.contracts import MissingExtraError, PluginError, plugins
from tailrace.controller.errors import PolicyError
from tailrace.controller.rounds import check_rounds
from tailrace.controller.spec import AXES, EvaluationPlan, PipelineSpec
from tailrace.faulttol.injection import MACHINE
from tailrace.faulttol.machine_checks import GROUP
from tailrace.paramserver import ParamServerError
from tailrace.pipeline.config.models import RunConfig, SmallModelConfig
from tailrace.pipeline.config.options import read_options, registered
from tailrace.pipeline.config.policies import build_policy, check_surplus
from tailrace.pipeline.errors import ConfigError, Gathered
from tailrace.pipeline.roles.data import DataRole, DataSettings
from tailrace.pipeline.roles.prompts import PromptSettings, SamplingTable
from tailrace.pipeline.roles.ranker import RankerRole
from tailrace.pipeline.roles.relay import RelayRole, RelaySettings
from tailrace.pipeline.roles.replica import ReplicaRole, ReplicaSettings
from tailrace.pipeline.roles.scorer import ScorerRole
from tailrace.pipeline.roles.trainer import TrainerRole, TrainerSettings
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.run import prepare
from tailrace.pipeline.run.device_shares import check_shares, cores_here, judge_cell, takes_cores, trainer_group
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.engine import abilities_of, selected_engine
from tailrace.pipeline.run.engine_abilities import applies_adapters, check_abilities, sleep_level, unapplied_layers
from tailrace.pipeline.run.environment_setup import (
    check_environment,
    environment_members,
    environment_of,
    environment_role,
    held_out_problems,
    no_tool_prefix,
)
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.machines import (
    check_domains,
    check_interface,
    check_own_machines,
    check_standby,
    checkpoint_holders,
    machine_names,
)
from tailrace.pipeline.run.model_check import readable_config
from tailrace.pipeline.run.pools import (
    cell_devices,
    check_pools,
    check_shared,
    offers_weights,
    pool_replicas,
    ranker_gpus,
    relay_sites,
    relay_slots,
    replica_pools,
    tensor_parallel,
)
from tailrace.pipeline.run.prepare import FORCED, FORCED_GREEDY, GREEDY, NO_TOOL, SAMPLED, Prepared
from tailrace.pipeline.run.prompts.stop_tokens import end_markers, stop_tokens
from tailrace.pipeline.run.ranker_setup import check_ranker, ranker_settings
from tailrace.pipeline.run.scorer_setup import check_scoring, score_settings
from tailrace.pipeline.run.scripted_faults import build_faults, check_faults
from tailrace.pipeline.trackers import GROUP as TRACKERS
from tailrace.pipeline.trackers import TrackerPlugin
from tailrace.pipeline.trackers.delivery import tracker_plugin
from tailrace.rollout import WeightComparison
from tailrace.runtime.executor.deployment import (
    DATA,
    RANKER,
    RELAY,
    REPLICA,
    SCORER,
    TRAINER,
    Deadlines,
    Deployment,
    MachineChecks,
)
from tailrace.runtime.executor.seam import RoleSpec
from tailrace.runtime.hosts.local import LocalHost
from tailrace.runtime.hosts.ray import RayHost
from tailrace.trainer import TrainerError
from tailrace.trainer.adapters import check_adapter
from tailrace.trainer.backend import check_backend
from tailrace.trainer.critic_init import check_critic_init

DEFAULT_TRACKER = "tensorboard"
_ELSEWHERE = {
    "adapter": "the table trainer.adapter",
    "critic": "the table trainer.critic",
    "cells": "trainer.cells",
    "loss": "trainer.loss.name",
    "loss_options": "options in trainer.loss",
    "clip_low": "trainer.loss.clip_low",
    "clip_high": "trainer.loss.clip_high",
    "advantages": "trainer.advantages",
    "advantages_options": "options in trainer.advantages",
    "divide_by_std": "trainer.advantages: 'group' divides, 'centred' does not",
}
"""Options of the trainer that have a key of their own."""
CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def build_spec(config: RunConfig, *, controls: bool = False, recorded: bool = False) -> PipelineSpec:
    """Build the pipeline's spec: its policies and quantities.

    Args:
        config: the configuration.
        controls: build the spec that only evaluates a model which RL did not train.
        recorded: it is of a run whose log is read, perhaps elsewhere: its environment, which is checked by starting it, may be
            gone, and whoever only reads starts nothing.

    Raises:
        ConfigError: a policy is unknown, or one of its options is wrong.
    """
    pipeline = config.pipeline
    if pipeline.buffer_prompts is not None and pipeline.buffer_prompts < pipeline.prompts_per_step:
        raise ConfigError(
            f"keys 'pipeline.buffer_prompts' and 'pipeline.prompts_per_step': found {pipeline.buffer_prompts} and "
            f"{pipeline.prompts_per_step}, expected room for at least one batch: otherwise none is ever complete"
        )
    facts = facts_of(config)
    policies: dict[str, Any] = {}
    gathered = Gathered()
    for axis in (*AXES, "detection", "sampler"):
        with gathered.check():
            policies[axis] = build_policy(axis, getattr(pipeline, axis), facts)
    if pipeline.eviction is not None:
        with gathered.check():
            if pipeline.buffer_prompts is None:
                raise ConfigError(
                    "key 'pipeline.eviction': found no pipeline.buffer_prompts, expected how many prompts are kept"
                )
            policies["eviction"] = build_policy("eviction", pipeline.eviction)
    saved = config.checkpoint
    if config.publish.fence and saved.every * saved.full_every != 1:
        key, value = ("every", saved.every) if saved.every != 1 else ("full_every", saved.full_every)
        gathered.add(
            f"keys 'publish.fence' and 'checkpoint.{key}': found true and {value}, expected a checkpoint with full state at "
            "every step (1): a version without one would never be seen"
        )
    with gathered.check():
        _check_newer_weights(config, gathered)
    if not gathered.lines and not recorded:  # it starts the environment, which takes seconds
        with gathered.check():
            check_environment(config)
    gathered.done()
    if policies["batching"].surplus_groups:  # admission must have room for them
        facts = dataclasses.replace(facts, surplus_groups=policies["batching"].surplus_groups)
        policies["admission"] = build_policy("admission", pipeline.admission, facts)
        check_surplus(policies["batching"], policies["admission"])
    task = config.task
    forced = (FORCED, FORCED_GREEDY) if task.name is not None and config.evaluation.controls else ()
    no_tool = (NO_TOOL,) if config.evaluation.controls and no_tool_prefix(config) else ()
    size = held_out_problems(config)
    sources = tuple(task.parts(size).items()) if len(task.generated) > 1 else ()
    if controls:
        plan = EvaluationPlan(size=size, modes=(SAMPLED, GREEDY), sources=sources)
    else:
        plan = EvaluationPlan(
            size,
            config.evaluation.every,
            (SAMPLED,),
            first=(GREEDY, *forced, *no_tool),
            last=(GREEDY, *no_tool),
            sources=sources,
        )
    spec = PipelineSpec(
        **policies,
        steps=0 if controls else pipeline.steps,
        batch_groups=pipeline.prompts_per_step,
        cells=config.trainer.cells,
        colocated=config.trainer.colocated,
        cell_devices=cell_devices(config),
        judge_cell=judge_cell(config) if policies["provisioning"].lends_devices() else None,
        replica_batch=pipeline.prompts_per_replica * pipeline.samples_per_prompt,
        tp=tensor_parallel(config.rollout.options),
        buffer_groups=pipeline.buffer_prompts,
        open_batches=pipeline.open_batches,
        cycle_s=pipeline.cycle_s,
        checkpoint_every=config.checkpoint.every,
        full_checkpoint_every=config.checkpoint.full_every,
        keep_checkpoints=config.checkpoint.keep,
        keep_checkpoint_bytes=int(config.checkpoint.keep_gb * 1e9),
        fence=config.publish.fence and not controls,
        newer_weights=saved.newer_weights and not controls,
        evaluation=plan,
        fits_costs=config.rollout.cost_model is None and not config.rollout.pools,
        ranker=config.ranker is not None and not controls,
        max_tokens=config.rollout.max_tokens,
        pools=replica_pools(config),
        peers=offers_weights(config),
        replica_versions=config.rollout.adapter_versions,
        relay_sites=relay_sites(config),
        **environment_members(config),
        machine_checks=bool(config.executor.machine_checks),
        machines=machine_names(config),
        deterministic=pipeline.deterministic and not controls,
    )
    try:
        check_rounds(spec)
    except PolicyError as error:
        raise ConfigError(f"key 'pipeline.batching': {error}") from error
    check_shared(config, spec)
    return spec


def _check_newer_weights(config: RunConfig, gathered: Gathered) -> None:
    """Add a line for each setting with which a trainer cannot go on from published weights."""
    if not config.checkpoint.newer_weights:
        return
    key = "'checkpoint.newer_weights'"
    if config.pipeline.deterministic:
        gathered.add(
            f"keys 'pipeline.deterministic' and {key}: found true and true, expected one of them: a trainer whose optimizer's "
            "state is older than its weights does not end on the same bits"
        )
    elif config.publish.fence:
        gathered.add(
            f"keys 'publish.fence' and {key}: found true and true, expected one of them: behind a fence no published weights "
            "are newer than the newest checkpoint"
        )
    if config.relay.codec in ("bf16", "fp8"):
        gathered.add(
            f"keys 'relay.codec' and {key}: found {config.relay.codec!r} and true, expected auto, none or delta: the trainer "
            "would go on from weights that lost precision on their way"
        )
    if trainer_config(config).has_critic:
        gathered.add(
            f"keys 'trainer.advantages' and {key}: found a critic and true, expected advantages without one: its weights "
            "are never published, and would stay those of the checkpoint"
        )


def check(config: RunConfig) -> None:
    """Find all faults of a configuration before minutes of preparation.

    Raises:
        ConfigError: a policy, a fault, an engine, a backend or one of their options is wrong, or the transport or codec
            cannot be used. The message has a line for each fault.
    """
    gathered = Gathered()
    parts = (
        build_spec,
        prepare.check,
        _check_faults,
        _check_transfer,
        selected_engine,
        _engine_options,
        check_pools,
        _abilities,
        _check_deterministic,
        trainer_config,
        _backend,
        _adapter,
        _critic,
        check_domains,
        check_scoring,
        check_ranker,
        _check_trackers,
        check_machine_checks,
        check_own_machines,
        check_interface,
        check_shares,
        check_standby,
    )
    for part in parts:
        with gathered.check():
            part(config)
    gathered.done()


def build_deployment(config: RunConfig, prepared: Prepared, directory: RunDirectory, *, token: str) -> Deployment:
    """How each role is started.

    Raises:
        ConfigError: an engine, a backend or an option of the trainer is unknown.
    """
    engine = selected_engine(config)
    device = {} if config.executor.device == "auto" else {"device": config.executor.device}
    # Members of the local host share a process, and vLLM ends the process's torch groups with itself.
    apart = {"apart": True} if engine == "vllm" and config.executor.name == "local" else {}
    rollout, applies, level = config.rollout, applies_adapters(config, engine), sleep_level(config, engine)
    able = {
        **({"adapter_rank": config.trainer.adapter.rank} if applies else {}),
        **({"adapters": rollout.adapter_versions} if rollout.adapter_versions > 1 else {}),
        **({"sleep_level": level} if level else {}),
    }
    modes, transfer = prepared.modes(), _transfer(config)
    stops = stop_tokens(config, prepared.model)
    answered = environment_of(config) is not None
    sampling = SamplingTable(rollout.temperature, rollout.max_tokens, stops, modes, config.seed, answered)
    data = DataSettings(
        store=directory.store.absolute(),
        archive=directory.trained.absolute(),
        prompts=PromptSettings(
            tokenizer=prepared.model / "tokenizer.json",
            train=prepared.train,
            shares=prepared.shares,
            held_out=prepared.held_out,
            modes=modes,
            shuffle_seed=config.shuffle_seed,
            end_tokens=end_markers(config, prepared.model),
        ),
        verifier=prepared.verifier,
        mixed_versions=build_policy("sync", config.pipeline.sync, facts_of(config)).mixes_versions,
    )
    checkpoints = directory.checkpoints.absolute()
    of_trainer = trainer_config(config)
    trainer = TrainerSettings(
        model=prepared.model.absolute(),
        backend=config.trainer.backend,
        config=of_trainer,
        checkpoints=checkpoints,
        transfer=transfer,
        save_timeout_s=config.deadlines.save_s,
        interface=config.trainer.interface,
        offloads=config.trainer.offloads,
        weights_are_taken=config.checkpoint.newer_weights,
    )
    replicas = ReplicaSettings(
        engine=engine,
        model=prepared.model.absolute(),
        options={**device, **apart, **able, "seed": config.seed, **config.rollout.options},
        sampling=sampling,
        checkpoints=checkpoints,
        transfer=transfer,
        flush_s=config.rollout.flush_s,
        adapter=of_trainer.adapter if of_trainer.adapter.rank else None,
        merges=not applies,
        sleep_level=level,
        versions=rollout.adapter_versions,
        comparison=_comparison(config, engine),
        offers=offers_weights(config),
    )
    known = {field.name for field in dataclasses.fields(Deadlines)}
    deadlines = {name: value for name, value in config.deadlines.model_dump().items() if name in known}
    rendezvous = directory.root.absolute() / "rendezvous"
    if config.trainer.processes > 1:
        rendezvous.mkdir(exist_ok=True)
    ranker, cores = {}, takes_cores(config)
    if config.ranker is not None:
        settings = ranker_settings(config, prepared.model, directory.root.absolute() / "ranker")
        threads = {"OMP_NUM_THREADS": str(config.ranker.threads)}
        gpus = ranker_gpus(config)
        ranker[RANKER] = RoleSpec.of(RankerRole, settings, gpus=gpus, environment=threads, home=True, cores=cores)
    scorer = score_settings(config, prepared.verifiers)
    replica = RoleSpec.of(
        ReplicaRole,
        replicas,
        gpus=config.executor.replica_gpus,
        environment=CPU_ENVIRONMENT,
        nice=config.rollout.nice,
        cores=cores,
    )
    of_trainer_role = RoleSpec.of(
        TrainerRole, trainer, gpus=config.executor.trainer_gpus, environment=CPU_ENVIRONMENT, cores=cores
    )
    return Deployment(
        name="tailrace-" + hashlib.sha256(str(directory.root.absolute()).encode()).hexdigest()[:10],
        token=token,
        roles={
            DATA: RoleSpec.of(DataRole, data, home=True),
            SCORER: RoleSpec.of(ScorerRole, scorer, gpus=config.executor.scorer_gpus, home=True, cores=cores),
            RELAY: RoleSpec.of(RelayRole, RelaySettings(transfer, relay_slots(config), offers_weights(config))),
            TRAINER: of_trainer_role,
            REPLICA: replica,
            **ranker,
            **environment_role(config, prepared.model.absolute(), stops, CPU_ENVIRONMENT),
        },
        trainer_ranks=config.trainer.processes,
        trainer_cells=config.trainer.cells,
        holders=checkpoint_holders(config),
        rendezvous=rendezvous,
        deadlines=Deadlines(**deadlines),
        tp=tensor_parallel(config.rollout.options),
        pools=pool_replicas(config, replica),
        checks=machine_checks(config, directory),
        bundles=trainer_group(config),
    )


def holding(deployment: Deployment, held: Path) -> Deployment:
    """The same roles, except that the trainer publishes the weights of a model directory instead of its own."""
    trainer = deployment.roles[TRAINER]
    return dataclasses.replace(
        deployment,
        roles={
            **deployment.roles,
            TRAINER: trainer.having(dataclasses.replace(trainer.settings, held=held)),
        },
        adopting_held=held,
    )


def build_host(config: RunConfig) -> LocalHost | RayHost:
    """A host for the roles of a run whose members end with this process."""
    if config.executor.name == "local":
        return LocalHost()
    return RayHost(config.executor.ray_address, cores=cores_here(config))


def _engine_options(config: RunConfig) -> Any:
    from tailrace.rollout import EngineOptions, RolloutError, check_engine_options

    options = read_options(EngineOptions, config.rollout.options, "key 'rollout.options'")
    engine, gathered = selected_engine(config), Gathered()
    tables = {"rollout.options": config.rollout.options}
    tables |= {f"rollout.pools.{place}.options": pool.options for place, pool in enumerate(config.rollout.pools)}
    for key, own in tables.items():
        for name, setting in (
            ("adapter_rank", "trainer.adapter.rank"),
            ("adapters", "rollout.adapter_versions"),
            ("sleep_level", "rollout.sleep_level"),
        ):
            if name in own:
                gathered.add(f"key '{key}.{name}': found {own[name]!r}, expected none: '{setting}' sets it")
        try:
            check_engine_options(engine, {**config.rollout.options, **own})
        except (RolloutError, PluginError) as error:
            gathered.add(f"key '{key}': {error}")
    gathered.done()
    return options


def _check_faults(config: RunConfig) -> None:
    check_faults(config, lambda: build_spec(config).provisioning.growth() is not None)


def _abilities(config: RunConfig) -> None:
    check_abilities(config, selected_engine(config))


def _check_deterministic(config: RunConfig) -> None:
    """Refuse what makes two runs of a seed differ, where they must not: what the keys of `with_determinism` do not rule out."""
    if not config.pipeline.deterministic:
        return
    gathered, spec = Gathered(), build_spec(config)
    batch = spec.batch_groups * config.pipeline.samples_per_prompt
    if batch > spec.cycle_trajectories:
        gathered.add(
            f"keys 'pipeline.deterministic' and 'pipeline.prompts_per_step': found true and a batch of {batch} responses, "
            f"expected at most {spec.cycle_trajectories}, which are placed together"
        )
    if spec.environments:
        gathered.add(
            "keys 'pipeline.deterministic' and 'task': found true and a task with an environment, expected one without: its "
            "answers come at any time"
        )
    if config.reward.judge.model is not None:
        gathered.add(
            "keys 'pipeline.deterministic' and 'reward.judge.model': found true and a judge, expected none: what it judges "
            "together depends on what was generated first"
        )
    struck = [str(fault) for fault in build_faults(config) if fault.role in (REPLICA, MACHINE)]
    if struck or config.mtbf_s is not None:
        what = struck[0] if struck else f"mtbf_s = {config.mtbf_s:g}"
        gathered.add(
            f"keys 'pipeline.deterministic' and 'faults': found true and {what}, expected no fault of a replica or a machine: "
            "what it had goes on in another batch"
        )
    gathered.done()


def _comparison(config: RunConfig, engine: str) -> WeightComparison | None:
    """How much of the weights the replicas compare with what their engines have; nothing with one that cannot tell."""
    nbytes = config.rollout.digest_bytes
    if nbytes == 0 or not abilities_of(config, engine).digests:
        return None
    return WeightComparison() if nbytes is None else WeightComparison(nbytes, required=True)


def tracker_names(config: RunConfig) -> tuple[str, ...]:
    """The trackers that a run asks for; of its own accord TensorBoard, where that is installed.

    Raises:
        ConfigError: there are options of another one.
    """
    table = config.tracking
    names = (DEFAULT_TRACKER,) if table.to is None else table.to
    if (unused := [name for name in table.options if name not in names]) != []:
        known = ", ".join(names) or "none"
        raise ConfigError(f"key 'tracking.options': found {unused[0]!r}, expected one of tracking.to, {known}")
    if table.to is None:
        with suppress(MissingExtraError):
            tracker_plugin(DEFAULT_TRACKER, {}).check()
            return names
        return ()
    return names


def tracker_of(config: RunConfig, name: str) -> TrackerPlugin:
    """One of them.

    Raises:
        ConfigError: it is not there or not installed, or one of its options is wrong.
    """
    registered("tracking.to", TRACKERS, name)
    plugin = tracker_plugin(name, config.tracking.options.get(name, {}))
    try:
        plugin.check()
    except MissingExtraError as error:
        raise ConfigError(f"key 'tracking.to': {name!r}: {error}") from error
    except ValueError as error:
        raise ConfigError(f"key 'tracking.options.{name}': {error}") from error
    return plugin


def _check_trackers(config: RunConfig) -> None:
    for name in tracker_names(config):
        tracker_of(config, name)


def _backend(config: RunConfig) -> None:
    """Check that the trainer's backend is there and can do what the configuration says."""
    table = config.trainer
    registered("trainer.backend", "tailrace.backend", table.backend)
    try:
        settings = trainer_config(config)
        check_backend(table.backend, settings, table.processes, _model_config(config))
        if settings.critic.init is not None:
            check_backend(table.backend, settings, table.processes, readable_config(settings.critic.init) or None)
    except (TrainerError, MissingExtraError, PluginError) as error:
        raise ConfigError(f"key 'trainer.backend': {error}") from error


def _adapter(config: RunConfig) -> None:
    """Check that the model has the layers that are to get an adapter, and that the engine applies one to them."""
    try:
        check_adapter(trainer_config(config).adapter, config.model.path)
    except (TrainerError, MissingExtraError) as error:
        raise ConfigError(f"key 'trainer.adapter': {error}") from error
    engine = selected_engine(config)
    if config.rollout.adapter == "applied" and (lacking := unapplied_layers(config, engine)):
        raise ConfigError(
            f"keys 'rollout.adapter' and 'trainer.adapter.targets': found 'applied' and {engine!r}, which applies no adapter "
            f"to {', '.join(lacking)}, expected targets among {', '.join(abilities_of(config, engine).adapter_targets)}, or "
            "'auto'"
        )
    table = config.trainer
    if table.adapter.rank and table.processes > 1 and config.evaluation.controls and config.model.path is None:
        raise ConfigError(
            f"keys 'trainer.adapter', 'trainer.processes' and 'evaluation.controls': found an adapter, "
            f"{table.processes} processes and controls, expected one process or no controls: the ranks of an adapter cannot "
            "publish a control's whole weights"
        )


def _critic(config: RunConfig) -> None:
    """Check that the critic begins with a model that has a value head and fits the policy."""
    init = trainer_config(config).critic.init
    if init is not None:
        try:
            check_critic_init(init, config.model.path)
        except TrainerError as error:
            raise ConfigError(f"key 'trainer.critic.init': {error}") from error


def _model_config(config: RunConfig) -> dict[str, Any] | None:
    """The Hugging Face config of the run's model, or what is known of it before it is built; None of no readable directory."""
    if config.model.path is None:
        small = config.model.small or SmallModelConfig()
        sizes = {"num_attention_heads": small.heads, "num_key_value_heads": small.kv_heads, "head_dim": small.head_dim}
        return {"model_type": "qwen3", "intermediate_size": small.mlp, **sizes}
    return readable_config(config.model.path) or None


def _transfer(config: RunConfig) -> WeightTransfer:
    return WeightTransfer(config.relay.transport, config.relay.codec, config.relay.host)


def _check_transfer(config: RunConfig) -> None:
    try:
        _transfer(config).check(config.trainer.processes)
    except (ParamServerError, ValueError) as error:
        raise ConfigError(f"keys 'relay.transport', 'relay.codec': {error}") from error


def trainer_config(config: RunConfig) -> Any:
    """The configuration of the trainer's backend, a `tailrace.trainer.TrainerConfig`.

    Raises:
        ConfigError: an option is unknown or wrong, or options do not fit together.
    """
    from tailrace.trainer import AdapterConfig, CriticConfig, TrainerConfig

    table = config.trainer
    gathered = Gathered()
    for name in table.options.keys() & _ELSEWHERE.keys():
        gathered.add(
            f"key 'trainer.options': found {name} = {table.options[name]!r}, expected it as {_ELSEWHERE[name]}"
        )
    gathered.done()
    if table.processes % table.cells:
        raise ConfigError(
            f"keys 'trainer.processes' and 'trainer.cells': found {table.processes} and {table.cells}, expected a multiple of "
            "the cells: each has as many processes"
        )
    if table.processes > 1 and config.executor.name == "local":
        raise ConfigError(
            f"keys 'executor.name' and 'trainer.processes': found 'local' and {table.processes}, expected 'ray', or one "
            "process and one cell: torch joins ranks that are processes, and here all are threads of one"
        )
    critic = read_options(CriticConfig, table.critic.model_dump(mode="json"), "key 'trainer.critic'")
    options = {"device": config.executor.device, "seed": config.seed, "cells": table.cells, **table.options}
    options = {"max_response_tokens": config.rollout.max_tokens, **options, **_loss(config)}
    adapter = read_options(AdapterConfig, table.adapter.model_dump(), "key 'trainer.adapter'")
    read = dataclasses.replace(read_options(TrainerConfig, options, "key 'trainer.options'"), adapter=adapter)
    try:
        read = dataclasses.replace(read, critic=critic)
    except TrainerError as error:  # of a loss that needs none
        raise ConfigError(f"key 'trainer.critic': {error}") from error
    training = config.pipeline.training
    refused = {updates: read.early_gradients_refused(updates=updates) for updates in (False, True)}
    if any(refused.values()):
        policy = build_policy("training", training)
        if policy.streams and (why := refused[policy.early_gradients() is None]):
            raise ConfigError(
                f"keys 'trainer.loss', 'trainer.advantages' and 'pipeline.training': with {training.name!r}, {why}"
            )
    return read


def _loss(config: RunConfig) -> dict[str, Any]:
    """The loss and its advantages as options of the trainer, each checked against the types of its own options."""
    loss, advantages = config.trainer.loss, config.trainer.advantages
    gathered = Gathered()
    found: dict[str, Any] = {}
    for key, choice in (("loss", loss), ("advantages", advantages)):
        if choice is not None:
            with gathered.check():
                registered(f"trainer.{key}.name", f"tailrace.{key}", choice.name)
                try:
                    kind = plugins.load(f"tailrace.{key}", choice.name)
                except PluginError as error:
                    raise ConfigError(f"key 'trainer.{key}': {error}") from error
                read_options(kind, choice.options, f"key 'trainer.{key}': {choice.name!r}")
                found |= {key: choice.name, f"{key}_options": choice.options}
    gathered.done()
    return found


def check_machine_checks(config: RunConfig) -> None:
    """Check that every check is there.

    Raises:
        ConfigError: one is unknown.
    """
    for name in config.executor.machine_checks:
        registered("executor.machine_checks", GROUP, name)


def machine_checks(config: RunConfig, directory: RunDirectory) -> MachineChecks | None:
    """The checks; None without any."""
    table = config.executor
    if not table.machine_checks:
        return None
    return MachineChecks(table.machine_checks, directory.root.absolute(), table.machine_check_s)
