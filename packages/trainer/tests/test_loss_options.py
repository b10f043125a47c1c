"""What a trainer does for its loss: proximal log-probabilities, metrics by staleness, overlong responses, constant weights."""

import dataclasses
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.contracts import FinishReason, Segment
from tailrace.trainer import TrainerConfig
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside, make_experiences, reference_loss
from tailrace.trainer.worker import TrainerWorker

VOCAB = 31
CPU = TrainerConfig(lr=0.05, device="cpu", grad_clip_norm=0.0, threads=1, dtype="float64")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return build_model(
        tmp_path_factory.mktemp("model"), vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, max_positions=64
    )


@pytest.fixture(scope="module")
def batch():
    made = make_experiences(4, 4, vocab_size=VOCAB, seed=3, turns=2)
    return [dataclasses.replace(each, reward=float(place % 2)) for place, each in enumerate(made)]


def gradients(model_path, config, mini_batches, version=None):
    """The gradient of each optimizer step by name, and the metrics."""
    found = []
    with TrainerWorker(model_path, config) as worker:
        worker.weights_version = version
        apply = worker._model.apply_gradients

        def spy(lr):
            found.append({name: p.grad.to_local().clone() for name, p in inside(worker).parameters.items()})
            return apply(lr)

        worker._model.apply_gradients = spy
        return found, worker.step(mini_batches)


