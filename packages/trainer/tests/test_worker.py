import dataclasses
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.contracts import Experience, PluginError, Segment, plugins
from tailrace.trainer import (
    BatchError,
    CriticConfig,
    ModelError,
    NonFiniteGradientError,
    TrainerConfig,
    TrainerConfigError,
)
from tailrace.trainer.backend import BackendPlugin, build_backend, check_backend
from tailrace.trainer.forward_backward import reference_kl
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import BackendContract, inside, make_experiences, reference_loss
from tailrace.trainer.worker import TrainerWorker

pytestmark = pytest.mark.long
VOCAB = 31
CPU = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.0)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return build_model(
        tmp_path_factory.mktemp("model"), vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, max_positions=64
    )


def gradient_of_step(model_path, config, mini_batch):
    """The gradient that the optimizer gets, and the step's metrics."""
    with TrainerWorker(model_path, config) as worker:
        seen = {}
        apply = worker._model.apply_gradients

        def spy(lr):
            for name, parameter in inside(worker).parameters.items():
                seen[name] = parameter.grad.to_local().clone()
            return apply(lr)

        worker._model.apply_gradients = spy
        return seen, worker.step([mini_batch])


def reference_gradient(model_path, config, mini_batch):
    lm = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    loss = reference_loss(lm, mini_batch, config)
    loss.backward()
    return {name: p.grad.float() for name, p in lm.named_parameters()}, loss.item()


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
@pytest.mark.parametrize(("temperature", "advantages"), [(1.0, "auto"), (0.8, "centred")])
def test_gradient_equals_the_slow_reference(model_path, normalisation, temperature, advantages):
    config = dataclasses.replace(CPU, normalisation=normalisation, temperature=temperature, advantages=advantages)
    check_against_the_reference(model_path, config)


def test_gradient_of_batch_advantages_equals_the_slow_reference(model_path):
    check_against_the_reference(model_path, dataclasses.replace(CPU, advantages="batch"))


def check_against_the_reference(model_path, config):
    batch = make_experiences(4, 5, vocab_size=VOCAB, seed=3)
    found, metrics = gradient_of_step(model_path, config, batch)
    expected, loss = reference_gradient(model_path, config, batch)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert 0 < metrics["clip_fraction"] < 1
    assert found.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], atol=2e-6, rtol=1e-4, msg=name)


@pytest.mark.parametrize(
    "layout",
    [
        {"micro_batch_tokens": 1},
        {"micro_batch_tokens": 37},
        {"shared_prompt_tokens": 0},
        {"shared_prompt_tokens": 0, "micro_batch_tokens": 50},
        {"shared_prompt_tokens": 30},
    ],
)
def test_any_layout_gives_the_same_gradient(model_path, layout):
    batch = make_experiences(3, 4, vocab_size=VOCAB, seed=5)
    whole, _ = gradient_of_step(model_path, dataclasses.replace(CPU, micro_batch_tokens=10**6), batch)
    split, _ = gradient_of_step(model_path, dataclasses.replace(CPU, **layout), batch)
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], atol=2e-6, rtol=1e-4, msg=name)


def test_order_of_the_batch_does_not_matter(model_path):
    batch = make_experiences(3, 4, vocab_size=VOCAB, seed=7)
    one, _ = gradient_of_step(model_path, CPU, batch)
    other, _ = gradient_of_step(model_path, CPU, batch[::-1])
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-6, rtol=1e-4, msg=name)


def on_policy(model_path, apart=0.0):
    """Two responses of 2 and 4 tokens with rewards 1 and 0, whose log-probabilities are the model's own, less `apart`."""
    lm = AutoModelForCausalLM.from_pretrained(model_path)
    batch = []
    for tokens, reward in (((5, 6), 1.0), ((7, 8, 9, 10), 0.0)):
        with torch.no_grad():
            table = lm(input_ids=torch.tensor([[1, 2, 3, *tokens]])).logits[0].log_softmax(-1)
        logprobs = tuple(table[2 + i, token].item() - apart for i, token in enumerate(tokens))
        batch.append(Experience(str(reward), 0, (1, 2, 3), (Segment(0, tokens, logprobs),), reward=reward))
    return batch


