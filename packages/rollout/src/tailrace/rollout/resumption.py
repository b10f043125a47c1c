"""Requests that resume from existing tokens: how many tokens are left to generate, and whether the response is complete."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeGuard

from tailrace.contracts import Delta, FinishReason, Request, Resume, Sampling
from tailrace.rollout.engine_seeds import noise
from tailrace.rollout.errors import RequestError

_LEAST_TEMPERATURE = 1e-6  # below it scores overflow, and a batch's probabilities are no numbers
_MOST_TOKENS = 2**31
_SEEDS = 2**63


def finished_with(tokens: tuple[int, ...], sampling: Sampling) -> FinishReason | None:
    """Why a response that consists of the existing `tokens` is complete, or None if it is not.

    Where stop tokens end turns, they do not end a response: existing tokens end with an environment's answer, or within a turn.
    """
    if not sampling.turns and tokens and tokens[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    if len(tokens) >= sampling.max_tokens:
        return FinishReason.LENGTH
    return None


def limited(resume: Resume, sampling: Sampling) -> Sampling:
    """The same, with a limit that counts all kept tokens, also those that contexts repeat."""
    return replace(sampling, max_tokens=sampling.max_tokens + resume.repeated) if resume.repeated else sampling


def request_of(resume: Resume, sampling: Sampling) -> Request:
    """What an engine is asked for: the rest of a response, behind its present context alone.

    Noise follows from the seed and a token's place in its context. So each context has a seed of its own: an agent that asks
    for the same twice gets two answers.
    """
    kept, start, sampling = tuple(resume.kept_tokens), resume.context, limited(resume, sampling)
    if not start or len(kept) >= sampling.max_tokens:  # the engine says at once that it is complete
        return Request(resume.trajectory, tuple(resume.prompt_tokens), sampling, kept)
    begun = start + 1  # of a fresh context any part may pass for the prompt, and limits count all tokens
    seed = None if sampling.seed is None else noise(sampling.seed, -start)
    own = replace(sampling, max_tokens=sampling.max_tokens - begun, seed=seed)
    return Request(resume.trajectory, kept[start:begun], own, kept[begun:])


def tokens_left(request: Request, max_model_len: int) -> int:
    """Tokens that an engine may still generate within the limits of request and model, which count kept tokens."""
    return min(
        request.sampling.max_tokens - len(request.kept),
        max_model_len - len(request.prompt) - len(request.kept),
    )


def merged(deltas: Sequence[Delta]) -> list[Delta]:
    """One delta for each request, in the order of first appearance."""
    found: dict[str, Delta] = {}
    for delta in deltas:
        first = found.get(delta.id)
        if first is not None:
            delta = Delta(delta.id, first.tokens + delta.tokens, first.logprobs + delta.logprobs, delta.finish)
        found[delta.id] = delta
    return list(found.values())


def check_request(
    request: Request, in_flight: Container[str], max_model_len: int, vocabulary: int | None = None
) -> None:
    """Refuse a request that no engine can carry out: many an engine dies of one, with all that it generates.

    Args:
        request: the request.
        in_flight: ids that the engine has.
        max_model_len: most tokens of a prompt and its response.
        vocabulary: tokens that the model knows; None: any.

    Raises:
        RequestError: the id is in flight, the prompt is empty or fills the model's context, a token is none that the model
            knows, or a sampling parameter is out of its range.
    """
    if request.id in in_flight:
        raise RequestError(f"request {request.id!r} is in flight already; ids must be unique until they finish")
    if not request.prompt:
        raise RequestError(f"request {request.id!r} has an empty prompt, expected at least one token")
    if len(request.prompt) >= max_model_len:
        raise RequestError(
            f"request {request.id!r} has a prompt of {len(request.prompt)} tokens, expected fewer than "
            f"max_model_len={max_model_len}"
        )
    for kind, tokens in (("prompt", request.prompt), ("kept tokens", request.kept)):
        wrong = unknown_token(tokens, vocabulary)
        if wrong is not None:
            known = "a whole number of at least 0" if vocabulary is None else f"0 to {vocabulary - 1}"
            raise RequestError(f"request {request.id!r} has the token {wrong[0]!r:.40} in its {kind}, expected {known}")
    try:
        check_sampling(request.sampling)
    except RequestError as error:
        raise RequestError(f"request {request.id!r}: {error}") from error


def unknown_token(tokens: Sequence[Any], vocabulary: int | None) -> tuple[object] | None:
    """The first token that no model with so many tokens knows, alone; None if there is none."""
    most = _MOST_TOKENS if vocabulary is None else vocabulary
    kinds = set(map(type, tokens))
    if kinds <= {int} and (not tokens or (min(tokens) >= 0 and max(tokens) < most)):
        return None  # in a thirtieth of the time: every resumed trajectory is looked at, before its engine goes on
    return next(((token,) for token in tokens if not _is_whole(token) or not 0 <= token < most), None)


def check_sampling(sampling: Sampling) -> None:
    """Check that an engine can draw with these parameters.

    Raises:
        RequestError: one is out of its range.
    """
    temperature, seed = sampling.temperature, sampling.seed
    numeric = isinstance(temperature, int | float) and type(temperature) is not bool
    if not numeric or not (temperature == 0 or _LEAST_TEMPERATURE <= temperature < math.inf):
        raise RequestError(
            f"found temperature={temperature!r}, expected 0 for greedy decoding, or a number of at least {_LEAST_TEMPERATURE}"
        )
    if not _is_whole(sampling.max_tokens) or sampling.max_tokens < 1:
        raise RequestError(f"found max_tokens={sampling.max_tokens!r}, expected a whole number of at least 1")
    if not all(map(_is_whole, sampling.stop_token_ids)):
        raise RequestError(f"found stop_token_ids={sampling.stop_token_ids!r:.60}, expected whole numbers")
    if seed is not None and not (_is_whole(seed) and -_SEEDS <= seed < _SEEDS):
        raise RequestError(f"found seed={seed!r:.60}, expected a whole number of 64 bits")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)
