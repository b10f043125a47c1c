"""Losses and digits against their definitions, and what learned methods learn."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from tailrace.ranker import Example, LengthRanker, RankerModelError, RankerOptionError
from tailrace.ranker.features import features_of
from tailrace.ranker.learned import encoding, hidden_states
from tailrace.ranker.learned.fitting import Plan, fit_network
from tailrace.ranker.learned.methods import Encoder, Hidden, Sft
from tailrace.ranker.learned.network import (
    OUTPUTS,
    P50,
    SHARES,
    list_mle,
    pairwise,
    pinball,
    predictions_of,
    quantile_logs,
)
from tailrace.ranker.learned.options import OBJECTIVES
from tailrace.ranker.learned.samples import Samples, Scale
from tailrace.ranker.learned.text import TextCodec
from tailrace.ranker.learned.writing import as_digits, log_likelihood, quantile
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.testing import made_examples

SMALL: dict[str, Any] = {
    "layers": 1,
    "heads": 2,
    "mlp": 64,
    "vocabulary": 300,
    "batch": 16,
    "most_tokens": 64,
    "width": 32,
}
MIXED = [
    Example("a", (5, 9, 9), (False, False, True)),
    Example("b", (9, 2)),
    Example("c", (12,), (True,)),
    Example("d", (3, 3, 30, 4), (True, False, False, False)),
    Example("e", (1,)),
]


def longer(mine, other):
    (size, cut), (its, its_cut) = mine, other
    return not its_cut and (size > its or (cut and size == its))


def test_pairwise_by_all_pairs_of_samples():
    values = [0.3, -1.0, 2.0, 0.0, -0.5]
    scores = torch.tensor(values, requires_grad=True)
    total = weights = 0.0
    for one, other in itertools.combinations(range(len(MIXED)), 2):
        pairs = list(itertools.product(MIXED[one].samples, MIXED[other].samples))
        wins, losses = (
            sum((a[0] - b[0]) * longer(a, b) for a, b in way) for way in (pairs, [(b, a) for a, b in pairs])
        )
        difference = values[one] - values[other]
        loss = wins * math.log1p(math.exp(-difference)) + losses * math.log1p(math.exp(difference))
        total, weights = total + loss / len(pairs), weights + (wins + losses) / len(pairs)
    assert float(pairwise(scores, Samples.of(MIXED)).detach()) == pytest.approx(total / weights, rel=1e-5)
    pairwise(scores, Samples.of(MIXED)).backward()
    assert torch.isfinite(scores.grad).all()


def test_pairwise_is_least_in_the_order_of_the_means_and_not_of_who_is_longer_more_often():
    often, seldom = Example("often", (12,) * 8), Example("seldom", (10,) * 6 + (90,) * 2)
    samples = Samples.of([often, seldom])
    gap = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([gap], lr=2.0)
    for _ in range(500):
        optimizer.zero_grad()
        pairwise(torch.cat([gap, -gap]), samples).backward()
        optimizer.step()
    less, more = 2 * 6, 78 * 2  # tokens by which pairs differ, of each way
    assert 2 * float(gap.detach()) == pytest.approx(math.log(less / more), rel=1e-2)


def test_quantiles_rise_and_the_score_is_their_mean():
    drawn = torch.Generator().manual_seed(0)
    outputs, scale = 3 * torch.randn(50, OUTPUTS, generator=drawn), Scale(3.0, 0.7, 900.0)
    logs = quantile_logs(outputs, scale)
    assert (logs.diff(dim=1) >= 0).all()
    assert torch.allclose(logs[:, P50], 3.0 + 0.7 * outputs[:, 1], atol=1e-5)
    for row, found in zip(logs.double().exp().clamp(1.0, 900.0), predictions_of(outputs, scale), strict=True):
        assert (found.p50, found.p90, found.score) == pytest.approx((float(row[2]), float(row[4]), float(row.mean())))


def test_list_mle_is_plackett_luce_where_all_is_known():
    scores, lengths = [0.3, -1.0, 2.0, 0.1], [7, 9, 3, 5]
    examples = [Example(f"{at}", (length,)) for at, length in enumerate(lengths)]
    order = sorted(range(4), key=lambda at: -lengths[at])
    # The last one has no choice; the mean is over the others.
    terms = [math.log(sum(math.exp(scores[at]) for at in order[place:])) - scores[order[place]] for place in range(3)]
    found = list_mle(torch.tensor(scores), Samples.of(examples), torch.Generator().manual_seed(0))
    assert float(found) == pytest.approx(sum(terms) / 3, rel=1e-5)


def test_list_mle_lets_a_truncated_sample_compete_with_shorter_ones_only():
    examples = [Example("cut", (5,), (True,)), Example("short", (3,)), Example("long", (9,))]
    scores = [0.5, -0.2, 1.0]
    against = lambda own, *others: math.log(sum(math.exp(s) for s in (own, *others))) - own  # noqa: E731
    expected = (against(scores[0], scores[1]) + against(scores[2], scores[1])) / 2
    found = list_mle(torch.tensor(scores), Samples.of(examples), torch.Generator().manual_seed(0))
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_pinball_by_hand(share):
    logs = [1.5, 2.0, 3.0, 1.0, 0.2]
    total = 0.0
    for predicted, example in zip(logs, MIXED, strict=True):
        losses = []
        for size, cut in example.samples:
            error = math.log(size) - predicted
            losses.append(0.0 if cut and error < 0 else max(share * error, (share - 1) * error))
        total += sum(losses) / len(losses)
    assert float(pinball(torch.tensor(logs), Samples.of(MIXED), share)) == pytest.approx(total / len(MIXED), rel=1e-5)


def test_losses_of_nothing_to_compare_are_zero():
    same = Samples.of([Example("a", (4,)), Example("b", (4,))])
    scores = torch.zeros(2, requires_grad=True)
    losses = pairwise(scores, same), list_mle(scores, same, torch.Generator())
    assert [float(loss.detach()) for loss in losses] == [0.0, 0.0]


def tables(places, seed):
    """A random distribution over all numbers of so many digits, as conditional log-probabilities."""
    drawn = torch.Generator().manual_seed(seed)
    return {
        prefix: torch.randn(10, generator=drawn).log_softmax(0)
        for length in range(places)
        for prefix in itertools.product(range(10), repeat=length)
    }


@pytest.mark.parametrize("seed", range(3))
def test_digits_give_the_whole_distribution(seed):
    table = tables(2, seed)
    number = [float((table[()][a] + table[(a,)][b]).exp()) for a in range(10) for b in range(10)]
    digits = as_digits(torch.arange(100), 2)
    logprobs = torch.stack([torch.stack([table[()], table[(int(a),)]]) for a, _ in digits])
    exactly = log_likelihood(logprobs, digits, torch.zeros(100, dtype=torch.bool)).exp()
    at_least = log_likelihood(logprobs, digits, torch.ones(100, dtype=torch.bool)).exp()
    assert exactly.tolist() == pytest.approx(number, rel=1e-4)
    assert at_least.tolist() == pytest.approx([sum(number[at:]) for at in range(100)], rel=1e-4)
    shares = [0.03, 0.5, 0.9, 0.999]
    found = quantile(
        lambda chosen: torch.stack([table[tuple(row)] for row in chosen.tolist()]), torch.tensor(shares), 2
    )
    for share, value in zip(shares, found.tolist(), strict=True):
        below = sum(number[: int(value)])
        assert below + (value - int(value)) * number[int(value)] == pytest.approx(share, abs=1e-4), f"seed {seed}"


def test_a_length_of_nines_has_a_finite_gradient():
    logits = torch.zeros(1, 3, 10, requires_grad=True)
    log_likelihood(logits.log_softmax(2), torch.tensor([[9, 9, 9]]), torch.tensor([True])).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_reading_by_the_cache_is_reading_anew():
    """The quantiles that the cache gives are those of whole forward passes."""
    examples = made_examples(30, cap=300)
    predictor = Sft(**SMALL, epochs=4).fit(examples, Setting(0, Deadline(600.0)))
    asked = [example.prompt for example in made_examples(6, seed=3)]
    rows = [row + predictor._asks for row in predictor._codec.encode(asked)]
    with torch.inference_mode():
        for row, found in zip(rows, predictor._quantiles(rows), strict=True):

            def next_digit(chosen, row=row):
                ids = torch.tensor([row + predictor._digits[digits].tolist() for digits in chosen])
                return predictor._model(input_ids=ids).logits[:, -1, predictor._digits].log_softmax(1)

            whole = quantile(next_digit, torch.tensor(SHARES), predictor._places)
            assert found.tolist() == pytest.approx(whole.tolist(), rel=1e-3)


@pytest.mark.parametrize(
    "method", [Encoder(**SMALL, epochs=8, lr=3e-3), Encoder(**SMALL, epochs=8, lr=3e-3, loss="listmle")]
)
@pytest.mark.cases(1)
def test_an_encoder_finds_more_than_the_length_of_the_prompt(method):
    torch.set_num_threads(1)
    examples, others = made_examples(250, seed=5), made_examples(150, seed=6)
    found, plain = (LengthRanker.train(examples, one).report(others) for one in (method, "prompt-length"))
    assert found["tau_b"] > plain["tau_b"] + 0.1
    assert found["recall20"] > plain["recall20"]
    assert 0.75 < found["coverage90"] < 0.99


@pytest.mark.deep
def test_a_head_on_a_state_that_says_something_learns(small_model, monkeypatch):
    """A random model's last state says next to nothing, so the states here are some features of the text."""

    def states(policy, prompts, deadline=None):
        return torch.tensor([features_of(prompt)[:16] for prompt in prompts])

    monkeypatch.setattr(hidden_states.FrozenPolicy, "states", states)
    examples, others = made_examples(250, seed=5), made_examples(150, seed=6)
    ranker = LengthRanker.train(examples, Hidden(epochs=60), policy=small_model)
    assert ranker.report(others)["tau_b"] > 0.4


