"""What Tailrace adds to SGLang's server, as a plugin of SGLang's own kind. For SGLang 0.5.23.

    elements   POST /weights_checker {"action": 'tailrace.elements [[rank, name, [[start, stop], ...]], ...]'}
               ──► ranks[].checksums: {"0": "float32 0123456789abcdef", ...}: digests of elements of a rank's own parameters
    memory     POST /weights_checker {"action": "tailrace.memory"} ──► ranks[].checksums: {"bytes": "..."} of the rank's device
    seeds      `sampling_seed` of a request counts, without the server's deterministic mode and its slower kernels
    sleep      on a CPU, where SGLang has no memory saver, memory that is released is freed
    adapters   on a CPU, whose memory no device reads, nothing is page-locked; weights find layers that may get an adapter; the
               matrices of the newest one are told as elements, by PEFT's names

SGLang calls `install` in each of its processes (entry-point group ``sglang.srt.plugins``). An engine lays this file before a
server that it starts, whose environment has no Tailrace: nothing of Tailrace is imported here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

ELEMENTS, MEMORY = "tailrace.elements ", "tailrace.memory"
REFUSED = "!"
"""Begins an answer that is a reason, not a digest."""
_FUSED = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2)} | {
    "gate_proj": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
}
_COMPARABLE = ("float32", "float64", "bfloat16", "float16")
_freed: dict[str, list[Callable[[], None]]] = {}


def install() -> None:
    """Register the hooks."""
    registry = import_module("sglang.srt.plugins.hook_registry")
    kinds = registry.HookType
    info = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
    sampler = "sglang.srt.layers.sampler"
    manager = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
    for target, hook, kind in (
        ("sglang.srt.utils.weight_checker.WeightChecker.handle", answer, kinds.AROUND),
        (f"{info}.from_schedule_batch", keep_seeds, kinds.AFTER),
        (f"{info}.merge_batch", join_seeds, kinds.BEFORE),
        (f"{sampler}.multinomial_with_seed", draw, kinds.AROUND),
        (f"{sampler}.top_k_top_p_min_p_sampling_from_probs_torch", draw_by_token, kinds.AROUND),
        (f"{manager}.release_memory_occupation", release, kinds.AFTER),
        (f"{manager}.resume_memory_occupation", resume, kinds.AROUND),
        ("sglang.srt.lora.lora_manager.LoRAManager.init_state", name_plainly, kinds.AFTER),
    ):
        registry.HookRegistry.register(target, hook, kind)
    lock_no_pages()


def answer(handle: Callable[..., Any], checker: Any, action: str, *arguments: Any, **named: Any) -> Any:
    """Answer a question of Tailrace's about a rank, and leave all others to SGLang."""
    if action.startswith(ELEMENTS):
        rank = checker._placement["tp_rank"]
        found = digests(checker._get_model(), rank, json.loads(action.removeprefix(ELEMENTS)))
    elif action == MEMORY:
        found = {"bytes": str(device_bytes())}
    else:
        return handle(checker, action, *arguments, **named)
    place = checker._parallelism_info(role=named["role"]).model_dump()
    return {"checksums": found, "per_gpu_checksum": "", "parallelism_info": place}


