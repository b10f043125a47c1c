"""Causal language models from a directory or a configuration, by transformers. No code of a model's own is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tailrace.ranker.errors import RankerModelError


def backbone_of(directory: Path) -> Any:
    """A causal language model without its head, in float32.

    Raises:
        RankerModelError: the directory holds none.
    """
    from transformers import AutoModel

    return _loaded(AutoModel, directory)


def causal_lm(directory: Path) -> Any:
    """A causal language model, in float32.

    Raises:
        RankerModelError: the directory holds none.
    """
    from transformers import AutoModelForCausalLM

    return _loaded(AutoModelForCausalLM, directory)


def device_of_pretrained() -> torch.device:
    """Where a given model computes: the GPU if there is one. Small models from scratch stay on the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build_backbone(config: dict[str, Any]) -> Any:
    """The model of a `configuration`, without its head and with any weights.

    Raises:
        ValueError: no such model is known.
    """
    from transformers import AutoModel

    return AutoModel.from_config(_config(config)).to(device_of_pretrained())


def build_causal_lm(config: dict[str, Any]) -> Any:
    """The model of a `configuration`, with any weights.

    Raises:
        ValueError: no such model is known.
    """
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(_config(config))


def configuration(model: Any) -> dict[str, Any]:
    """A model's configuration as plain data."""
    found: dict[str, Any] = json.loads(model.config.to_json_string(use_diff=False))
    return found


def _config(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    fields = {**config, "dtype": "float32"}
    return AutoConfig.for_model(fields.pop("model_type", ""), **fields)


def _loaded(kind: Any, directory: Path) -> Any:
    if not (directory / "config.json").is_file():
        raise RankerModelError(f"{directory}: found no config.json, expected a model directory")
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        model = kind.from_pretrained(directory, dtype=torch.float32, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RankerModelError(
            f"{directory}: found no model that can be loaded ({said}), expected a causal LM"
        ) from error
    finally:
        if bars:
            logging.enable_progress_bar()
    return model.to(device_of_pretrained()).eval()
