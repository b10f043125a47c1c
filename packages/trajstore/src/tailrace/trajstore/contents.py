"""Finished trajectories read back: deltas joined into segments, each token with its version and log-probability."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from tailrace.contracts import Experience, FinishReason, Segment
from tailrace.trajstore.errors import TrajectoryStateError
from tailrace.trajstore.packing import unpack_logprobs, unpack_tokens
from tailrace.trajstore.records import Status

EXPERIENCE_COLUMNS = "id, num, grp, prompt, finish, reward, completed_version, metadata, purpose, status, trimmed"
CONTENT_COLUMNS = "num, prompt, finish, metadata, purpose, trimmed"


def experience_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Experience:
    """The experience of a row of `EXPERIENCE_COLUMNS`.

    Raises:
        TrajectoryStateError: the trajectory is not finished, has failed, was discarded or trimmed.
    """
    name, num, group, prompt, finish, reward, completed_version, metadata, purpose, status, trimmed = row
    if finish is None or status in (Status.FAILED, Status.DISCARDED):
        raise TrajectoryStateError(
            f"trajectory {name}: found {status}, expected complete or consumed, to read an experience"
        )
    if trimmed:
        raise TrajectoryStateError(
            f"trajectory {name}: its tokens were trimmed, since it is consumed for a durable version"
        )
    return Experience(
        trajectory=str(name),
        group=group,
        prompt=unpack_tokens(prompt),
        segments=tuple(segments_of(connection, num)),
        finish=FinishReason(finish),
        reward=reward,
        completed_version=completed_version,
        metadata={**json.loads(metadata), "purpose": purpose},
    )


def segments_of(connection: sqlite3.Connection, num: int) -> Iterator[Segment]:
    """Deltas of one version behind each other become one segment."""
    version: int | None = None
    tokens: list[int] = []
    logprobs: list[float] = []
    for row_version, count, token_data, logprob_data in connection.execute(
        "SELECT version, count, tokens, logprobs FROM delta WHERE num = ? ORDER BY start", (num,)
    ):
        if version is not None and row_version != version:
            yield Segment(version, tuple(tokens), tuple(logprobs))
            tokens, logprobs = [], []
        version = row_version
        tokens.extend(unpack_tokens(token_data))
        logprobs.extend(unpack_logprobs(logprob_data, count))
    if version is not None:
        yield Segment(version, tuple(tokens), tuple(logprobs))


def content_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> dict[str, Any]:
    """A row of `CONTENT_COLUMNS` with its tokens, as JSON can say it; null for tokens that were trimmed."""
    num, prompt, finish, metadata, purpose, trimmed = row
    segments = None if trimmed else list(segments_of(connection, num))
    return {
        "prompt": unpack_tokens(prompt),
        "tokens": None if segments is None else [token for segment in segments for token in segment.tokens],
        "versions": None if segments is None else [segment.version for segment in segments for _ in segment.tokens],
        "logprobs": None if segments is None else [value for segment in segments for value in segment.logprobs],
        "finish": finish,
        "metadata": {**json.loads(metadata), "purpose": purpose},
    }