def test_states_are_those_of_the_last_tokens_and_end_in_time(small_model):
    prompts = [example.prompt for example in made_examples(70)]
    policy = hidden_states.FrozenPolicy(small_model, 64)
    found = policy.states(prompts)
    codec, model = policy._model()
    with torch.inference_mode():
        for row, state in list(zip(codec.encode(prompts), found, strict=True))[::9]:
            alone = model(input_ids=torch.tensor([row])).last_hidden_state[0, -1]
            assert torch.allclose(alone, state, atol=1e-4)
    now = iter(range(1000))
    assert len(policy.states(prompts, Deadline(3.0, lambda: next(now)))) == 32


def test_hidden_on_disk_needs_its_policy(small_model, tmp_path):
    ranker = LengthRanker.train(made_examples(30), Hidden(epochs=2), policy=small_model)
    ranker.save(tmp_path / "ranker")
    (moved := tmp_path / "moved").symlink_to(small_model)
    prompts = ["Sum up: 1 + 2"]
    assert LengthRanker.load(tmp_path / "ranker").predict(prompts) == ranker.predict(prompts)
    assert LengthRanker.load(tmp_path / "ranker", policy=moved).predict(prompts) == ranker.predict(prompts)
    with pytest.raises(RankerModelError, match=r"found no tokenizer\.json"):
        LengthRanker.load(tmp_path / "ranker", policy=tmp_path).predict(prompts)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_directory_that_is_no_model_is_one_line(objective, tmp_path, small_model):
    method = Sft(objective=objective)
    with pytest.raises(RankerModelError, match=r"found no tokenizer\.json, expected a model directory") as caught:
        LengthRanker.train(made_examples(10), method, init=tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "tokenizer.json").write_bytes((small_model / "tokenizer.json").read_bytes())
    with pytest.raises(RankerModelError, match=r"found no config\.json"):
        LengthRanker.train(made_examples(10), method, init=tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(RankerModelError, match="found no model that can be loaded") as caught:
        LengthRanker.train(made_examples(10), method, init=tmp_path)
    assert "\n" not in str(caught.value)


def test_the_default_sizes_are_as_documented():
    method = Encoder()
    codec = TextCodec.trained(
        [example.prompt for example in made_examples(300)], vocabulary=method.vocabulary, most_tokens=64
    )
    for tokens in (codec.size, method.vocabulary):
        network = encoding.Reader(encoding._own(method, tokens), torch.zeros(1, encoding.COUNT), 0.1)  # type: ignore[attr-defined]
        assert 1e6 <= sum(weight.numel() for weight in network.parameters()) <= 5e6


def test_long_prompts_keep_their_ends():
    codec = TextCodec.trained(["abc 123"], vocabulary=257, most_tokens=8)
    ids = codec.encode(["x" * 50 + "y", "", "abc"])
    assert [len(row) for row in ids] == [8, 1, 4]
    assert ids[0][-1] != ids[0][1]
    assert codec.encode(["\ud800"]) == codec.encode(["?"])


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


def test_training_ends_in_time_with_the_best_weights():
    now = [0.0]

    def loss_of(rows, learning):
        now[0] += 1.0
        return ((network.weight - 3.0) ** 2).sum() + (0.0 if learning else 1.0)

    network = Line()
    fit_network(
        network, [1] * 100, loss_of, Plan("line", 1000, 10, 0.1, 0.0), Setting(0, Deadline(60.0, lambda: now[0]))
    )
    assert now[0] <= 60
    assert 0.5 < float(network.weight.detach()) <= 3.5


def test_training_without_a_deadline_takes_all_its_steps():
    def loss_of(rows, learning):
        taken.append(learning)
        return ((network.weight - 3.0) ** 2).sum()

    network, taken = Line(), []
    fit_network(network, [1] * 100, loss_of, Plan("line", 2, 10, 0.1), Setting(0, Deadline(math.inf)))
    assert taken.count(True) == 2 * 9


def test_the_best_weights_are_those_of_the_lowest_held_back_loss():
    looks = iter([5.0, 1.0, *[9.0] * 100])
    seen = []

    def loss_of(rows, learning):
        if learning:
            return (network.weight - 1000.0).abs().sum()
        seen.append(float(network.weight.detach()))
        return torch.tensor(next(looks))

    network = Line()
    fit_network(network, [1] * 100, loss_of, Plan("line", 20, 10, 0.1, 0.0), Setting(0, Deadline(600.0)))
    assert len(seen) == 20
    assert float(network.weight.detach()) == seen[1] < seen[-1]


@pytest.mark.parametrize(("rows", "batch", "steps"), [(1300, 8, 30), (1300, 8, 60), (1300, 64, 400), (100, 10, 20)])
def test_looks_at_the_held_back_loss_take_no_longer_than_what_is_learned_between_them(rows, batch, steps):
    """By passes: of a row that is learned there are three, of one that is looked at one."""
    passes = [0, 0]

    def loss_of(chosen, learning):
        passes[learning] += len(chosen) * (3 if learning else 1)
        return (network.weight - 1.0).abs().sum()

    network = Line()
    plan = Plan("line", steps, batch, 0.1, 0.0, steps=steps)
    fit_network(network, [1] * rows, loss_of, plan, Setting(0, Deadline(600.0)))
    last = rows // 10  # the look behind the last step comes always
    assert 0 < passes[False] <= passes[True] + last


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (Encoder, {"width": 30, "heads": 4}, "found width = 30 and heads = 4, expected a multiple"),
        (Encoder, {"loss": "mse"}, "found loss = 'mse', expected one of quantiles, pairwise, listmle"),
        (Encoder, {"vocabulary": 100}, "found vocabulary = 100, expected at least 257"),
        (Encoder, {"dropout": 1.0}, "found dropout = 1.0"),
        (Encoder, {"epochs": 0}, "found epochs = 0, expected more than 0"),
        (Sft, {"heads": 3, "width": 33}, "a multiple of an even number"),
        (Sft, {"most_tokens": 2}, "found most_tokens = 2"),
        (Hidden, {"lr": -1.0}, "found lr = -1.0"),
        (
            Sft,
            {"objective": "guess"},
            "found objective = 'guess', expected one of auto, write, quantiles, pairwise, listmle",
        ),
        (Sft, {"dtype": "float16"}, "found dtype = 'float16', expected one of auto, float32, bfloat16"),
        (Sft, {"lora_rank": -1}, "found lora_rank = -1, expected 0 or more"),
        (Sft, {"batch_tokens": 0}, "found batch_tokens = 0, expected more than 0"),
        (Sft, {"init_lr": 0.0}, "found init_lr = 0.0, expected more than 0"),
    ],
)
def test_options_outside_their_range(kind, options, said):
    with pytest.raises(RankerOptionError, match=said):
        kind(**options)


def test_an_update_leaves_the_old_predictor_as_it_was():
    examples = made_examples(40)
    predictor = Encoder(**SMALL, epochs=2).fit(examples, Setting(0, Deadline(600.0)))
    prompts = [example.prompt for example in examples]
    before = predictor.predict(prompts)
    newer = predictor.update(
        [dataclasses.replace(one, version=1) for one in made_examples(30, seed=2)], Setting(0, Deadline(600.0))
    )
    assert predictor.predict(prompts) == before
    assert newer.predict(prompts) != before
