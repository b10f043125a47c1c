"""Requests that resume from existing tokens: how many tokens are left to generate, and whether the response is complete."""

from __future__ import annotations

from collections.abc import Container

from tailrace.contracts import FinishReason, Request, Sampling
from tailrace.rollout.errors import RequestError


def finished_with(tokens: tuple[int, ...], sampling: Sampling) -> FinishReason | None:
    """Why a response that consists of the existing `tokens` is complete, or None if it is not.

    Where stop tokens end turns, they do not end a response: existing tokens end with an environment's answer, or within a turn.
    """
    if not sampling.turns and tokens and tokens[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    if len(tokens) >= sampling.max_tokens:
        return FinishReason.LENGTH
    return None


def tokens_left(request: Request, max_model_len: int) -> int:
    """Tokens that an engine may still generate within the limits of request and model, which count kept tokens."""
    return min(
        request.sampling.max_tokens - len(request.kept),
        max_model_len - len(request.prompt) - len(request.kept),
    )


def check_request(request: Request, in_flight: Container[str], max_model_len: int) -> None:
    """Refuse a request that no engine can carry out.

    Raises:
        RequestError: the id is in flight, or the prompt is empty or fills the model's context.
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
