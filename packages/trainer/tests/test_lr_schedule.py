"""Learning rates beside those of torch and transformers, and across a checkpoint."""

from typing import Any

import pytest
import torch
import transformers

from tailrace.trainer import TrainerConfig, TrainerConfigError
from tailrace.trainer.optimizer import learning_rate
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import make_experiences
from tailrace.trainer.worker import TrainerWorker

LR, WARMUP, STABLE, DECAY, LOW = 0.01, 4, 5, 11, 0.001
SETTINGS: dict[str, Any] = {"lr": LR, "warmup_steps": WARMUP, "lr_decay_steps": DECAY, "lr_min": LOW}


def rates(steps, make):
    """The rates at which an optimizer under a scheduler makes its steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler, seen = make(optimizer), []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def ours(steps, **options):
    config = TrainerConfig(**SETTINGS | options)
    return [learning_rate(config, step) for step in range(steps)]


def of_torch(optimizer, *parts):
    """A warm-up that begins at one step's share, then the parts with their lengths."""
    schedulers = torch.optim.lr_scheduler
    every = [(schedulers.LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP - 1), WARMUP), *parts]
    ends = [sum(length for _, length in every[: place + 1]) for place in range(len(every) - 1)]
    return schedulers.SequentialLR(optimizer, [each for each, _ in every], ends)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "warmup-stable-decay"])
def test_the_rates_are_those_of_torch(schedule):
    schedulers, steps = torch.optim.lr_scheduler, WARMUP + STABLE + DECAY

    def make(optimizer):
        if schedule == "linear":
            return of_torch(optimizer, (schedulers.LinearLR(optimizer, 1.0, LOW / LR, DECAY), DECAY))
        stable = [(schedulers.ConstantLR(optimizer, 1.0), STABLE)] if schedule == "warmup-stable-decay" else []
        return of_torch(optimizer, *stable, (schedulers.CosineAnnealingLR(optimizer, DECAY, LOW), DECAY))

    stable = STABLE if schedule == "warmup-stable-decay" else 0
    steps = WARMUP + stable + DECAY + 1
    found = ours(steps, lr_schedule=schedule, lr_stable_steps=stable)
    assert found == pytest.approx(rates(steps, make), rel=1e-9)
    assert found[-1] == pytest.approx(LOW)
    assert learning_rate(TrainerConfig(**SETTINGS, lr_schedule=schedule, lr_stable_steps=stable), 10**6) == LOW


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "warmup-stable-decay"])
def test_the_rates_are_those_of_transformers_after_the_warm_up(schedule):
    """Its first step of a warm-up has rate 0 and moves nothing; ours has one step's share."""
    stable, low = (STABLE if schedule == "warmup-stable-decay" else 0), 0.0
    steps = WARMUP + stable + DECAY

    def make(optimizer):
        match schedule:
            case "constant":
                return transformers.get_constant_schedule_with_warmup(optimizer, WARMUP)
            case "linear":
                return transformers.get_linear_schedule_with_warmup(optimizer, WARMUP, steps)
            case "cosine":
                return transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP, steps)
        return transformers.get_wsd_schedule(optimizer, WARMUP, DECAY, num_stable_steps=STABLE)

    options = {"lr_schedule": schedule, "lr_stable_steps": stable, "lr_min": low}
    options |= {"lr_decay_steps": 0} if schedule == "constant" else {}
    assert ours(steps, **options)[WARMUP:] == pytest.approx(rates(steps, make)[WARMUP:], rel=1e-9, abs=1e-15)


def test_without_a_schedule_the_rate_is_bit_for_bit_the_warm_up_alone():
    for warmup in (0, 1, 7):
        config = TrainerConfig(lr=0.004, warmup_steps=warmup)
        for step in range(20):
            assert learning_rate(config, step) == 0.004 * min(1.0, (step + 1) / max(1, warmup))


def test_a_run_that_resumes_goes_on_at_the_rate_where_it_was(tmp_path):
    model = build_model(tmp_path / "model", vocab_size=31, hidden=16, layers=1, head_dim=8, mlp=32)
    config = TrainerConfig(**SETTINGS, lr_schedule="cosine", device="cpu", threads=1)
    batch = make_experiences(2, 3, vocab_size=31, seed=1)
    with TrainerWorker(model, config) as worker:
        for _ in range(6):
            worker.step([batch])
        worker.save(tmp_path / "6", 6).result(60)
        expected = worker.step([batch])["lr"]
    assert expected == learning_rate(config, 6) < LR
    with TrainerWorker(model, config) as worker:
        worker.load(tmp_path / "6")
        assert worker.step([batch])["lr"] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr_decay_steps": 5}, "with lr_schedule = 'constant'"),
        ({"lr_schedule": "cosine"}, "found lr_decay_steps = 0"),
        ({"lr_schedule": "cosine", "lr_decay_steps": 5, "lr_stable_steps": 3}, "'warmup-stable-decay'"),
        ({"lr_schedule": "linear", "lr_decay_steps": 5, "lr_min": 1.0}, "found lr_min = 1.0 above lr"),
        ({"lr_schedule": "polynomial"}, "one of constant, linear"),
    ],
)
def test_a_schedule_that_does_not_fit_its_settings_is_refused(options, words):
    with pytest.raises(TrainerConfigError, match=words):
        TrainerConfig(**{"lr": 0.01} | options)
