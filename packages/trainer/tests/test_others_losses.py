"""Losses against those of verl, TorchRL and TRL on one batch, each in an environment of its own that uv makes."""

import json
import math
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tailrace.trainer.advantages import open_advantages, token_weights, units
from tailrace.trainer.losses import LossTokens, open_loss

SCRIPT = Path(__file__).with_name("others_losses.py")
INSTALLED = {
    "verl": ["verl==0.9.1"],
    "torchrl": ["torchrl==0.14.1", "tensordict==0.14.3", "torch==2.13.0", "numpy"],
    "trl": ["trl==1.16.0", "torch==2.13.0"],
}
CASES = {  # the losses that each has, with the options that it is called with
    "verl": ["dapo", "grpo", "dr-grpo", "gspo", "cispo", "tis", "decoupled-ppo"],
    "torchrl": ["dapo", "grpo"],
    "trl": ["dapo", "grpo", "dr-grpo", "gspo", "cispo"],
}
OPTIONS = {"cispo": {"clip_high": 0.5}}
LONGEST = 12


def made(seed):
    """Responses of unequal length, as rows that are padded, with ratios on both sides of each clip."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    groups = [group for group in range(4) for _ in range(4)]
    lengths = [draw.randint(1, LONGEST) for _ in groups]
    rewards = [draw.choice([0.0, 0.25, 1.0]) for _ in groups]

    def rows(value):
        return [
            [value(row, place) if place < length else 0.0 for place in range(LONGEST)]
            for row, length in enumerate(lengths)
        ]

    advantages = [draw.gauss(0, 1) for _ in groups]
    behaviour = rows(lambda _, __: draw.gauss(-1.5, 0.4))
    drift = [draw.choice([2e-4, 0.3]) for _ in groups]  # some within the clip of whole responses
    proximal = rows(lambda row, place: behaviour[row][place] + draw.gauss(0, 2 * drift[row]))
    logprobs = rows(lambda row, place: proximal[row][place] + draw.gauss(0, drift[row]))
    tensors = {"mask": rows(lambda _, __: 1.0), "behaviour": behaviour, "proximal": proximal, "logprobs": logprobs}
    tensors["advantages"] = rows(lambda row, _: advantages[row])
    return {"tensors": tensors, "groups": groups, "rewards": rewards, "longest": LONGEST}


def ours(name, batch):
    """Our loss of the batch and its gradient, as rows."""
    tensors = {key: torch.tensor(rows, dtype=torch.float64) for key, rows in batch["tensors"].items()}
    mask = tensors["mask"].bool()
    leaf = tensors["logprobs"].clone().requires_grad_()
    lengths = mask.sum(1).tolist()
    response = torch.arange(len(mask)).repeat_interleave(mask.sum(1))
    loss = open_loss(name, OPTIONS.get(name, {}))
    tokens = LossTokens(
        leaf[mask], tensors["behaviour"][mask], tensors["advantages"][mask], response, tensors["proximal"][mask]
    )
    weights = torch.tensor(token_weights(lengths, loss.normalisation, LONGEST), dtype=torch.float64)[response]
    total = (weights * loss.loss(tokens)).sum() / units(lengths, loss.normalisation)
    total.backward()
    return total.item(), leaf.grad


@pytest.fixture(scope="session", params=sorted(INSTALLED))
def theirs(request, tmp_path_factory):
    """The name of a framework and an interpreter that has it."""
    if shutil.which("uv") is None:
        pytest.skip("it needs uv, to install the released package")
    root = tmp_path_factory.mktemp(request.param)
    python = root / "venv" / "bin" / "python"
    for command in (
        ["uv", "venv", "-q", "--python", "3.11", str(root / "venv")],
        ["uv", "pip", "install", "-q", "--python", str(python), *INSTALLED[request.param]],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        if done.returncode:
            pytest.skip(f"no environment with {request.param}: {done.stderr.strip().splitlines()[-1]}")
    return request.param, python


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_losses_and_gradients_are_those_of(theirs, tmp_path):
    framework, python = theirs
    batch = made(7)
    path = tmp_path / "batch.json"
    path.write_text(json.dumps(batch))
    command = [str(python), str(SCRIPT), framework, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found["losses"]) == sorted(CASES[framework])
    for name, other in found["losses"].items():
        value, gradient = ours(name, batch)
        their = torch.tensor(other["gradient"], dtype=torch.float64)
        difference = float((gradient - their).norm() / their.norm())
        print(f"{framework} {name}: loss {abs(value - other['loss']):.1e}, gradient {difference:.1e}")
        assert difference < 1e-6, name
        assert value == pytest.approx(other["loss"], rel=1e-6, abs=1e-9), name
    for name, their in found["advantages"].items():
        mine = open_advantages(name, {})(batch["groups"], batch["rewards"])
        scale = math.sqrt(3 / 4) if name == "group" else 1.0  # its standard deviation is that of a sample of 4
        assert [scale * value for value in mine] == pytest.approx(their, abs=1e-4), name
