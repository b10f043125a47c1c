"""What a worker process of vLLM does for an engine that spans several devices (tensor parallelism). Imported only there.

vLLM starts the workers itself and imports this module in each before it builds the model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.rollout.adapters import parameters_of
from tailrace.rollout.engine_seeds import keep_vllm_seeds
from tailrace.rollout.vllm_process import plain_linears

plain_linears()
keep_vllm_seeds()


class WeightLoading:
    """Methods that every worker of vLLM has besides its own."""

    def tailrace_parameters(self: Any) -> list[str]:
        """Names of the parameters of the worker's part of the model."""
        return sorted(parameters_of(self.model_runner.model))

    def tailrace_load(self: Any, path: str) -> list[str]:
        """Take the worker's part of the weights in a safetensors file. Returns the names of the parameters that it filled."""
        from safetensors.torch import load_file

        return sorted(self.model_runner.model.load_weights(load_file(Path(path)).items()))
