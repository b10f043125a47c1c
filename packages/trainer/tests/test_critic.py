"""PPO's critic: its numbers against slow references, its steps against plain transformers, and who may have one."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tailrace.trainer import CheckpointError, CriticConfig, ModelError, TrainerConfig, TrainerConfigError
from tailrace.trainer.advantages import CriticAdvantages, Gae, open_advantages
from tailrace.trainer.backend import build_backend
from tailrace.trainer.config import AdapterConfig
from tailrace.trainer.critic import value_loss
from tailrace.trainer.critic_init import check_critic_init
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import (
    build_value_model,
    inside,
    make_experiences,
    reference_estimates,
    reference_loss,
    reference_value_loss,
)
from tailrace.trainer.worker import TrainerWorker

sys.path.insert(0, str(Path(__file__).parent))
import trainer_processes

VOCAB = 31
PPO = TrainerConfig(
    lr=0.01, device="cpu", threads=1, loss="ppo", grad_clip_norm=0.5, critic=CriticConfig(lr=0.02), dtype="float64"
)
UNWHITENED = dataclasses.replace(PPO, advantages="gae", advantages_options={"whiten": False})


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return build_model(
        tmp_path_factory.mktemp("model"), vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, max_positions=64
    )


@pytest.fixture(scope="module")
def init(model_path, tmp_path_factory):
    return build_value_model(tmp_path_factory.mktemp("critic") / "init", model_path)


def batch(seed, groups=3):
    """Responses of one to three turns, by one to several versions, some of several contexts."""
    return make_experiences(groups, 4, vocab_size=VOCAB, seed=seed, turns=3, forks=0.3)


numbers = st.floats(-3, 3)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_advantages_are_sums_of_discounted_errors(steps, gamma, lam):
    rewards, values = ([pair[which] for pair in steps] for which in (0, 1))
    advantages, returns = Gae(gamma=gamma, lam=lam).estimate(rewards, values)
    for first in range(len(steps)):
        expected = 0.0
        for step in range(first, len(steps)):
            after = values[step + 1] if step + 1 < len(steps) else 0.0
            expected += (gamma * lam) ** (step - first) * (rewards[step] + gamma * after - values[step])
        assert advantages[first] == pytest.approx(expected, abs=1e-9)
        assert returns[first] == pytest.approx(expected + values[first], abs=1e-9)


@given(st.lists(numbers, min_size=1, max_size=9), numbers)
def test_an_advantage_that_looks_to_the_end_is_the_reward_less_the_value(values, reward):
    advantages, returns = Gae(gamma=1.0, lam=1.0).estimate([0.0] * (len(values) - 1) + [reward], values)
    assert returns == pytest.approx([reward] * len(values), abs=1e-9)
    assert advantages == pytest.approx([reward - value for value in values], abs=1e-9)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=9), st.sampled_from([0.0, 0.2, 1.0]))
def test_the_value_loss_and_its_gradient_token_by_token(tokens, clip):
    values, before, returns = (torch.tensor(each, dtype=torch.float64) for each in zip(*tokens, strict=True))
    values.requires_grad_()
    found, held = value_loss(values, before, returns, clip)
    found.sum().backward()
    assert values.grad is not None
    for place, (value, old, goal) in enumerate(tokens):
        error = value - goal
        bounded = min(max(value, old - clip), old + clip) - goal if clip else error
        assert found[place].item() == pytest.approx(max(error**2, bounded**2) / 2, abs=1e-12)
        is_held = bounded**2 > error**2
        assert bool(held[place]) == is_held
        if abs(bounded**2 - error**2) > 1e-9 or bounded == error:
            assert values.grad[place].item() == pytest.approx(0.0 if is_held else error, abs=1e-12)


def models(model_path, init):
    lm = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    return lm, AutoModelForSequenceClassification.from_pretrained(init, dtype=torch.float64)


def adamw(model, lr):
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=PPO.betas, weight_decay=PPO.weight_decay)


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({}, 3),
        ({"kl_coefficient": 0.3}, 1),
        pytest.param({}, 1, marks=pytest.mark.deep),
        pytest.param({"whiten": False, "gamma": 0.97, "lam": 0.8}, 1, marks=pytest.mark.deep),
    ],
)
@pytest.mark.cases(2)
def test_steps_are_those_of_plain_transformers(model_path, init, options, epochs):
    """Two batches of two mini-batches: both models' weights, and what the metrics say."""
    settings = CriticConfig(init=init, lr=0.02, value_clip=0.05, epochs=epochs, grad_clip_norm=0.5)
    config = dataclasses.replace(PPO, critic=settings, advantages="gae", advantages_options=options)
    lm, critic = models(model_path, init)
    anchor = models(model_path, init)[0].eval() if "kl_coefficient" in options else None
    steps = ((lm, adamw(lm, config.lr)), (critic, adamw(critic, 0.02)))
    with TrainerWorker(model_path, config) as worker:
        for seed in (1, 2):
            halves = [
                [dataclasses.replace(e, group=e.group + shift, trajectory=f"{shift}.{e.trajectory}") for e in each]
                for shift, each in ((0, batch(seed, 2)), (2, batch(seed + 10, 1)))
            ]
            metrics = worker.step(halves)
            before = reference_estimates(critic, [e for half in halves for e in half], config, anchor)
            losses = []
            for _ in range(epochs):
                for half in halves:
                    losses.append(reference_value_loss(critic, half, before, config))
                    update(*steps[1], losses[-1])
            for half in halves:
                update(*steps[0], reference_loss(lm, half, config, advantages=before.advantages))
            returns = torch.tensor([value for each in before.returns.values() for value in each])
            values = torch.tensor([value for each in before.values.values() for value in each])
            assert metrics["explained_variance"] == pytest.approx(
                1 - float((returns - values).var(correction=0) / returns.var(correction=0)), abs=1e-4
            )  # a ratio of variances
            assert metrics["value_mean"] == pytest.approx(float(values.mean()), abs=1e-6)
            assert metrics["return_mean"] == pytest.approx(float(returns.mean()), abs=1e-6)
        assert 0 < metrics["value_clip_fraction"] < 1
        for found, model in ((inside(worker), lm), (worker._critic_model, critic)):
            expected = dict(model.named_parameters())
            assert found.local.keys() == expected.keys()
            for name, tensor in found.local.items():
                # norms are computed in float32, and Adam divides small gradients by themselves; a weight moves by 0.04
                torch.testing.assert_close(tensor, expected[name].detach(), atol=2e-5, rtol=1e-5, msg=name)


