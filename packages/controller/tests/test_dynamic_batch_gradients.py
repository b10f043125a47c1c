"""What a controller gives the trainer with `dynamic-batch` has the gradient of the whole batch, in whatever order it comes."""

import random

import pytest
import torch
from gradient_ranks import CONTEXT, GROUPS, SAMPLES, VOCAB, experiences, train
from safetensors.torch import load_file
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.trainer.small_model import build_model

LIMIT = 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(
        tmp_path_factory.mktemp("model"), vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, max_positions=64
    )


def given(seed, cells, tokens):
    """What the trainer is given for a batch whose trajectories end, and whose cells answer, in random order."""
    draw = random.Random(seed)
    lengths = {name: len(one.tokens) for name, one in experiences().items()}
    run = Scripted(
        spec(
            admission=policy("admission", "on-policy"),
            sync=policy("sync", "barrier"),
            batching=policy("batching", "plain", samples=SAMPLES),
            training=policy("training", "dynamic-batch", tokens=tokens),
            steps=1,
            batch_groups=GROUPS,
            buffer_groups=None,
            replica_batch=GROUPS * SAMPLES,
            cells=cells,
        )
    )
    waits = (c.Route, c.Accumulate, c.Step)
    commands = run.go(c.Tick(), leave=waits)
    ends = [(route.replica, ref.trajectory) for route in of(c.Route, commands) for ref in route.trajectories]
    draw.shuffle(ends)
    found = of((c.Accumulate, c.Step), commands)
    while not of(c.Step, found):
        at_work = [command for command in run.left if isinstance(command, c.Accumulate)]
        if ends and (not at_work or draw.random() < 0.7):
            replica, name = ends.pop()
            events = [c.Finished(replica, name, lengths[name])]
        else:
            done = draw.choice(at_work)
            run.left.remove(done)
            events = run.answers(done)
        found += of((c.Accumulate, c.Step), run.go(*events, leave=waits))
    names = [
        command.trajectories if isinstance(command, c.Accumulate) else sum(command.mini_batches, ())
        for command in found
    ]
    return [(getattr(command, "cell", None), part) for command, part in zip(found, names, strict=True)]


def gradient(model, commands, out, processes=1, cells=1):
    arguments = (processes, cells, commands, model, f"file://{out}.rendezvous" if processes > 1 else None, out)
    if processes == 1:
        train(0, *arguments)
    else:
        ranks = [CONTEXT.Process(target=train, args=(rank, *arguments)) for rank in range(processes)]
        try:
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(120)
            assert [rank.exitcode for rank in ranks] == [0] * processes
        finally:
            for rank in ranks:
                rank.kill()
    return torch.cat([value.flatten() for _, value in sorted(load_file(out).items())])


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """The gradient of the batch in one piece."""
    return gradient(model, [(None, tuple(experiences()))], tmp_path_factory.mktemp("whole") / "whole.safetensors")


def far(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("tokens", [1, 60])
@pytest.mark.parametrize("seed", range(4))
def test_one_process(model, whole, seed, tokens, tmp_path):
    commands = given(seed, 1, tokens)
    assert len(commands) > 1, f"seed {seed}: nothing was given early"
    assert far(gradient(model, commands, tmp_path / "found.safetensors"), whole) <= LIMIT, f"seed {seed}"


@pytest.mark.parametrize("cells", [1, 2])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.deep)])
@pytest.mark.deep
def test_two_processes(model, whole, seed, cells, tmp_path):
    commands = given(seed, cells, tokens=40)
    assert len(commands) > 1, f"seed {seed}: nothing was given early"
    found = gradient(model, commands, tmp_path / "found.safetensors", processes=2, cells=cells)
    assert far(found, whole) <= LIMIT, f"seed {seed}"
