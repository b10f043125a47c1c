"""What a run asks of its engine beyond what every engine does, and whether the engine's ability record has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tailrace.contracts import EngineAbilities, MissingExtraError, ProvisioningPolicy
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.engine import abilities_of, selected_engine
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.pools import engine_options, tensor_parallel


@dataclass(frozen=True, slots=True)
class Need:
    """An ability that a run's engine must have.

    Args:
        ability: what it is called.
        why: the key that asks for it, and what it says.
        met: whether an engine's abilities have it.
    """

    ability: str
    why: str
    met: Callable[[EngineAbilities], bool]


def needs_of(config: RunConfig) -> list[Need]:
    """What a run asks of its engine.

    Raises:
        ConfigError: a policy is unknown or one of its options is wrong, or a setting about an ability has no effect.
    """
    pipeline, rollout, found = config.pipeline, config.rollout, []
    if build_policy("batching", pipeline.batching, facts_of(config)).draws_again():
        why = f"pipeline.batching = {pipeline.batching.name!r}, which draws the same noise twice"
        found.append(Need("seeds", why, lambda able: able.seeds))
    if pipeline.deterministic:
        found.append(Need("equal bits", "pipeline.deterministic = true", lambda able: able.deterministic))
    if build_policy("routing", pipeline.routing, facts_of(config)).sees_prefixes():
        why = f"pipeline.routing = {pipeline.routing.name!r}, which plans with it"
        found.append(Need("a prefix cache", why, lambda able: able.prefix_cache))
    for key, size in _sizes(config).items():
        if size > 1:
            found.append(Need("several devices", f"{key} = {size}", lambda able: able.resizes))
    if max(_provisioning(config).sizes_of_replicas(), default=1) > 1:
        why = f"pipeline.provisioning = {pipeline.provisioning.name!r}, which resizes replicas"
        found.append(Need("several devices", why, lambda able: able.resizes))
    if rollout.adapter == "applied":
        if not config.trainer.adapter.rank:
            raise ConfigError(
                "keys 'rollout.adapter' and 'trainer.adapter.rank': found 'applied' and 0, expected 'auto', or the rank of an "
                "adapter"
            )
        found.append(Need("adapters", "rollout.adapter = 'applied'", lambda able: able.adapters > 0))
    if (versions := rollout.adapter_versions) > 1:
        if not config.trainer.adapter.rank or rollout.adapter == "merged":
            raise ConfigError(
                f"keys 'rollout.adapter_versions', 'trainer.adapter.rank' and 'rollout.adapter': found {versions}, "
                f"{config.trainer.adapter.rank} and {rollout.adapter!r}, expected the rank of an adapter that engines apply, "
                "or 1 version"
            )
        if not build_policy("sync", pipeline.sync, facts_of(config)).mixes_versions:
            raise ConfigError(
                f"keys 'rollout.adapter_versions' and 'pipeline.sync': found {versions} and {pipeline.sync.name!r}, with which "
                "nothing is in flight when a replica pulls, expected 1, or 'interrupting' or 'when-useful'"
            )
        why = f"rollout.adapter_versions = {versions}"
        found.append(Need(f"{versions} adapters at once", why, lambda able: able.adapters >= versions))
    if rollout.digest_bytes:
        why = f"rollout.digest_bytes = {rollout.digest_bytes}"
        found.append(Need("digests of its weights", why, lambda able: able.digests))
    if (level := rollout.sleep_level) is not None:
        if not lends_devices(config):
            raise ConfigError(
                f"keys 'rollout.sleep_level' and 'pipeline.provisioning': found {level} and {pipeline.provisioning.name!r}, "
                "which lends no devices, expected no level, or one that does: replicas sleep while theirs are lent"
            )
        if level:
            found.append(Need(f"sleep {level}", f"rollout.sleep_level = {level}", lambda able: level in able.sleeps))
    return found


def check_abilities(config: RunConfig, engine: str) -> None:
    """Check that the engine has all that a run asks of it.

    Args:
        engine: its name.

    Raises:
        ConfigError: it lacks something; all that it lacks stands in one line.
    """
    from tailrace.rollout import able_engines

    needs, able = needs_of(config), abilities_of(config, engine)
    if lacking := [need for need in needs if not need.met(able)]:
        others = able_engines(lambda able: all(need.met(able) for need in needs))
        expected = (
            f"an engine that has all of them, such as {others[0]!r}" if others else "another engine or other settings"
        )
        raise ConfigError(
            f"key 'rollout.engine': found {engine!r}, which lacks "
            + "; ".join(f"{need.ability}, asked for by {need.why}" for need in lacking)
            + f"; expected {expected}"
        )


def start_notes(config: RunConfig) -> list[str]:
    """What to know before a run starts, a line each: what it leaves off since its engine cannot do it, and the trainer's share.

    What a run cannot do without is refused instead.

    Raises:
        ConfigError: an option of provisioning is wrong.
    """
    choice, facts, notes = config.pipeline.provisioning, facts_of(config), []
    engine = selected_engine(config)
    if config.rollout.adapter == "auto" and (lacking := unapplied_layers(config, engine)):
        notes.append(
            f"rollout.adapter = 'auto': replicas merge each version of the adapter, since the engine {engine!r} applies none "
            f"to {', '.join(lacking)}"
        )
    policy: ProvisioningPolicy = build_policy("provisioning", choice, facts)
    if facts.devices_per_machine == 1 and max(policy.sizes_of_replicas(), default=0) == 1:
        notes.append(
            f"pipeline.provisioning = {choice.name!r}: no replica is resized, since the engine {engine!r} "
            "spans one device; vllm spans several"
        )
    if (devices := policy.trains_on()) is not None:
        notes.append(
            f"pipeline.provisioning = {choice.name!r} gives the trainer {devices} of the devices that were shared out"
        )
    return notes


def applies_adapters(config: RunConfig, engine: str) -> bool:
    """Whether the engine applies a run's adapters; otherwise its replicas merge them.

    Raises:
        ConfigError: the engine's plugin is broken, or the model lacks a layer that is to get an adapter.
    """
    asked = config.rollout.adapter
    if asked == "auto" and config.trainer.adapter.rank:
        return abilities_of(config, engine).adapters > 0 and not unapplied_layers(config, engine)
    return asked == "applied" and config.trainer.adapter.rank > 0


def unapplied_layers(config: RunConfig, engine: str) -> list[str]:
    """The last names of the layers that get an adapter, and to which the engine applies none.

    Raises:
        ConfigError: the engine's plugin is broken, or the model lacks a layer that is to get an adapter.
    """
    from tailrace.trainer import AdapterConfig, TrainerError
    from tailrace.trainer.adapters import check_adapter

    able, table = abilities_of(config, engine), config.trainer.adapter
    if not (table.rank and able.adapters and able.adapter_targets):
        return []
    try:
        targets = check_adapter(AdapterConfig(**table.model_dump()), config.model.path)
    except (TrainerError, MissingExtraError) as error:
        raise ConfigError(f"key 'trainer.adapter': {error}") from error
    return [target for target in targets if target not in able.adapter_targets]


def sleep_level(config: RunConfig, engine: str) -> int:
    """How deep replicas sleep while their devices are lent; 0: they keep their memory.

    Raises:
        ConfigError: the engine's plugin is broken.
    """
    if config.rollout.sleep_level is not None:
        return config.rollout.sleep_level
    return 1 if lends_devices(config) and 1 in abilities_of(config, engine).sleeps else 0


def _provisioning(config: RunConfig) -> ProvisioningPolicy:
    policy: ProvisioningPolicy = build_policy("provisioning", config.pipeline.provisioning, facts_of(config))
    return policy


def lends_devices(config: RunConfig) -> bool:
    """Whether replicas of a run lend their devices to the trainer.

    Raises:
        ConfigError: the provisioning policy is unknown or one of its options is wrong.
    """
    policy = _provisioning(config)
    return policy.lends_devices() or policy.yields_from() is not None


def _sizes(config: RunConfig) -> dict[str, int]:
    """The devices that replicas span at the start, by the key that says so."""
    pools = config.rollout.pools
    if not pools:
        return {"rollout.options.tensor_parallel_size": tensor_parallel(config.rollout.options)}
    return {f"tp of pool {pool.name!r}": tensor_parallel(engine_options(config, pool)) for pool in pools}
