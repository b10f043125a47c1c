"""What environments answered is read and not trained on: loss, ratio, KL, entropy and lengths, token by token."""

import dataclasses
import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.contracts import Experience, Segment
from tailrace.trainer import BatchError, TrainerConfig
from tailrace.trainer.batch import grpo_samples
from tailrace.trainer.demonstrations import encode
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside, make_experiences, reference_loss
from tailrace.trainer.tokenizer import train_tokenizer
from tailrace.trainer.worker import TrainerWorker

VOCAB = 31
CPU = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.0, dtype="float64", threads=1)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return build_model(
        tmp_path_factory.mktemp("model"), vocab_size=VOCAB, hidden=16, layers=2, head_dim=8, mlp=32, max_positions=96
    )


@pytest.fixture(scope="module")
def batch():
    made = make_experiences(4, 5, vocab_size=VOCAB, seed=3, max_response=6, turns=3)
    assert sum(not all(one.generated) for one in made) > 8
    assert any(one.segments[-1].observation for one in made)
    assert max(one.turns for one in made) == 3
    return made


def seen(model_path, config, train, before=()):
    """The gradient that the optimizer gets, by name, and the metrics of what `train` does."""
    with TrainerWorker(model_path, config) as worker:
        for mini_batch in before:
            worker.step([mini_batch])
        found = {}
        apply = worker._model.apply_gradients

        def spy(lr):
            found.update({name: p.grad.to_local().clone() for name, p in inside(worker).parameters.items()})
            return apply(lr)

        worker._model.apply_gradients = spy
        return found, train(worker)


def obvious_metrics(lm, frozen, batch, config):
    """The means over generated tokens that `step` reports, one token after the other."""
    sums, count = dict.fromkeys(("clip_fraction", "approx_kl", "ratio_mean", "entropy", "reference_kl"), 0.0), 0
    for experience in batch:
        group = [other.reward for other in batch if other.group == experience.group]
        advantage = experience.reward - sum(group) / len(group)
        tokens, told = [], []
        for segment in experience.segments:
            tokens += segment.tokens
            told += [segment.observation] * len(segment.tokens)
        with torch.no_grad():
            tables = [
                (model(input_ids=torch.tensor([[*experience.prompt, *tokens]])).logits[0].double() / config.temperature)
                .log_softmax(-1)
                for model in (lm, frozen)
            ]  # fmt: skip
        for position, token in enumerate(tokens):
            if told[position]:
                continue
            place = len(experience.prompt) + position - 1
            new, other = (table[place, token].item() for table in tables)
            log_ratio = new - experience.logprobs[position]
            ratio = math.exp(log_ratio)
            clipped = ratio > 1.28 if advantage > 0 else advantage < 0 and ratio < 0.8
            sums["clip_fraction"] += clipped
            sums["approx_kl"] += ratio - 1 - log_ratio
            sums["ratio_mean"] += ratio
            sums["entropy"] -= (tables[0][place].exp() * tables[0][place]).sum().item()
            sums["reference_kl"] += math.exp(other - new) - (other - new) - 1
            count += 1
    return {name: value / count for name, value in sums.items()} | {"tokens": count}


LAYOUTS = [
    {},
    {"shared_prompt_tokens": 0},
    {"shared_prompt_tokens": 0, "micro_batch_tokens": 90},
    {"micro_batch_tokens": 1},
]


LOSSES = [
    {},
    {"normalisation": "sequence", "temperature": 0.8},
    {"advantages": "batch", "kl_coefficient": 0.3},
    {"advantages": "centred", "kl_coefficient": 0.3, "normalisation": "sequence"},
]