def test_metrics_by_hand(model_path):
    # Ratio 1 everywhere, nothing clipped, advantages +1 and -1, so the loss is -(2 - 4) / 6 = 1/3.
    batch = on_policy(model_path)
    with TrainerWorker(model_path, dataclasses.replace(CPU, entropy=True, lr=0.5, warmup_steps=5)) as worker:
        metrics = worker.step([batch])
    assert metrics["loss"] == pytest.approx(1 / 3, abs=1e-5)
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0
    assert 0 < metrics["entropy"] <= torch.tensor(float(VOCAB)).log().item() + 1e-5
    assert (metrics["reward_mean"], metrics["tokens"], metrics["trajectories"]) == (0.5, 6, 2)
    assert (metrics["response_tokens_mean"], metrics["response_tokens_max"]) == (3, 4)
    assert metrics["lr"] == pytest.approx(0.1)
    assert metrics["forward_s"] + metrics["backward_s"] + metrics["optimizer_s"] <= metrics["step_s"]


def test_the_kl_of_policies_that_hardly_differ_has_its_digits(model_path):
    # r - 1 - log r of log r = 1e-4 is 5e-9, less than what single precision leaves of r - 1.
    with TrainerWorker(model_path, CPU) as worker:
        worker.weights_version = 0
        metrics = worker.step([on_policy(model_path, 1e-4)])
    exact = math.expm1(1e-4) - 1e-4
    assert metrics["approx_kl"] == pytest.approx(exact, rel=0.1)
    assert metrics["mismatch_kl"] == metrics["approx_kl"]
    one, other = torch.tensor([-1.0]), torch.tensor([-1.0 + 1e-4])
    apart = other.item() - one.item()
    assert reference_kl(one, other).item() == pytest.approx(math.expm1(apart) - apart, rel=0.01)


def test_steps_raise_the_probability_of_what_is_rewarded(model_path):
    batch = make_experiences(2, 4, vocab_size=VOCAB, seed=11)
    with TrainerWorker(model_path, dataclasses.replace(CPU, grad_clip_norm=1.0, lr=0.003)) as worker:
        losses = [worker.step([batch])["loss"] for _ in range(8)]
        assert worker.steps == 8
    assert losses[-1] < losses[0] - 0.05


def test_each_mini_batch_is_one_optimizer_step(model_path):
    one, two = make_experiences(2, 3, vocab_size=VOCAB, seed=1), make_experiences(2, 3, vocab_size=VOCAB, seed=2)
    two = [dataclasses.replace(experience, group=experience.group + 2) for experience in two]
    with TrainerWorker(model_path, CPU) as together, TrainerWorker(model_path, CPU) as apart:
        together.step([one, two])
        apart.step([one])
        apart.step([two])
        assert together.steps == apart.steps == 2
        for (name, left), (_, right) in zip(together.weights(), apart.weights(), strict=True):
            torch.testing.assert_close(left, right, atol=0, rtol=0, msg=name)


