"""Builds a model without its weights, and reads the rows that a rank holds from safetensors: no rank ever has it whole.

A layer's experts, which transformers trains as one tensor with a row for each, are files' tensors of each expert.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailrace.trainer.errors import ModelError
from tailrace.trainer.weights_file import tensors_of_files

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Experts:
    """The tensors of files that make a parameter of all experts of a layer.

    Args:
        parts: for each expert, a row of the parameter, the names of the tensors that are joined along the row's first
            dimension, such as gate and up.
    """

    parts: tuple[tuple[str, ...], ...]


class ModelFiles:
    """The safetensors of a Hugging Face model directory, read by rows.

    Args:
        directory: the directory.

    Raises:
        CheckpointError: it has none, or one is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._tensors = tensors_of_files(directory)

    @property
    def names(self) -> list[str]:
        """The tensors' names."""
        return list(self._tensors)

    @property
    def elements(self) -> int:
        """How many numbers all tensors have."""
        return sum(torch.Size(tensor["shape"]).numel() for _, tensor in self._tensors.values())

    def has(self, name: str, shape: torch.Size) -> bool:
        """Whether there is a tensor of this name and shape, of a dtype that can be read."""
        _, found = self._tensors.get(name, (None, {}))
        return found.get("shape") == list(shape) and found["dtype"] in _DTYPES

    def has_experts(self, experts: Experts, shape: torch.Size) -> bool:
        """Whether all of them are there, and are together a parameter of this shape."""
        if len(shape) < 2 or len(experts.parts) != shape[0]:
            return False
        for parts in experts.parts:
            lengths = [self._tensors[name][1]["shape"][0] for name in parts if name in self._tensors]
            there = all(
                self.has(name, torch.Size([length, *shape[2:]])) for name, length in zip(parts, lengths, strict=False)
            )
            if len(lengths) < len(parts) or not there or sum(lengths) != shape[1]:
                return False
        return True

    def read(self, source: str | Experts, rows: slice, out: Tensor) -> None:
        """Read rows of a tensor into `out`, which has any dtype and device, through a buffer of at most 64 MiB or one row.

        Args:
            source: the tensor's name, or the tensors of a layer's experts.
            rows: which; a slice without bounds means all.
            out: has these rows.

        Raises:
            ModelError: the file ends too early.
        """
        if isinstance(source, Experts):
            for row, parts in zip(out, source.parts[rows], strict=True):
                lengths = [self._tensors[name][1]["shape"][0] for name in parts]
                for name, part in zip(parts, row.split(lengths), strict=True):
                    self.read(name, slice(None), part)
            return
        name = source
        if not out.numel():
            return
        path, about = self._tensors[name]
        dtype, shape = _DTYPES[about["dtype"]], about["shape"] or [1]
        out = out.reshape(1) if not out.ndim else out
        row = torch.Size(shape[1:]).numel() * dtype.itemsize
        first, count = rows.start or 0, len(out)
        block = max(1, _BLOCK_BYTES // max(1, row))
        buffer = torch.empty(min(block, count) * row, dtype=torch.uint8, pin_memory=out.is_cuda)
        with path.open("rb", buffering=0) as file:
            file.seek(about["data_offsets"][0] + first * row)
            for start in range(0, count, block):
                part = out[start : start + block]
                taken = buffer[: len(part) * row]
                _fill(file, taken, path, name)
                part.copy_(taken.view(dtype).view(part.shape))


def _fill(file: io.FileIO, buffer: Tensor, path: Path, name: str) -> None:
    view = memoryview(buffer.numpy())
    while view:
        read = file.readinto(view)
        if not read:
            raise ModelError(f"{path} is damaged: the bytes of {name!r} end too early")
        view = view[read:]


def empty_lm(path: Path, dtype: torch.dtype, kind: str = "AutoModelForCausalLM", **settings: Any) -> Any:
    """The model of a directory's configuration: parameters without memory, on the meta device; buffers as it computes them.

    Args:
        path: the directory.
        dtype: dtype of the parameters.
        kind: which of Hugging Face's models.
        settings: what its configuration is to have beside the directory's.

    Raises:
        ModelError: the directory has no configuration of a causal LM.
    """
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False, **settings
        )
        with torch.device("meta"):
            lm = getattr(transformers, kind).from_config(config, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} does not load as a causal LM: {error}") from error
    for module in lm.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
        module._is_hf_initialized = not any(True for _ in module.buffers(recurse=False))
    # Computes buffers, as RoPE's, as `from_pretrained` does; on parameters, which have no memory, it does nothing.
    with torch.random.fork_rng(devices=[]):
        lm.initialize_weights()
    return lm


