"""A module published in one place and loaded in another."""

import os
import re
import socket
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

import torch

from tailrace.paramserver import ManifestInvalid, Publisher, RelayReader, VersionNotYet
from tailrace.paramserver.bridges import torch_module
from tailrace.paramserver.bridges.torch_module import load_module, publish_module
from tailrace.paramserver.errors import WeightsMismatch

WAIT_S = 20
TIMEOUT_S = 240  # of processes that import torch, on a machine that is busy


class Model(torch.nn.Module):
    """Tied embeddings, a buffer, a parameter with gaps, a scalar, an empty tensor and several dtypes."""

    def __init__(self, seed, width=6):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.nn.Embedding(5, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.head = torch.nn.Linear(width, 5, bias=False)
        self.head.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.empty(width, 3).t())
        self.brief = torch.nn.Parameter(torch.empty(2, 7, dtype=torch.bfloat16))
        self.scale = torch.nn.Parameter(torch.empty(()))
        self.nothing = torch.nn.Parameter(torch.empty(0, 4))
        self.register_buffer("mask", torch.zeros(9, dtype=torch.bool))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        with torch.no_grad():
            for tensor in [*self.parameters(), *self.buffers()]:
                values = torch.randint(-5, 6, tensor.shape, generator=generator).to(tensor.dtype)
                tensor.copy_(values)


def state(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def place(serve, token):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        yield publisher, reader


@pytest.mark.parametrize("same_host", [True, False])
def test_everything_in_the_state_arrives_in_place(serve, token, same_host):
    relay = serve()
    old, new = Model(1), Model(2)
    before, scratch = {name: tensor.data_ptr() for name, tensor in old.state_dict().items()}, old.scratch.clone()
    assert not same(state(old), state(new))
    with (
        Publisher(relay.address, token=token) as publisher,
        RelayReader(relay.address, token=token, same_host=same_host) as reader,
    ):
        assert publish_module(publisher, 3, new) > 0
        assert load_module(reader, old, timeout_s=WAIT_S) == 3
        with reader.lease(3) as weights:
            assert weights.tied == {"head.weight": "embed.weight"}
            assert "scratch" not in weights
    assert same(state(old), state(new))
    assert before == {name: tensor.data_ptr() for name, tensor in old.state_dict().items()}
    assert old.head.weight is old.embed.weight
    assert torch.equal(old.scratch, scratch)
    assert all(parameter.requires_grad for parameter in old.parameters())
    assert not old.turned.is_contiguous()


def test_the_newest_version_is_taken_and_a_named_one_can_be(place):
    publisher, reader = place
    models = {version: Model(version) for version in (1, 2)}
    for version, model in models.items():
        publish_module(publisher, version, model)
        publisher.wait(version, WAIT_S)
    target = Model(9)
    assert load_module(reader, target, timeout_s=WAIT_S) == 2
    assert same(state(target), state(models[2]))
    assert load_module(reader, target, 1, timeout_s=WAIT_S) == 1
    assert same(state(target), state(models[1]))


def test_waiting_for_a_first_version_ends(place):
    _, reader = place
    target = Model(1)
    before = state(target)
    with pytest.raises(VersionNotYet, match="no version"):
        load_module(reader, target, timeout_s=0.2)
    with pytest.raises(VersionNotYet, match="version 7"):
        load_module(reader, target, 7, timeout_s=0.2)
    assert same(state(target), before)


def test_a_version_published_under_one_name_of_a_tied_tensor_is_enough(place):
    publisher, reader = place
    source, target = Model(1), Model(2)
    named = [*source.named_parameters(), *((n, b) for n, b in source.named_buffers() if n != "scratch")]
    assert "head.weight" not in dict(named)
    publisher.publish(1, named)
    load_module(reader, target, timeout_s=WAIT_S)
    assert same(state(target), state(source))


def test_a_tie_of_the_trainer_need_not_be_one_of_the_replica(place):
    publisher, reader = place
    source, target = Model(1), Model(2)
    target.head.weight = torch.nn.Parameter(torch.zeros(5, 6))
    publish_module(publisher, 1, source)
    load_module(reader, target, timeout_s=WAIT_S)
    assert torch.equal(target.head.weight, source.embed.weight)
    assert torch.equal(target.embed.weight, source.embed.weight)
    assert target.head.weight.data_ptr() != target.embed.weight.data_ptr()


def _untie(source):
    source.head.weight = torch.nn.Parameter(torch.ones(5, 6))


def _reshape(source):
    source.brief = torch.nn.Parameter(torch.zeros(7, 2, dtype=torch.bfloat16))


def _retype(source):
    source.mask = source.mask.to(torch.uint8)


def _drop(source):
    del source.scale


def _add(source):
    source.extra = torch.nn.Parameter(torch.zeros(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_untie, r"'embed.weight' and 'head.weight' are tied in the module and differ in version 1"),
        (_reshape, r"'brief': found bfloat16 \[7, 2\] in version 1, expected bfloat16 \[2, 7\]"),
        (_retype, r"'mask': found uint8 \[9\] in version 1, expected bool \[9\]"),
        (_drop, r"version 1 has no tensor 'scale'"),
        (_add, r"version 1 has 1 tensors that the module lacks, the first is 'extra'"),
    ],
)
def test_a_version_that_does_not_fit_changes_nothing(place, change, message):
    publisher, reader = place
    source, target = Model(1), Model(2)
    before = state(target)
    change(source)
    publish_module(publisher, 1, source)
    with pytest.raises(WeightsMismatch, match=message):
        load_module(reader, target, timeout_s=WAIT_S)
    assert same(state(target), before)


