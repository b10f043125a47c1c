"""A batch whose gradients are added group by group trains as the whole batch does; what would change it is refused."""

import dataclasses
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.contracts import Segment, plugins
from tailrace.trainer import BatchError, NonFiniteGradientError, TrainerConfig, TrainerConfigError
from tailrace.trainer.partial_batch import PartialBatch
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside, make_experiences, reference_loss
from tailrace.trainer.worker import TrainerWorker

VOCAB = 31
pytestmark = pytest.mark.long
CPU = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.5, threads=1)
GROUPS = 7


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return build_model(
        tmp_path_factory.mktemp("model"), vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, max_positions=64
    )


@pytest.fixture(scope="module")
def groups():
    """Groups of different lengths, so that means of means are not the mean."""
    made = []
    for group in range(GROUPS):
        each = make_experiences(1, 4, vocab_size=VOCAB, seed=100 + group, max_response=3 + 4 * group)
        made.append([dataclasses.replace(e, group=group, trajectory=f"{group}.{i}") for i, e in enumerate(each)])
    return made


def flat(groups):
    return [experience for group in groups for experience in group]


def in_parts(groups, seed):
    """The groups in random order, in parts of one to three and a rest, which may be empty."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    order = draw.sample(groups, len(groups))
    parts = []
    while order and draw.random() < 0.9:
        size = draw.randint(1, 3)
        parts.append(flat(order[:size]))
        order = order[size:]
    return parts, flat(order)


class Seen:
    """A trainer's gradient before clipping, flat, its metrics and its weights after the step."""

    def __init__(self, model_path, config, train, before=()):
        with TrainerWorker(model_path, config) as worker:
            for experiences in before:
                worker.step([experiences])
            apply = worker._model.apply_gradients

            def spy(lr):
                self.named = {name: p.grad.to_local().clone() for name, p in inside(worker).parameters.items()}
                return apply(lr)

            worker._model.apply_gradients = spy
            self.metrics = train(worker)
            self.gradient = torch.cat([g.flatten() for g in self.named.values()])
            self.weights = torch.cat([shard.flatten() for shard in inside(worker).local.values()]).clone()
            self.steps = worker.steps


def whole(groups):
    return lambda worker: worker.step([flat(groups)])


def streamed(groups, seed):
    def train(worker):
        parts, rest = in_parts(groups, seed)
        for part in parts:
            worker.accumulate(part)
        return worker.apply(rest)

    return train