def sources(lm: nn.Module, files: ModelFiles, fresh: Collection[str] = ()) -> dict[str, str | Experts] | None:
    """For each parameter and persistent buffer, tied ones once, the tensor in the files that has it, or those of its experts.

    Names and experts are found as transformers finds them when it loads a model.

    Args:
        lm: the model.
        files: the files.
        fresh: parameters that are not looked for.

    Returns:
        None if some parameter has no tensor in the files, or two: their tensors are not the model's parameters, as in
        quantised models.
    """
    aliases: dict[int, list[str]] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in _persistent(lm):
        aliases.setdefault(id(tensor), []).append(name)
        tensors[name] = tensor
    there = _tensors_by_parameter(lm, files)
    if there is None:
        return None
    found: dict[str, str | Experts] = {}
    for names in aliases.values():
        if names[0] in fresh:
            continue
        fitting = []
        for name in names:
            source = there.get(name)
            shape = tensors[name].shape
            if source is not None and (
                files.has(source, shape) if isinstance(source, str) else files.has_experts(source, shape)
            ):
                fitting.append(source)
        if len(fitting) != 1:
            return None
        found[names[0]] = fitting[0]
    return found


def _tensors_by_parameter(lm: Any, files: ModelFiles) -> dict[str, str | Experts] | None:
    """What files have under the names that parameters have; None if it takes more than renaming and joining experts."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import (
        Concatenate,
        MergeModulelist,
        WeightConverter,
        WeightRenaming,
        rename_source_key,
    )

    rules = get_model_conversion_mapping(lm)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    # Of rules whose operations are known here, in the order in which their tensors are joined.
    patterns: dict[str, list[str]] = {}
    for rule in converters:
        kinds = [(type(operation), getattr(operation, "dim", None)) for operation in rule.operations]
        joined = [(MergeModulelist, 0), (Concatenate, 1)]
        if kinds == joined or (kinds == joined[:1] and len(rule.source_patterns) == 1):
            patterns |= dict.fromkeys(rule.source_patterns, rule.source_patterns)
    found: dict[str, str | Experts] = {}
    stacked: dict[str, dict[str, list[str]]] = {}
    for name in files.names:
        target, pattern = rename_source_key(name, renamings, converters)
        if pattern is None:
            found[target] = name
        elif pattern in patterns:
            stacked.setdefault(target, {}).setdefault(pattern, []).append(name)
        else:
            return None
    for target, by_pattern in stacked.items():
        order = patterns[next(iter(by_pattern))]
        columns = [sorted(by_pattern.get(pattern, ()), key=_numbers) for pattern in order]
        if len({len(column) for column in columns}) != 1:
            return None
        found[target] = Experts(tuple(zip(*columns, strict=True)))
    return found


def _numbers(name: str) -> list[int]:
    """The numbers in a name, in order: layers and experts."""
    return [int(number) for number in re.findall(r"\d+", name)]


def _persistent(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from lm.named_parameters(remove_duplicate=False)
    kept = lm.state_dict().keys()
    yield from ((name, buffer) for name, buffer in lm.named_buffers(remove_duplicate=False) if name in kept)


def assign(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model that is without memory its parameters and buffers. Tied ones are tied again. An adapter stays as it is.

    Args:
        module: the model.
        tensors: by name, tied ones once, under the first of their names. They are taken as they are, unless the dtype differs.
    """
    first: dict[int, str] = {}
    given: dict[str, Tensor] = {}
    for name, tensor in _persistent(module):
        source = name.replace(".base_layer.", ".")  # as PEFT calls a layer that has an adapter
        found = tensors.get(first.setdefault(id(tensor), source))
        if found is not None and found.dtype != tensor.dtype:
            found = nn.Parameter(found.detach().to(tensor.dtype), requires_grad=False)
        if found is not None:
            given[name] = found
    module.load_state_dict(given, assign=True, strict=False)
