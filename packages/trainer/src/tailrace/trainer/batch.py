"""Checks experiences and turns them into samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tailrace.contracts import Experience
from tailrace.trainer.advantages import batch_advantages, group_advantages, token_weights
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.demonstrations import TokenExample
from tailrace.trainer.errors import BatchError
from tailrace.trainer.layout import TrainingSample


def grpo_samples(mini_batches: Sequence[Sequence[Experience]], config: TrainerConfig) -> list[list[TrainingSample]]:
    """The samples of each mini-batch. Advantages are normalised over whole groups, even if mini-batches split a group.

    Samples are left out if no token of them was generated, so a mini-batch may have none. What environments answered is context
    for the tokens behind it; behind the last generated token it is left out.

    Raises:
        BatchError: a trajectory has no reward or no prompt, or a log-probability is not finite.
    """
    batch = [experience for mini_batch in mini_batches for experience in mini_batch]
    rewards = [_reward(experience) for experience in batch]
    groups = [experience.group for experience in batch]
    if config.advantages == "batch":
        advantages = iter(batch_advantages(groups, rewards))
    else:
        advantages = iter(group_advantages(groups, rewards, divide_by_std=config.divide_by_std))
    result = []
    for mini_batch in mini_batches:
        weights = token_weights([experience.generated_tokens for experience in mini_batch], config.normalisation)
        samples = [
            _sample(experience, weight, advantage)
            for experience, weight, advantage in zip(mini_batch, weights, advantages, strict=False)
        ]
        result.append([sample for sample in samples if sample.response])
    return result


def _sample(experience: Experience, weight: float, advantage: float) -> TrainingSample:
    tokens, logprobs, generated = experience.tokens, experience.logprobs, experience.generated
    if all(generated):
        return TrainingSample(experience.prompt, tokens, weight, logprobs, advantage)
    end = len(generated) - generated[::-1].index(True) if any(generated) else 0
    return TrainingSample(experience.prompt, tokens[:end], weight, logprobs[:end], advantage, generated[:end])


def supervised_samples(sequences: Sequence[TokenExample]) -> list[TrainingSample]:
    """Samples whose loss is the mean over all response tokens that are learned, once it is divided by their number.

    Raises:
        BatchError: no sequence has a token to learn, a prompt is empty, or a response has more or fewer flags than tokens.
    """
    samples = []
    for example in sequences:
        prompt, response = example[0], example[1]
        learned = tuple(example[2]) if len(example) == 3 else ()
        if learned and len(learned) != len(response):
            raise BatchError(
                f"found {len(learned)} flags for a response of {len(response)} tokens, expected one for each: is it learned?"
            )
        if any(learned) if len(example) == 3 else response:
            samples.append(TrainingSample(tuple(prompt), tuple(response), 1.0, generated=learned))
    if not samples:
        raise BatchError(f"found no response token in {len(sequences)} sequences, expected at least one")
    if not all(sample.prompt for sample in samples):
        raise BatchError("found an empty prompt, expected at least one token: the first response token follows it")
    return samples


def _reward(experience: Experience) -> float:
    name = experience.trajectory
    if experience.reward is None or not math.isfinite(experience.reward):
        raise BatchError(
            f"found the reward {experience.reward} on trajectory {name}, expected a number: score it first"
        )
    if not experience.prompt:
        raise BatchError(f"found an empty prompt on trajectory {name}, expected at least one token")
    if not all(math.isfinite(value) for segment in experience.segments for value in segment.logprobs):
        raise BatchError(f"found a log-probability that is not finite on trajectory {name}, expected the engine's own")
    return experience.reward
