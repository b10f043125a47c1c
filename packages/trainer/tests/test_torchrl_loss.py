"""TorchRL's losses behind this trainer's door: value and gradient beside its own on the same tokens."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tailrace.contracts import Experience, Segment
from tailrace.trainer import TrainerConfig, TrainerConfigError, TrainerWorker
from tailrace.trainer.losses import LossTokens, open_loss
from tailrace.trainer.losses.torchrl import TorchRlLoss
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import check_loss

pytestmark = pytest.mark.skipif(find_spec("torchrl") is None, reason="needs the extra torchrl")


def grpo():
    from torchrl.objectives.llm import GRPOLoss

    return GRPOLoss


def dapo():
    from torchrl.objectives.llm import DAPO

    return DAPO


def sequence_ratio():
    """GSPO as somebody would write it for TorchRL: the ratio of a row is the mean of its tokens'."""

    class SequenceRatio(grpo()):
        def _log_weight(self, tensordict, adv_shape):
            log_weight, dist, kl, mask = super()._log_weight(tensordict, adv_shape)
            mean = (log_weight.squeeze(-1) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
            return mean.unsqueeze(-1).expand_as(log_weight), dist, kl, mask

    return SequenceRatio


@dataclass(frozen=True, slots=True)
class TorchRlGrpo(TorchRlLoss):
    """TorchRL's GRPO."""

    normalisation = "sequence"
    options: dict = field(default_factory=lambda: {"aggregation": "none", "entropy_bonus": False})
    clip: tuple[float, float] = (0.2, 0.2)
    kind: Callable[[], type] = grpo

    def objective(self, actor):
        return self.kind()(actor, clip_epsilon=self.clip, **self.options)


@dataclass(frozen=True, slots=True)
class TorchRlDapo(TorchRlGrpo):
    """TorchRL's DAPO."""

    normalisation = "token"
    clip: tuple[float, float] = (0.2, 0.28)
    kind: Callable[[], type] = dapo


def made(seed, dtype, spread):
    """Responses of unequal length whose tokens are mixed."""
    print("seed", seed)
    draw = torch.Generator().manual_seed(seed)
    response = torch.repeat_interleave(torch.tensor([7, 2, 9]), torch.tensor([3, 1, 6]))
    response = response[torch.randperm(len(response), generator=draw)]
    behaviour = -1 - torch.rand(len(response), generator=draw, dtype=dtype)
    logprobs = (behaviour + spread * torch.randn(len(response), generator=draw, dtype=dtype)).requires_grad_()
    advantages = torch.randn(10, generator=draw, dtype=dtype)[response]
    return LossTokens(logprobs, behaviour, advantages, response)


@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (TorchRlGrpo(), open_loss("grpo")),
        (TorchRlDapo(), open_loss("dapo")),
        (
            TorchRlGrpo(clip=(0.0003, 0.0004), kind=sequence_ratio),
            open_loss("gspo", {"clip_low": 0.0003, "clip_high": 0.0004}),
        ),
    ],
    ids=["grpo", "dapo", "gspo"],
)
@pytest.mark.deep
def test_value_and_gradients_are_those_of_our_own(theirs, ours, dtype, spread):
    for seed in range(10):
        tokens = made(seed, dtype, spread)
        found, expected = theirs.loss(tokens), ours.loss(tokens)
        assert found.shape == tokens.logprobs.shape
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
        weights = torch.rand(10, dtype=dtype)[tokens.response]  # as those of any normalisation
        gradients = [torch.autograd.grad((each * weights).sum(), tokens.logprobs)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [TorchRlGrpo(), TorchRlDapo()])
def test_it_keeps_what_a_loss_says(loss):
    check_loss(loss)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"entropy_bonus": False}, "found loss_objective of TorchRL's GRPOLoss"),
        ({"aggregation": "none", "entropy_bonus": False, "kl_to_inference_coeff": 0.1}, "found loss_kl_to_inference"),
    ],
)
def test_what_is_not_a_loss_of_tokens_is_one_line(options, what):
    with pytest.raises(TrainerConfigError, match=what) as found:
        TorchRlGrpo(options=options).loss(made(0, torch.float32, 0.1))
    assert "\n" not in str(found.value)


def test_the_trainer_steps_with_the_one_of_the_documentation(tmp_path, monkeypatch):
    """The example, in a package of its own that an entry point makes known: the same step as with our `dapo`."""
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "TorchRlDapo" in code)
    (tmp_path / "their_losses.py").write_text(example)
    package = tmp_path / "their_losses-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-losses\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[tailrace.loss]\ntorchrl-dapo = their_losses:TorchRlDapo\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_losses", raising=False)
    model = build_model(tmp_path / "model", vocab_size=10)
    group = [
        Experience("0.0", 0, (1, 2, 3), (Segment(0, (4, 5), (-2.3, -1.9)),), reward=1.0),
        Experience("0.1", 0, (1, 2, 3), (Segment(0, (6, 7, 8), (-2.3, -3.0, -2.3)),), reward=0.0),
    ]
    steps = []
    for name in ("torchrl-dapo", "dapo"):
        config = TrainerConfig(lr=1e-4, loss=name, loss_options={"clip_high": 0.3}, normalisation="token", threads=1)
        with TrainerWorker(model, config) as worker:
            metrics = [worker.step([group]) for _ in range(2)][-1]
        steps.append({key: metrics[key] for key in ("loss", "grad_norm", "kl_approx") if key in metrics})
    theirs, ours = steps
    assert theirs == pytest.approx(ours, rel=1e-6)
    assert ours["grad_norm"] > 0


def test_importing_the_adapter_loads_no_torchrl():
    code = "import sys, tailrace.trainer.losses.torchrl; print(sorted({'torch', 'torchrl', 'tensordict'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert found.stdout.strip() == "[]"
