"""The weights that a worker of vLLM generates with, in the engine's process or in one beside it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import WeightBox, WeightDigest
from tailrace.rollout.adapters import SHARED, parameters_of
from tailrace.rollout.served_weights import digest_of
from tailrace.rollout.vllm_packed_experts import unpacked_experts
from tailrace.rollout.vllm_process import updatable_linears

if TYPE_CHECKING:
    from tailrace.paramserver import RelayReader
    from tailrace.paramserver.clients.origin import RelayOrigin

_HOLD_S = 300.0
_PART_BYTES = 256 << 20
_LAYER = re.compile(r".*?\.\d+\.")
_COMPARABLE = ("float32", "float64", "bfloat16", "float16")


def load(model: Any, config: Any, weights: Iterable[tuple[str, Any]]) -> list[str]:
    """Have a worker take its part of weights of the full shape.

    Args:
        model: the worker's part of the model.
        config: the engine's `VllmConfig`.
        weights: pairs of a Hugging Face name and a tensor.

    Returns:
        Parameters or layers of it that got no weights, or not all.
    """
    from tailrace.paramserver.bridges.vllm_reload import keeps_what_it_loads, reload

    if keeps_what_it_loads(model):
        return sorted(parameters_of(model) - set(model.load_weights(weights)))
    with updatable_linears():
        return reload(model, config.model_config, weights)


def read_in_workers(llm: Any, origin: object) -> list[str]:
    """Have every worker process read its own part of a version from relays on its machine, and take it.

    Args:
        origin: a `RelayOrigin`.

    Returns:
        Parameters or layers that got no weights in some worker.
    """
    return sorted(set().union(*llm.collective_rpc("tailrace_read", args=(origin,))))


def load_in_workers(llm: Any, weights: Iterable[tuple[str, Any]]) -> list[str]:
    """Give weights of full shape, which only this process can read, to every worker. Each takes its part.

    Returns:
        Parameters or layers that got no weights in some worker.
    """
    missing: list[set[str]] = []
    with tempfile.TemporaryDirectory(prefix="tailrace-", dir=SHARED if SHARED.is_dir() else None) as folder:
        for part in _parts(weights):
            path = Path(folder) / "part"
            _save(part, path)
            lacks = [set(names) for names in llm.collective_rpc("tailrace_load", args=(str(path),))]
            missing = [before & now for before, now in zip(missing or lacks, lacks, strict=True)]
    return sorted(set().union(*missing))


def _parts(weights: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Weights in parts of some size. A layer is in one part: a worker repacks it when it has all of it."""
    part: dict[str, Any] = {}
    size, last = 0, ""
    for name, tensor in weights:
        layer = _LAYER.match(name)
        here = layer.group() if layer else name
        if size >= _PART_BYTES and here != last:
            yield part
            part, size = {}, 0
        part[name], last = tensor.detach().cpu().contiguous(), here
        size += tensor.numel() * tensor.element_size()
    if part:
        yield part


def _save(part: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in part.items()}, path)


class OwnReader:
    """How a worker process reads its part of versions from relays on its machine.

    Args:
        config: the engine's `VllmConfig`.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self._origin: Any = None
        self._reader: RelayReader | None = None

    def load(self, model: Any, origin: RelayOrigin, timeout_s: float) -> list[str]:
        """Load the worker's part of a version; see `load`. Of tensors that are cut only the worker's part is read.

        Raises:
            ParamServerError: the relays do not serve the version.
        """
        with self._open(origin).lease(origin.version, timeout_s=timeout_s, hold_s=_HOLD_S) as weights:
            return load(model, self._config, weights.items())

    def _open(self, origin: RelayOrigin) -> RelayReader:
        """A reader of the relays, which remembers what it needs of a version."""
        at = replace(origin, version=0)
        if self._reader is None or at != self._origin:
            if self._reader is not None:
                self._reader.close()
            from tailrace.paramserver.bridges.vllm_layout import worker_needs

            self._reader, self._origin = origin.reader(worker_needs(self._config)), at
        return self._reader


def read_back(model: Any, config: Any, boxes: Sequence[WeightBox]) -> list[WeightDigest]:
    """The digests of what a worker has in boxes of parameters: its shard, which may be fused with others'.

    Where an element lies is worked out from the model's shape and the engine's parallel sizes (`from_vllm`), not from vLLM's
    loaders, which are what is compared.

    Args:
        model: the worker's part of the model.
        config: the engine's `VllmConfig`.
        boxes: at least one of every parameter that was published.

    Raises:
        NotImplementedError: the layout of such a model is not known, or the worker keeps a parameter in another form.
    """
    from tailrace.paramserver.bridges.vllm_layout import engine_layout, worker_rank
    from tailrace.paramserver.layout import GlobalTensor, LayoutInvalid

    shapes = {box.name: box.shape for box in boxes}
    try:
        layout = engine_layout(config, [GlobalTensor(name, "float32", shape) for name, shape in shapes.items()])
    except LayoutInvalid as error:
        raise NotImplementedError(f"where vLLM has the weights of this model is not known: {error}") from error
    shard = layout.shards[worker_rank(config)]
    parameters = {  # a layer that may get an adapter has its own weights one step deeper
        name.replace(".base_layer.", "."): parameter
        for name, parameter in unpacked_experts(model, dict(model.named_parameters())).items()
    }
    found = []
    for name, _, box in boxes:
        for buffer, piece in shard.pieces.get(name, ()):
            common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, piece.box, strict=True)]
            if any(start >= stop for start, stop in common):
                continue
            lead = piece.at[: len(piece.at) - len(box)]
            shifts = [at - start for at, (start, _) in zip(piece.at[len(lead) :], piece.box, strict=True)]
            index = (*lead, *(slice(a + by, b + by) for (a, b), by in zip(common, shifts, strict=True)))
            here = _parameter(parameters, buffer.name, buffer.shape)[index]
            dtype = str(here.dtype).removeprefix("torch.")
            found.append(WeightDigest(name, tuple(common), dtype, digest_of(here)))
    return found


def _parameter(parameters: dict[str, Any], name: str, shape: tuple[int, ...]) -> Any:
    parameter = parameters.get(
        name, parameters.get(name.replace(".routed_experts.", "."))
    )  # vLLM 0.2x has no such module
    if parameter is None:
        raise NotImplementedError(f"vLLM has no parameter {name!r}")
    dtype = str(parameter.dtype).removeprefix("torch.")
    if tuple(parameter.shape) != shape or dtype not in _COMPARABLE:
        raise NotImplementedError(
            f"vLLM keeps {name!r} as {dtype} {tuple(parameter.shape)}, which cannot be compared with what is published, "
            f"{shape} in a floating-point dtype of 16 bits or more"
        )
    return parameter
