"""Boxes beside what DTensors really hold: numbered tensors, placed by torch itself."""

import base64
import itertools
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.paramserver.layout import LayoutInvalid
from tailrace.paramserver.layout.fsdp2 import Cut, from_fsdp2, held_intervals, local_boxes

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch without torch.distributed", allow_module_level=True)


def numbers_held(layout, rank, name):
    """What the layout says that the rank's buffer of a tensor of 0, 1, 2, ... holds."""
    shape = layout.tensor[name].shape
    numbered = torch.arange(torch.Size(shape).numel()).reshape(shape)
    (buffer,) = [buffer for buffer in layout.shards[rank].buffers if buffer.name == name]
    local = torch.full(buffer.shape, -1)
    for piece in buffer.pieces:
        box = tuple(slice(start, stop) for start, stop in piece.box)
        place = tuple(slice(at, at + stop - start) for at, (start, stop) in zip(piece.at, piece.box, strict=True))
        local[place] = numbered[box]
    assert not (local == -1).any()
    return local


@pytest.fixture
def every_rank():
    """Runs a function once as each rank of a world, in this process: torch's fake process group moves nothing."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def run(world, function):
        for rank in range(world):
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
            try:
                yield rank, function()
            finally:
                dist.destroy_process_group()

    return run


def placements(rng, dimensions, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    found = [rng.choice([Replicate(), *(Shard(index) for index in range(dimensions))]) for _ in mesh]
    if len(mesh) == 2 and dimensions and rng.random() < 0.4:  # as FSDP2 over tensor parallelism
        dimension = rng.randrange(dimensions)
        found = [_StridedShard(dimension, split_factor=mesh[1]), Shard(dimension)]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_boxes_are_what_the_local_tensors_hold(seed, every_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    rng = random.Random(seed)
    mesh_shape = rng.choice([(2,), (3,), (4,), (2, 2), (2, 3)])
    shapes = {f"t{index}": tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 3))) for index in range(4)}
    chosen = {name: placements(rng, len(shape), mesh_shape) for name, shape in shapes.items()}

    def place():
        mesh = init_device_mesh("cpu", mesh_shape)
        state = {"plain": torch.arange(5)}
        for name, shape in shapes.items():
            numbered = torch.arange(torch.Size(shape).numel()).reshape(shape)
            state[name] = distribute_tensor(numbered, mesh, chosen[name], src_data_rank=None)  # no communication
        return from_fsdp2(state), {name: value.to_local() for name, value in state.items() if name != "plain"}

    world = torch.Size(mesh_shape).numel()
    found = list(every_rank(world, place))
    layouts = [layout for _, (layout, _) in found]
    assert all(layout.digest == layouts[0].digest for layout in layouts)  # each rank works out the same
    for rank, (layout, local) in found:
        assert numbers_held(layout, f"rank{rank}", "plain").tolist() == [0, 1, 2, 3, 4]
        for name, tensor in local.items():
            held = numbers_held(layout, f"rank{rank}", name)
            assert held.shape == tensor.shape, (seed, rank, name, chosen[name])
            assert torch.equal(held, tensor), (seed, rank, name, chosen[name])


def test_partial_tensors_and_states_without_ranks_are_refused(every_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    def make():
        mesh = init_device_mesh("cpu", (2,))
        with pytest.raises(LayoutInvalid, match=r"'grad'.*expected Shard or Replicate"):
            from_fsdp2({"grad": DTensor.from_local(torch.zeros(4), mesh, [Partial()])})
        with pytest.raises(LayoutInvalid, match="no DTensor"):
            from_fsdp2({"w": torch.zeros(4)})
        return from_fsdp2({"w": torch.zeros(4)}, ranks=range(2))

    for _, layout in every_rank(2, make):
        assert list(layout.shards) == ["rank0", "rank1"]


def test_the_arithmetic_covers_each_element_once_per_replica():
    for shape, mesh, cuts in itertools.product(
        [(7,), (1,), (8,)],
        [(3, 2), (2, 2), (4, 1)],
        [(Cut(0, 2), Cut(0)), (Cut(0), Cut(0)), (None, Cut(0)), (None, None)],
    ):
        count = [0] * shape[0]
        for coordinate in itertools.product(*(range(size) for size in mesh)):
            for ((start, stop),), _ in local_boxes(held_intervals(shape, mesh, coordinate, cuts)):
                for index in range(start, stop):
                    count[index] += 1
        replicas = torch.Size([size for size, cut in zip(mesh, cuts, strict=True) if cut is None]).numel()
        assert count == [replicas] * shape[0]


WORKER = """
import base64, pickle, json, sys
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from tailrace.paramserver.layout.fsdp2 import from_fsdp2

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
with torch.no_grad():
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 1))
    for parameter in model.parameters():
        parameter.copy_(torch.arange(parameter.numel()).reshape(parameter.shape))
for layer in model:
    fully_shard(layer)
fully_shard(model)
state = model.state_dict()
local = {name: [list(value.to_local().shape), value.to_local().flatten().tolist()] for name, value in state.items()}
layout = base64.b64encode(pickle.dumps(from_fsdp2(state))).decode()
print(json.dumps({"layout": layout, "local": local}))
dist.destroy_process_group()
"""


@pytest.mark.timeout(290)
@pytest.mark.deep
def test_a_model_under_fsdp2_in_two_processes(tmp_path: Path):
    command = [sys.executable, "-c", WORKER]
    workers = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    found = [json.loads(worker.communicate(timeout=270)[0].splitlines()[-1]) for worker in workers]
    layout, other = (pickle.loads(base64.b64decode(report["layout"])) for report in found)
    assert layout == other
    assert [piece.box for _, piece in layout.shards["rank1"].pieces["0.weight"]] == [((4, 7), (0, 5))]
    assert "1.weight" not in layout.shards["rank1"].pieces  # one row goes to the first rank, none to the second
    for rank, report in enumerate(found):
        for name, (shape, values) in report["local"].items():
            held = numbers_held(layout, f"rank{rank}", name)
            assert list(held.shape) == shape
            assert held.flatten().tolist() == values
