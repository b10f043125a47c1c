"""`torch.compile` of a model's layers, and what decides whether they are compiled.

attempt    a process of its own compiles a layer of the model's kind, before a deadline: what hangs there hangs nobody
probe      the model itself: log-probabilities or values, and gradients, of one small batch, compiled beside plain

Each layer is compiled by itself, with sizes that may change, and all share the code: torch compiles one, whatever the model's
depth. What surrounds a layer's forward pass stays outside: hooks that gather parameters, activations that are computed again.
Attention over packed sequences is called as it is.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError, die_with_parent
from tailrace.processes.child import last_line
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.varlen_attention import leave_uncompiled

if TYPE_CHECKING:
    from tailrace.trainer.sharded_model import ShardedModel

BACKEND = "inductor"
"""What torch has graphs compiled by."""
DEADLINE_S = 300.0
"""Most seconds of an attempt; at most half of `TrainerConfig.timeout_s`, which other ranks wait for it."""
TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference of a log-probability or value, and of gradients relative to their 2-norm. Norms of a model in float64 are
float32 in transformers."""
_LENGTHS = (13, 31, 22, 17, 29, 9, 25, 20)
_SMALL_VOCABULARY = 64


def layers_of(lm: Any) -> Iterator[nn.Module]:
    """The layers of a Hugging Face model: what it names as not to be split over devices."""
    kinds = set(getattr(lm, "_no_split_modules", None) or ())
    for module in lm.modules():
        # a sharded one is of a class that FSDP2 derives from its own
        if any(kind.__name__ in kinds for kind in type(module).__mro__):
            yield module


def compile_layers(layers: Iterable[nn.Module], *, on: bool, backend: str = "") -> None:
    """Have `torch.compile` compile the forward passes of layers from now on, or no longer.

    Args:
        layers: the layers.
        on: whether.
        backend: what compiles graphs; empty: `BACKEND`.

    Raises:
        TrainerConfigError: other users of the machine may write to the directory from which torch takes compiled code.
    """
    import torch._inductor.config as settings

    settings.compile_threads = 1  # in this process: others would outlive one that is killed
    if on:
        _check_cache()
        leave_uncompiled()
    for layer in layers:
        layer.__dict__.pop("forward", None)
        if on:
            layer.__dict__["forward"] = torch.compile(layer.forward, dynamic=True, backend=backend or BACKEND)


_CACHE = "TORCHINDUCTOR_CACHE_DIR"


