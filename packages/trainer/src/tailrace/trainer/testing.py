"""For tests of a backend: its contract, random experiences, and a slow, simple reference of the loss.

class TestMyBackend(BackendContract):
    def build(self, model_path, config):
        return MyBackend(model_path, config, rank=0, world_size=1, rendezvous=None)

check_loss(MyLoss()), check_advantages(MyAdvantages())
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.contracts import Experience, ExperienceOutline, PackedTokens, Segment, plugins
from tailrace.trainer.advantages import Advantages, CriticAdvantages, open_advantages
from tailrace.trainer.backend import TrainingBackend
from tailrace.trainer.config import CriticConfig, TrainerConfig
from tailrace.trainer.errors import BatchError, CheckpointError, TrainerConfigError
from tailrace.trainer.losses import Loss, LossTokens, open_loss

_VOCABULARY = 31
_CONFIG = TrainerConfig(lr=0.01, device="cpu", threads=1, grad_clip_norm=0.0)


class BackendContract:
    """Tests of what every `TrainingBackend` must do, as a pytest suite, on a tiny random model in a world of one.

    Attributes:
        config: the settings; a backend that trains adapters is tried with one, too.
        tolerance: largest difference of weights and losses between two ways to compute the same.
    """

    tolerance = 1e-4
    config = _CONFIG

    def build(self, model_path: Path, config: TrainerConfig) -> TrainingBackend:
        """The backend under test: rank 0 of 1."""
        raise TypeError(f"{type(self).__name__} must override build({model_path=}, {config=})")

    def _with_critic(self, model_path: Path, config: TrainerConfig) -> TrainingBackend | None:
        """The backend with a critic; None if it refuses one by name."""
        try:
            return self.build(model_path, config)
        except TrainerConfigError as error:
            if "critic" not in str(error):
                raise
            return None

    def test_the_loss_is_that_of_the_reference(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model, batch = _model(tmp_path), _batch(1)
        expected = reference_loss(AutoModelForCausalLM.from_pretrained(model), batch, self.config).item()
        with closing(self.build(model, self.config)) as backend:
            found = backend.step([batch])
        assert abs(found["loss"] - expected) <= self.tolerance
        assert found["trajectories"] == len(batch)

    def test_gradients_that_were_added_make_the_step_of_the_whole_batch(self, tmp_path: Path) -> None:
        model, batch = _model(tmp_path), _batch(2)
        with closing(self.build(model, self.config)) as backend:
            backend.step([batch])
            expected = _weights(backend)
        with closing(self.build(model, self.config)) as backend:
            before = _weights(backend)
            backend.accumulate([each for each in batch if each.group == 0])
            assert _differ(before, _weights(backend)) == 0
            backend.apply([each for each in batch if each.group != 0])
            assert _differ(expected, _weights(backend)) <= self.tolerance
            assert _differ(before, expected) > 0

    def test_packed_micro_batches_have_the_gradient_and_log_probabilities_of_padded_ones(self, tmp_path: Path) -> None:
        model, found = _model(tmp_path), []
        batch = make_experiences(3, 5, vocab_size=_VOCABULARY, seed=9, turns=2)
        batch = [replace(each, reward=float(place % 2)) for place, each in enumerate(batch)]
        first = [each for each in batch if each.group == 0]
        for packing, shared in ((False, 0), (True, 0), (True, 60)):
            # several responses in a row, and one that is longer than a row may be
            config = replace(self.config, packing=packing, micro_batch_tokens=70, shared_prompt_tokens=shared)
            with closing(self.build(model, config)) as backend:
                plain = backend.step([batch])
                backend.accumulate(first)
                streamed = backend.apply(batch[len(first) :])
                found.append((plain, streamed, _weights(backend)))
        (plain, streamed, weights), *packed = found
        for step, later, after in packed:
            for one, other in ((step, plain), (later, streamed)):
                for name in ("loss", "approx_kl", "entropy", "grad_norm", "ratio_mean", "tokens"):
                    assert abs(one[name] - other[name]) <= self.tolerance * max(1.0, other[name]), name
            assert _differ(after, weights) <= 2 * self.tolerance

    def test_every_loss_is_that_of_the_reference_plain_and_streamed(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model, batch = _model(tmp_path), _batch(7)
        lm = AutoModelForCausalLM.from_pretrained(model)
        for name in plugins.names("tailrace.loss"):
            loss = open_loss(name)
            if not type(loss).__module__.startswith("tailrace."):
                continue  # the reference does not know it
            own = open_advantages(loss.advantages)
            whole = isinstance(own, CriticAdvantages) or own.needs_batch
            config = replace(
                _CONFIG, lr=0.0, loss=name, max_response_tokens=30, advantages="group" if whole else "auto"
            )
            expected = reference_loss(lm, batch, config).item()
            with closing(self.build(model, config)) as backend:
                plain = backend.step([batch])
                backend.accumulate([each for each in batch if each.group == 0])
                streamed = backend.apply([each for each in batch if each.group != 0])
            for found in (plain, streamed):
                assert abs(found["loss"] - expected) <= self.tolerance, f"{name}: {found['loss']} and {expected}"
            assert abs(plain["grad_norm"] - streamed["grad_norm"]) <= self.tolerance * plain["grad_norm"], name

    def test_ppo_and_its_critic_are_those_of_the_reference_plain_and_streamed(self, tmp_path: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

        model, batch = _model(tmp_path), _batch(9)
        init = build_value_model(tmp_path / "critic", model)
        lm = AutoModelForCausalLM.from_pretrained(model)
        critic = AutoModelForSequenceClassification.from_pretrained(init)
        for options in ({"whiten": False}, {}):
            settings = CriticConfig(init=init, value_clip=0.1)
            config = replace(_CONFIG, lr=0.0, loss="ppo", critic=settings, advantages="gae", advantages_options=options)
            opened = self._with_critic(model, config)
            if opened is None:
                return
            expected = reference_estimates(critic, batch, config)
            of_values = reference_value_loss(critic, batch, expected, config).item()
            loss = reference_loss(lm, batch, config, advantages=expected.advantages).item()
            with closing(opened) as backend:
                found = [backend.step([batch])]
                if not options:
                    with pytest_raises(TrainerConfigError, "whiten = false"):
                        backend.accumulate([each for each in batch if each.group == 0])
                else:
                    backend.accumulate([each for each in batch if each.group == 0])
                    found.append(backend.apply([each for each in batch if each.group != 0]))
            for metrics in found:
                assert abs(metrics["loss"] - loss) <= self.tolerance, f"{metrics['loss']} and {loss}"
                assert abs(metrics["value_loss"] - of_values) <= self.tolerance

    def test_a_checkpoint_brings_back_the_critic_bit_for_bit(self, tmp_path: Path) -> None:
        directory, model = tmp_path / "7", _model(tmp_path)
        config = replace(_CONFIG, loss="ppo")
        opened = self._with_critic(model, config)
        if opened is None:
            return
        with closing(opened) as backend:
            backend.step([_batch(3)])
            saved = backend.save(directory, 7)
            after = [backend.step([_batch(seed)]) for seed in (4, 5)], _weights(backend)
            saved.result(60)
        with closing(self.build(model, config)) as backend:  # another one, whose critic began anew
            assert backend.load(directory) == 7
            again = [backend.step([_batch(seed)]) for seed in (4, 5)], _weights(backend)
        told = [
            [{k: v for k, v in one.items() if not k.endswith("_s")} for one in steps] for steps, _ in (after, again)
        ]
        assert told[0] == told[1]
        assert _differ(after[1], again[1]) == 0
        with closing(self.build(model, replace(_CONFIG, loss="ppo", advantages="group"))) as backend:
            before = _weights(backend)
            with pytest_raises(CheckpointError, "found a checkpoint with a critic, expected one without one"):
                backend.load(directory)
            assert _differ(_weights(backend), before) == 0

    def test_the_proximal_policy_of_a_second_mini_batch_is_that_before_the_first(self, tmp_path: Path) -> None:
        import pytest
        from transformers import AutoModelForCausalLM

        model, batch = _model(tmp_path), _batch(8)
        halves = [batch[:8], batch[8:]]  # groups of 4
        config = replace(_CONFIG, loss="decoupled-ppo")
        before, after = (AutoModelForCausalLM.from_pretrained(model) for _ in range(2))
        with closing(self.build(model, config)) as backend:
            backend.step(halves[:1])
            weights = _weights(backend)
        if not weights.keys() <= dict(after.named_parameters()).keys():
            pytest.skip("its weights are an adapter's")
        after.load_state_dict(weights, strict=False)
        losses = [reference_loss(before, halves[0], config), reference_loss(after, halves[1], config, proximal=before)]
        with closing(self.build(model, config)) as backend:
            found = backend.step(halves)
        assert abs(found["loss"] - sum(loss.item() for loss in losses) / 2) <= self.tolerance

    def test_a_checkpoint_brings_back_weights_and_optimizer_bit_for_bit(self, tmp_path: Path) -> None:
        from tailrace.trainer import load_weights_file

        directory = tmp_path / "7"
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            backend.step([_batch(3)])
            saved, at = backend.save(directory, 7), _weights(backend)
            backend.step([_batch(4)])
            after = _weights(backend)
            saved.result(60)
            assert _differ(dict(load_weights_file(directory)), at) == 0
            assert backend.load(directory) == 7
            assert _differ(_weights(backend), at) == 0
            backend.step([_batch(4)])
            assert _differ(_weights(backend), after) == 0

    def test_a_missing_checkpoint_is_named(self, tmp_path: Path) -> None:
        import pytest

        with (
            closing(self.build(_model(tmp_path), self.config)) as backend,
            pytest.raises(CheckpointError, match="none"),
        ):
            backend.load(tmp_path / "none")

    def test_a_batch_that_cannot_be_trained_on_changes_nothing(self, tmp_path: Path) -> None:
        import pytest

        batch = _batch(5)
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            before = _weights(backend)
            with pytest.raises(BatchError):
                backend.step([[*batch[:-1], replace(batch[-1], reward=math.nan)]])
            assert _differ(_weights(backend), before) == 0

    def test_the_layout_is_that_of_weights_and_shards(self, tmp_path: Path) -> None:
        with closing(self.build(_model(tmp_path), self.config)) as backend:
            layout, weights = backend.layout(), _weights(backend)
            assert {each.name: tuple(each.shape) for each in layout.tensors} == {
                name: tuple(tensor.shape) for name, tensor in weights.items()
            }
            shards = {name: tuple(tensor.shape) for name, tensor in backend.shards()}
            assert shards == {each.name: tuple(each.shape) for each in layout.shards["rank0"].buffers}

    def test_what_is_offloaded_comes_back_bit_for_bit_or_is_refused_by_name(self, tmp_path: Path) -> None:
        found = []
        for away in (False, True):
            with closing(self.build(_model(tmp_path), _CONFIG)) as backend:
                backend.step([_batch(7)])
                if away:
                    try:
                        backend.offload(["optimizer", "parameters"])
                    except TrainerConfigError as error:
                        if "offload" not in str(error):
                            raise
                    else:
                        backend.onload(["optimizer", "parameters"])
                backend.step([_batch(8)])
                found.append(_weights(backend))
        assert _differ(*found) == 0

    def test_phases_and_micro_batches_are_told(self, tmp_path: Path) -> None:
        phases: list[str] = []
        expected: list[int] = []
        config = replace(self.config, micro_batch_tokens=64)
        with closing(self.build(_model(tmp_path), config)) as backend:
            backend.on_phase = phases.append
            watched = backend.watch_micro_batches(lambda: expected.append(backend.expected_micro_batches))
            backend.step([_batch(6)])
        assert phases[0] == "forward"
        assert phases[-1] == "optimizer"
        assert set(phases) == {"forward", "backward", "optimizer"}
        assert bool(expected) == watched


def check_loss(loss: Loss, *, seeds: range = range(20)) -> None:
    """Check that a loss keeps what `Loss` says, on random tokens of several responses.

    Raises:
        AssertionError: it does not; the message has the seed.
    """
    import torch

    assert isinstance(loss, Loss), f"found a {type(loss).__name__}, expected a tailrace.trainer.losses.Loss"
    assert loss.normalisation in ("token", "sequence", "constant"), f"found normalisation = {loss.normalisation!r}"
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        response = torch.arange(4).repeat_interleave(3)[torch.randperm(12, generator=draw)]
        behaviour, proximal, logprobs = (-torch.rand(12, generator=draw, dtype=torch.float64) - 1 for _ in range(3))
        advantages = torch.randn(4, generator=draw, dtype=torch.float64)[response]
        logprobs.requires_grad_()
        versions = torch.randint(0, 5, (12,), generator=draw)
        tokens = LossTokens(
            logprobs, behaviour, advantages, response, proximal if loss.needs_proximal else None, versions
        )
        found, low_high = loss.loss(tokens), loss.clipped(tokens)
        assert found.shape == (12,), (
            f"seed {seed}: found losses of shape {tuple(found.shape)}, expected one for each token"
        )
        assert torch.equal(found, loss.loss(tokens)), f"seed {seed}: equal tokens have other losses: it keeps a state"
        assert all(mask.shape == (12,) and mask.dtype is torch.bool for mask in low_high), (
            f"seed {seed}: expected masks"
        )
        assert not (low_high[0] & low_high[1]).any(), f"seed {seed}: a token's ratio is too low and too high"
        found.sum().backward()
        gradient = logprobs.grad
        assert gradient is not None, f"seed {seed}: expected a gradient"
        assert gradient.isfinite().all(), f"seed {seed}: expected a finite gradient"
        assert not gradient[low_high[0] | low_high[1]].any(), f"seed {seed}: a token that is clipped has a gradient"
        if loss.streams:
            mine = response == 0
            before = proximal[mine] if loss.needs_proximal else None
            alone = LossTokens(
                logprobs[mine], behaviour[mine], advantages[mine], response[mine], before, versions[mine]
            )
            difference = float((loss.loss(alone) - found[mine]).abs().max())
            assert difference < 1e-9, (
                f"seed {seed}: a response's loss changes by {difference} without the others: streams"
            )


def check_advantages(advantages: Advantages | CriticAdvantages, *, seeds: range = range(20)) -> None:
    """Check that advantages keep what `Advantages` or `CriticAdvantages` says, on random groups or responses.

    Raises:
        AssertionError: they do not; the message has the seed.
    """
    if isinstance(advantages, CriticAdvantages):
        _check_critic_advantages(advantages, seeds)
        return
    assert isinstance(advantages, Advantages), f"found a {type(advantages).__name__}, expected Advantages"
    for seed in seeds:
        draw = random.Random(seed)
        groups = [group for group in range(4) for _ in range(4)]
        draw.shuffle(groups)
        rewards = [draw.choice([0.0, 0.3, 0.1 + 0.2, 1.0]) for _ in groups]
        found = advantages(groups, rewards)
        assert len(found) == len(groups), f"seed {seed}: found {len(found)} advantages, expected {len(groups)}"
        assert all(map(math.isfinite, found)), f"seed {seed}: expected finite advantages"
        assert found == advantages(groups, rewards), (
            f"seed {seed}: equal rewards have other advantages: it keeps a state"
        )
        assert not any(advantages(groups, [0.5] * len(groups))), f"seed {seed}: rewards that are all equal say nothing"
        if not advantages.needs_batch:
            mine = [place for place, group in enumerate(groups) if group == groups[0]]
            alone = advantages([groups[place] for place in mine], [rewards[place] for place in mine])
            same = all(abs(found[place] - value) < 1e-9 for place, value in zip(mine, alone, strict=True))
            assert same, f"seed {seed}: a group's advantages change without the other groups: needs_batch"


def _check_critic_advantages(advantages: CriticAdvantages, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        size = draw.randint(1, 9)
        rewards, values = ([draw.gauss(0, 1) for _ in range(size)] for _ in range(2))
        found = advantages.estimate(rewards, values)
        assert all(len(each) == size for each in found), (
            f"seed {seed}: expected advantages and returns of {size} tokens"
        )
        assert all(math.isfinite(value) for each in found for value in each), f"seed {seed}: expected finite numbers"
        assert found == advantages.estimate(rewards, values), (
            f"seed {seed}: equal rewards have other advantages: it keeps a state"
        )
        nothing = advantages.estimate([0.0] * size, [0.0] * size)
        assert not any(map(any, nothing)), f"seed {seed}: rewards and values of 0 say nothing"


def _model(directory: Path) -> Path:
    from tailrace.trainer.small import build_model

    sizes = {"hidden": 16, "layers": 2, "head_dim": 8, "mlp": 32, "max_positions": 64}
    return build_model(directory / "model", vocab_size=_VOCABULARY, **sizes)


def _batch(seed: int) -> list[Experience]:
    """Three groups, the rewards of each of which differ."""
    made = make_experiences(3, 4, vocab_size=_VOCABULARY, seed=seed)
    return [replace(each, reward=float(place % 2)) for place, each in enumerate(made)]


def _weights(backend: TrainingBackend) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in backend.weights()}


def _differ(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between two sets of tensors, which must have the same names."""
    assert one.keys() == other.keys()
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def pytest_raises(kind: type[BaseException], words: str) -> Any:
    """``pytest.raises`` of an error that has these words; pytest is imported by tests alone."""
    import re

    import pytest

    return pytest.raises(kind, match=re.escape(words))