def digests(model: Any, rank: int, asked: Sequence[Sequence[Any]]) -> dict[str, str]:
    """The digests of elements of a rank's parameters.

    Args:
        model: the rank's part of the model.
        rank: its number.
        asked: for each of all ranks' boxes the rank, the parameter's name and the first index and the one behind the last in
            each dimension.

    Returns:
        By number in `asked`, the dtype and the digest, or `REFUSED` and why there is none.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    found = {}
    for number, (of, name, box) in enumerate(asked):
        if of != rank:
            continue
        tensor = matrix(model, name) if ".lora_" in name else parameters.get(name)
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        if tensor is None or tensor.dim() != len(box) or dtype not in _COMPARABLE:
            has = "nothing" if tensor is None else f"{dtype} {tuple(tensor.shape)}"
            found[str(number)] = f"{REFUSED}SGLang keeps {has} as {name!r}, expected {len(box)} dimensions of floats"
        else:
            here = tensor[tuple(slice(start, stop) for start, stop in box)]
            found[str(number)] = f"{dtype} {digest(here)}"
    return found


def matrix(model: Any, name: str) -> Any:
    """A matrix of the newest adapter as it is applied, from the buffers of SGLang's kernels: A, or B times the scale.

    Args:
        model: the rank's part of the model.
        name: such as ``model.layers.0.self_attn.q_proj.lora_A.weight``.

    Returns:
        None if there is none.
    """
    manager = vars(model).get("tailrace_adapters")
    if manager is None or not manager.loras:
        return None
    pool, newest = manager.memory_pool, next(reversed(manager.loras))
    if newest not in pool.uid_to_buffer_id:  # SGLang copies an adapter into its buffers for the first request
        manager.fetch_new_loras({newest})
    layer, _, half = name.removesuffix(".weight").rpartition(".lora_")
    parts = layer.split(".")
    fused, place = _FUSED.get(parts[-1], (parts[-1], 0))
    number = next(int(part) for part in parts if part.isdigit())
    stacks = (pool.A_buffer if half == "A" else pool.B_buffer).get(fused)
    if stacks is None:
        return None
    stack, rank = stacks[number][pool.get_buffer_id(newest)], manager.loras[newest].config.r
    if half == "A":
        return stack[place * rank : (place + 1) * rank]
    module = model.get_submodule(".".join([*parts[:-1], fused]))
    ends = module.output_offset_cpu.tolist() if fused != parts[-1] else [0, len(stack)]
    return stack[ends[place] : ends[place + 1], :rank] * manager.loras[newest].scaling


def name_plainly(result: Any, manager: Any, *_: Any, **__: Any) -> Any:
    """Have a model whose layers may get adapters name its parameters as before, which is how it loads weights."""
    model = manager.base_model
    named = model.named_parameters

    def plainly(*arguments: Any, **options: Any) -> Any:
        for name, parameter in named(*arguments, **options):
            yield name.replace(".base_layer.", "."), parameter

    model.named_parameters = plainly
    vars(model)["tailrace_adapters"] = manager
    return result


def lock_no_pages() -> None:
    """Make no page-locked memory where there is no CUDA: torch cannot, and SGLang's adapters ask for it on every device."""
    import torch

    if torch.cuda.is_available():
        return

    def pageable(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, pin_memory: bool = False, **options: Any) -> Any:  # noqa: ARG001 - what is left out
            return make(*arguments, **options)

        return made

    for name in ("tensor", "zeros", "empty"):
        setattr(torch, name, pageable(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


def digest(elements: Any) -> str:
    """The digest of a tensor's elements, as `tailrace.contracts.element_digest` defines it."""
    import torch

    flat = elements.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(flat.numpy(), digest_size=8).hexdigest()


def device_bytes() -> int:
    """Memory in use of this rank's CUDA device, by whomever; 0 without one."""
    import torch

    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def keep_seeds(info: Any, _: type, batch: Any, *__: Any, **___: Any) -> Any:
    """Have a batch draw each row's noise by its request's seed, if one of its requests has a seed."""
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    if info.sampling_seed is None and any(seed is not None for seed in seeds):
        noise = _noise(len(seeds), batch.device)
        for row, seed in enumerate(seeds):
            if seed is not None:
                noise[row] = seed
        info.sampling_seed = noise
    return info


def join_seeds(info: Any, other: Any) -> None:
    """Give the rows of one batch seeds before another joins it that has some. SGLang expects all to have them, or none."""
    for one, another in ((info, other), (other, info)):
        if one.sampling_seed is None and another.sampling_seed is not None:
            one.sampling_seed = _noise(len(one), another.sampling_seed.device)


def draw(drawn: Callable[..., Any], logprobs: Any, seed: Any, positions: Any) -> Any:
    """Draw a token for each row by its seed and its position, where SGLang lacks its own operator for it, as on a CPU.

    Returns:
        Token ids ``[rows, 1]``.
    """
    import torch

    if logprobs.device.type != "cpu" or hasattr(torch.ops.sgl_kernel, "murmur_hash32_cpu"):
        return drawn(logprobs, seed, positions)
    rows = []
    for scores, *place in zip(logprobs, seed.tolist(), positions.tolist(), strict=True):
        number = hashlib.blake2b(repr(place).encode(), digest_size=7).digest()
        noise = torch.Generator().manual_seed(int.from_bytes(number, "big"))
        waits = torch.empty(len(scores), dtype=torch.float64).exponential_(generator=noise)
        rows.append((scores.to(torch.float64) - waits.log()).argmax())  # the Gumbel trick
    return torch.stack(rows)[:, None]


def draw_by_token(drawn: Callable[..., Any], probs: Any, top_ks: Any, top_ps: Any, *more: Any, **named: Any) -> Any:
    """Draw with top-k and top-p, given seeds, as without them: a request's tokens do not depend on its neighbours.

    The noise goes to tokens. SGLang gives it to places in the order of their probabilities, and to tokens only where no row of
    a batch has top-k or top-p.
    """
    import torch

    _, with_min_p, seed, positions = more[:4]
    if seed is None or with_min_p or named.get("return_filtered_probs"):
        return drawn(probs, top_ks, top_ps, *more, **named)
    ordered, tokens = probs.sort(dim=-1, descending=True)
    places, before = torch.arange(probs.shape[-1], device=probs.device), ordered.cumsum(-1) - ordered
    ordered[(places >= top_ks.view(-1, 1)) | (before > top_ps.view(-1, 1))] = 0.0
    kept = torch.zeros_like(probs).scatter_(1, tokens, ordered)
    return import_module("sglang.srt.layers.sampler").sampling_from_probs_torch(kept, seed, positions)


def _noise(rows: int, device: Any) -> Any:
    import torch

    return torch.randint(2**63 - 1, (rows,), dtype=torch.int64).to(device)


def release(result: Any, manager: Any, request: Any) -> Any:
    """Free what SGLang has released, on a CPU."""
    if _has_no_saver(manager):
        for tag, tensors in _tensors(manager).items():
            if tag in _tags(request) and tag not in _freed:
                _freed[tag] = [_emptied(tensor) for tensor in tensors if tensor.untyped_storage().nbytes()]
        _trim()
    return result


def resume(resumed: Callable[..., Any], manager: Any, request: Any) -> Any:
    """Take the memory again that `release` freed. The KV cache is zero, as at the start; what weights are is not said."""
    for tag in _tags(request):
        for fill in _freed.pop(tag, ()):
            fill()
    return resumed(manager, request)


def _emptied(tensor: Any) -> Callable[[], None]:
    """Free the memory of a tensor and of its views. Returns what gives it memory again."""
    storage, shape = tensor.untyped_storage(), tensor.shape
    nbytes = storage.nbytes()
    if not storage.resizable():  # of weights that were loaded from files
        tensor.data = tensor.data.new_empty(0)

        def swap() -> None:
            tensor.data = tensor.data.new_zeros(shape)

        return swap
    storage.resize_(0)

    def fill() -> None:
        storage.resize_(nbytes)
        storage.fill_(0)

    return fill


def _has_no_saver(manager: Any) -> bool:
    return not manager.memory_saver_adapter.enabled and str(manager.tp_worker.model_runner.device) == "cpu"


def _tags(request: Any) -> Sequence[str]:
    return request.tags or ("weights", "kv_cache")


def _tensors(manager: Any) -> Mapping[str, list[Any]]:
    runner = manager.tp_worker.model_runner
    pool = runner.token_to_kv_pool
    return {"kv_cache": [*pool.k_buffer, *pool.v_buffer], "weights": list(runner.model.parameters())}


def _trim() -> None:
    import ctypes
    import gc

    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)
