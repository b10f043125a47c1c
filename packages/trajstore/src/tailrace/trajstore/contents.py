"""Reads finished trajectories: deltas are joined into segments, each token with its version and log-probability."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from tailrace.contracts import Experience, FinishReason, Segment
from tailrace.trajstore.errors import TrajectoryStateError
from tailrace.trajstore.packing import unpack_logprobs, unpack_tokens
from tailrace.trajstore.records import Status

EXPERIENCE_COLUMNS = "id, num, grp, prompt, finish, reward, completed_version, metadata, purpose, status"
CONTENT_COLUMNS = "num, prompt, finish, metadata, purpose"


def experience_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Experience:
    """The experience of a row of `EXPERIENCE_COLUMNS`.

    Raises:
        TrajectoryStateError: the trajectory is not finished, or was discarded.
    """
    name, num, group, prompt, finish, reward, completed_version, metadata, purpose, status = row
    if finish is None or status == Status.DISCARDED:
        raise TrajectoryStateError(
            f"trajectory {name}: found {status}, expected complete or consumed, to read an experience"
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
    """The segments of a trajectory. Consecutive deltas of one version become one segment."""
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
    """A row of `CONTENT_COLUMNS` with its tokens, as JSON values."""
    num, prompt, finish, metadata, purpose = row
    segments = list(segments_of(connection, num))
    return {
        "prompt": unpack_tokens(prompt),
        "tokens": [token for segment in segments for token in segment.tokens],
        "versions": [segment.version for segment in segments for _ in segment.tokens],
        "logprobs": [value for segment in segments for value in segment.logprobs],
        "finish": finish,
        "metadata": {**json.loads(metadata), "purpose": purpose},
    }