def test_supervised_loss_is_the_mean_over_response_tokens(model_path):
    lm = AutoModelForCausalLM.from_pretrained(model_path)
    sequences = [((1, 2), (3, 4, 5)), ((6,), (7,)), ((8, 9, 10), (11, 12))]
    expected = torch.zeros(())
    for prompt, response in sequences:
        table = lm(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
        expected = expected - sum(table[len(prompt) - 1 + i, t] for i, t in enumerate(response)) / 6
    with TrainerWorker(model_path, CPU) as worker:
        first = worker.sft_step(sequences, lr=0.01)
        assert first["loss"] == pytest.approx(expected.item(), abs=1e-5)
        assert first["lr"] == 0.01
        for _ in range(20):
            last = worker.sft_step(sequences, lr=0.01)
        assert last["loss"] < first["loss"] / 2
        worker.reset_optimizer()
        assert worker.steps == 0


def test_weights_are_hugging_face_names_with_tied_ones_once(model_path):
    lm = AutoModelForCausalLM.from_pretrained(model_path)
    with TrainerWorker(model_path, CPU) as worker:
        found = dict(worker.weights())
    expected = dict(lm.named_parameters())
    assert found.keys() == expected.keys()
    assert "lm_head.weight" not in found
    for name in expected:
        torch.testing.assert_close(found[name], expected[name].data, atol=0, rtol=0)


def test_bfloat16_trains_close_to_float32(model_path):
    batch = make_experiences(3, 4, vocab_size=VOCAB, seed=9)
    exact, _ = gradient_of_step(model_path, CPU, batch)
    rough, _ = gradient_of_step(model_path, dataclasses.replace(CPU, dtype="bfloat16"), batch)
    flat_exact, flat_rough = (torch.cat([g.flatten() for g in grads.values()]) for grads in (exact, rough))
    assert torch.nn.functional.cosine_similarity(flat_exact, flat_rough, dim=0) > 0.98
    with TrainerWorker(model_path, dataclasses.replace(CPU, dtype="bfloat16")) as worker:
        assert {tensor.dtype for _, tensor in worker.weights()} == {torch.bfloat16}
        assert {shard.dtype for shard in inside(worker).local.values()} == {torch.float32}


def test_a_gradient_that_is_not_finite_changes_nothing(model_path):
    good = make_experiences(1, 4, vocab_size=VOCAB, seed=21)
    # The ratio against so small a probability overflows.
    bad = [
        dataclasses.replace(e, segments=(Segment(0, e.tokens, (-200.0,) * len(e.tokens)),), reward=float(i == 0))
        for i, e in enumerate(good)
    ]
    with TrainerWorker(model_path, CPU) as worker:
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        with pytest.raises(NonFiniteGradientError, match="weights are unchanged"):
            worker.step([bad])
        for name, tensor in worker.weights():
            torch.testing.assert_close(tensor, before[name], atol=0, rtol=0)
        assert worker.step([good])["grad_norm"] < float("inf")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("small", [True, False])
def test_a_layer_that_raises_in_a_backward_pass_leaves_nothing_for_the_next_step(model_path, monkeypatch, small, dtype):
    """So does one for which a GPU has no memory. FSDP2 has noted that the pass goes on, and has whole gradients of others."""
    if not small:
        monkeypatch.setattr("tailrace.trainer.fsdp2.SMALL_MODEL_PARAMETERS", 0)
    config = dataclasses.replace(CPU, dtype=dtype, micro_batch_tokens=40, activation_checkpointing="off")
    batches = [make_experiences(2, 4, vocab_size=VOCAB, seed=seed) for seed in (31, 32)]
    left = [-1]

    def full(*_):
        left[0] -= 1
        if left[0] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")

    found = []
    for fails in (False, True):
        with TrainerWorker(model_path, config) as worker:
            if fails:
                layer = inside(worker).module.lm.model.layers[0].mlp
                hook = layer.register_full_backward_hook(full)
                for number in (1, 2):  # of the micro-batches
                    left[0] = number
                    with pytest.raises(torch.OutOfMemoryError):
                        worker.step(batches[:1])
                hook.remove()
            worker.step(batches[1:])
            found.append({name: tensor.clone() for name, tensor in worker.weights()})
    for name, tensor in found[0].items():
        assert torch.equal(found[1][name], tensor), name


def test_bad_batches_are_refused(model_path):
    good = make_experiences(1, 2, vocab_size=VOCAB, seed=0)
    with TrainerWorker(model_path, CPU) as worker:
        with pytest.raises(BatchError, match="reward"):
            worker.step([[dataclasses.replace(good[0], reward=None)]])
        with pytest.raises(BatchError, match="no response token"):
            worker.step([[dataclasses.replace(good[0], segments=())]])
        with pytest.raises(BatchError, match="empty prompt"):
            worker.step([[dataclasses.replace(good[0], prompt=())]])
        with pytest.raises(BatchError, match="not finite"):
            worker.step([[dataclasses.replace(good[0], segments=(Segment(0, (1,), (float("nan"),)),))]])
        assert worker.steps == 0


def test_bad_settings_are_refused(model_path, tmp_path):
    with pytest.raises(TrainerConfigError, match="clip_low"):
        TrainerConfig(loss_options={"clip_low": 1.5})
    with pytest.raises(TrainerConfigError, match="normalisation"):
        TrainerConfig(normalisation="mean")  # type: ignore[arg-type]
    with pytest.raises(TrainerConfigError, match=r"found 'gropu' in group tailrace.advantages.*did you mean 'group'"):
        TrainerConfig(advantages="gropu")
    with pytest.raises(
        TrainerConfigError, match=r"loss 'dapo': found the unknown option 'clip', expected one of clip_low, clip_high"
    ):
        TrainerConfig(loss_options={"clip": 0.1})
    with pytest.raises(TrainerConfigError, match="without max_response_tokens"):
        TrainerConfig(loss="dr-grpo")
    with pytest.raises(
        TrainerConfigError, match=r"settings of a critic with advantages 'group' \(of the loss 'dapo'\)"
    ):
        TrainerConfig(critic=CriticConfig(epochs=2))
    with pytest.raises(TrainerConfigError, match="critic epochs = 0, expected at least 1"):
        CriticConfig(epochs=0)
    with pytest.raises(TrainerConfigError, match=r"found lam = 1\.5, expected a number from 0 to 1"):
        TrainerConfig(loss="ppo", advantages="gae", advantages_options={"lam": 1.5})
    with pytest.raises(TrainerConfigError, match="overlong_buffer = 9 with max_response_tokens = 8"):
        TrainerConfig(overlong_buffer=9, max_response_tokens=8)
    for betas in ((0.9,), (0.9, 0.95, 0.99), (0.9, 1.0)):
        with pytest.raises(TrainerConfigError, match=r"found betas = .* expected two numbers"):
            TrainerConfig(betas=betas)  # type: ignore[arg-type]
    assert TrainerConfig(threads=None).threads is None
    with pytest.raises(TrainerConfigError, match="threads"):
        TrainerConfig(threads=-1)
    with pytest.raises(TrainerConfigError, match="found 1 ranks for 2 cells"):
        TrainerWorker(model_path, dataclasses.replace(CPU, cells=2))
    with pytest.raises(TrainerConfigError, match="no rendezvous"):
        TrainerWorker(model_path, CPU, rank=1, world_size=2)
    with pytest.raises(ModelError, match=r"config\.json"):
        TrainerWorker(tmp_path, CPU)


def test_the_backend_is_registered():
    assert isinstance(plugins.load("tailrace.backend", "fsdp2"), BackendPlugin)


def test_a_backend_is_asked_before_a_run_starts(monkeypatch):
    asked = []

    class Picky(BackendPlugin):
        def __call__(self, *_, **__):
            raise AssertionError

        def check(self, config, processes):
            asked.append((config, processes))
            raise TrainerConfigError("found 3, expected 2")

    load = plugins.load

    def instead(backend):
        return lambda group, name: backend if group == "tailrace.backend" else load(group, name)

    monkeypatch.setattr(plugins, "load", instead(Picky()))
    with pytest.raises(TrainerConfigError, match="found 3"):
        check_backend("picky", CPU, 3)
    assert asked == [(CPU, 3)]
    monkeypatch.setattr(plugins, "load", instead(TrainerWorker))
    check_backend("any", CPU, 3)  # one without a check takes anything
    with pytest.raises(
        TrainerConfigError, match=r"'gae' .of the loss 'ppo'. with the backend 'any', which trains no critic"
    ):
        check_backend("any", dataclasses.replace(CPU, loss="ppo"), 3)


class TestFsdp2(BackendContract):
    def build(self, model_path, config):
        return TrainerWorker(model_path, config)


def test_a_backend_that_lacks_a_part_is_named_with_it(model_path, monkeypatch):
    class Half:
        on_phase = step = staticmethod(lambda *_: None)

    load = plugins.load
    half = lambda *_, **__: Half()  # noqa: E731
    monkeypatch.setattr(plugins, "load", lambda group, name: half if group == "tailrace.backend" else load(group, name))
    with pytest.raises(PluginError, match=r"^backend 'half' lacks device, expected what .*TrainingBackend has$"):
        build_backend("half", model_path, CPU, rank=0, world_size=1, rendezvous=None)


@pytest.mark.parametrize("mini_batches", [1, 3])
def test_it_says_how_many_micro_batches_a_call_has(model_path, mini_batches):
    batches = [make_experiences(4, 4, vocab_size=VOCAB, seed=seed) for seed in range(mini_batches)]
    with TrainerWorker(model_path, dataclasses.replace(CPU, micro_batch_tokens=64)) as worker:
        ended, expected = 0, []

        def count():
            nonlocal ended
            ended += 1
            expected.append(worker.expected_micro_batches)

        worker.watch_micro_batches(count)
        worker.step(batches)
        assert ended > mini_batches
        assert expected[0] == expected[0] // mini_batches * mini_batches
        assert abs(expected[-1] - ended) <= ended / 2
        begun = ended
        worker.accumulate(batches[0])
        assert expected[-1] == ended - begun


def segments(**changes):
    return (Segment(**{"version": 0, "tokens": (1, 2), "logprobs": (-1.0, -1.0), **changes}),)


SPOILT: dict[str, Any] = {
    "the reward None": {"reward": None},
    "the reward nan": {"reward": float("nan")},
    "the reward '1'": {"reward": "1"},
    "the reward 1000": {"reward": 10**400},
    "an empty prompt": {"prompt": ()},
    "a list as the prompt": {"prompt": [1, 2]},
    "nothing as the prompt": {"prompt": None},
    "a str as the prompt": {"prompt": "12"},
    "a str in the prompt": {"prompt": (1, "2")},
    "a float in the prompt": {"prompt": (1, 2.0)},
    "a bool in the prompt": {"prompt": (1, True)},
    f"the token {VOCAB} in the prompt": {"prompt": (0, VOCAB, 1)},
    "the token -1 in the prompt": {"prompt": (0, -1)},
    f"the token {VOCAB} in the response": {"segments": segments(tokens=(VOCAB, 0))},
    f"the token {2**40} in the response": {"segments": segments(tokens=(0, 2**40))},
    "the token -7 in the response": {"segments": segments(tokens=(0, -7))},
    "a list as the response": {"segments": segments(tokens=[0, 1])},
    "a NoneType in the response": {"segments": segments(tokens=(0, None))},
    "a log-probability that is not finite": {"segments": segments(logprobs=(-1.0, None))},
    "a log-probability that is": {"segments": segments(logprobs=(-1.0, "-1"))},
    "a log-probability": {"segments": segments(logprobs=(-1.0, float("-inf")))},
    "a list as the group": {"group": [1]},
}


@pytest.mark.parametrize("found", SPOILT)
@pytest.mark.cases(8)
def test_a_trajectory_that_cannot_be_trained_on_is_named(model_path, found):
    good = make_experiences(1, 4, vocab_size=VOCAB, seed=0)
    bad = dataclasses.replace(good[1], trajectory="5.1", **SPOILT[found])
    with TrainerWorker(model_path, CPU) as worker:
        before = {name: tensor.clone() for name, tensor in worker.weights()}
        for call in (lambda batch: worker.step([batch]), worker.accumulate, worker.apply):
            with pytest.raises(BatchError, match=f"found {found}.* on trajectory 5.1, expected"):
                call([good[0], bad, *good[2:]])
        assert worker.steps == 0
        assert all(torch.equal(tensor, before[name]) for name, tensor in worker.weights())
        assert worker.step([good])["trajectories"] == 4


@pytest.mark.parametrize(
    ("of", "found"),
    [
        (lambda good: [], "no mini-batch"),
        (lambda good: (), "no mini-batch"),
        (lambda good: [[]], "no response token in mini-batch 0"),
        (lambda good: [good, []], "no response token in mini-batch 1"),
        (lambda good: good, r"trajectory 0\.0 as mini-batch 0"),
        (lambda good: [good, good[0]], r"trajectory 0\.0 as mini-batch 1"),
        (lambda good: good[0], "a Experience"),
        (lambda good: None, "nothing"),
        (lambda good: "batch", "a str"),
        (lambda good: [None], "nothing as mini-batch 0"),
        (lambda good: ["batch"], "a str as mini-batch 0"),
        (lambda good: [[*good, None]], "nothing at place 4"),
        (lambda good: [[dataclasses.asdict(good[0])]], "a dict at place 0"),
        (lambda good: [[(1, 2)]], "a tuple at place 0"),
    ],
)
def test_what_is_no_list_of_mini_batches_is_said(model_path, of, found):
    good = make_experiences(1, 4, vocab_size=VOCAB, seed=0)
    with TrainerWorker(model_path, CPU) as worker:
        with pytest.raises(BatchError, match=f"found {found}"):
            worker.step(of(good))
        assert worker.steps == 0
        assert worker.step(iter([iter(good)]))["trajectories"] == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["accumulate", "apply"])
