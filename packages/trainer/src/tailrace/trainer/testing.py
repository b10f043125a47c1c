"""For tests of a backend: random experiences and a slow, simple reference of the loss."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from tailrace.contracts import Experience, Segment
from tailrace.trainer.config import TrainerConfig


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