@pytest.mark.parametrize(
    ("loss", "layout"),
    [
        pytest.param(loss, layout, marks=pytest.mark.deep if loss is not LOSSES[0] and layout is not LAYOUTS[0] else ())
        for loss in LOSSES
        for layout in LAYOUTS
    ],
    ids=str,
)
@pytest.mark.cases(6)
def test_gradient_and_metrics_equal_a_plain_model_token_by_token(model_path, batch, loss, layout):
    config = dataclasses.replace(CPU, **loss, **layout)
    found, metrics = seen(model_path, config, lambda worker: worker.step([batch]))
    lm, frozen = (AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64) for _ in range(2))
    expected = reference_loss(lm, batch, config, frozen if config.kl_coefficient else None)
    expected.backward()
    # This model computes its norms in float32, whatever its dtype.
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-4, msg=name)
    for name, value in obvious_metrics(lm, frozen, batch, config).items():
        if name in metrics:
            assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
    lengths = [sum(not part.observation for part in one.segments for _ in part.tokens) for one in batch]
    assert metrics["response_tokens_max"] == max(lengths)
    assert metrics["response_tokens_mean"] == pytest.approx(sum(lengths) / len(lengths))


@pytest.fixture(scope="module")
def branched():
    """Episodes of up to four turns, many of which fork, ask for something else or rewrite what was said."""
    made = make_experiences(3, 5, vocab_size=VOCAB, seed=1, max_prompt=5, max_response=4, turns=4, forks=0.6)
    assert max(len(one.contexts) for one in made) == 4
    assert sum(len(one.contexts) == 1 for one in made) >= 2
    return made


@pytest.mark.parametrize(
    ("loss", "layout"),
    [
        ({"loss": "grpo", "kl_coefficient": 0.3}, {}),
        ({"loss": "dapo", "temperature": 0.8}, {"packing": False}),
        ({"loss": "dr-grpo", "max_response_tokens": 50}, {"micro_batch_tokens": 40}),
        ({"loss": "gspo"}, {"shared_prompt_tokens": 0}),
        ({"loss": "decoupled-ppo"}, {"packing": False, "shared_prompt_tokens": 0}),
    ],
    ids=str,
)
@pytest.mark.cases(2)
def test_contexts_train_as_sequences_of_their_own_and_an_episode_counts_once(model_path, branched, loss, layout):
    """Each generated token once, behind what it was drawn behind, by plain transformers on each context; packed or not."""
    config = dataclasses.replace(CPU, **loss, **layout)
    found, metrics = seen(model_path, config, lambda worker: worker.step([branched]))
    lm, frozen = (AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64) for _ in range(2))
    expected = reference_loss(lm, branched, config, frozen if config.kl_coefficient else None)
    expected.backward()
    assert metrics["loss"] == pytest.approx(expected.item(), abs=1e-6)
    for name, parameter in lm.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-6, rtol=1e-4, msg=name)
    assert metrics["tokens"] == sum(one.generated_tokens for one in branched)
    assert metrics["trajectories"] == len(branched)
    (samples,) = grpo_samples([branched], config)
    assert sum(len(sample.trained) for sample in samples) == metrics["tokens"]


