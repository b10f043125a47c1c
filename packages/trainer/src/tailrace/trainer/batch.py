"""Checks experiences and turns them into samples."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from numbers import Integral
from typing import Any

from tailrace.contracts import Experience, ExperienceOutline, FinishReason
from tailrace.trainer.advantages import CriticAdvantages, overlong_penalty, token_weights
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.demonstrations import TokenExample
from tailrace.trainer.errors import BatchError
from tailrace.trainer.layout import TrainingSample
from tailrace.trainer.packed import PackedExperience


def grpo_samples(
    mini_batches: Sequence[Sequence[Experience]], config: TrainerConfig, vocabulary: int | None = None
) -> list[list[TrainingSample]]:
    """The samples of each mini-batch. Advantages are normalised over whole groups, even if mini-batches split a group; a critic
    has yet to make them of rewards.

    Samples are left out if no token of them was generated, so a mini-batch may have none. What environments answered is context
    for the tokens behind it; behind the last generated token it is left out. An experience of several contexts has a sample for
    each: all with its advantage and with the weight that its generated tokens have together.

    Args:
        mini_batches: experiences, one list for each optimizer step.
        config: the trainer's settings.
        vocabulary: token ids that the model knows; None: as many as there are.

    Raises:
        BatchError: see `check_experiences`.
    """
    batch = [experience for mini_batch in mini_batches for experience in mini_batch]
    rewards = check_experiences(batch, vocabulary)
    if config.overlong_buffer:
        limits = (config.max_response_tokens, config.overlong_buffer)
        rewards = [
            reward + overlong_penalty(experience.generated_tokens, *limits)
            for reward, experience in zip(rewards, batch, strict=True)
        ]
    groups = [experience.group for experience in batch]
    kind, normalisation = config.open_advantages(), config.normaliser
    advantages = iter(rewards if isinstance(kind, CriticAdvantages) else kind(groups, rewards))
    result = []
    for mini_batch in mini_batches:
        lengths = weighted_lengths(mini_batch, config)
        weights = token_weights(lengths, normalisation, config.max_response_tokens)
        result.append(
            [
                sample
                for experience, weight, advantage in zip(mini_batch, weights, advantages, strict=False)
                for sample in _samples(experience, weight, advantage)
            ]
        )
    return result


def weighted_lengths(experiences: Sequence[Experience], config: TrainerConfig) -> list[int]:
    """The generated tokens of each response that have a weight in the loss: 0 of one that is masked."""
    masked = FinishReason.LENGTH if config.mask_overlong else None
    return [0 if experience.finish is masked else experience.generated_tokens for experience in experiences]


def _samples(experience: Experience, weight: float, advantage: float) -> list[TrainingSample]:
    if isinstance(experience, PackedExperience):
        return experience.samples(weight, advantage)
    tokens, logprobs, generated = experience.tokens, experience.logprobs, experience.generated
    versions = tuple(segment.version for segment in experience.segments for _ in segment.tokens)
    samples = []
    for start, begun, end in experience.contexts:
        prompt, part = tokens[start:begun] or experience.prompt, slice(begun, end)
        flags = () if all(generated[part]) else generated[part]
        samples.append(TrainingSample(prompt, tokens[part], weight, logprobs[part], advantage, flags, versions[part]))
    return samples


def supervised_samples(sequences: Sequence[TokenExample], vocabulary: int | None = None) -> list[TrainingSample]:
    """Samples whose loss is the mean over all response tokens that are learned, once it is divided by their number.

    Raises:
        BatchError: no sequence has a token to learn, a prompt is empty, a token is none that the model knows, or a response has
            more or fewer flags than tokens.
    """
    samples = []
    for number, example in enumerate(sequences):
        if not isinstance(example, tuple | list) or len(example) not in (2, 3):
            expected = "expected (prompt, response) or (prompt, response, learned)"
            raise BatchError(f"found {_kind(example)} as sequence {number}, {expected}")
        prompt, response = (tuple(tokens) if _iterable(tokens) else tokens for tokens in example[:2])
        for what, tokens in (("prompt", prompt), ("response", response)):
            _check_tokens(what, tokens, f"of sequence {number}", vocabulary)
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


def check_mini_batches(mini_batches: Any) -> list[list[Experience]]:
    """The mini-batches of a step, as lists.

    Raises:
        BatchError: there is none, or something else in its place.
    """
    if isinstance(mini_batches, Experience) or not _iterable(mini_batches):
        raise BatchError(
            f"found {_kind(mini_batches)}, expected a list of mini-batches, which are lists of experiences"
        )
    found = list(mini_batches)
    for number, mini_batch in enumerate(found):
        if isinstance(mini_batch, Experience):
            raise BatchError(
                f"found trajectory {mini_batch.trajectory} as mini-batch {number}, expected a list of experiences for each "
                "optimizer step: step([experiences]) does one"
            )
        if not _iterable(mini_batch):
            raise BatchError(f"found {_kind(mini_batch)} as mini-batch {number}, expected a list of experiences")
    if not found:
        raise BatchError("found no mini-batch, expected at least one: each is an optimizer step")
    return [list(mini_batch) for mini_batch in found]


def check_experiences(experiences: Any, vocabulary: int | None = None) -> list[float]:
    """Check that experiences can be trained on.

    Returns:
        Their rewards.

    Raises:
        BatchError: one has no reward, no prompt, a token that the model does not know, or a log-probability that is not finite.
            The message names its trajectory.
    """
    if not _iterable(experiences):
        raise BatchError(f"found {_kind(experiences)}, expected a list of experiences")
    return [_checked(number, experience, vocabulary) for number, experience in enumerate(experiences)]


def _checked(number: int, experience: Any, vocabulary: int | None) -> float:
    if not isinstance(experience, Experience):
        raise BatchError(f"found {_kind(experience)} at place {number}, expected an Experience")
    on = f"on trajectory {experience.trajectory}"
    reward: Any = experience.reward
    if not _finite(reward):
        raise BatchError(f"found the reward {reward!r:.40} {on}, expected a number: score it first")
    if not isinstance(experience.group, Hashable):
        raise BatchError(f"found {_kind(experience.group)} as the group {on}, expected its number")
    if isinstance(experience, PackedExperience):
        _check_outline(experience.outline, on, vocabulary)
        return float(reward)
    _check_tokens("prompt", experience.prompt, on, vocabulary)
    if not experience.prompt:
        raise BatchError(f"found an empty prompt {on}, expected at least one token")
    for segment in experience.segments:
        _check_tokens("response", segment.tokens, on, vocabulary)
        if not all(map(_finite, segment.logprobs)):
            raise BatchError(f"found a log-probability that is not finite {on}, expected the engine's own")
    return float(reward)


def _check_outline(outline: ExperienceOutline, on: str, vocabulary: int | None) -> None:
    """What `_checked` says of tokens, by what the outline says of them: a rank has its own alone."""
    if not outline.prompt_tokens:
        raise BatchError(f"found an empty prompt {on}, expected at least one token")
    if vocabulary is not None and outline.highest_token >= vocabulary:
        raise BatchError(
            f"found the token {outline.highest_token} {on}, expected one below {vocabulary}, the model's vocabulary"
        )
    if not outline.finite:
        raise BatchError(f"found a log-probability that is not finite {on}, expected the engine's own")


def _check_tokens(what: str, tokens: Any, on: str, vocabulary: int | None) -> None:
    if not isinstance(tokens, tuple):
        raise BatchError(f"found {_kind(tokens)} as the {what} {on}, expected a tuple of token ids")
    strange = {kind for kind in set(map(type, tokens)) if kind is bool or not issubclass(kind, Integral)}
    if strange:
        raise BatchError(f"found a {min(kind.__name__ for kind in strange)} in the {what} {on}, expected token ids")
    lowest, highest = (min(tokens), max(tokens)) if tokens else (0, 0)
    if lowest < 0 or (vocabulary is not None and highest >= vocabulary):
        wrong, below = (
            (lowest, "at least 0") if lowest < 0 else (highest, f"one below {vocabulary}, the model's vocabulary")
        )
        raise BatchError(f"found the token {wrong} in the {what} {on}, expected {below}")


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError):  # no number, or a whole one that no float holds
        return False


def _iterable(value: Any) -> bool:
    return hasattr(value, "__iter__") and not isinstance(value, str | bytes | dict)


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
