"""The engine of a run's replicas: which one it is, and what it can do."""

from __future__ import annotations

from tailrace.contracts import EngineAbilities, PluginError
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError


def selected_engine(config: RunConfig) -> str:
    """The name of the engine.

    Raises:
        ConfigError: it is unknown or not installed.
    """
    from tailrace.rollout import RolloutError, select_engine

    # vLLM changes torch's process group and threads, so it cannot share a process with the trainer
    local = config.executor.name == "local" and config.rollout.engine == "auto"
    try:
        return select_engine("transformers" if local else config.rollout.engine)
    except (RolloutError, PluginError) as error:
        raise ConfigError(f"key 'rollout.engine': {error}") from error


def abilities_of(config: RunConfig, engine: str) -> EngineAbilities:
    """What the engine of a name can do.

    Raises:
        ConfigError: the engine's plugin is broken.
    """
    from tailrace.rollout import engine_abilities

    try:
        return engine_abilities(engine, config.rollout.options)
    except PluginError as error:  # of an old form, or it does not load
        raise ConfigError(f"key 'rollout.engine': {error}") from error