def update(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()


class Seen:
    """The gradients of policy and critic before clipping, flat, the metrics, and the critic's weights."""

    def __init__(self, model_path, config, train):
        self.gradients: list[torch.Tensor] = []
        with TrainerWorker(model_path, config) as worker:
            models: list[Any] = [inside(worker), worker._critic_model]
            for model in models:
                model.apply_gradients = self.spying(model, model.apply_gradients)
            self.metrics = train(worker)
            self.critic = torch.cat([shard.flatten() for shard in models[1].local.values()]).clone()

    def spying(self, model, apply):
        def spy(lr):
            self.gradients.append(torch.cat([p.grad.to_local().flatten() for p in model.parameters.values()]))
            return apply(lr)

        return spy


def far(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_streamed_gradients_of_both_are_those_of_the_whole_batch(model_path, init, parts):
    config = dataclasses.replace(UNWHITENED, critic=CriticConfig(init=init))
    every = batch(5, 4)

    def streamed(worker):
        for part in range(parts):
            worker.accumulate([e for e in every if e.group == part])
        return worker.apply([e for e in every if e.group >= parts])

    whole = Seen(model_path, config, lambda worker: worker.step([every]))
    found = Seen(model_path, config, streamed)
    for one, other in zip(found.gradients, whole.gradients, strict=True):
        assert far(one, other) <= 1e-12
    for name, value in whole.metrics.items():
        if not name.endswith("_s"):
            assert found.metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (PPO, r"found advantages = 'gae' \(with the loss 'ppo'\) with whiten = true .* expected whiten = false"),
        (
            dataclasses.replace(UNWHITENED, critic=CriticConfig(epochs=2)),
            r"'gae' .* with critic epochs = 2 and gradients of parts of a batch, expected 1",
        ),
    ],
)
def test_what_needs_the_whole_batch_is_not_streamed(model_path, config, says):
    with TrainerWorker(model_path, config) as worker, pytest.raises(TrainerConfigError, match=says):
        worker.accumulate(batch(5))


