"""What a worker process of vLLM does for an engine that does not run in its own process. Imported only there.

vLLM starts the workers itself and imports this module in each before it builds the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace.contracts import UnreadableWeightsError, WeightBox
from tailrace.rollout.engine_seeds import keep_vllm_seeds
from tailrace.rollout.vllm_process import plain_linears
from tailrace.rollout.vllm_weights import OwnReader, load, read_back

if TYPE_CHECKING:
    from tailrace.paramserver.clients.origin import RelayOrigin

_READ_TIMEOUT_S = 60.0

plain_linears()
keep_vllm_seeds()


class WeightLoading:
    """Methods that every worker of vLLM has besides its own."""

    def tailrace_digests(self: Any, boxes: Sequence[Sequence[Any]]) -> tuple[list[tuple[Any, ...]], str]:
        """What the worker has in boxes of the parameters, or why it cannot tell."""
        try:
            digests = read_back(self.model_runner.model, self.vllm_config, [WeightBox(*box) for box in boxes])
        except UnreadableWeightsError as error:  # an error would end the engine
            return [], str(error)
        return [tuple(digest) for digest in digests], ""

    def tailrace_load(self: Any, path: str) -> list[str]:
        """Take the worker's part of the weights in a safetensors file. Returns what got no weights."""
        from safetensors.torch import load_file

        return load(self.model_runner.model, self.vllm_config, load_file(path).items())

    def tailrace_read(self: Any, origin: RelayOrigin) -> list[str]:
        """Read the worker's part of a version from the relays and take it. Returns what got no weights."""
        if not hasattr(self, "_tailrace_reader"):
            self._tailrace_reader = OwnReader(self.vllm_config)
        reader: OwnReader = self._tailrace_reader
        return reader.load(self.model_runner.model, origin, _READ_TIMEOUT_S)
