"""Each loss against its objective written out token by token, by hand, and by what must hold of it."""

import dataclasses
import math
import pickle
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import PluginError, plugins
from tailrace.trainer import TrainerConfigError
from tailrace.trainer.losses import GROUP, Loss, LossTokens, open_loss
from tailrace.trainer.testing import check_loss, reference_objective

NAMES = plugins.names(GROUP)
SURROGATES = ["grpo", "dapo", "dr-grpo", "rloo", "reinforce++", "ppo"]


def made(seed, responses=(3, 1, 5), spread=0.5):
    """Responses of these lengths, whose tokens are mixed, in float64."""
    print(f"seed {seed}")
    draw = torch.Generator().manual_seed(seed)
    response = torch.tensor([number for number, length in enumerate(responses) for _ in range(length)])
    response = response[torch.randperm(len(response), generator=draw)]

    def normal(scale):
        return torch.randn(len(response), generator=draw, dtype=torch.float64) * scale

    behaviour = -2.0 + normal(0.3)
    proximal = behaviour + normal(spread)
    logprobs = (proximal + normal(spread)).requires_grad_()
    advantages = torch.randn(len(responses), generator=draw, dtype=torch.float64)[response]
    return LossTokens(logprobs, behaviour, advantages, response, proximal)


def slowly(loss, tokens):
    """The losses, response by response and token by token, and their gradient by that of the reference."""
    leaf = tokens.logprobs.detach().clone().requires_grad_()
    found = [None] * len(leaf)
    for response in tokens.response.tolist():
        places = [place for place, of in enumerate(tokens.response.tolist()) if of == response]
        new = [leaf[place] for place in places]
        old, before = ([each[place].item() for place in places] for each in (tokens.behaviour, tokens.proximal))
        for number, place in enumerate(places):
            advantage = tokens.advantages[place].item()
            found[place] = -reference_objective(loss, advantage, number, new, old, before)
    return torch.stack([torch.as_tensor(each, dtype=torch.float64) for each in found]), leaf


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.sampled_from([1e-4, 0.1, 1.0, 3.0]))
def test_values_and_gradients_are_those_of_the_reference(name, seed, spread):
    tokens, loss = made(seed, spread=spread), open_loss(name, {})
    found = loss.loss(tokens)
    expected, leaf = slowly(loss, tokens)
    torch.testing.assert_close(found, expected)
    weights = torch.rand(len(found), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    (weights * found).sum().backward()
    if expected.requires_grad:  # else all are clipped
        (weights * expected).sum().backward()
    torch.testing.assert_close(tokens.logprobs.grad, leaf.grad if leaf.grad is not None else torch.zeros_like(leaf))


@pytest.mark.parametrize("name", SURROGATES)
def test_gradients_are_those_of_finite_differences(name):
    tokens, step = made(5, spread=0.05), 1e-6
    loss = open_loss(name, {})
    loss.loss(tokens).sum().backward()
    values = [
        loss.loss(dataclasses.replace(tokens, logprobs=tokens.logprobs.detach() + step * way)).detach()
        for way in (1, -1)
    ]
    torch.testing.assert_close(tokens.logprobs.grad, (values[0] - values[1]) / (2 * step), atol=1e-6, rtol=1e-6)


def test_worked_by_hand():
    # clip range [0.8, 1.28]. ratio = exp(new - old); loss = -min(r A, clip(r) A); gradient by log-probability is
    # -r A where r A is the smaller, and 0 where the clip is.
    #  r     A    r A    clip(r) A   loss    clipped  gradient
    #  1.0   1    1.0    1.0         -1.0    no       -1.0
    #  1.25  1    1.25   1.25        -1.25   no       -1.25   (1.2 would have clipped it: clip-higher)
    #  1.5   1    1.5    1.28        -1.28   high      0
    #  0.5   1    0.5    0.8         -0.5    no       -0.5
    #  0.5  -1   -0.5   -0.8         +0.8    low       0
    #  1.5  -1   -1.5   -1.28        +1.5    no       +1.5
    #  0.9  -2   -1.8   -1.8         +1.8    no       +1.8
    ratios = [1.0, 1.25, 1.5, 0.5, 0.5, 1.5, 0.9]
    advantages = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -2.0])
    logprobs = torch.tensor([math.log(ratio) - 1.0 for ratio in ratios], requires_grad=True)
    tokens = LossTokens(logprobs, torch.full((7,), -1.0), advantages, torch.arange(7))
    loss = open_loss("dapo", {})
    result = loss.loss(tokens)
    assert result.tolist() == pytest.approx([-1.0, -1.25, -1.28, -0.5, 0.8, 1.5, 1.8])
    low, high = loss.clipped(tokens)
    assert low.tolist() == [False, False, False, False, True, False, False]
    assert high.tolist() == [False, False, True, False, False, False, False]
    result.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, -1.25, 0.0, -0.5, 0.0, 1.5, 1.8])


