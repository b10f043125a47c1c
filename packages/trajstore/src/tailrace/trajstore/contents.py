"""Reads finished trajectories: deltas are joined into segments, each token with its version and log-probability."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from tailrace.contracts import Experience, FinishReason, Segment
from tailrace.trajstore.errors import TrajectoryStateError
from tailrace.trajstore.packing import unpack_logprobs, unpack_tokens
from tailrace.trajstore.records import Conversation, Status
from tailrace.trajstore.turns import environment_of, turns_of

EXPERIENCE_COLUMNS = "id, num, grp, prompt, finish, reward, completed_version, metadata, purpose, status"
CONTENT_COLUMNS = "num, prompt, finish, metadata, purpose"
CONVERSATION_COLUMNS = "id, num, grp, prompt, metadata, purpose"


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
        metadata={**json.loads(metadata), "purpose": purpose, **environment_of(connection, num)},
    )


def segments_of(connection: sqlite3.Connection, num: int) -> Iterator[Segment]:
    """The segments of a trajectory. Consecutive deltas of one version become one segment, but for observations."""
    of: tuple[int, int] | None = None  # version, and whether it is an observation
    tokens: list[int] = []
    logprobs: list[float] = []
    for version, observation, count, token_data, logprob_data in connection.execute(
        "SELECT version, observation, count, tokens, logprobs FROM delta WHERE num = ? ORDER BY start", (num,)
    ):
        if of is not None and of != (version, observation):
            yield Segment(of[0], tuple(tokens), tuple(logprobs), bool(of[1]))
            tokens, logprobs = [], []
        of = (version, observation)
        tokens.extend(unpack_tokens(token_data))
        logprobs.extend(unpack_logprobs(logprob_data, count))
    if of is not None:
        yield Segment(of[0], tuple(tokens), tuple(logprobs), bool(of[1]))


def conversation_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> Conversation:
    """The conversation of a row of `CONVERSATION_COLUMNS`."""
    name, num, group, prompt, metadata, purpose = row
    saved = connection.execute("SELECT data, serial FROM session WHERE num = ?", (num,)).fetchone()
    return Conversation(
        trajectory=str(name),
        group=group,
        prompt=unpack_tokens(prompt),
        metadata={**json.loads(metadata), "purpose": purpose},
        turns=tuple(turns_of(connection, num)),
        session=saved[0] if saved else None,
        session_serial=saved[1] if saved else None,
    )


def content_of(connection: sqlite3.Connection, row: tuple[Any, ...]) -> dict[str, Any]:
    """A row of `CONTENT_COLUMNS` with its tokens, as JSON values."""
    num, prompt, finish, metadata, purpose = row
    segments = list(segments_of(connection, num))
    return {
        "prompt": unpack_tokens(prompt),
        "tokens": [token for segment in segments for token in segment.tokens],
        "versions": [segment.version for segment in segments for _ in segment.tokens],
        "logprobs": [value for segment in segments for value in segment.logprobs],
        "observations": list(_observations(segments)),
        "finish": finish,
        "metadata": {**json.loads(metadata), "purpose": purpose, **environment_of(connection, num)},
    }


def _observations(segments: list[Segment]) -> Iterator[tuple[int, int]]:
    """Where each observation begins and ends among the response tokens."""
    start = 0
    for segment in segments:
        end = start + len(segment.tokens)
        if segment.observation:
            yield start, end
        start = end
