"""Builds a model without its weights, and reads the rows that a rank holds from safetensors: no rank ever has it whole."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tailrace.trainer.errors import ModelError
from tailrace.trainer.weights_file import tensors_of_files

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK_BYTES = 1 << 26


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
    def elements(self) -> int:
        """How many numbers all tensors have."""
        return sum(torch.Size(tensor["shape"]).numel() for _, tensor in self._tensors.values())

    def has(self, name: str, shape: torch.Size) -> bool:
        """Whether there is a tensor of this name and shape, of a dtype that can be read."""
        _, found = self._tensors.get(name, (None, {}))
        return found.get("shape") == list(shape) and found["dtype"] in _DTYPES

    def read(self, name: str, rows: slice, out: Tensor) -> None:
        """Read rows of a tensor into `out`, which has any dtype and device, through a buffer of at most 64 MiB or one row.

        Raises:
            ModelError: the file ends too early.
        """
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
        config = transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, **settings)
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


def sources(lm: nn.Module, files: ModelFiles, fresh: Collection[str] = ()) -> dict[str, str] | None:
    """For each parameter and persistent buffer, tied ones once, the tensor in the files that has it.

    Args:
        lm: the model.
        files: the files.
        fresh: parameters that are not looked for.

    Returns:
        None if there is one for which not exactly one tensor is there: the model's files are not what its parameters are, as
        those of quantised models or of a mixture of experts.
    """
    aliases: dict[int, list[str]] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in _persistent(lm):
        aliases.setdefault(id(tensor), []).append(name)
        tensors[name] = tensor
    found = {}
    for names in aliases.values():
        if names[0] in fresh:
            continue
        there = [name for name in names if files.has(name, tensors[name].shape)]
        if len(there) != 1:
            return None
        found[names[0]] = there[0]
    return found


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