def build_value_model(directory: Path, model: Path, *, labels: int = 1, seed: int = 0) -> Path:
    """Write a causal LM's directory as that of a value model: a sequence classifier, with a random head of about unit values.

    Args:
        directory: the directory to create.
        model: directory of a causal LM.
        labels: rows of the head.
        seed: seed of the head.

    Returns:
        The directory.
    """
    import shutil

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForSequenceClassification

    lm = AutoModelForSequenceClassification.from_pretrained(model, num_labels=labels)
    draw = torch.Generator().manual_seed(seed)
    lm.score.weight.data = torch.randn(lm.score.weight.shape, generator=draw) / lm.score.weight.shape[1] ** 0.5
    shutil.copytree(model, directory)
    lm.config.architectures = [type(lm).__name__]
    lm.config.save_pretrained(directory)
    save_file({name: tensor.detach() for name, tensor in lm.named_parameters()}, str(directory / "model.safetensors"))
    return directory


def inside(worker: Any) -> Any:
    """The backend's part of a `TrainerWorker`, whichever it is: for tests that look at one backend's own attributes."""
    return worker._model


def make_experiences(
    groups: int,
    samples: int,
    *,
    vocab_size: int,
    seed: int,
    max_prompt: int = 9,
    max_response: int = 14,
    turns: int = 1,
) -> list[Experience]:
    """Random groups with random rewards of 0 or 1, with plausible log-probabilities.

    Each turn has one or two segments of at most `max_response` tokens. There are up to `turns` of them, each followed by up to
    five tokens of an environment; the last one only sometimes.
    """
    draw = random.Random(seed)
    made = []
    for group in range(groups):
        prompt = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, max_prompt)))
        for sample in range(samples):
            segments: list[Segment] = []
            for turn in range(draw.randint(1, turns) if turns > 1 else 1):
                if turn:
                    segments.append(_observation(draw, segments[-1].version, vocab_size))
                for version in range(draw.randint(1, 2)):
                    length = draw.randint(1, max_response)
                    tokens = tuple(draw.randrange(vocab_size) for _ in range(length))
                    logprobs = tuple(-math.log(vocab_size) + draw.uniform(-0.5, 0.5) for _ in range(length))
                    segments.append(Segment(version + turn, tokens, logprobs))
            if turns > 1 and draw.random() < 0.3:
                segments.append(_observation(draw, segments[-1].version, vocab_size))
            reward = float(draw.random() < 0.5)
            made.append(Experience(f"{group}.{sample}", group, prompt, tuple(segments), reward=reward))
    return made


