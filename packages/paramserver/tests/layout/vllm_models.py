"""Builds vLLM's own models as single ranks of a parallel group, loads weights with vLLM's loaders, and compares every
parameter with what the layout says. Run as a program by the test: vLLM changes much of a process that imports it.

With numbers of cases, does these alone. Prints a line of JSON for each case: the names of parameters that differ.
"""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import small_models
import torch
import vllm.distributed.parallel_state as groups
from vllm.config import ModelConfig, ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as moe
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.models import registry

from tailrace.paramserver.layout import Layout, copy, from_vllm, message, qwen_tensors, reshard_plan

ARCHITECTURES = {"qwen2": "Qwen2", "qwen3": "Qwen3", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe"}
NEEDED = {"decoder_sparse_step": 1, "num_experts_per_tok": 2, "max_position_embeddings": 64, "norm_topk_prob": True}
CASES = [  # model, tp, pp, expert_parallel
    ("DENSE", 1, 1, False),
    ("DENSE", 2, 2, False),
    ("DENSE", 8, 1, False),
    ("TIED", 4, 3, False),
    ("MOE", 2, 2, False),
    ("MOE", 2, 1, True),
    ("SHARED", 2, 1, False),
    ("SHARED", 4, 2, True),
]


def group(size, rank):
    """The part of a process group that building a model needs."""
    process_group = SimpleNamespace(size=lambda: size, rank=lambda: rank)
    return SimpleNamespace(
        world_size=size, rank_in_group=rank, rank=rank, local_rank=0, ranks=list(range(size)), is_first_rank=rank == 0,
        is_last_rank=rank == size - 1, device_group=process_group, cpu_group=process_group, device_communicator=None,
        unique_name="test",
    )  # fmt: skip


def parameters(config, weights, tp, part, pp, stage, expert_parallel):
    architecture = ARCHITECTURES[config["model_type"]] + "ForCausalLM"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder, "config.json").write_text(json.dumps({**NEEDED, **config, "architectures": [architecture]}))
        model_config = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float32", enforce_eager=True)
        parallel = ParallelConfig(enable_expert_parallel=expert_parallel)
        vllm_config = VllmConfig(model_config=model_config, parallel_config=parallel)
        stack.enter_context(set_current_vllm_config(vllm_config))
        sizes = {
            "_TP": (tp, part),
            "_EP": (tp, part),
            "_PP": (pp, stage),
            "_DP": (1, 0),
            "_PCP": (1, 0),
            "_DCP": (1, 0),
        }
        for name, (size, rank) in sizes.items():
            stack.enter_context(mock.patch.object(groups, name, group(size, rank)))
        # No kernel for experts runs on every machine; none is run here.
        backend = (UnquantizedMoeBackend.CPU, mock.MagicMock())
        # vLLM imports itself anew in another process for each kind of model, to look at the class.
        stack.enter_context(mock.patch.object(registry, "_run_in_subprocess", lambda look: look()))
        stack.enter_context(mock.patch.object(moe, "select_unquantized_moe_backend", return_value=backend))
        model_class, _ = registry.ModelRegistry.resolve_model_cls([architecture], model_config=model_config)
        torch.set_default_dtype(torch.float32)
        model = model_class(vllm_config=vllm_config, prefix="")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # padding of vocabularies
        model.load_weights(iter(weights.items()))
        return dict(model.named_parameters())


def differing(config, tp, pp, expert_parallel):
    tensors = qwen_tensors(config, "float32")
    weights = {tensor.name: torch.randn(tensor.shape) for tensor in tensors}
    layout = from_vllm(tensors, config, tp=tp, pp=pp, expert_parallel=expert_parallel)
    plan = reshard_plan(Layout.replicated(tensors, ["full"]), layout)
    found = []
    for number in range(tp * pp):
        rank, (stage, part) = f"rank{number}", divmod(number, tp)
        ours = {buffer.name: torch.zeros(buffer.shape) for buffer in layout.shards[rank].buffers}
        copy(message(plan, "full", rank), weights, ours)
        theirs = parameters(config, weights, tp, part, pp, stage, expert_parallel)
        found += [f"{rank} {name}" for name in ours.keys() ^ theirs.keys()]
        found += [f"{rank} {name}" for name in ours.keys() & theirs.keys() if not torch.equal(ours[name], theirs[name])]
    return found


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] or range(len(CASES))
    for name, *sizes in (CASES[number] for number in numbers):
        print(
            json.dumps({"case": [name, *sizes], "differing": differing(getattr(small_models, name), *sizes)}),
            flush=True,
        )
    sys.exit(0)