def test_the_others_worked_by_hand():
    # One response of two tokens with ratios 2 and 1/2, advantage 1: s = sqrt(2 * 1/2) = 1, so GSPO does not clip it.
    behaviour, ln2 = torch.tensor([-1.0, -1.0]), math.log(2)
    tokens = LossTokens(
        behaviour + torch.tensor([ln2, -ln2]), behaviour, torch.ones(2), torch.zeros(2, dtype=torch.long)
    )
    assert open_loss("gspo", {}).loss(tokens).tolist() == pytest.approx([-1.0, -1.0])
    # CISPO caps at 1 + 0.5: -1.5 (-1 + ln 2), and -1/2 (-1 - ln 2).
    found = open_loss("cispo", {"clip_high": 0.5}).loss(tokens).tolist()
    assert found == pytest.approx([1.5 * (1 - ln2), 0.5 * (1 + ln2)])
    # With the proximal in between by ratios w = 8, 1/8 and q = 1/4, 4 (A = 1: q of 4 is clipped to 1.2 or 1.28):
    tokens = dataclasses.replace(tokens, proximal=behaviour + torch.tensor([3 * ln2, -3 * ln2]))
    assert open_loss("decoupled-ppo", {}).loss(tokens).tolist() == pytest.approx([-8 / 4, -1.2 / 8])
    assert open_loss("decoupled-ppo", {"weight_cap": 4.0}).loss(tokens).tolist() == pytest.approx([-4 / 4, -1.2 / 8])
    assert open_loss("tis", {}).loss(tokens).tolist() == pytest.approx([-2 / 4, -1.28 / 8])
    assert open_loss("icepop", {}).loss(tokens).tolist() == [0, 0]
    assert open_loss("icepop", {"low": 0.125, "high": 8}).loss(tokens).tolist() == pytest.approx(
        [-8 / 4, -1.2 / 8], rel=1e-5
    )
    # A weight beyond single precision is out of bounds as any other.
    tokens = dataclasses.replace(
        tokens, proximal=tokens.logprobs, behaviour=tokens.logprobs - torch.tensor([99.0, 0.0])
    )
    assert open_loss("icepop", {}).loss(tokens).tolist() == [0, -1]


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_at_ratio_one_it_is_reinforce(name, seed):
    """With equal policies every token has the gradient -A; all but CISPO the value -A, too."""
    tokens = made(seed)
    logprobs = tokens.behaviour.clone().requires_grad_()
    tokens = dataclasses.replace(tokens, logprobs=logprobs, proximal=tokens.behaviour)
    loss = open_loss(name, {})
    found = loss.loss(tokens)
    torch.testing.assert_close(found, -tokens.advantages * (tokens.behaviour if name == "cispo" else 1.0))
    found.sum().backward()
    torch.testing.assert_close(logprobs.grad, -tokens.advantages)
    assert not any(mask.any() for mask in loss.clipped(tokens))


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_tokens_that_are_clipped_are_those_without_a_gradient(name, seed):
    tokens, loss = made(seed, spread=1.0), open_loss(name, {})
    loss.loss(tokens).sum().backward()
    low, high = loss.clipped(tokens)
    assert not (low & high).any()
    assert ((tokens.logprobs.grad == 0) == (low | high)).all()
    if name == "cispo":  # it keeps all of them
        assert not (low | high).any()


@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_the_gradient_of_gspo_is_that_of_the_responses_ratio(seed):
    """The mean of the tokens' losses has the gradient of ``-min(s A, clip(s) A)`` by the definition of s."""
    tokens, loss = made(seed, spread=3e-4), open_loss("gspo", {})
    found, lengths = loss.loss(tokens), tokens.response.bincount()
    (found / lengths[tokens.response]).sum().backward()
    leaf = tokens.logprobs.detach().clone().requires_grad_()
    total = torch.zeros(())
    for response in range(3):
        mine = tokens.response == response
        ratio = (leaf[mine] - tokens.behaviour[mine]).mean().exp()
        advantage = tokens.advantages[mine][0]
        total = total - torch.minimum(ratio * advantage, ratio.clamp(1 - 3e-4, 1 + 4e-4) * advantage)
    total.backward()
    torch.testing.assert_close(tokens.logprobs.grad, leaf.grad)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_with_the_behaviour_as_proximal_policy_nothing_is_decoupled(seed):
    tokens = made(seed)
    tokens = dataclasses.replace(tokens, proximal=tokens.behaviour)
    torch.testing.assert_close(open_loss("decoupled-ppo", {}).loss(tokens), open_loss("ppo", {}).loss(tokens))
    torch.testing.assert_close(open_loss("tis", {}).loss(tokens), open_loss("dapo", {}).loss(tokens))
    torch.testing.assert_close(open_loss("icepop", {}).loss(tokens), open_loss("grpo", {}).loss(tokens))