def test_a_part_that_fails_leaves_no_gradient_of_the_critic(model_path, init):
    config = dataclasses.replace(UNWHITENED, critic=CriticConfig(init=init))
    every = batch(6, 2)

    def after_a_failure(worker):
        worker.accumulate([e for e in every if e.group == 0])
        with pytest.raises(Exception, match="twice"):
            worker.apply(every)
        return worker.step([every])

    whole = Seen(model_path, config, lambda worker: worker.step([every]))
    found = Seen(model_path, config, after_a_failure)
    assert torch.equal(found.gradients[-2], whole.gradients[-2])
    assert torch.equal(found.gradients[-1], whole.gradients[-1])


def test_the_critic_learns_alone_before_the_policy_moves(model_path):
    config = dataclasses.replace(PPO, critic=CriticConfig(warmup_steps=3, lr=0.02))
    with TrainerWorker(model_path, config) as worker:
        start = {name: tensor.clone() for name, tensor in worker.weights()}
        told = []
        for seed in range(3):
            told.append(worker.step([batch(seed, 1), [dataclasses.replace(e, group=9) for e in batch(seed + 7, 1)]]))
            same = all(torch.equal(start[name], tensor) for name, tensor in worker.weights())
            assert same == (seed < 2)  # the critic's steps are 0, 2 and 4 before the batches
        assert worker.steps == 2
        assert worker._critic_model is not None
        assert worker._critic_model.steps == 6
    assert [one["lr"] for one in told] == [0.0, 0.0, 0.01]
    assert [one["grad_norm"] > 0 for one in told] == [False, False, True]
    assert all(one["critic_grad_norm"] > 0 and one["approx_kl"] > 0 for one in told)


def test_only_the_policy_is_published_and_exported(model_path, tmp_path):
    with TrainerWorker(model_path, PPO) as worker:
        worker.step([batch(1)])
        names = {name for name, _ in worker.weights()}
        assert names == {name for name, _ in AutoModelForCausalLM.from_pretrained(model_path).named_parameters()}
        assert {tensor.name for tensor in worker.layout().tensors} == names
        worker.export(tmp_path / "out")
        worker.save(tmp_path / "7", 7).result(60)
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == names
    assert load_file(tmp_path / "7" / "model.safetensors").keys() == names
    state = load_file(tmp_path / "7" / "state-00000-of-00001.safetensors")
    assert {"critic/parameter/score.weight", "critic/exp_avg/score.weight"} < state.keys()
    assert json.loads((tmp_path / "7" / "trainer.json").read_text())["critic"] == {"steps": 1}


def test_a_checkpoint_without_a_critic_changes_nothing(model_path, tmp_path):
    config = dataclasses.replace(PPO, loss="dapo", critic=CriticConfig())
    with TrainerWorker(model_path, config) as worker:
        worker.step([batch(1)])
        worker.save(tmp_path / "7", 7).result(60)
    with TrainerWorker(model_path, PPO) as worker:
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        with pytest.raises(CheckpointError, match="found a checkpoint without one, expected one with a critic"):
            worker.load(tmp_path / "7")
        assert all(torch.equal(before[name], tensor) for name, tensor in worker.weights())


# On several ranks, and read by rows


def train(rank, world_size, model, config, backend, by_rows, rendezvous, out: Path):
    """Two steps, a checkpoint, a third; what rank 0 has then goes to a file, the critic's tensors and first gradient too.

    One that is called resumed loads the checkpoint of the run that it resumes before its third step.
    """
    if by_rows:
        trainer_processes.never_whole()
    built: Any = build_backend(backend, model, config, rank=rank, world_size=world_size, rendezvous=rendezvous)
    gradients: dict[str, torch.Tensor] = {}
    with built as worker:
        critic: Any = worker._critic_model
        apply = critic.apply_gradients

        def spy(lr):
            if not gradients:
                gradients.update(trainer_processes.whole_gradients(critic))
            return apply(lr)

        critic.apply_gradients = spy
        # one of a single trajectory: the other rank has nothing of its own
        metrics = [worker.step([batch(1)]), worker.step([batch(2)[:1]])]
        if out.name.startswith("resumed"):
            worker.load(out.with_name(out.name.removeprefix("resumed-")).with_suffix("") / "7")
        else:
            worker.save(out.with_suffix("") / "7", 7).result(60)
        metrics.append(worker.step([batch(3)]))
        found = {f"policy/{name}": tensor.clone() for name, tensor in worker.weights()}
        found |= {f"critic/{name}": tensor.clone() for name, tensor in critic.whole_parameters()}
        found |= {f"gradient/{name}": tensor for name, tensor in gradients.items()}
    if rank == 0:
        told = {
            f"{number} {name}": torch.tensor(value, dtype=torch.float64)
            for number, one in enumerate(metrics)
            for name, value in one.items()
            if not name.endswith("_s")
        }
        save_file({name: tensor.contiguous() for name, tensor in (found | told).items()}, str(out))