@pytest.mark.parametrize(
    "of", [lambda good: None, lambda good: good[0], lambda good: [good], lambda good: "text", lambda good: 3]
)
def test_what_is_no_list_of_experiences_is_said(model_path, call, of):
    good = make_experiences(1, 4, vocab_size=VOCAB, seed=0)
    with TrainerWorker(model_path, CPU) as worker:
        with pytest.raises(BatchError, match=r"found .* expected"):
            getattr(worker, call)(of(good))
        worker.accumulate(iter(good))  # type: ignore[arg-type]
        assert worker.apply()["trajectories"] == 4


@pytest.mark.parametrize(
    ("sequences", "found"),
    [
        ([], "no response token in 0 sequences"),
        ([()], "a tuple as sequence 0"),
        ([((1,), (2,)), 7], "a int as sequence 1"),
        ([((1,), (2,)), "ab"], "a str as sequence 1"),
        ([((1,), 2)], "a int as the response of sequence 0"),
        ([("1", (2,))], "a str as the prompt of sequence 0"),
        ([((1,), (2,)), ((1,), (VOCAB,))], f"the token {VOCAB} in the response of sequence 1"),
        ([((-1,), (2,))], "the token -1 in the prompt of sequence 0"),
        ([((1,), (2.5,))], "a float in the response of sequence 0"),
        ([((), (2,))], "an empty prompt"),
    ],
)
def test_a_sequence_that_cannot_be_learned_is_named(model_path, sequences, found):
    with TrainerWorker(model_path, CPU) as worker:
        with pytest.raises(BatchError, match=f"found {found}"):
            worker.sft_step(sequences, lr=0.1)
        assert worker.steps == 0
        assert worker.sft_step([([1, 2], [3])], lr=0.1)["tokens"] == 1