def _check_cache() -> None:
    """Refuse torch's own choice of a directory for compiled code, which it runs, if it is not this user's alone.

    Its name in the temporary directory is known: everybody may make it first.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    if _CACHE in os.environ:
        return
    path = Path(default_cache_dir())
    with suppress(FileExistsError):
        path.mkdir(mode=stat.S_IRWXU)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise TrainerConfigError(
            f"found {path}, to which other users may write, expected a directory of this user's for compiled code: set {_CACHE}"
        )


def compilations(device: torch.device) -> dict[str, float]:
    """What `torch.compile` did in this process so far, the most of any rank. Collective.

    Returns:
        ``compiled_graphs``; ``graph_breaks``, places at which it left a layer's code to Python, each counted as often as it was
        compiled; and ``recompiles``, because code that was there did not fit: of 8 of the same code, the rest runs uncompiled.
    """
    from torch._dynamo.convert_frame import FRAME_COMPILE_COUNTER
    from torch._dynamo.utils import counters

    found = {
        "compiled_graphs": counters["stats"]["unique_graphs"],
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompiles": sum(times - 1 for times in FRAME_COMPILE_COUNTER.values()),
    }
    most = torch.tensor(list(found.values()), dtype=torch.int64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return dict(zip(found, map(float, most.tolist()), strict=True))


def compile_where_equal(models: dict[str, ShardedModel], path: Path) -> str:
    """Compile the layers of models, or of none: where torch can do so in time, and what they compute stays what it was.
    Collective. The first rank attempts it.

    Args:
        models: the models by what they are called: ``policy``, ``critic``.
        path: the policy's directory.

    Returns:
        Why they are not compiled, on the first rank; on others any text. Nothing where they are.

    Raises:
        TrainerConfigError: their layers are not known, or one fails to compile that did not in the attempt.
    """
    model = next(iter(models.values()))
    why = ""
    if dist.get_rank() == 0:
        deadline_s = min(DEADLINE_S, model.config.timeout_s / 2)
        why = attempt(path, str(model.dtype).removeprefix("torch."), model.device.type, deadline_s)
    failed = torch.tensor(bool(why), dtype=torch.int32, device=model.device)
    dist.broadcast(failed, 0)
    if failed.item():
        return why or "an attempt on the first rank failed"
    for name, each in models.items():
        if how := probe(each):
            why = f"of the {name} {how}"
            for other in models.values():
                other.compile_layers(on=False)
            break
    return why


# ---- probe --------------------------------------------------------------------------------------------------------------


def probe(model: ShardedModel) -> str:
    """Compile the layers of a model whose passes then are what they were, else leave them as they are. Collective.

    Both compute the same small batch: log-probabilities or values, and the gradients of a weighted sum of them, of which the
    difference is added up where gradients are. The model has neither gradients before nor afterwards.

    Returns:
        How they differ, where they are left; else nothing.

    Raises:
        TrainerConfigError: the layers are not known, or cannot be compiled.
    """
    from torch._dynamo.exc import TorchDynamoException

    batch = _batch(model.vocabulary, model.device, model.dtype, shares=model.shares_prompts, packed=model.packs)
    weights = torch.arange(len(batch.targets), device=model.device).cos()
    tolerance = TOLERANCE[model.dtype]

    def add(sign: float) -> Tensor:
        with model.micro_batch(last=True) as forward:
            found = forward(batch, 1.0, False)[0]
            model.backward(sign * (found * weights).sum())
        return found.detach().double()

    def norm() -> float:
        model.total_gradients(1.0)
        found = model.clip_gradients()
        model.drop_gradients()
        return found

    model.drop_gradients()
    plain = add(1.0)
    whole = norm()
    model.compile_layers(on=True)
    try:
        compiled = add(1.0)
    except TorchDynamoException as error:
        first = str(error).strip().splitlines()[0]
        raise TrainerConfigError(
            f"found compile = true with layers that torch.compile does not take ({type(error).__name__}: {first}), expected "
            "compile = false"
        ) from error
    model.compile_layers(on=False)
    add(-1.0)
    apart = norm() / (whole or 1.0)
    most = (compiled - plain).abs().max()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if most.item() <= tolerance and apart <= tolerance:
        model.compile_layers(on=True)
        return ""
    return (
        f"what it computes differs by up to {most.item():.2g} and its gradient by {apart:.2g} of its norm, expected at most "
        f"{tolerance:g}"
    )


def _batch(vocabulary: int, device: torch.device, dtype: torch.dtype, *, shares: bool, packed: bool) -> MicroBatch:
    """Some random responses, two of which share their prompt if the model allows it."""
    draw = random.Random(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(count))

    prompt = tokens(5)
    samples = [TrainingSample(prompt, tokens(length), 1.0) for length in _LENGTHS]
    together = 2 if shares else 1
    rows = [PackedRow(prompt, tuple(samples[:together]))]
    rows += [PackedRow(prompt, (sample,)) for sample in samples[together:]]
    return to_tensors(rows, device, dtype, packed=packed)


# ---- attempt ------------------------------------------------------------------------------------------------------------


def attempt(path: Path, dtype: str, device: str, deadline_s: float) -> str:
    """Compile a layer of a model's kind in a process of its own, forward and backward. What it compiled is in torch's cache.

    Args:
        path: the model's directory.
        dtype: dtype of the passes.
        device: where they run: ``"cpu"`` or ``"cuda"``.
        deadline_s: most seconds of it, the start of the process included.

    Returns:
        Why it cannot be; nothing if it can.
    """
    if device == "cpu" and BACKEND == "inductor" and not shutil.which(compiler := os.environ.get("CXX", "g++")):
        return f"found no C++ compiler ({compiler}), which torch.compile needs on a CPU"
    command = [sys.executable, "-m", __name__, str(path), dtype, device, BACKEND, str(os.getpid())]
    deadline = time.monotonic() + deadline_s
    with tempfile.TemporaryFile() as said:
        child = Child(command, stdout=PIPE, stderr=said, group=True)
        try:
            while True:
                try:
                    child.receive(deadline - time.monotonic())
                except LineError:
                    continue  # what a library printed
                return ""
        except ChildTimeoutError:
            return f"a layer did not compile in {deadline_s:g} s"
        except ChildEndedError:
            return f"a layer does not compile: {last_line(said) or 'its process ended without a word'}"
        finally:
            child.kill()


def _attempt(path: str, dtype: str, device: str, backend: str) -> None:
    """What the process does."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from tailrace.trainer.policy_model import Policy

    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, _SMALL_VOCABULARY, None
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    policy = Policy(AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))).to(device)
    policy.probe()
    policy.train()
    compile_layers(layers_of(policy.lm), on=True, backend=backend)
    where = torch.device(device)
    batch = _batch(policy.vocabulary, where, getattr(torch, dtype), shares=policy.shares_prompts, packed=policy.packs)
    policy(batch, 1.0, False)[0].sum().backward()


if __name__ == "__main__":
    die_with_parent(int(sys.argv[5]))
    try:
        _attempt(*sys.argv[1:5])
    except Exception as error:  # whatever it is, the layers stay as they are
        first = (str(error).strip() or "without a word").splitlines()[0]
        print(f"{type(error).__name__}: {first}", file=sys.stderr, flush=True)
        os._exit(1)
    print(json.dumps({"compiled": True}), flush=True)