def test_what_cannot_travel_is_refused_by_name(place):
    publisher, reader = place
    for value, message in [
        (torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64)), "'scale': found the dtype complex64"),
        (torch.nn.Parameter(torch.zeros((), device="meta")), "'scale': found a .* tensor on meta"),
    ]:
        source = Model(1)
        source.scale = value
        with pytest.raises(ManifestInvalid, match=message):
            publish_module(publisher, 1, source)
    publish_module(publisher, 2, Model(1))
    target = Model(2)
    target.brief = torch.nn.Parameter(torch.zeros(2, 7, dtype=torch.bfloat16, device="meta"))
    before = target.turned.detach().clone()
    with pytest.raises(WeightsMismatch, match="'brief': found a meta tensor"):
        load_module(reader, target, timeout_s=WAIT_S)
    assert torch.equal(target.turned, before)


RANK = """
import os, sys, torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from tailrace.paramserver import Publisher, RelayReader
from tailrace.paramserver.bridges.torch_module import load_module, publish_module

address, token, rank = sys.argv[1], os.environ["TOKEN"], int(os.environ["RANK"])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))

class Model(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        def sharded(rows, columns, placement):
            full = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns) * factor
            return torch.nn.Parameter(distribute_tensor(full, mesh, [placement]))
        self.rows = sharded(5, 4, Shard(0))        # uneven
        self.columns = sharded(2, 3, Shard(1))
        self.everywhere = sharded(2, 2, Replicate())
        self.single = sharded(1, 3, Shard(0))      # one rank has nothing
        self.tied = self.rows
        self.plain = torch.nn.Parameter(torch.full((3,), float(factor)))

source, target = Model(3), Model(-1)
publisher = Publisher(address, token=token) if rank == 0 else None
publish_module(publisher, 1, source)
with RelayReader(address, token=token) as reader:
    assert load_module(reader, target, timeout_s=60) == 1
    with reader.lease(1) as weights:
        assert weights.tied == {"tied": "rows"}, weights.tied
        assert weights["rows"].shape == (5, 4)
for (name, found), (_, expected) in zip(target.named_parameters(), source.named_parameters(), strict=True):
    whole, wanted = (t.full_tensor() if hasattr(t, "full_tensor") else t for t in (found, expected))
    assert torch.equal(whole, wanted), name
    if hasattr(found, "placements"):
        assert found.placements == expected.placements, name
if publisher is not None:
    publisher.close()
dist.barrier()
print("same", rank)
"""


@pytest.mark.deep
def test_sharded_parameters_are_gathered_one_by_one_and_cut_again(spawn, token, tmp_path):
    relay = spawn()
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environment = {**os.environ, "TOKEN": token, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, relay.address],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, err[-3000:]
            assert out == f"same {rank}\n"
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.deep
def test_the_example_is_short_and_runs_in_two_processes(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", textwrap.dedent(torch_module.__doc__), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) < 15
    script = tmp_path / "example.py"
    script.write_text(example.replace('"module"', f'"module-{tmp_path.name}"'))
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert found.returncode == 0, found.stderr
    assert re.fullmatch(r"version 1 -?[\d.e-]+\n", found.stdout)
    assert found.stderr == ""


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
