"""The engine behind vLLM's weight transfer backend `tailrace`. Only vLLM imports this file.

Each worker reads its part of a version from its relay and loads it by vLLM's own layerwise reload (`vllm_model`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from tailrace.paramserver.bridges.vllm_model import reload, worker_needs
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.reader import RelayReader
from tailrace.paramserver.errors import BridgeStateInvalid, WeightsMismatch
from tailrace.paramserver.wire.authentication import TOKEN_VARIABLE

_HEADER_CEILING_BYTES = 100 << 20
_OUTPUT_LAYER = "lm_head.weight"  # the embedding itself in a model with tied embeddings


def checkpoint_shapes(model_path: str) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in the directory's safetensors files; empty where there are none.

    Raises:
        WeightsMismatch: a file is there and cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(model_path).glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                shapes |= _header(file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightsMismatch(f"cannot read the tensor names of {path}: {type(error).__name__}: {error}") from error
    return shapes


def check_complete(weights: WeightLease, shapes: dict[str, tuple[int, ...]], *, tied_embeddings: bool) -> None:
    """Compare a version with a checkpoint's names and shapes. An engine casts, so dtypes may differ.

    Raises:
        WeightsMismatch: a tensor is missing, unknown or of another shape.
    """
    specs = weights.tensors
    stored = {name: name for name in specs} | dict(weights.tied)
    if not shapes:
        return
    optional = {_OUTPUT_LAYER} if tied_embeddings else set()
    missing, unknown = shapes.keys() - stored.keys() - optional, stored.keys() - shapes.keys() - optional
    for names, what in ((missing, "lacks"), (unknown, "has and the engine's model lacks")):
        if names:
            raise WeightsMismatch(f"version {weights.version} {what} {len(names)} tensors, the first is {min(names)!r}")
    for name, source in stored.items():
        if name in shapes and specs[source].shape != shapes[name]:
            raise WeightsMismatch(
                f"{name!r}: found the shape {list(specs[source].shape)} in version {weights.version}, "
                f"expected {list(shapes[name])} as in the engine's checkpoint"
            )


def engine_names(weights: WeightLease, *, tied_embeddings: bool) -> list[tuple[str, str]]:
    """Names to hand an engine, and the stored tensor of each.

    A tied tensor goes under all of its names, but for the output layer of a model with tied embeddings: engines skip
    that one, so its data must go under another name.
    """
    pairs = [(name, name) for name in weights] + list(weights.tied.items())
    if tied_embeddings and len(pairs) > 1:
        others = [pair for pair in pairs if not pair[0].endswith(_OUTPUT_LAYER)]
        if {stored for _, stored in others} == set(weights):
            return others
    return pairs


def _header(file: BinaryIO) -> dict[str, tuple[int, ...]]:
    # safetensors: eight bytes with the length of a JSON object, then that object, then the data
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= _HEADER_CEILING_BYTES:
        raise ValueError(f"found a safetensors header of {length} bytes, the file is damaged")
    header = json.loads(file.read(length))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


_log = logging.getLogger(__name__)


@dataclass
class RelayInitInfo(WeightTransferInitInfo):  # type: ignore[misc, unused-ignore]
    """Where the versions are.

    Args:
        address: the relay's address, preferably on this host.
        token: shared secret; None takes it from TAILRACE_RELAY_TOKEN.
        check_names: compare a version with the names and shapes of the engine's checkpoint, if that is a directory with
            safetensors. Off for models whose trainer names tensors in another way that vLLM understands too.
    """

    address: str
    token: str | None = None
    check_names: bool = True


@dataclass
class RelayUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc, unused-ignore]
    """What to load.

    Args:
        version: its number: all workers of an engine must take the same one, so there is no "newest" here.
        timeout_s: how long to wait for it to become visible.
        hold_s: how long the relay keeps it while it is loaded.
    """

    version: int
    timeout_s: float = 30.0
    hold_s: float = 300.0


class RelayWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc, unused-ignore]
    """A worker's end: each worker reads its part of a version from its relay, by a plan that is made once.

    vLLM's loaders are handed tensors of the full shape, of which only this worker's part is there.
    """

    init_info_cls = RelayInitInfo
    update_info_cls = RelayUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._reader: RelayReader | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def init_transfer_engine(self, init_info: RelayInitInfo) -> None:
        """Connect to the relay, in place of any former one.

        Raises:
            BridgeStateInvalid: no token.
            WeightsMismatch: the engine's checkpoint cannot be read.
            ParamServerError: the relay does not answer, or has another token.
        """
        token = init_info.token or os.environ.get(TOKEN_VARIABLE)
        if not token:
            raise BridgeStateInvalid(f"found no token for the relay {init_info.address}; set {TOKEN_VARIABLE}")
        shapes = checkpoint_shapes(self.model_config.model) if init_info.check_names else {}
        reader = RelayReader(init_info.address, token=token, needs=worker_needs(self.vllm_config))
        try:
            reader.versions()
        except BaseException:
            reader.close()
            raise
        self.shutdown()
        self._reader, self._shapes = reader, shapes

    def start_weight_update(self) -> None:
        """Nothing to prepare: the model is touched only once the whole version is there."""

    def finish_weight_update(self) -> None:
        """Nothing to finish: `receive_weights` returns when the version is in use."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load a version (see `receive_weights`); the next step uses it."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: RelayUpdateInfo) -> None:
        """Wait for a version, compare it with the checkpoint, verify it and load it.

        Raises:
            BridgeStateInvalid: before `init_transfer_engine`. Nothing was changed.
            WeightsMismatch: the version does not fit; unless the message says otherwise, nothing was changed.
            ParamServerError: what `RelayReader.lease` raises. Nothing was changed, except for LeaseExpired.
        """
        if self._reader is None:
            raise BridgeStateInvalid("found no relay to load from; call init_weight_transfer_engine first")
        tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        with self._reader.lease(
            update_info.version, timeout_s=update_info.timeout_s, hold_s=update_info.hold_s
        ) as weights:
            check_complete(weights, self._shapes, tied_embeddings=tied)
            self._load(weights, tied)
            if self.device.type != "cpu":
                torch.accelerator.synchronize()

    def shutdown(self) -> None:
        """Let go of the relay."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _load(self, weights: WeightLease, tied: bool) -> None:
        names = engine_names(weights, tied_embeddings=tied)

        def arriving() -> Iterator[tuple[str, torch.Tensor]]:
            for name, stored in names:
                yield name, weights[stored]

        try:
            missing = reload(self.model, self.model_config, arriving())
        except Exception as error:
            raise WeightsMismatch(
                f"version {weights.version} does not load: {type(error).__name__}: {error}; "
                "the engine may hold a part of it: load a whole version before it generates"
            ) from error
        if missing:
            raise WeightsMismatch(
                f"version {weights.version} has no or not all weights for {len(missing)} layers, the first is "
                f"{missing[0]!r}; the engine holds the rest of it: load a whole version before it generates"
            )