@pytest.mark.parametrize("loss", ["decoupled-ppo", "tis", "icepop"])
@pytest.mark.cases(1)
def test_the_proximal_policy_is_that_before_the_batch(model_path, batch, loss):
    """The last of three mini-batches has ratios to the weights before the first, as a plain model has it."""
    config = dataclasses.replace(CPU, loss=loss, micro_batch_tokens=60)
    mini_batches = [batch[:8], batch[8:12], batch[12:]]
    found, metrics = gradients(model_path, config, mini_batches)
    assert metrics["proximal_s"] > 0
    lm, before = (AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64) for _ in range(2))
    before.requires_grad_(False)
    adam = torch.optim.AdamW(lm.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    for number, mini_batch in enumerate(mini_batches):
        adam.zero_grad()
        reference_loss(lm, mini_batch, config, proximal=before).backward()
        for name, parameter in lm.named_parameters():
            torch.testing.assert_close(
                found[number][name], parameter.grad, atol=1e-5, rtol=1e-3, msg=f"{number} {name}"
            )
        adam.step()
    moved = [{name: p.grad.clone() for name, p in lm.named_parameters()}]
    stale, _ = gradients(model_path, dataclasses.replace(config, loss="dapo"), mini_batches)
    assert any(not torch.allclose(stale[-1][name], moved[0][name], rtol=1e-2) for name in moved[0])


def test_one_mini_batch_needs_no_further_pass(model_path, batch):
    _, metrics = gradients(model_path, dataclasses.replace(CPU, loss="tis"), [batch])
    assert "proximal_s" not in metrics


def test_metrics_by_staleness_are_those_of_its_tokens(model_path, batch):
    """Against the log-probabilities of a plain model, token by token. The weights are of version 9."""
    aged = [
        dataclasses.replace(
            each,
            segments=tuple(
                dataclasses.replace(segment, version=9 - (place + number) % 3 * 5)
                for number, segment in enumerate(each.segments)
            ),
        )
        for place, each in enumerate(batch)
    ]
    _, metrics = gradients(model_path, CPU, [aged], version=9)
    lm = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    ratios = {}
    for each in aged:
        with torch.no_grad():
            table = lm(input_ids=torch.tensor([each.prompt + each.tokens])).logits[0].double().log_softmax(-1)
        place = len(each.prompt)
        for segment in each.segments:
            for token, old in zip(segment.tokens, segment.logprobs, strict=True):
                if not segment.observation:
                    lag = min(7, 9 - segment.version)
                    ratios.setdefault(lag, []).append(math.exp(table[place - 1, token].item() - old))
                place += 1
    assert ratios.keys() == {0, 5, 7}
    for lag, found in ratios.items():
        kl = sum(ratio - 1 - math.log(ratio) for ratio in found) / len(found)
        share = sum(found) ** 2 / (len(found) * sum(ratio**2 for ratio in found))
        assert metrics[f"tokens_staleness_{lag}"] == len(found)
        assert metrics[f"ratio_staleness_{lag}"] == pytest.approx(sum(found) / len(found), rel=1e-5)
        assert metrics[f"kl_staleness_{lag}"] == pytest.approx(kl, rel=1e-4)
        assert metrics[f"effective_sample_size_staleness_{lag}"] == pytest.approx(share, rel=1e-5)
        if lag == 0:
            assert metrics["mismatch_kl"] == pytest.approx(kl, rel=1e-4)
    every = [ratio for found in ratios.values() for ratio in found]
    assert metrics["effective_sample_size"] == pytest.approx(
        sum(every) ** 2 / (len(every) * sum(ratio**2 for ratio in every)), rel=1e-5
    )
    assert sum("staleness" in name for name in metrics) == 3 * 4
    assert metrics["clip_fraction"] == pytest.approx(metrics["clip_fraction_low"] + metrics["clip_fraction_high"])
    assert metrics["clip_fraction_low"] > 0 < metrics["clip_fraction_high"]


def test_without_the_weights_version_nothing_is_said_of_staleness(model_path, batch):
    _, metrics = gradients(model_path, CPU, [batch])
    assert not [name for name in metrics if "staleness" in name or "mismatch" in name]


def test_a_response_that_was_cut_off_has_no_weight_and_counts_in_its_group(model_path, batch):
    cut = [
        dataclasses.replace(each, finish=FinishReason.LENGTH if place % 3 == 0 else FinishReason.STOP)
        for place, each in enumerate(batch)
    ]
    config = dataclasses.replace(CPU, mask_overlong=True)
    (found,), metrics = gradients(model_path, config, [cut])
    (whole,), _ = gradients(model_path, CPU, [cut])
    assert any(not torch.allclose(found[name], whole[name]) for name in found)
    # The same by hand: what is cut off is replaced by a response without a gradient, its reward stays in the group.
    lm = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    weighed = [each for each in cut if each.finish is FinishReason.STOP]
    total, tokens = torch.zeros((), dtype=torch.float64), sum(each.generated_tokens for each in weighed)
    for each in weighed:
        rewards = [other.reward for other in cut if other.group == each.group]
        mean = sum(rewards) / len(rewards)
        advantage = (each.reward - mean) / math.sqrt(sum((value - mean) ** 2 for value in rewards) / len(rewards))
        table = lm(input_ids=torch.tensor([each.prompt + each.tokens])).logits[0].double().log_softmax(-1)
        for place, (token, old, own) in enumerate(zip(each.tokens, each.logprobs, each.generated, strict=True)):
            if own:
                ratio = (table[len(each.prompt) + place - 1, token] - old).exp()
                total = total - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage) / tokens
    total.backward()
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-4, msg=name)
    assert metrics["loss"] == pytest.approx(total.item(), abs=1e-6)
    assert metrics["trajectories"] == len(cut)


def test_a_batch_of_responses_that_were_all_cut_off_has_a_gradient_of_zero(model_path, batch):
    cut = [dataclasses.replace(each, finish=FinishReason.LENGTH) for each in batch]
    _, metrics = gradients(model_path, dataclasses.replace(CPU, mask_overlong=True), [cut])
    assert metrics["grad_norm"] == metrics["loss"] == 0


def test_the_overlong_penalty_shapes_advantages_and_not_the_reward_that_is_told(model_path):
    lengths = (2, 6, 8, 10)
    batch = [
        dataclasses.replace(each, reward=1.0, segments=(Segment(0, (1,) * n, (-3.4,) * n),))
        for each, n in zip(make_experiences(1, 4, vocab_size=VOCAB, seed=1), lengths, strict=True)
    ]
    config = dataclasses.replace(CPU, overlong_buffer=4, max_response_tokens=10)
    (found,), metrics = gradients(model_path, config, [batch])
    shaped = [
        dataclasses.replace(each, reward=1.0 + penalty)
        for each, penalty in zip(batch, (0.0, 0.0, -0.5, -1.0), strict=True)
    ]
    (expected,), _ = gradients(model_path, CPU, [shaped])
    assert metrics["reward_mean"] == 1.0
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name])
        assert gradient.abs().sum() > 0 or name.endswith("norm.weight")
