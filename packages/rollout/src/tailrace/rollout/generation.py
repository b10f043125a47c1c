"""Generates whole responses with an engine alone, without a replica."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import Engine, FinishReason, Request
from tailrace.rollout.errors import EngineDiedError, GenerationTimeoutError


@dataclass(frozen=True, slots=True)
class Generation:
    """A complete response.

    Args:
        tokens: new token ids, without resumed ones.
        logprobs: log-probability (natural log) of each token.
        finish: why it ended.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason


def generate(engine: Engine, requests: Sequence[Request], timeout_s: float) -> dict[str, Generation]:
    """Generate the complete responses of requests, by request id. If this raises, none of them is in flight any more.

    Raises:
        RequestError: the engine cannot take one of them.
        GenerationTimeoutError: some requests were not complete after `timeout_s`.
        EngineDiedError: the engine failed.
    """
    deadline = time.monotonic() + timeout_s
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    logprobs: dict[str, list[float]] = {request.id: [] for request in requests}
    done: dict[str, Generation] = {}
    given: dict[str, None] = {}
    try:
        for request in requests:
            engine.submit([request])
            given[request.id] = None
        while len(done) < len(tokens):
            for delta in engine.step():
                if delta.id not in tokens:
                    continue
                tokens[delta.id] += delta.tokens
                logprobs[delta.id] += delta.logprobs
                if delta.finish is not None:
                    done[delta.id] = Generation(tuple(tokens[delta.id]), tuple(logprobs[delta.id]), delta.finish)
            if len(done) < len(tokens) and time.monotonic() > deadline:
                raise GenerationTimeoutError(
                    f"{len(tokens) - len(done)} of {len(tokens)} requests were not complete after {timeout_s} s"
                )
    except EngineDiedError:
        raise
    except BaseException:
        engine.abort([id_ for id_ in given if id_ not in done])
        raise
    return done
