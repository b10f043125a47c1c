"""LoRA adapters beside the weights of an engine (arXiv:2106.09685): a version is kilobytes, and the base stays as it is.

    y = W x + scale B A x    transformers: a hook on each linear layer    vLLM: its own LoRA kernels, one adapter at a time

Each version takes the place of the one before. vLLM keeps an adapter for as long as its id is in use, whatever the files say;
so each version has an id, a name and a directory of its own, and its prefix cache never answers for another version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tailrace.contracts import AdapterWeights
from tailrace.rollout.errors import EngineBusyError, EngineDiedError, OptionError, WeightsError
from tailrace.rollout.own_directory import ADAPTER, scratch
from tailrace.rollout.vllm_process import ask_workers

if TYPE_CHECKING:
    from torch import Tensor

Half = Literal["A", "B"]


def matrix_name(weight: str, half: Half) -> str:
    """The name that PEFT gives a matrix of an adapter.

    Args:
        weight: the name of the weight that it changes.
    """
    return f"{weight.removesuffix('.weight')}.lora_{half}.weight"


def matrix_of(name: str) -> tuple[str, Half] | None:
    """The weight that a matrix of an adapter changes, and which of the two it is; None for any other parameter."""
    for half in get_args(Half):
        if name.endswith(end := f".lora_{half}.weight"):
            return name.removesuffix(end) + ".weight", half
    return None


def check_adapter(adapter: AdapterWeights, shapes: Mapping[str, tuple[int, ...]], most_rank: int) -> None:
    """Check that an adapter fits a model. An engine does it before it changes anything.

    Args:
        adapter: the adapter.
        shapes: the shapes of the model's parameters.
        most_rank: the engine's option ``adapter_rank``.

    Raises:
        WeightsError: it does not.
    """
    if adapter.rank > most_rank:
        raise WeightsError(
            f"found an adapter of rank {adapter.rank}, expected at most {most_rank}, the engine option adapter_rank"
        )
    if not adapter.layers:
        raise WeightsError("found an adapter without a layer, expected some: nothing of it would be served")
    for name, (a, b) in adapter.layers.items():
        shape = shapes.get(name)
        if shape is None:
            raise WeightsError(f"found an adapter of {name!r}, which the model does not have")
        found = tuple(a.shape), tuple(b.shape)
        expected = (adapter.rank, shape[-1]), (shape[0], adapter.rank)
        if len(shape) != 2 or found != expected:
            raise WeightsError(f"found an adapter of {name!r} with the shapes {found}, expected {expected}")


class LoraHooks:
    """LoRA beside the linear layers of a torch model, as PEFT computes it. Parameters keep their names.

    Args:
        model: the model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pairs: dict[str, tuple[Tensor, Tensor]] = {}
        self._scale = 0.0
        self._hooks: list[Any] = []

    def load(self, adapter: AdapterWeights) -> bool:
        """Serve an adapter that fits the model (`check_adapter`). Matrices of the same layers are written in place.

        Returns:
            Whether layers got or lost a hook, which a graph that was captured before does not know.

        Raises:
            WeightsError: a layer is not linear. Nothing was changed.
        """
        import torch

        modules = {name: self._model.get_submodule(name.removesuffix(".weight")) for name in adapter.layers}
        for name, module in modules.items():
            if not isinstance(module, torch.nn.Linear):
                raise WeightsError(
                    f"found an adapter of {name!r}, which is of a {type(module).__name__}; expected linear"
                )
        same = self._scale == adapter.scale and self._pairs.keys() == adapter.layers.keys()
        if same and all(self._pairs[name][0].shape == a.shape for name, (a, _) in adapter.layers.items()):
            for name, pair in adapter.layers.items():
                for mine, new in zip(self._pairs[name], pair, strict=True):
                    mine.copy_(new)
            return False
        self.drop()
        self._scale = adapter.scale
        for name, module in modules.items():
            like = module.weight
            a, b = (half.detach().to(device=like.device, dtype=like.dtype, copy=True) for half in adapter.layers[name])
            self._pairs[name] = a, b
            self._hooks.append(module.register_forward_hook(_beside(a, b, adapter.scale)))
        return True

    def matrices(self) -> dict[str, Tensor]:
        """What is applied, by the names of `matrix_name`: A, and B times the scale."""
        return {
            matrix_name(name, half): matrix
            for name, (a, b) in self._pairs.items()
            for half, matrix in zip(get_args(Half), (a, b * self._scale), strict=True)
        }

    def drop(self) -> bool:
        """Serve the model's own weights. Returns whether there was an adapter."""
        for hook in self._hooks:
            hook.remove()
        dropped = bool(self._hooks)
        self._hooks, self._pairs = [], {}
        return dropped