def test_a_rank_takes_its_device_on_each_thread_that_calls_it(model_path, monkeypatch, tmp_path):
    """CUDA's current device is of a thread: streams of another one would order nothing on the rank's own."""
    with TrainerWorker(model_path, CPU) as worker:
        took: list[str] = []
        device = worker.device
        monkeypatch.setattr(torch.cuda, "set_device", lambda found: took.append(str(found)))
        batch = make_experiences(2, 3, vocab_size=VOCAB, seed=1)
        uses = {
            "step": lambda: worker.step([batch]),
            "accumulate": lambda: worker.accumulate(batch),
            "apply": lambda: worker.apply(),
            "sft_step": lambda: worker.sft_step([((1, 2), (3,))], lr=0.0),
            "weights": lambda: list(worker.weights()),
            "shards": lambda: list(worker.shards()),
            "save": lambda: worker.save(tmp_path / "1", 1).result(60),
            "load": lambda: worker.load(tmp_path / "1"),
            "export": lambda: worker.export(tmp_path / "exported"),
            "offload": lambda: worker.offload(["optimizer"]),
            "onload": lambda: worker.onload(["optimizer"]),
        }
        for name, use in uses.items():
            took.clear()
            worker.device = torch.device("cuda", 3)
            with ThreadPoolExecutor(1) as thread:
                thread.submit(use).result(60)
            worker.device = device
            assert took == ["cuda:3"], name