def test_contexts_are_told_by_where_they_begin():
    drawn, told = (lambda *ids: Segment(0, ids, (-1.0,) * len(ids))), (lambda *ids: (0, ids, (0.0,) * len(ids), True))
    segments = (drawn(5, 6), Segment(*told(1, 5, 9), fresh=True), drawn(7), Segment(*told(8)), drawn(7, 7),
                Segment(*told(2), fresh=True), drawn(3), Segment(*told(4, 4)))  # fmt: skip
    ((first, second, third),) = grpo_samples([[Experience("0.0", 0, (1,), segments, reward=1.0)]], CPU)
    assert [each.prompt for each in (first, second, third)] == [(1,), (1, 5, 9), (2,)]
    assert [each.response for each in (first, second, third)] == [(5, 6), (7, 8, 7, 7), (3,)]
    assert [each.generated for each in (first, second, third)] == [(), (True, False, True, True), ()]
    with pytest.raises(ValueError, match="found a fresh segment of 1 generated tokens"):
        Segment(0, (1,), (0.0,), fresh=True)


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
def test_added_group_by_group_it_is_the_same(model_path, batch, normalisation):
    config = dataclasses.replace(CPU, normalisation=normalisation, kl_coefficient=0.1)
    groups = [[one for one in batch if one.group == group] for group in range(4)]

    def streamed(worker):
        worker.accumulate(groups[2])
        worker.accumulate([*groups[0], *groups[3]])
        return worker.apply(groups[1])

    whole, one = seen(model_path, config, lambda worker: worker.step([batch]))
    parts, other = seen(model_path, config, streamed)
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], atol=1e-12, rtol=1e-9, msg=name)
    for name, value in one.items():
        if not name.endswith("_s"):
            assert other[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_an_answer_is_read_and_one_behind_everything_is_not(model_path):
    def group(answer, last=()):
        made = []
        for sample in range(2):
            segments = [Segment(0, (3, 4, 5 + sample), (-3.0,) * 3), Segment(0, answer, (0.0,) * len(answer), True)]
            segments.append(Segment(1, (6, 7), (-3.0,) * 2))
            if last:
                segments.append(Segment(1, last, (0.0,) * len(last), True))
            made.append(Experience(f"0.{sample}", 0, (1, 2), tuple(segments), reward=float(sample)))
        return made

    found, _ = seen(model_path, CPU, lambda worker: worker.step([group((8, 9))]))
    other, _ = seen(model_path, CPU, lambda worker: worker.step([group((10, 11))]))
    behind, _ = seen(model_path, CPU, lambda worker: worker.step([group((8, 9), last=(12, 13, 14))]))
    assert not all(torch.allclose(found[name], other[name]) for name in found)
    assert all(torch.equal(found[name], behind[name]) for name in found)


def test_samples_end_with_the_last_generated_token():
    segments = (Segment(0, (5, 6), (-1.0, -2.0)), Segment(0, (9,), (0.0,), True), Segment(1, (7,), (-3.0,)),
                Segment(1, (8, 8), (0.0, 0.0), True))  # fmt: skip
    plain = Experience("0.1", 0, (1,), (Segment(0, (5,), (-1.0,)),), reward=0.0)
    nothing = Experience("0.2", 0, (1,), (), reward=0.0)
    config = dataclasses.replace(CPU, normalisation="sequence")
    ((talk, short),) = grpo_samples([[Experience("0.0", 0, (1,), segments, reward=1.0), plain, nothing]], config)
    assert (talk.response, talk.behaviour) == ((5, 6, 9, 7), (-1.0, -2.0, 0.0, -3.0))
    assert talk.generated == (True, True, False, True)
    assert talk.weight == pytest.approx(1 / 3)
    assert (short.generated, short.weight) == ((), 1.0)


def test_the_supervised_loss_is_the_mean_over_what_is_learned(model_path):
    lm = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    sequences = [
        ((1, 2), (3, 4, 5, 6, 7), (True, False, False, True, True)),
        ((6,), (7,)),
        ((8, 9), (2, 2), (False, True)),
    ]
    total, count = 0.0, 0
    for prompt, response, *flags in sequences:
        table = lm(input_ids=torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)
        for place, token in enumerate(response):
            if not flags or flags[0][place]:
                total -= table[len(prompt) - 1 + place, token].item()
                count += 1
    with TrainerWorker(model_path, CPU) as worker:
        metrics = worker.sft_step(sequences, lr=0.01)  # type: ignore[arg-type]
        assert (metrics["loss"], metrics["tokens"]) == (pytest.approx(total / count, abs=1e-9), count)
        with pytest.raises(BatchError, match="found 1 flags for a response of 2 tokens"):
            worker.sft_step([((1,), (2, 3), (True,))], lr=0.01)
        with pytest.raises(BatchError, match="no response token in 1 sequences"):
            worker.sft_step([((1,), (2, 3), (False, False))], lr=0.01)


def test_turns_and_answers_of_a_demonstration_are_tokenised_one_by_one(tmp_path):
    train_tokenizer(["1 + 2 = 3", "is 12"], tmp_path, vocab_size=60)
    end = json.loads((tmp_path / "tokenizer_config.json").read_text())["eos_token"]
    plain, talk = encode(tmp_path, [("1 +", " 2 = 3"), ("1 +", [" 2", " = 3", " is 12"])])
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.decode(plain[1], skip_special_tokens=False) == f" 2 = 3{end}"
    assert len(plain) == 2
    turn, answer, last = (tokenizer.encode(text, add_special_tokens=False).ids for text in (" 2", " = 3", " is 12"))
    eos = tokenizer.token_to_id(end)
    assert talk[1] == [*turn, eos, *answer, *last, eos]
    assert talk[2] == [True] * (len(turn) + 1) + [False] * len(answer) + [True] * (len(last) + 1)
