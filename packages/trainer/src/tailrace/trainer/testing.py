"""For tests of a backend: random experiences and a slow, simple reference of the loss."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from tailrace.contracts import Experience, Segment
from tailrace.trainer.config import TrainerConfig


def make_experiences(
    groups: int, samples: int, *, vocab_size: int, seed: int, max_prompt: int = 9, max_response: int = 14
) -> list[Experience]:
    """Random groups with random rewards of 0 or 1, in one or two segments, with plausible log-probabilities."""
    draw = random.Random(seed)
    made = []
    for group in range(groups):
        prompt = tuple(draw.randrange(vocab_size) for _ in range(draw.randint(1, max_prompt)))
        for sample in range(samples):
            segments = []
            for version in range(draw.randint(1, 2)):
                length = draw.randint(1, max_response)
                tokens = tuple(draw.randrange(vocab_size) for _ in range(length))
                logprobs = tuple(-math.log(vocab_size) + draw.uniform(-0.5, 0.5) for _ in range(length))
                segments.append(Segment(version, tokens, logprobs))
            reward = float(draw.random() < 0.5)
            made.append(Experience(f"{group}.{sample}", group, prompt, tuple(segments), reward=reward))
    return made


def reference_loss(lm: Any, mini_batch: Sequence[Experience], config: TrainerConfig, reference: Any = None) -> Any:
    """The GRPO loss of a mini-batch, computed token by token as in the papers.

    ``J = 1/G sum_i 1/|o_i| sum_t min(r A, clip(r) A)`` (GRPO equation 3, ``"sequence"``) or
    ``J = 1/sum|o_i| sum_i sum_t min(r A, clip(r) A)`` (DAPO equation 10, ``"token"``); the loss is ``-J``. With a reference
    model, ``min(..)`` is less by the coefficient times ``p - log p - 1``, where p is the reference's ratio (GRPO equation 4).

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
    tokens = sum(len(experience.tokens) for experience in mini_batch)
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
        table = (lm(input_ids=ids).logits[0].double() / config.temperature).log_softmax(-1)
        if reference is not None:
            with torch.no_grad():
                frozen = (reference(input_ids=ids).logits[0].double() / config.temperature).log_softmax(-1)
        for position, (token, old) in enumerate(zip(experience.tokens, experience.logprobs, strict=True)):
            ratio = torch.exp(table[len(experience.prompt) + position - 1, token] - old)
            if advantage >= 0:
                objective = torch.minimum(ratio, torch.tensor(1 + config.clip_high)) * advantage
            else:
                objective = torch.maximum(ratio, torch.tensor(1 - config.clip_low)) * advantage
            if reference is not None:
                place = len(experience.prompt) + position - 1
                away = frozen[place, token] - table[place, token]
                objective = objective - config.kl_coefficient * (torch.exp(away) - away - 1)
            share = tokens if config.normalisation == "token" else len(mini_batch) * len(experience.tokens)
            total = total - objective / share
    return total