@pytest.mark.parametrize(
    ("backend", "ranks", "changes", "by_rows"),
    [
        ("fsdp2", 2, {}, True),
        *(
            pytest.param(*case, marks=pytest.mark.deep)
            for case in (
                ("deepspeed", 2, {"zero_stage": 3}, False),
                ("megatron", 2, {"tensor_parallel": 2}, False),
                ("fsdp2", 1, {}, True),
                ("fsdp2", 2, {}, False),
                ("fsdp2", 2, {"cells": 2}, False),
                ("deepspeed", 1, {"zero_stage": 2}, False),
                ("deepspeed", 2, {"zero_stage": 1}, False),
                ("deepspeed", 2, {"zero_stage": 2}, False),
                ("deepspeed", 2, {"zero_stage": 3}, True),
                ("deepspeed", 2, {"zero_stage": 2, "adapter": AdapterConfig(rank=3)}, False),
                ("megatron", 1, {}, False),
                ("megatron", 2, {}, False),
                ("megatron", 2, {"cells": 2}, False),
            )
        ),
    ],
)
@pytest.mark.deep
def test_several_ranks_rows_or_another_backend_compute_what_one_process_does_and_resume_bit_for_bit(
    model_path, init, tmp_path, backend, ranks, changes, by_rows
):
    """With one rank the critic begins with a fresh head, with two with one that it reads."""
    needs(backend)
    if adapter := changes.get("adapter"):  # of the policy
        pytest.importorskip("peft", reason="needs tailrace-trainer[adapters]")
    config = dataclasses.replace(PPO, dtype="float32", timeout_s=60, activation_checkpointing="off")
    config = dataclasses.replace(config, adapter=adapter or config.adapter)
    if ranks == 2:
        config = dataclasses.replace(config, critic=dataclasses.replace(config.critic, init=init))
    train(0, 1, model_path, config, "fsdp2", False, None, tmp_path / "one.safetensors")
    out, changed = tmp_path / "several.safetensors", dataclasses.replace(config, **changes)
    for name in ("several", "resumed-several"):
        meets = f"file://{tmp_path}/meet-{name}"
        arguments = (model_path, changed, backend, by_rows, meets, out.with_stem(name))
        trainer_processes.run_all(train, ranks, *arguments)
    expected, found, again = (load_file(out.with_stem(name)) for name in ("one", "several", "resumed-several"))
    assert found.keys() == expected.keys()
    assert sum(float(value.abs().sum()) for key, value in expected.items() if key.startswith("gradient/")) > 0.1
    for name, tensor in expected.items():
        # float32 sums in another order; weights and later metrics more, since Adam divides by the gradient
        absolute = 2e-6 if name.startswith("gradient/") else 1e-4
        torch.testing.assert_close(found[name], tensor, atol=absolute, rtol=1e-4, msg=name)
        assert torch.equal(again[name], found[name]), name


@pytest.mark.parametrize(
    ("saved_by", "read_by"),
    [
        ("fsdp2", "deepspeed"),
        ("megatron", "fsdp2"),
        pytest.param("fsdp2", "megatron", marks=pytest.mark.deep),
        pytest.param("deepspeed", "fsdp2", marks=pytest.mark.deep),
    ],
)
@pytest.mark.cases(1)
def test_a_backend_goes_on_with_the_critic_that_another_one_saved(model_path, init, tmp_path, saved_by, read_by):
    needs(saved_by, read_by)
    config = dataclasses.replace(PPO, dtype="float32", critic=CriticConfig(init=init, lr=0.02))
    out = tmp_path / "one.safetensors"
    train(0, 1, model_path, config, saved_by, False, None, out)
    train(0, 1, model_path, config, read_by, False, None, out.with_stem("resumed-one"))
    expected, found = load_file(out), load_file(out.with_stem("resumed-one"))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4, msg=name)


