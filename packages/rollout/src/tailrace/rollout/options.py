"""Engine options, the same for every built-in engine."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.rollout.errors import DeviceMissingError, ModelLoadError, OptionError

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CPU_KV_CEILING_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine is set up.

    Args:
        device: ``"auto"`` (CUDA if available), ``"cpu"`` or ``"cuda"``.
        dtype: ``"auto"`` (float32 on CPU, bfloat16 on CUDA), ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        max_num_seqs: most requests in one decode batch; others wait. None: 256, but 32 for transformers on CPU, where the
            cost of attention grows with the square of the batch.
        max_model_len: most prompt and response tokens of one request; None: the model's limit.
        max_batch_tokens: most tokens of one forward pass, including prompts. None: 2048, but 512 for transformers on CPU.
        kv_cache_bytes: size of the KV cache. None: on CPU room for `max_num_seqs` requests of full length, at most
            1 GiB; on CUDA the memory that `gpu_memory_utilization` allows.
        gpu_memory_utilization: share of the device's memory for weights and KV cache, 0 to 1.
        block_tokens: tokens in one block of the KV cache; None is the engine's own choice.
        prefix_cache: keep the KV blocks of prompts for later requests with the same beginning (not transformers).
        eager: run without CUDA graphs and compilation. None: vLLM has CUDA graphs on CUDA.
        async_scheduling: plan a step while the one before still runs (vLLM only). An abort, or a change of weights, first
            takes in what runs. None: on CUDA. On CPU the model then runs in a worker process, as with `apart`.
        threads: threads for one operator on CPU; None or 0 leaves torch's setting.
        seed: seed of sampling.
        tensor_parallel_size: devices that the model spans, on CPU cores (vLLM only).
        apart: run the model in a worker process even on one device (vLLM only). An engine that shares its process with a
            trainer needs it, since vLLM ends the process's torch groups with itself; replicas of the local host have it.
        adapter_rank: the largest rank of the LoRA adapters that the engine is given; 0: it is given none.
        adapters: most of these adapters that it applies at once, each to the requests that began with it (above 1: vLLM only).
        sleep_level: the deepest level at which the engine is put to sleep; 0: it is not. vLLM on CUDA has to know it from
            the start.
        engine_args: arguments of the engine itself, by its own names, such as ``{"schedule_policy": "fcfs"}``: of SGLang those
            of ``sglang.launch_server``, of vLLM those of its ``EngineArgs`` and its variables (``VLLM_*``); neither has those
            that an option sets.
        python: interpreter of the environment that has the engine, where that is another than Tailrace's (SGLang only).
        server: address of a server that runs, such as ``http://10.0.0.7:30000``, for one replica alone; empty: the replica
            starts its own (SGLang only).
        answer_s: seconds within which a server with work in flight must yield something, or answer (SGLang only).

    Raises:
        OptionError: a value is out of range.
    """

    device: str = "auto"
    dtype: str = "auto"
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    max_batch_tokens: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.8
    block_tokens: int | None = None
    prefix_cache: bool = True
    eager: bool | None = None
    async_scheduling: bool | None = None
    threads: int | None = None
    seed: int = 0
    tensor_parallel_size: int = 1
    apart: bool = False
    adapter_rank: int = 0
    adapters: int = 1
    sleep_level: int = 0
    engine_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    python: str = ""
    server: str = ""
    answer_s: float = 60.0

    def __post_init__(self) -> None:
        _choice("device", self.device, ("auto", "cpu", "cuda"))
        _choice("dtype", self.dtype, ("auto", *_ITEM_BYTES))
        counts = ("max_num_seqs", "max_batch_tokens", "max_model_len", "kv_cache_bytes", "block_tokens", "threads")
        for name in (*counts, "tensor_parallel_size", "adapters"):
            value = getattr(self, name)
            if value is None and name not in counts:
                raise OptionError(f"engine option {name}: found None, expected a positive integer")
            if name == "threads" and type(value) is int and value == 0:
                continue  # as the trainer's option has it
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OptionError(f"engine option {name}: found {value!r}, expected a positive integer")
        for name in ("adapter_rank", "sleep_level"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise OptionError(f"engine option {name}: found {value!r}, expected an integer of at least 0")
        for name in ("eager", "async_scheduling"):
            if getattr(self, name) not in (None, True, False):
                raise OptionError(f"engine option {name}: found {getattr(self, name)!r}, expected true or false")
        if not isinstance(self.gpu_memory_utilization, int | float) or not 0 < self.gpu_memory_utilization <= 1:
            raise OptionError(
                f"engine option gpu_memory_utilization: found {self.gpu_memory_utilization!r}, expected a share "
                "above 0 and at most 1"
            )

        if not isinstance(self.engine_args, Mapping) or not all(isinstance(name, str) for name in self.engine_args):
            raise OptionError(
                f"engine option engine_args: found {self.engine_args!r:.60}, expected a table of arguments by name"
            )
        for name in ("python", "server"):
            if not isinstance(getattr(self, name), str):
                raise OptionError(f"engine option {name}: found {getattr(self, name)!r:.60}, expected a text")
        if type(self.answer_s) not in (int, float) or not 0 < self.answer_s < math.inf:
            raise OptionError(f"engine option answer_s: found {self.answer_s!r}, expected seconds above 0")

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not at their default, as engines get them."""
        usual = EngineOptions()
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in found.items() if value != getattr(usual, name)}

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> EngineOptions:
        """Read the options from a mapping.

        Raises:
            OptionError: a key is unknown, or a value is out of range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for key in options:
            if key not in known:
                raise OptionError(f"engine option {key!r} is unknown, {expected_one_of(str(key), known)}")
        return cls(**options)


def check_engine_args(given: Mapping[str, Any], option_of: Mapping[str, str], kept: Mapping[str, str]) -> None:
    """Refuse arguments of the engine itself (`EngineOptions.engine_args`) that are not for the user to set.

    Args:
        given: arguments by name.
        option_of: the engine option that sets an argument, by the argument's name.
        kept: why an argument has its value, by its name.

    Raises:
        OptionError: there is one.
    """
    for name in given:
        if name in option_of:
            raise OptionError(f"engine option engine_args: found {name!r}, expected engine option {option_of[name]!r}")
        if name in kept:
            raise OptionError(f"engine option engine_args: found {name!r}, expected it left out: {kept[name]}")


def check_known(name: str, known: Sequence[str], engine: str) -> None:
    """Refuse an argument that the installed engine does not have.

    Args:
        known: the names that it has.
        engine: what it is called.

    Raises:
        OptionError: it does not have it.
    """
    if name not in known:
        near = get_close_matches(name, known, n=3)
        expected = f"did you mean {' or '.join(map(repr, near))}?" if near else f"expected one of its {len(known)}"
        raise OptionError(f"engine option engine_args: found {name!r}, which {engine} does not know; {expected}")


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"engine option {name}: found {value!r}, expected one of {', '.join(allowed)}")


