"""Real bytes through FSDP-like, Megatron and vLLM layouts of one model, with random parallel dimensions."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver.layout import Layout, LayoutInvalid, copy, message, pack, reshard_plan, unpack
from tailrace.paramserver.layout.boxes import find_overlap, volume
from tailrace.paramserver.layout.megatron import from_megatron
from tailrace.paramserver.layout.model_config import qwen_tensors
from tailrace.paramserver.layout.vllm import from_vllm
from tailrace.paramserver.manifest import byte_size

from .random_layouts import empty_memory
from .small_models import MODELS


def fsdp_like(rng, tensors):
    """Every tensor cut along its first dimension as FSDP2 does, which leaves some ranks without a part."""
    shards, replicas = rng.randint(1, 7), rng.randint(1, 2)
    boxes = {}
    for number in range(shards * replicas):
        index, held = number % shards, {}
        for tensor in tensors:
            rows = tensor.shape[0]
            step = -(-rows // shards)
            start, stop = min(rows, step * index), min(rows, step * (index + 1))
            if start < stop:
                held[tensor.name] = [((start, stop), *((0, size) for size in tensor.shape[1:]))]
        boxes[f"fsdp{number}"] = held
    return Layout.of_boxes(tensors, boxes)


def megatron(rng, tensors, config):
    sizes = {
        "tp": rng.choice([1, 2, 4]),
        "pp": rng.choice([1, 2, 4]),
        "dp": rng.choice([1, 2]),
        "cp": rng.choice([1, 2]),
    }
    if config.get("num_experts"):
        sizes["ep"] = rng.choice([1, 2, 4])
        sizes["etp"] = rng.choice([1, 2])
        if sizes["tp"] * sizes["dp"] * sizes["cp"] % (sizes["ep"] * sizes["etp"]):
            sizes["dp"] = sizes["ep"] * sizes["etp"]
    if sizes["pp"] == 2:
        sizes["virtual_stages"] = rng.choice([1, 2])
        if sizes["virtual_stages"] == 1:
            sizes["layers_per_stage"] = rng.choice([(1, 3), (2, 2)])
    count = sizes["tp"] * sizes["pp"] * sizes["dp"] * sizes["cp"]
    names = [f"megatron{number}" for number in range(count)]
    sizes["vocabulary_multiple"] = rng.choice([1, 16, 128])
    return from_megatron(tensors, config, ranks=names, **sizes)


def vllm(rng, tensors, config):
    sizes = {"tp": rng.choice([1, 2, 4, 8]), "pp": rng.choice([1, 2, 3]), "replicas": rng.choice([1, 2])}
    if config.get("num_experts"):
        sizes["dp"] = rng.choice([1, 2])
        sizes["expert_parallel"] = sizes["tp"] * sizes["dp"] > 8 or rng.random() < 0.5
    count = sizes["tp"] * sizes["pp"] * sizes["replicas"] * sizes.get("dp", 1)
    return from_vllm(tensors, config, ranks=[f"vllm{number}" for number in range(count)], **sizes)


def reshard(source, target, memory):
    """Move everything from one layout's memory to another's, and check that each element arrives once."""
    plan = reshard_plan(source, target)
    arriving = {}
    for item in plan:
        arriving.setdefault((item.receiver, item.slice.tensor), []).append(item.slice.box)
    for rank, shard in target.shards.items():
        for name, held in shard.pieces.items():
            boxes = arriving.pop((rank, name))
            assert find_overlap(boxes) is None
            assert sum(map(volume, boxes)) == sum(volume(piece.box) for _, piece in held)
    assert not arriving
    received = {rank: empty_memory(shard, 0x5A) for rank, shard in target.shards.items()}
    for sender, receiver in plan.pairs:
        parcel = message(plan, sender, receiver)
        if sender == receiver:
            copy(parcel, memory[sender], received[receiver])
        else:
            packed = bytearray(parcel.nbytes)
            pack(parcel, memory[sender], packed)
            unpack(parcel, packed, received[receiver])
    return received


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(sorted(MODELS)), st.integers(0, 2**32))
def test_a_model_survives_the_way_through_all_of_them(model, seed):
    rng = random.Random(seed)
    config = MODELS[model]
    tensors = qwen_tensors(config, rng.choice(["bfloat16", "float32"]))
    start, end = (Layout.replicated(tensors, [name]) for name in ("start", "end"))
    way = [fsdp_like(rng, tensors), megatron(rng, tensors, config), vllm(rng, tensors, config)]
    rng.shuffle(way)
    original = {tensor.name: rng.randbytes(byte_size(tensor.dtype, tensor.shape)) for tensor in tensors}
    memory = {"start": {name: bytearray(data) for name, data in original.items()}}
    for source, target in zip([start, *way], [*way, end], strict=True):
        memory = reshard(source, target, memory)
    assert {name: bytes(data) for name, data in memory["end"].items()} == original, f"{model}, seed {seed}"


def test_replicas_of_a_megatron_trainer_share_the_sending():
    tensors = qwen_tensors(MODELS["dense"])
    source = from_megatron(tensors, MODELS["dense"], tp=2, dp=4)
    target = from_vllm(tensors, MODELS["dense"], tp=2, replicas=4, ranks=[f"vllm{number}" for number in range(8)])
    plan = reshard_plan(source, target)
    assert max(plan.load_s.values()) < 1.05 * min(plan.load_s.values())
    assert math.isclose(sum(item.slice.nbytes for item in plan), plan.bytes_moved)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"tp": 3}, "'model.*expected a multiple of 3"),
        ({"tp": 16}, "8 query heads, expected a multiple of 16|indices in dimension"),
        ({"pp": 3}, "4 layers, expected a multiple of 3"),
        ({"pp": 2, "layers_per_stage": (1, 2)}, "layers_per_stage"),
        ({"pp": 2, "virtual_stages": 2, "layers_per_stage": (1, 3)}, "multiples of 2"),
        ({"tp": 0}, "tp: found 0"),
        ({"dp": 2, "ranks": ["a"]}, "ranks: found 1 names"),
        ({"dp": 2, "ranks": ["a", "a"]}, "1 of them different"),
    ],
)
def test_megatron_sizes_that_do_not_divide_are_refused(sizes, says):
    with pytest.raises(LayoutInvalid, match=says):
        from_megatron(qwen_tensors(MODELS["dense"]), MODELS["dense"], **sizes)


def test_experts_that_do_not_divide_are_refused():
    tensors = qwen_tensors(MODELS["moe"])
    for sizes in ({"dp": 3, "ep": 3}, {"dp": 2, "ep": 4}):
        with pytest.raises(LayoutInvalid, match="expected etp"):
            from_megatron(tensors, MODELS["moe"], **sizes)
    with pytest.raises(LayoutInvalid, match="8 indices in dimension 0, expected a multiple of 16"):
        from_vllm(
            tensors, MODELS["moe"], tp=8, dp=2
        )  # 16 parts of an expert with 8 rows; with expert_parallel it is fine
    from_vllm(tensors, MODELS["moe"], tp=8, dp=2, expert_parallel=True)


def test_a_model_that_the_tables_do_not_know():
    from tailrace.paramserver.layout.rules import Rule
    from tailrace.paramserver.layout.splits import Even, Whole

    tensors = [*qwen_tensors(MODELS["dense"]), ("vision.patch.weight", "bfloat16", (8, 4))]
    from tailrace.paramserver.layout import GlobalTensor

    tensors = [GlobalTensor(*tensor) for tensor in tensors]
    with pytest.raises(LayoutInvalid, match=r"'vision\.patch\.weight': no rule matches"):
        from_vllm(tensors, MODELS["dense"])
    layout = from_vllm(tensors, MODELS["dense"], tp=2, rules=[Rule(r"vision\..*", "vision", Even(0))])
    assert [piece.box for _, piece in layout.shards["rank1"].pieces["vision.patch.weight"]] == [((4, 8), (0, 4))]
    with pytest.raises(LayoutInvalid, match=r"for the buffer 'model\.norm\.weight', expected"):
        from_vllm(tensors, MODELS["dense"], rules=[Rule(r"vision\..*", "model.norm.weight", Whole())])
    with pytest.raises(LayoutInvalid, match="expected a dimension 2 to cut"):
        from_vllm(tensors, MODELS["dense"], rules=[Rule(r"vision\..*", "vision", Even(2))])