def far(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.cases(2)
def test_it_equals_the_whole_batch(model_path, groups, normalisation, dtype, limit):
    config = dataclasses.replace(CPU, normalisation=normalisation, dtype=dtype)
    expected = Seen(model_path, config, whole(groups))
    for seed in range(4):
        found = Seen(model_path, config, streamed(groups, seed))
        assert far(found.gradient, expected.gradient) <= limit
        assert far(found.weights, expected.weights) <= 1e-3 * CPU.lr  # Adam divides small gradients by themselves
        assert found.metrics.keys() == expected.metrics.keys() | {"version_oldest", "version_mean"}
        for name, value in expected.metrics.items():
            if not name.endswith("_s"):
                assert found.metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        assert found.steps == 1


@pytest.mark.parametrize("loss", plugins.names("tailrace.loss"))
@pytest.mark.cases(5)
def test_it_equals_the_whole_batch_and_a_plain_model_with_every_loss(model_path, groups, loss):
    """A step before it, so that ratios to the proximal policy and the behaviour differ. A loss that needs the batch says so."""
    options = {"loss": loss, "max_response_tokens": 30, "dtype": "float64", "lr": 0.1}
    config = dataclasses.replace(CPU, **options, advantages="group" if loss == "ppo" else "auto")
    if config.open_advantages().needs_batch:
        with pytest.raises(
            TrainerConfigError, match=r"'batch' .with the loss 'reinforce[+][+]'. with gradients of parts"
        ):
            Seen(model_path, config, streamed(groups, seed=3))
        config = dataclasses.replace(config, advantages="group")
    first, others = flat(groups[:2]), groups[2:]
    expected = Seen(model_path, config, whole(others), before=[first])
    found = Seen(model_path, config, streamed(others, seed=3), before=[first])
    assert far(found.gradient, expected.gradient) <= 1e-12
    for name, value in expected.metrics.items():
        if not name.endswith("_s"):
            assert found.metrics[name] == pytest.approx(value, rel=1e-6, abs=1e-9), name
    lm = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    adam = torch.optim.AdamW(lm.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    for batch in (first, flat(others)):
        adam.zero_grad()
        reference_loss(lm, batch, config).backward()
        named = {name: p.grad.clone() for name, p in lm.named_parameters()}
        torch.nn.utils.clip_grad_norm_(lm.parameters(), config.grad_clip_norm)
        adam.step()
    assert far(found.gradient, torch.cat([named[name].flatten() for name in found.named])) < 2e-4


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.3])
@pytest.mark.parametrize("normalisation", ["token", "sequence"])
@pytest.mark.cases(2)
def test_it_equals_a_plain_model_token_by_token(model_path, groups, normalisation, kl_coefficient):
    # A step before it, so that the policy has left the reference model.
    config = dataclasses.replace(CPU, normalisation=normalisation, dtype="float64", kl_coefficient=kl_coefficient)
    first, others = flat(groups[:2]), groups[2:]
    found = Seen(model_path, config, streamed(others, seed=1), before=[first])
    lm, frozen = (AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64) for _ in range(2))
    adam = torch.optim.AdamW(lm.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    for batch in (first, flat(others)):
        adam.zero_grad()
        loss = reference_loss(lm, batch, config, frozen if kl_coefficient else None)
        loss.backward()
        named = {name: p.grad.clone() for name, p in lm.named_parameters()}
        torch.nn.utils.clip_grad_norm_(lm.parameters(), config.grad_clip_norm)
        adam.step()
    expected = torch.cat([named[name].flatten() for name in found.named])
    assert far(found.gradient, expected) < 1e-5  # this model computes its norms in float32
    assert found.metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert ("reference_kl" in found.metrics) == (kl_coefficient > 0)
    assert found.metrics.get("reference_kl", 1) > 0


def test_a_penalty_pulls_the_policy_back(model_path, groups):
    free = Seen(model_path, CPU, whole(groups[1:]), before=[groups[0]])
    held = Seen(model_path, dataclasses.replace(CPU, kl_coefficient=5.0), whole(groups[1:]), before=[groups[0]])
    assert far(held.gradient, free.gradient) > 0.1


def test_a_mean_of_means_is_noticed(model_path, groups, monkeypatch):
    """The comparison above would find the most common mistake: parts that are scaled each by itself."""
    expected = Seen(model_path, CPU, whole(groups))
    add = PartialBatch._add

    def scaled(parts, experiences, *, alone):
        before = [p.grad.to_local().clone() if p.grad is not None else 0.0 for p in parts._model.parameters.values()]
        tally = add(parts, experiences, alone=alone)
        units = tally.over()["units"] or 1.0
        for parameter, was in zip(parts._model.parameters.values(), before, strict=True):
            if parameter.grad is not None:
                local = parameter.grad.to_local()
                local.copy_(was + (local - was) / units)
        return tally

    monkeypatch.setattr(PartialBatch, "_add", scaled)
    found = Seen(model_path, CPU, streamed(groups, seed=1))
    cosine = torch.nn.functional.cosine_similarity(found.gradient, expected.gradient, dim=0)
    assert cosine < 1 - 1e-4, "the gradient of parts scaled each by itself points where the batch's does"


def test_sums_are_wider_than_the_passes(model_path, groups):
    config = dataclasses.replace(CPU, dtype="bfloat16")
    found, expected = Seen(model_path, config, streamed(groups, seed=2)), Seen(model_path, config, whole(groups))
    assert found.gradient.dtype == torch.float32
    exact = Seen(model_path, CPU, whole(groups))
    assert far(found.gradient, exact.gradient) < 2 * far(expected.gradient, exact.gradient)


def test_each_group_comes_once_and_whole(model_path, groups):
    with TrainerWorker(model_path, CPU) as worker:
        worker.accumulate(groups[0][:2])
        with pytest.raises(BatchError, match="group 0 twice in a batch, expected each once and whole"):
            worker.accumulate(groups[0][2:])
        worker.accumulate(groups[1])
        with pytest.raises(BatchError, match="expected `apply` before a step"):
            worker.step([groups[2]])
        with pytest.raises(BatchError, match="expected `apply` before a supervised step"):
            worker.sft_step([((1,), (2,))], lr=0.1)
        with pytest.raises(BatchError, match="group 1 twice"):
            worker.apply(groups[1])
        worker.step([groups[2]])  # the batch that failed is forgotten
        assert worker.steps == 1


def test_parts_without_a_token_and_batches_without_one(model_path, groups):
    empty = [dataclasses.replace(experience, segments=()) for experience in groups[0]]
    with TrainerWorker(model_path, CPU) as worker:
        assert worker.accumulate(empty)["tokens"] == 0
        with pytest.raises(BatchError, match="no response token in the whole batch"):
            worker.apply()
        worker.accumulate(empty)
        assert worker.apply(groups[1])["trajectories"] == 8


def test_advantages_over_the_batch_need_the_batch(model_path, groups):
    with TrainerWorker(model_path, dataclasses.replace(CPU, advantages="batch")) as worker:
        with pytest.raises(
            TrainerConfigError, match=r"found advantages = 'batch' .with the loss 'dapo'. with gradients of parts"
        ):
            worker.accumulate(groups[0])
        with pytest.raises(TrainerConfigError, match="such as 'group'"):
            worker.apply(groups[0])
        assert worker.steps == 0


def test_a_gradient_that_is_not_finite_ends_the_batch_and_changes_nothing(model_path, groups):
    bad = [
        dataclasses.replace(e, segments=(Segment(0, e.tokens, (-200.0,) * len(e.tokens)),), reward=float(i == 0))
        for i, e in enumerate(groups[0])
    ]
    with TrainerWorker(model_path, CPU) as worker:
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        worker.accumulate(bad)
        with pytest.raises(NonFiniteGradientError):
            worker.apply(groups[1])
        for name, tensor in worker.weights():
            assert torch.equal(tensor, before[name])
        worker.accumulate(groups[0])
        assert worker.apply()["grad_norm"] < float("inf")


def test_a_checkpoint_forgets_what_was_added(model_path, groups, tmp_path):
    expected = Seen(model_path, CPU, whole(groups))
    with TrainerWorker(model_path, CPU) as worker:
        worker.save(tmp_path / "v0", 0).result(60)

    def train(worker):
        worker.accumulate(groups[3])
        worker.load(tmp_path / "v0")
        return streamed(groups, seed=3)(worker)

    assert far(Seen(model_path, CPU, train).gradient, expected.gradient) <= 1e-6


def test_versions_are_those_of_the_whole_batch(model_path, groups):
    old = [dataclasses.replace(e, segments=(Segment(5 + i, e.tokens, e.logprobs),)) for i, e in enumerate(groups[0])]
    new = [dataclasses.replace(e, segments=(Segment(9, e.tokens, e.logprobs),)) for e in groups[1]]
    with TrainerWorker(model_path, CPU) as worker:
        worker.accumulate(new)
        metrics = worker.apply(old)
    assert (metrics["version_oldest"], metrics["version_mean"]) == (5, (5 + 6 + 7 + 8 + 4 * 9) / 8)