class PackedData:
    """Answers as a data role does what `PackedBatch` asks of it.

    Args:
        experiences: what there is.

    Attributes:
        fetched: the ids of each call of `packed`.
    """

    def __init__(self, experiences: Iterable[Experience]) -> None:
        self.made = {experience.trajectory: experience for experience in experiences}
        self.fetched: list[list[str]] = []

    def outlines(self, names: Sequence[str]) -> list[ExperienceOutline]:
        """Outlines in order."""
        return [self._outline(self.made[name]) for name in names]

    def packed(self, wanted: Sequence[tuple[str, bool]]) -> list[PackedTokens]:
        """Tokens in order."""
        self.fetched.append([name for name, _ in wanted])
        found = []
        for name, with_prompt in wanted:
            one = self.made[name]
            prompt = struct.pack(f"<{len(one.prompt)}I", *one.prompt) if with_prompt else None
            tokens = struct.pack(f"<{len(one.tokens)}I", *one.tokens)
            found.append(PackedTokens(prompt, tokens, struct.pack(f"<{len(one.tokens)}d", *one.logprobs)))
        return found

    @staticmethod
    def _outline(one: Experience) -> ExperienceOutline:
        return ExperienceOutline(
            one.trajectory,
            one.group,
            repr(one.prompt).encode(),
            len(one.prompt),
            one.spans,
            max((*one.prompt, *one.tokens), default=-1),
            all(map(math.isfinite, one.logprobs)),
            one.finish,
            one.reward,
            one.completed_version,
            one.metadata,
        )


