"""For tests of a backend: its contract, random experiences, and a slow, simple reference of the loss.

class TestMyBackend(BackendContract):
    def build(self, model_path, config):
        return MyBackend(model_path, config, rank=0, world_size=1, rendezvous=None)
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from tailrace.contracts import Experience, Segment
from tailrace.trainer.backend import TrainingBackend
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.errors import BatchError, CheckpointError

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


def _observation(draw: random.Random, version: int, vocab_size: int) -> Segment:
    tokens = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, 5)))
    return Segment(version, tokens, (0.0,) * len(tokens), observation=True)


def reference_loss(lm: Any, mini_batch: Sequence[Experience], config: TrainerConfig, reference: Any = None) -> Any:
    """The GRPO loss of a mini-batch, computed token by token as in the papers.

    ``J = 1/G sum_i 1/|o_i| sum_t min(r A, clip(r) A)`` (GRPO equation 3, ``"sequence"``) or
    ``J = 1/sum|o_i| sum_i sum_t min(r A, clip(r) A)`` (DAPO equation 10, ``"token"``); the loss is ``-J``. With a reference
    model, ``min(..)`` is less by the coefficient times ``p - log p - 1``, where p is the reference's ratio (GRPO equation 4).
    Sums and lengths are over the tokens that the model generated; what environments answered is input only.

    Args:
        lm: a Hugging Face causal LM.
        mini_batch: whole groups.
        config: clip ranges, normalisation, temperature, KL coefficient.
        reference: the causal LM that the KL penalty refers to; None without one.

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
    spread = 0.0
    for group in {experience.group for experience in mini_batch}:
        rewards = [other.reward or 0.0 for other in mini_batch if other.group == group]
        spread += sum((reward - sum(rewards) / len(rewards)) ** 2 for reward in rewards)
    for experience in mini_batch:
        rewards = [other.reward or 0.0 for other in mini_batch if other.group == experience.group]
        mean = sum(rewards) / len(rewards)
        std = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        if config.advantages == "batch":
            std = math.sqrt(spread / len(mini_batch))
        advantage = 0.0 if max(rewards) == min(rewards) else (experience.reward or 0.0) - mean
        if advantage and config.divide_by_std:
            advantage /= std
        ids = torch.tensor([experience.prompt + experience.tokens])
        logprobs = (lm(input_ids=ids).logits[0].double() / config.temperature).log_softmax(-1)
        if reference is not None:
            with torch.no_grad():
                reference_logprobs = (reference(input_ids=ids).logits[0].double() / config.temperature).log_softmax(-1)
        is_observation = [segment.observation for segment in experience.segments for _ in segment.tokens]
        for position, (token, old) in enumerate(zip(experience.tokens, experience.logprobs, strict=True)):
            if is_observation[position]:
                continue
            at = len(experience.prompt) + position - 1
            ratio = torch.exp(logprobs[at, token] - old)
            if advantage >= 0:
                objective = torch.minimum(ratio, torch.tensor(1 + config.clip_high)) * advantage
            else:
                objective = torch.maximum(ratio, torch.tensor(1 - config.clip_low)) * advantage
            if reference is not None:
                ref_log_ratio = reference_logprobs[at, token] - logprobs[at, token]
                objective = objective - config.kl_coefficient * (torch.exp(ref_log_ratio) - ref_log_ratio - 1)
            share = tokens if config.normalisation == "token" else len(mini_batch) * lengths[experience.trajectory]
            total = total - objective / share
    return total
