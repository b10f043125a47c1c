"""The weights that a worker of vLLM generates with, in the engine's process or in one beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import UnreadableWeightsError, WeightBox, WeightDigest
from tailrace.rollout.adapters import matrix_of
from tailrace.rollout.own_directory import WEIGHTS, scratch
from tailrace.rollout.served_weights import common_box, digest_of, local_boxes
from tailrace.rollout.vllm_process import ask_workers, updatable_linears
from tailrace.rollout.vllm_versions import load_beneath_adapters

if TYPE_CHECKING:
    from tailrace.paramserver import RelayReader
    from tailrace.paramserver.clients.origin import RelayOrigin

_HOLD_S = 300.0
_PART_BYTES = 256 << 20
_LAYER = re.compile(r".*?\.\d+\.")
_COMPARABLE = ("float32", "float64", "bfloat16", "float16")
_AS_LOADED = (None, "TRITON", "BATCHED_TRITON", "CPU")  # vLLM's kernels of experts


def load(model: Any, config: Any, weights: Iterable[tuple[str, Any]]) -> list[str]:
    """Have a worker take its part of weights of the full shape.

    Args:
        model: the worker's part of the model.
        config: the engine's `VllmConfig`.
        weights: pairs of a Hugging Face name and a tensor.

    Returns:
        Parameters or layers of it that got no weights, or not all.
    """
    from tailrace.paramserver.bridges.vllm_model import keeps_what_it_loads, reload

    load_beneath_adapters()
    if keeps_what_it_loads(model):
        own = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}  # as files name them
        return sorted(own - set(model.load_weights(weights)))
    from vllm.config import set_current_vllm_config

    with updatable_linears(), set_current_vllm_config(config):  # kernels that are set up anew look there
        return reload(model, config.model_config, weights)


def read_in_workers(llm: Any, origin: object) -> list[str]:
    """Have every worker process read its own part of a version from relays on its machine, and take it.

    Args:
        origin: a `RelayOrigin`.

    Returns:
        Parameters or layers that got no weights in some worker.
    """
    return sorted(set().union(*ask_workers(llm, "tailrace_read", origin)))


def load_in_workers(llm: Any, weights: Iterable[tuple[str, Any]]) -> list[str]:
    """Give weights of full shape, which only this process can read, to every worker. Each takes its part.

    Returns:
        Parameters or layers that got no weights in some worker.
    """
    missing: list[set[str]] = []
    with scratch(WEIGHTS) as folder:
        for part in _parts(weights):
            path = folder / "part"
            _save(part, path)
            lacks = [set(names) for names in ask_workers(llm, "tailrace_load", str(path))]
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
            from tailrace.paramserver.bridges.vllm_model import worker_needs

            self._reader, self._origin = origin.reader(worker_needs(self._config)), at
        return self._reader


def read_back(model: Any, config: Any, boxes: Sequence[WeightBox]) -> list[WeightDigest]:
    """The digests of what a worker has in boxes of parameters: its shard, which may be fused with others'.

    Where an element lies is worked out from the model's shape and the engine's parallel sizes (`from_vllm`), not from vLLM's
    loaders, which are what is compared.

    Args:
        model: the worker's part of the model.
        config: the engine's `VllmConfig`.
        boxes: of parameters, and of matrices of the adapter that is applied.

    Returns:
        One for each box, or why the worker cannot tell of a parameter that it keeps in another form.

    Raises:
        UnreadableWeightsError: the layout of such a model is not known.
    """
    matrices = [box for box in boxes if matrix_of(box.name)]
    found = list(_read_adapter(model, config, matrices)) if matrices else []
    boxes = [box for box in boxes if not matrix_of(box.name)]
    if not boxes:
        return found
    shard = _own_shard(config, {box.name: box.shape for box in boxes})
    parameters = _plain_parameters(model)
    last = why = ""
    plain: Any = None
    for name, common, buffer, index in local_boxes(shard, boxes):
        if buffer.name != last:  # the boxes of a parameter follow each other
            last = buffer.name
            plain, why = _parameter(parameters, buffer.name, buffer.shape)
        if plain is None:
            found.append(WeightDigest(name, common, "", "", unreadable=why))
            continue
        here = plain[index]
        found.append(WeightDigest(name, common, str(here.dtype).removeprefix("torch."), digest_of(here)))
    return found


def _read_adapter(model: Any, config: Any, boxes: Sequence[WeightBox]) -> Iterator[WeightDigest]:
    """The digests of what a worker has in boxes of an adapter's matrices: A, and B times the scale.

    vLLM keeps one stack of A and of B for each part of a fused layer, a place in it for each adapter:
    ``[adapters, 1, rank, in]`` and ``[adapters, 1, out, rank]``. The newest adapter has the largest number. A layer that it cut
    by rows has rows of B, one that it cut by columns has columns of A.
    """
    if config.lora_config.fully_sharded_loras:
        raise UnreadableWeightsError("vLLM cuts the ranks of adapters (fully_sharded_loras), which cannot be read back")
    asked: dict[str, dict[str, list[WeightBox]]] = {}
    for box in boxes:
        weight, half = matrix_of(box.name) or ("", "")
        asked.setdefault(weight, {"A": [], "B": []})[half].append(box)
    shapes = {weight: (of["B"][0].shape[0], of["A"][0].shape[1]) for weight, of in asked.items() if of["A"] and of["B"]}
    shard = _own_shard(config, shapes)
    layers: dict[str, Any] = dict(model.named_modules())
    numbers = [number or 0 for number in model.lora_manager.lora_index_to_id]
    place = numbers.index(max(numbers))
    for weight in shapes:
        for buffer, piece in shard.pieces.get(weight, ()):
            layer: Any = layers.get(buffer.name.removesuffix(".weight"))
            if not hasattr(layer, "lora_a_stacked"):
                continue  # then no worker tells of it, which is a difference
            (row, column), (rows, columns) = piece.at, piece.box
            first = 0
            for a, b, size in zip(layer.lora_a_stacked, layer.lora_b_stacked, layer.output_slices, strict=True):
                if first <= row < first + size:
                    ranks = (0, a.shape[2])
                    yield from _in_matrix(asked[weight]["A"], a[place, 0], (ranks, columns), (0, column))
                    yield from _in_matrix(asked[weight]["B"], b[place, 0], (rows, ranks), (row - first, 0))
                first += size


def _in_matrix(
    boxes: Sequence[WeightBox], matrix: Any, held: tuple[tuple[int, int], ...], at: tuple[int, int]
) -> Iterator[WeightDigest]:
    """The digests of boxes where a worker holds a box of a matrix, which begins at an index of its own tensor."""
    for name, _, box in boxes:
        common = common_box(box, held)
        if common is None:
            continue
        here = matrix[
            tuple(
                slice(a - start + by, b - start + by) for (a, b), (start, _), by in zip(common, held, at, strict=True)
            )
        ]
        yield WeightDigest(name, common, str(here.dtype).removeprefix("torch."), digest_of(here))


def _own_shard(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """Where a worker has its parts of parameters (a `ShardLayout`), by the engine's parallel sizes.

    Raises:
        UnreadableWeightsError: the layout of such a model is not known.
    """
    from tailrace.paramserver.bridges.vllm_model import engine_layout, worker_rank
    from tailrace.paramserver.layout import GlobalTensor, LayoutInvalid

    try:
        layout = engine_layout(config, [GlobalTensor(name, "float32", shape) for name, shape in shapes.items()])
    except LayoutInvalid as error:
        raise UnreadableWeightsError(f"where vLLM has the weights of this model is not known: {error}") from error
    return layout.shards[worker_rank(config)]


def _parameter(parameters: Callable[[str], Any], name: str, shape: tuple[int, ...]) -> tuple[Any, str]:
    """A parameter as it was loaded; or None, and why there is none."""
    try:
        parameter = parameters(name)
        if parameter is None:  # vLLM 0.2x has experts in no module of their own
            parameter = parameters(name.replace(".routed_experts.", "."))
    except UnreadableWeightsError as error:
        return None, str(error)
    if parameter is None:
        return None, f"vLLM has no parameter {name!r}"
    dtype = str(parameter.dtype).removeprefix("torch.")
    if tuple(parameter.shape) != shape or dtype not in _COMPARABLE:
        return None, (
            f"vLLM keeps {name!r} as {dtype} {tuple(parameter.shape)}, which cannot be compared with what is published, "
            f"{shape} in a floating-point dtype of 16 bits or more"
        )
    return parameter.data, ""


def _plain_parameters(model: Any) -> Callable[[str], Any]:
    """Looks up a worker's parameters by vLLM's name, those of packed experts as they were loaded; None where there is none.

    The kernel of vLLM on CPU wants the matrices of experts packed, and how it packs is its own matter. Each is a permutation of
    its elements, which packing their numbers shows. A stack is unpacked when it is asked for, and the last two are kept: a
    whole mixture would not fit beside itself.

    Args:
        model: the worker's part of the model.

    Returns:
        A function that raises UnreadableWeightsError for experts that a kernel on CUDA wants in another order.
    """
    parameters = {  # a layer that may get an adapter has its own weights one step deeper
        name.replace(".base_layer.", "."): parameter for name, parameter in model.named_parameters()
    }
    packed = {
        f"{name}.{matrices}": isa
        for name, layer in model.named_modules()
        if (isa := _packed_for(layer)) is not None
        for matrices in ("w13_weight", "w2_weight")
    }

    reordered = {
        f"{name}.{matrices}": kernel
        for name, layer in model.named_modules()
        if (kernel := _kernel_order(layer)) is not None
        for matrices in ("w13_weight", "w2_weight")
    }

    @lru_cache(maxsize=2)
    def unpacked(name: str) -> Any:
        return _unpacked(parameters[name], packed[name])

    def found(name: str) -> Any:
        if (kernel := reordered.get(name)) is not None:
            raise UnreadableWeightsError(
                f"vLLM keeps {name!r} in the order of its kernel {kernel}, not as it was published"
            )
        return unpacked(name) if name in packed else parameters.get(name)

    return found


def _kernel_order(layer: Any) -> str | None:
    """The kernel that has a layer's experts in an order of its own, as FlashInfer's have; None where they are as loaded."""
    kernel = getattr(getattr(getattr(layer, "quant_method", None), "unquantized_backend", None), "name", None)
    return None if kernel in _AS_LOADED else kernel


def _packed_for(layer: Any) -> str | None:
    """The instructions for which a layer's experts are packed; None if they are not."""
    method = getattr(layer, "quant_method", None)
    if (old := getattr(method, "cpu_fused_moe", None)) is not None:  # vLLM 0.26
        return str(old.isa) if old.isa != "none" else None
    kernel = getattr(method, "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    if experts is None:
        return None
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    return experts.isa if isinstance(experts, CPUUnquantizedExperts) and not experts._use_zentorch else None


def _unpacked(stack: Any, isa: str) -> Any:
    """A stack of packed matrices [experts, rows, columns] as it was before."""
    import torch

    plain = torch.empty_like(stack.data)
    plain.flatten(1)[:, _places(*stack.shape[1:], stack.dtype, isa)] = stack.data.flatten(1)
    return plain


@cache
def _places(rows: int, columns: int, dtype: Any, isa: str) -> Any:
    """The number that each element of a packed matrix had before: row-major, int64."""
    import torch
    from vllm._custom_ops import cpu_prepack_moe_weight

    numbers, places = torch.arange(rows * columns), torch.zeros(rows * columns, dtype=torch.int64)
    for shift in range(0, (rows * columns).bit_length(), 8):  # eight bits at a time: every dtype has those exactly
        digits = ((numbers >> shift) & 255).to(dtype).view(1, rows, columns)
        places += cpu_prepack_moe_weight(digits, isa).flatten().to(torch.int64) << shift
    return places