def _observation(draw: random.Random, version: int, vocab_size: int) -> Segment:
    tokens = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, 5)))
    return Segment(version, tokens, (0.0,) * len(tokens), observation=True)


def reference_loss(
    lm: Any,
    mini_batch: Sequence[Experience],
    config: TrainerConfig,
    reference: Any = None,
    proximal: Any = None,
    advantages: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    """The loss of a mini-batch, computed token by token as in the papers. `reference_objective` has the objective of a token.

    ``J = 1/G sum_i 1/|o_i| sum_t min(r A, clip(r) A)`` (GRPO equation 3, ``"sequence"``) or
    ``J = 1/sum|o_i| sum_i sum_t min(r A, clip(r) A)`` (DAPO equation 10, ``"token"``) or
    ``J = 1/G sum_i 1/L sum_t min(r A, clip(r) A)`` (Dr. GRPO, ``"constant"``); the loss is ``-J``. With a reference
    model, ``min(..)`` is less by the coefficient times ``p - log p - 1``, where p is the reference's ratio (GRPO equation 4).
    Sums and lengths are over the tokens that the model generated; what environments answered is input only.

    Args:
        lm: a Hugging Face causal LM.
        mini_batch: whole groups.
        config: loss, advantages, normalisation, temperature, KL coefficient.
        reference: the causal LM that the KL penalty refers to; None without one.
        proximal: the causal LM whose log-probabilities are the proximal ones; None: `lm` itself, as it is.
        advantages: of each generated token, by trajectory, as a critic has them; None: those of `config`.

    Returns:
        A scalar tensor, differentiable in the parameters of `lm`.
    """
    import torch

    total = torch.zeros((), dtype=torch.float64)
    lengths = {experience.trajectory: 0 for experience in mini_batch}
    for experience in mini_batch:
        for segment in experience.segments:
            lengths[experience.trajectory] += 0 if segment.observation else len(segment.tokens)
    tokens = sum(lengths.values())
    of_responses = {} if advantages is not None else _reference_advantages(mini_batch, config)
    loss = config.open_loss()
    for experience in mini_batch:
        ids = torch.tensor([experience.prompt + experience.tokens])
        logprobs: Any
        logprobs, before, other = (
            None if model is None else (model(input_ids=ids).logits[0].double() / config.temperature).log_softmax(-1)
            for model in (lm, proximal, reference)
        )
        before = logprobs if before is None else before
        is_observation = [segment.observation for segment in experience.segments for _ in segment.tokens]
        places = [place for place in range(len(experience.tokens)) if not is_observation[place]]
        at = [(len(experience.prompt) + place - 1, experience.tokens[place]) for place in places]
        new = [logprobs[place] for place in at]
        old = [experience.logprobs[place] for place in places]
        middle = [before[place].item() for place in at]
        for number, place in enumerate(at):
            name = experience.trajectory
            advantage = of_responses[name] if advantages is None else advantages[name][number]
            objective = reference_objective(loss, advantage, number, new, old, middle)
            if other is not None:
                ref_log_ratio = other[place].detach() - new[number]
                objective = objective - config.kl_coefficient * (torch.exp(ref_log_ratio) - ref_log_ratio - 1)
            share = {
                "token": tokens,
                "sequence": len(mini_batch) * lengths[experience.trajectory],
                "constant": len(mini_batch) * config.max_response_tokens,
            }[config.normaliser]
            total = total - objective / share
    return total


class ReferenceEstimates(NamedTuple):
    """What a critic makes of a batch: for each trajectory a number for each generated token."""

    values: dict[str, list[float]]
    advantages: dict[str, list[float]]
    returns: dict[str, list[float]]


def reference_estimates(
    critic: Any, batch: Sequence[Experience], config: TrainerConfig, anchor: Any = None
) -> ReferenceEstimates:
    """Values, advantages and returns of a batch, token by token: the lambda-return as the mean of n-step returns, weighed by
    ``(1 - lam) lam^(n - 1)``, and the rest at the last one (Sutton and Barto, equation 12.3); advantages are less the value.

    Args:
        critic: a Hugging Face sequence classifier with one label.
        batch: the whole batch.
        config: the options of its advantages `gae`.
        anchor: the causal LM that the rewards of tokens refer to; None without one.
    """
    gae: Any = config.open_advantages()
    found = ReferenceEstimates({}, {}, {})
    for experience in batch:
        places = _generated_places(experience)
        if not places:
            continue
        values = [value.item() for value in _reference_values(critic, experience)]
        rewards = [0.0] * len(places)
        if anchor is not None:
            ids = _tensor([experience.prompt + experience.tokens])
            table = (anchor(input_ids=ids).logits[0].double() / config.temperature).log_softmax(-1)
            for number, place in enumerate(places):
                was = table[len(experience.prompt) + place - 1, experience.tokens[place]].item()
                rewards[number] = -gae.kl_coefficient * (experience.logprobs[place] - was)
        rewards[-1] += experience.reward or 0.0
        returns = []
        for step in range(len(places)):
            ahead, weight = 0.0, 1.0
            for steps in range(1, len(places) - step + 1):
                last = step + steps == len(places)
                sum_of_rewards = sum(gae.gamma**k * rewards[step + k] for k in range(steps))
                n_step = sum_of_rewards + (0.0 if last else gae.gamma**steps * values[step + steps])
                ahead += weight * (1.0 if last else 1.0 - gae.lam) * n_step
                weight *= gae.lam
            returns.append(ahead)
        name = experience.trajectory
        found.values[name], found.returns[name] = values, returns
        found.advantages[name] = [one - value for one, value in zip(returns, values, strict=True)]
    if gae.whiten:
        every = [value for values in found.advantages.values() for value in values]
        mean = sum(every) / len(every)
        variance = sum((value - mean) ** 2 for value in every) / (len(every) - 1)
        for name, values in found.advantages.items():
            found.advantages[name] = [(value - mean) / math.sqrt(variance + 1e-8) for value in values]
    return found


def reference_value_loss(
    critic: Any, mini_batch: Sequence[Experience], before: ReferenceEstimates, config: TrainerConfig
) -> Any:
    """The loss of a critic on a mini-batch, token by token: half the larger square of two errors, a mean over tokens.

    Args:
        critic: a Hugging Face sequence classifier with one label, as it is.
        mini_batch: some of the batch.
        before: what the critic made of the batch before it.
        config: its clip.

    Returns:
        A scalar tensor, differentiable in the parameters of the critic.
    """
    losses = []
    for experience in mini_batch:
        for number, value in enumerate(_reference_values(critic, experience)):
            old, goal = before.values[experience.trajectory][number], before.returns[experience.trajectory][number]
            moved, clip = value.item() - old, config.critic.value_clip
            error, bounded = value.item() - goal, old + max(-clip, min(clip, moved)) - goal
            held = clip and abs(moved) > clip and bounded**2 > error**2  # then the value has no gradient
            losses.append((value * 0 + bounded**2) / 2 if held else (value - goal) ** 2 / 2)
    return sum(losses) / len(losses)


def _reference_values(critic: Any, experience: Experience) -> list[Any]:
    """The critic's value of what stands before each generated token."""
    hidden = critic.base_model(input_ids=_tensor([experience.prompt + experience.tokens]))[0][0]
    start = len(experience.prompt)
    return [critic.score(hidden[start + place - 1])[0].double() for place in _generated_places(experience)]


def _generated_places(experience: Experience) -> list[int]:
    observed = [segment.observation for segment in experience.segments for _ in segment.tokens]
    return [place for place, is_observation in enumerate(observed) if not is_observation]


def _tensor(values: Any) -> Any:
    import torch

    return torch.tensor(values)


def _reference_advantages(mini_batch: Sequence[Experience], config: TrainerConfig) -> dict[str, float]:
    """The advantage of each trajectory, by the name of its kind."""
    kind = config.open_loss().advantages if config.advantages == "auto" else config.advantages
    found: dict[str, float] = {}
    for experience in mini_batch:
        rewards = [other.reward or 0.0 for other in mini_batch if other.group == experience.group]
        mean = sum(rewards) / len(rewards)
        centred = 0.0 if max(rewards) == min(rewards) else (experience.reward or 0.0) - mean
        if kind == "leave-one-out" and centred:
            others = sum(rewards) - (experience.reward or 0.0)
            centred = (experience.reward or 0.0) - others / (len(rewards) - 1)
        if kind == "group" and centred:
            centred /= math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        found[experience.trajectory] = centred
    if kind == "batch":
        std = math.sqrt(sum(value**2 for value in found.values()) / len(found))
        found = {name: value / std for name, value in found.items()}
    return found


def reference_objective(
    loss: Any, advantage: float, number: int, new: Sequence[Any], old: Sequence[float], before: Sequence[float]
) -> Any:
    """The objective of one token of a response, as its paper has it, written out for each built-in loss by name of its class.

    Args:
        loss: the loss, whose options are read.
        advantage: of the response.
        number: which token of the response.
        new: log-probabilities of the response's tokens, scalar tensors.
        old: those of the behaviour policy.
        before: those of the proximal policy.
    """
    import torch

    def clipped(ratio: Any) -> Any:
        """``min(ratio A, clip(ratio) A)`` without a minimum: what bounds it is the sign of A."""
        if advantage >= 0:
            return min(ratio, torch.full_like(ratio, 1 + loss.clip_high)) * advantage
        return max(ratio, torch.full_like(ratio, 1 - loss.clip_low)) * advantage

    value = new[number].item()
    match type(loss).__name__:
        case "Gspo":
            mean = sum(each.item() - was for each, was in zip(new, old, strict=True)) / len(new)
            return clipped(math.exp(mean) * torch.exp(new[number] - value))
        case "Cispo":
            weight = min(max(math.exp(value - old[number]), 1 - loss.clip_low), 1 + loss.clip_high)
            return weight * advantage * new[number]
        case "DecoupledPpo" | "Tis" | "IcePop" as name:
            weight = math.exp(before[number] - old[number])
            if name == "Tis":
                weight = min(weight, loss.cap)
            elif name == "IcePop":
                weight = weight if loss.low <= weight <= loss.high else 0.0
            elif loss.weight_cap is not None:
                weight = min(weight, loss.weight_cap)
            return weight * clipped(torch.exp(new[number] - before[number]))
        case _:
            return clipped(torch.exp(new[number] - old[number]))
