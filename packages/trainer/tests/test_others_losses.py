"""Losses and GAE against those of other frameworks on one batch, each in an environment of its own that uv makes."""

import json
import math
import random
import subprocess
from pathlib import Path

import pytest
import torch

from tailrace.trainer.advantages import Advantages, CriticAdvantages, open_advantages, token_weights, units
from tailrace.trainer.critic import value_loss, whiten
from tailrace.trainer.losses import LossTokens, open_loss

SCRIPT = Path(__file__).with_name("others_losses.py")
INSTALLED = {
    "verl": ["verl==0.9.1"],
    "torchrl": ["torchrl==0.14.1", "tensordict==0.14.3", "torch==2.13.0", "numpy"],
    "trl": ["trl==1.16.0", "torch==2.13.0"],
    "stable-baselines3": ["stable-baselines3==2.9.0", "torch==2.13.0"],
}
CASES = {  # the losses that each has, with the options that it is called with
    "verl": ["dapo", "grpo", "dr-grpo", "gspo", "cispo", "tis", "decoupled-ppo"],
    "torchrl": ["dapo", "grpo"],
    "trl": ["dapo", "grpo", "dr-grpo", "gspo", "cispo"],
    "stable-baselines3": [],
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
    # of the tokens some are an environment's, never the last
    tensors["generated"] = rows(lambda row, place: float(place == lengths[row] - 1 or draw.random() < 0.7))
    tensors["token_rewards"] = rows(
        lambda row, place: rewards[row] if place == lengths[row] - 1 else draw.gauss(0, 0.1)
    )
    tensors["values_before"] = rows(lambda _, __: draw.gauss(0.5, 0.5))
    tensors["values"] = rows(lambda row, place: tensors["values_before"][row][place] + draw.gauss(0, 0.2))
    options = {"gamma": 0.97, "lam": 0.9, "value_clip": 0.15}
    return {"tensors": tensors, "groups": groups, "rewards": rewards, "longest": LONGEST, **options}


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


def critic_of_ours(batch, *, whitened):
    """What our critic's functions make of the same tokens, each as values of the generated ones in order."""
    tensors = {key: torch.tensor(rows, dtype=torch.float64) for key, rows in batch["tensors"].items()}
    kept = tensors["generated"].bool()
    gae = open_advantages("gae", {"gamma": batch["gamma"], "lam": batch["lam"]})
    assert isinstance(gae, CriticAdvantages)
    rows = [
        gae.estimate(rewards[mask].tolist(), values[mask].tolist())
        for rewards, values, mask in zip(tensors["token_rewards"], tensors["values_before"], kept, strict=True)
    ]
    advantages, returns = (
        torch.tensor([v for row in rows for v in row[which]], dtype=torch.float64) for which in (0, 1)
    )
    if whitened:
        advantages = whiten(advantages, torch.tensor([len(advantages), advantages.sum(), advantages.square().sum()]))
    values = tensors["values"][kept].clone().requires_grad_()
    of_tokens, _ = value_loss(values, tensors["values_before"][kept], returns, batch["value_clip"])
    loss = of_tokens.mean()
    loss.backward()
    return {"advantages": advantages, "returns": returns, "gradient": values.grad, "loss": loss.item()}, kept


@pytest.fixture(scope="session", params=sorted(INSTALLED))
def theirs(request, environment_with):
    """The name of a framework and an interpreter that has it."""
    return request.param, environment_with(*INSTALLED[request.param])


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
    if their := found["critic"]:
        mine, kept = critic_of_ours(batch, whitened=their["whitened"])
        for name in sorted({"advantages", "returns", "gradient"} & their.keys()):
            other = torch.tensor(their[name], dtype=torch.float64)[kept]
            difference = float((mine[name] - other).norm() / other.norm())
            print(f"{framework} gae and value loss, {name}: {difference:.1e}")
            assert difference < 1e-6, name
        if "loss" in their:
            assert mine["loss"] == pytest.approx(their["loss"], rel=1e-6)
    assert bool(found["critic"]) == (framework != "trl")  # which has no critic
    for name, their in found["advantages"].items():
        of_groups = open_advantages(name, {})
        assert isinstance(of_groups, Advantages)
        mine = of_groups(batch["groups"], batch["rewards"])
        scale = math.sqrt(3 / 4) if name == "group" else 1.0  # its standard deviation is that of a sample of 4
        assert [scale * value for value in mine] == pytest.approx(their, abs=1e-4), name
