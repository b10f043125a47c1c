"""A slow, simple reference of losses, advantages and values, token by token. It shares no helper with the code."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.contracts import Experience
from tailrace.trainer.config import TrainerConfig


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
    Sums and lengths are over the tokens that the model generated; what environments answered is input only. A trajectory of
    several contexts is as many sequences for the model, and one for lengths and advantages.

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
    lengths = {experience.trajectory: experience.generated_tokens for experience in mini_batch}
    tokens = sum(lengths.values())
    of_responses = {} if advantages is not None else _reference_advantages(mini_batch, config)
    loss = config.open_loss()
    for experience in mini_batch:
        name, counted = experience.trajectory, 0
        for context in read_contexts(experience):
            logprobs: Any
            logprobs, before, other = (
                None if model is None else _table(model, context, config) for model in (lm, proximal, reference)
            )
            before = logprobs if before is None else before
            at = [(place - 1, context.tokens[place]) for place in context.places]
            new = [logprobs[place] for place in at]
            middle = [before[place].item() for place in at]
            for number, place in enumerate(at):
                advantage = of_responses[name] if advantages is None else advantages[name][counted + number]
                objective = reference_objective(loss, advantage, number, new, context.behaviour, middle)
                if other is not None:
                    ref_log_ratio = other[place].detach() - new[number]
                    objective = objective - config.kl_coefficient * (torch.exp(ref_log_ratio) - ref_log_ratio - 1)
                share = {
                    "token": tokens,
                    "sequence": len(mini_batch) * lengths[name],
                    "constant": len(mini_batch) * config.max_response_tokens,
                }[config.normaliser]
                total = total - objective / share
            counted += len(at)
    return total


class ReadContext(NamedTuple):
    """A context as a model reads it: its token ids, where generated ones stand, and the log-probabilities of these."""

    tokens: list[int]
    places: list[int]
    behaviour: list[float]


def read_contexts(experience: Experience) -> list[ReadContext]:
    """The contexts of a trajectory in which tokens were generated, in order."""
    found = [ReadContext([*experience.prompt], [], [])]
    for segment in experience.segments:
        if segment.fresh and segment.tokens:
            found.append(ReadContext([], [], []))
        tokens, places, behaviour = found[-1]
        if not segment.observation:
            places += range(len(tokens), len(tokens) + len(segment.tokens))
            behaviour += segment.logprobs
        tokens += segment.tokens
    return [context for context in found if context.places]


def _table(model: Any, context: ReadContext, config: TrainerConfig) -> Any:
    return (model(input_ids=_tensor([context.tokens])).logits[0].double() / config.temperature).log_softmax(-1)


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
    Each context ends with the trajectory's reward.

    Args:
        critic: a Hugging Face sequence classifier with one label.
        batch: the whole batch.
        config: the options of its advantages `gae`.
        anchor: the causal LM that the rewards of tokens refer to; None without one.
    """
    gae: Any = config.open_advantages()
    found = ReferenceEstimates({}, {}, {})
    for experience in batch:
        for context in read_contexts(experience):
            places = context.places
            values = [value.item() for value in _reference_values(critic, context)]
            rewards = [0.0] * len(places)
            if anchor is not None:
                table = _table(anchor, context, config)
                for number, place in enumerate(places):
                    was = table[place - 1, context.tokens[place]].item()
                    rewards[number] = -gae.kl_coefficient * (context.behaviour[number] - was)
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
            found.values.setdefault(name, []).extend(values)
            found.returns.setdefault(name, []).extend(returns)
            found.advantages.setdefault(name, []).extend(a - b for a, b in zip(returns, values, strict=True))
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
        of_contexts = [_reference_values(critic, context) for context in read_contexts(experience)]
        for number, value in enumerate(itertools.chain.from_iterable(of_contexts)):
            old, goal = before.values[experience.trajectory][number], before.returns[experience.trajectory][number]
            moved, clip = value.item() - old, config.critic.value_clip
            error, bounded = value.item() - goal, old + max(-clip, min(clip, moved)) - goal
            held = clip and abs(moved) > clip and bounded**2 > error**2  # then the value has no gradient
            losses.append((value * 0 + bounded**2) / 2 if held else (value - goal) ** 2 / 2)
    return sum(losses) / len(losses)


def _reference_values(critic: Any, context: ReadContext) -> list[Any]:
    """The critic's value of what stands before each generated token."""
    hidden = critic.base_model(input_ids=_tensor([context.tokens]))[0][0]
    return [critic.score(hidden[place - 1])[0].double() for place in context.places]


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