def splits_over(devices: int, heads: int, kv_heads: int) -> bool:
    """Whether the heads of a layer can be split over so many devices, as vLLM and SGLang split them.

    Each device has as many attention heads, and either as many key-value heads, or one that as many others have too.

    Args:
        devices: at least 1.
        heads: attention heads of each layer.
        kv_heads: key-value heads of each layer.
    """
    return heads % devices == 0 and (kv_heads % devices == 0 or devices % kv_heads == 0)


def check_parallel(shape: CacheShape, devices: int) -> None:
    """Refuse a number of devices over which the model's heads cannot be split.

    Raises:
        OptionError: they cannot.
    """
    if not splits_over(devices, shape.heads, shape.kv_heads):
        raise OptionError(
            f"engine option tensor_parallel_size: found {devices}, expected a divisor of the model's {shape.heads} heads that "
            f"divides its {shape.kv_heads} key-value heads, or is a multiple of them"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes of a model that determine the size of its KV cache.

    Args:
        layers: decoder layers.
        kv_heads: key-value heads of each layer.
        head_dim: width of a head.
        max_len: most tokens of the position embedding.
        heads: attention heads of each layer.
    """

    layers: int
    kv_heads: int
    head_dim: int
    max_len: int
    heads: int

    @classmethod
    def read(cls, model_path: str) -> CacheShape:
        """The shape of a Hugging Face model directory.

        Raises:
            ModelLoadError: the directory does not exist, or its config.json is missing or does not describe a decoder.
        """
        path = Path(model_path) / "config.json"
        try:
            config = json.loads(path.read_text())
            config = config.get("text_config", config)
            heads = int(config["num_attention_heads"])
            return cls(
                layers=int(config["num_hidden_layers"]),
                kv_heads=int(config.get("num_key_value_heads") or heads),
                head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
                max_len=int(config["max_position_embeddings"]),
                heads=heads,
            )
        except FileNotFoundError as error:
            raise ModelLoadError(f"found no {path}, expected a Hugging Face model directory") from error
        except KeyError as error:
            raise ModelLoadError(f"{path}: found no key {error}, expected the configuration of a decoder") from error
        except (ValueError, TypeError, AttributeError, OSError) as error:
            raise ModelLoadError(f"{path} does not describe a decoder: {type(error).__name__}: {error}") from error

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of the keys and values of one token. `dtype` must not be ``"auto"``."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _ITEM_BYTES[dtype]

    def cpu_kv_bytes(self, options: EngineOptions, dtype: str, block_tokens: int, max_num_seqs: int) -> int:
        """Bytes of KV cache on CPU: room for the whole batch up to 1 GiB, but at least for one request of full length."""
        if options.kv_cache_bytes is not None:
            return options.kv_cache_bytes
        block_bytes = self.kv_bytes_per_token(dtype) * block_tokens
        blocks = math.ceil(min(options.max_model_len or self.max_len, self.max_len) / block_tokens)
        wanted = max_num_seqs * blocks * block_bytes
        return max(min(wanted, _CPU_KV_CEILING_BYTES), blocks * block_bytes) + block_bytes


def resolve_device(options: EngineOptions) -> str:
    """``"cpu"`` or ``"cuda"``.

    Raises:
        DeviceMissingError: CUDA was asked for and this machine has none.
    """
    import torch

    available = torch.cuda.is_available()
    if options.device == "cuda" and not available:
        raise DeviceMissingError("found no CUDA device, expected one for device='cuda'; use device='cpu' or 'auto'")
    if options.device == "auto":
        return "cuda" if available else "cpu"
    return options.device


def resolve_dtype(options: EngineOptions, device: str) -> str:
    """The dtype's name: the chosen one, else float32 on CPU and bfloat16 on CUDA."""
    if options.dtype != "auto":
        return options.dtype
    return "bfloat16" if device == "cuda" else "float32"