def _beside(a: Tensor, b: Tensor, scale: float) -> Callable[[Any, tuple[Any, ...], Tensor], Tensor]:
    from torch.nn.functional import linear

    def add(module: Any, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        del module
        return output.add_(linear(linear(arguments[0], a), b), alpha=scale)

    return add


class VLLMAdapters:
    """The adapters that an engine of vLLM serves: the newest one, and those before it that requests in flight began with.

    Args:
        rank: the engine option ``adapter_rank``; 0: the engine takes none.
        most: the engine option ``adapters``.

    Raises:
        OptionError: vLLM has no kernels for this rank.
    """

    def __init__(self, rank: int, most: int = 1) -> None:
        self.arguments: dict[str, Any] = {}
        """Arguments of the engine."""
        self.request: Any = None
        """What each new generation request says of its adapter; None while none is served."""
        self.most = most
        """Most adapters that are served at once."""
        self._serial = 0
        self._held: set[int] = set()
        if rank:
            from vllm.config.lora import MaxLoRARanks

            fitting = [size for size in get_args(MaxLoRARanks) if size >= rank]
            if not fitting:
                raise OptionError(
                    f"engine option adapter_rank: found {rank}, expected at most {max(get_args(MaxLoRARanks))} with vLLM"
                )
            self.arguments = {"enable_lora": True, "max_lora_rank": fitting[0], "max_loras": most}

    @property
    def serial(self) -> int:
        """The number of the adapter that new requests get; 0: none. Each adapter has a number of its own."""
        return 0 if self.request is None else int(self.request.lora_int_id)

    def load(self, llm: Any, adapter: AdapterWeights, used: Collection[int] = ()) -> None:
        """Serve an adapter that fits the model (`check_adapter`) to new requests, and forget those that none uses.

        Args:
            llm: the engine.
            adapter: the adapter.
            used: numbers (`serial`) of the adapters of the requests in flight.

        Raises:
            EngineBusyError: requests in flight use as many adapters as are served at once. Nothing was changed.
            WeightsError: vLLM refuses it. The one before it is served on.
            EngineDiedError: vLLM holds other adapters than these, or a worker does not answer.
        """
        from vllm.lora.request import LoRARequest

        if len(set(used)) >= self.most:
            raise EngineBusyError(
                f"found requests in flight on {len(set(used))} adapters, expected at most {self.most - 1} beside a new one"
            )
        self._forget(llm, {*used, self.serial})
        # vLLM drops the least recently used for one more, which is the newest only if no request has another.
        if len(self._held) >= self.most > 1 and self.serial not in used:
            self.request = None
            self._forget(llm, used)
        self._serial += 1
        # vLLM reads the files once. A name that no other adapter had keeps its prefix cache from mixing two.
        try:
            with written(adapter) as folder:
                request = LoRARequest(f"adapter-{self._serial}", self._serial, str(folder))
                taken = all(ask_workers(llm, "add_lora", request))
        except EngineDiedError:
            raise
        except Exception as error:
            raise WeightsError(f"the adapter does not load: {type(error).__name__}: {error}") from error
        if not taken:
            raise WeightsError("vLLM takes no adapter, expected it to")
        self._held.add(self._serial)
        self.request = request
        self._forget(llm, {*used, self._serial})
        for held in ask_workers(llm, "list_loras"):
            if set(held) != self._held:
                raise EngineDiedError(f"vLLM holds the adapters {sorted(held)}, expected {sorted(self._held)}")

    def drop(self, llm: Any) -> None:
        """Serve the model's own weights, and forget all adapters."""
        self.request = None
        self._forget(llm, ())

    def _forget(self, llm: Any, used: Collection[int]) -> None:
        for serial in self._held - set(used):
            ask_workers(llm, "remove_lora", serial)
            self._held.remove(serial)


@contextmanager
def written(adapter: AdapterWeights) -> Iterator[Path]:
    """A folder with an adapter as PEFT has it, which is how vLLM and SGLang take one. It is in memory, and goes afterwards.

    A replica that is killed meanwhile leaves it, which the next one that writes an adapter on this machine removes.
    """
    with scratch(ADAPTER) as folder:
        _write(adapter, folder)
        yield folder


def _write(adapter: AdapterWeights, folder: Path) -> None:
    from safetensors.torch import save_file

    tensors = {
        f"base_model.model.{matrix_name(name, half)}": tensor.detach().cpu().contiguous().clone()
        for name, pair in adapter.layers.items()
        for half, tensor in zip(get_args(Half), pair, strict=True)
    }
    targets = sorted({name.split(".")[-2] for name in adapter.layers})
    settings = {"peft_type": "LORA", "r": adapter.rank, "lora_alpha": adapter.scale * adapter.rank, "bias": "none"}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "target_modules": targets}), encoding="utf-8")