@pytest.mark.parametrize("name", NAMES)
def test_a_response_has_its_loss_beside_any_other(name):
    """Parts of a batch therefore add up to it. Which number a response has does not matter."""
    tokens, loss = made(11), open_loss(name, {})
    assert loss.streams
    together = loss.loss(tokens)
    for response in range(3):
        mine = tokens.response == response
        values = {field.name: getattr(tokens, field.name) for field in dataclasses.fields(tokens)}
        alone = {key: None if value is None else value[mine] for key, value in values.items()}
        alone["response"] = alone["response"] + 100
        torch.testing.assert_close(loss.loss(LossTokens(**alone)), together[mine])


@pytest.mark.parametrize("name", NAMES)
def test_it_keeps_the_contract(name):
    check_loss(open_loss(name, {}))


@dataclasses.dataclass(frozen=True)
class Wrong(Loss):
    """A loss that does not say what it does."""

    by: str

    def loss(self, tokens):
        found = -tokens.logprobs * tokens.advantages
        return found.mean() if self.by == "shape" else found - found.detach().mean() if self.by == "streams" else found

    def clipped(self, tokens):
        low, high = Loss.clipped(self, tokens)
        return (~low, high) if self.by == "gradient" else (~low, ~high) if self.by == "both" else (low, high)


@pytest.mark.parametrize(
    ("by", "line"),
    [("shape", "one for each token"), ("streams", "streams"), ("gradient", "is clipped"), ("both", "too high")],
)
def test_the_contract_finds_a_loss_that_does_not_keep_it(by, line):
    with pytest.raises(AssertionError, match=line):
        check_loss(Wrong(by))
    check_loss(Wrong(""))


def test_no_tokens_have_no_loss():
    nothing = torch.zeros(0)
    for name in NAMES:
        tokens = LossTokens(nothing, nothing, nothing, nothing.long(), nothing)
        assert open_loss(name, {}).loss(tokens).shape == (0,)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("grpo", {"clip_low": 1.0}, "loss 'grpo': found clip_low = 1.0, expected a number from 0 below 1"),
        ("grpo", {"clip_high": -1}, "found clip_high = -1, expected a finite number from 0"),
        ("grpo", {"clip_high": "0.2"}, "found clip_high = '0.2', expected a finite number from 0"),
        ("cispo", {"clip_high": math.nan}, "found clip_high = nan, expected a finite number"),
        ("tis", {"cap": -1.0}, "loss 'tis': found cap = -1.0, expected a number from 0"),
        (
            "tis",
            {"caps": 1.0},
            "found the unknown option 'caps', expected one of clip_low, clip_high, cap; did you mean 'cap'?",
        ),
        ("decoupled-ppo", {"weight_cap": True}, "found weight_cap = True, expected a number from 0"),
        ("icepop", {"low": 2.0, "high": 1.0}, "found low = 2.0 and high = 1.0, expected low <= high"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line(name, options, line):
    with pytest.raises(TrainerConfigError) as found:
        open_loss(name, options)
    assert line in str(found.value)
    assert len(str(found.value).splitlines()) == 1


def test_a_loss_that_is_not_there_or_lacks_its_proximal_is_named():
    with pytest.raises(PluginError, match=r"found 'gpso' in group tailrace.loss.*did you mean 'gspo'"):
        open_loss("gpso", {})
    nothing = torch.zeros(1)
    for name in ("decoupled-ppo", "tis", "icepop"):
        with pytest.raises(TrainerConfigError, match=r"needs LossTokens\.proximal"):
            open_loss(name, {}).loss(LossTokens(nothing, nothing, nothing, nothing.long()))


def test_losses_are_values_that_travel():
    for name in NAMES:
        loss = open_loss(name, {})
        assert pickle.loads(pickle.dumps(loss)) == loss


def test_a_configuration_is_checked_without_torch():
    code = (
        "import sys\n"
        "from tailrace.trainer import TrainerConfig\n"
        f"for name in {NAMES!r}: TrainerConfig(loss=name, advantages='group', max_response_tokens=9)\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False False\n"
    )