def needs(*backends):
    """Skip the test if a backend is not installed."""
    for name in backends:
        if name != "fsdp2":
            pytest.importorskip({"megatron": "megatron.core"}.get(name, name))


def test_megatron_names_a_critic_that_its_ranks_cannot_split(tmp_path):
    needs("megatron")
    sizes = {"vocab_size": VOCAB, "hidden": 16, "layers": 1, "head_dim": 8, "max_positions": 64}
    model = build_model(tmp_path / "model", mlp=32, **sizes)
    directory = build_value_model(tmp_path / "critic", build_model(tmp_path / "odd", mlp=33, **sizes))
    config = dataclasses.replace(PPO, critic=CriticConfig(init=directory), tensor_parallel=2)
    says = "found tensor_parallel = 2 and 33 columns of the MLP with backend megatron"
    with pytest.raises(TrainerConfigError, match=says):
        build_backend("megatron", model, config, rank=0, world_size=2, rendezvous=None)


# What a critic may begin with


def test_a_fresh_head_is_that_of_the_seed_and_values_begin_near_0(model_path):
    heads = []
    for seed in (0, 0, 1):
        torch.manual_seed(99)
        with TrainerWorker(model_path, dataclasses.replace(PPO, seed=seed)) as worker:
            critic: Any = worker._critic_model
            heads.append(critic.local["score.weight"].clone())
            assert abs(worker.step([batch(1)])["value_mean"]) < 0.5
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def bad(what, init, model_path, tmp_path):
    """A directory in which one thing is wrong."""
    if what == "no head":
        return model_path
    if what == "two labels":
        return build_value_model(tmp_path / "two", model_path, labels=2)
    found = Path(shutil.copytree(init, tmp_path / "init"))
    settings = json.loads((found / "config.json").read_text())
    if what == "vocabulary":
        settings["vocab_size"] += 1
    if what == "type":
        settings["model_type"] = "llama"
    (found / "config.json").write_text(json.dumps(settings))
    if what == "tokenizer":
        for directory, tokens in ((found, {"a": 0, "b": 1}), (model_path, {"b": 0, "a": 1})):
            words = {"model": {"vocab": tokens}, "added_tokens": []}
            (directory / "tokenizer.json").write_text(json.dumps(words))
    if what == "missing":
        (found / "config.json").unlink()
    return found


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no head", r"found a critic without a head in .* \(score.weight: no such tensor\), expected one of 1 row"),
        ("two labels", r"found a critic without a head in .* \(score.weight: one of 2 rows\)"),
        ("vocabulary", r"found a critic of another vocabulary in .* \(vocab_size = 32\), expected the policy's, 31"),
        ("type", r"found a critic of another type in .* \(model_type = 'llama'\), expected the policy's, 'qwen3'"),
        ("tokenizer", r"found a critic of another tokenizer in .*, expected that of the policy in"),
        ("missing", r"found no readable config.json in"),
    ],
)
def test_a_critic_that_does_not_fit_is_one_line(model_path, init, tmp_path, what, says):
    model = Path(shutil.copytree(model_path, tmp_path / "model"))
    directory = bad(what, init, model, tmp_path)
    with pytest.raises(ModelError, match=says) as found:
        check_critic_init(directory, model)
    assert "\n" not in str(found.value)
    config = dataclasses.replace(PPO, critic=CriticConfig(init=directory))
    with pytest.raises(ModelError, match=says):
        TrainerWorker(model, config)


def test_gae_is_behind_the_door_and_any_loss_may_have_it():
    assert isinstance(open_advantages("gae"), CriticAdvantages)
    assert dataclasses.replace(PPO, loss="dapo", advantages="gae").has_critic
    assert not dataclasses.replace(PPO, advantages="group", critic=CriticConfig()).has_critic
