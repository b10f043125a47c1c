"""One trajectory of a store that another process has open: read beside it, never written."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tailrace.trajstore.archive import answered
from tailrace.trajstore.errors import StoreBusyError
from tailrace.trajstore.token_bytes import unpack_tokens

_WAIT_S = 1.0


def peek(path: Path, trajectory: str) -> dict[str, Any] | None:
    """What a store has of a trajectory so far: a row as `find_trained` gives it; None if it has none of it.

    The store's owner is not held up: SQLite shows a reader the last transaction, and a file without its owner is read as it is.

    Args:
        path: the database file.

    Raises:
        StoreBusyError: it cannot be read now.
    """
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)) as connection:
            connection.execute("BEGIN")
            found = connection.execute(
                "SELECT num, prompt, metadata, finish, reward, status, completed_version FROM trajectory WHERE id = ?",
                (trajectory,),
            ).fetchone()
            if found is None:
                return None
            deltas = connection.execute(
                "SELECT version, tokens, observation FROM delta WHERE num = ? ORDER BY start", (found[0],)
            ).fetchall()
    except sqlite3.Error as error:
        raise StoreBusyError(f"{path}: could not be read ({error}); expected a trajectory store") from error
    tokens: list[int] = []
    versions: list[int] = []
    spans: list[tuple[int, int, int]] = []
    for version, packed, kind in deltas:
        new = unpack_tokens(packed)
        spans.append((version, len(new), kind))
        tokens += new
        versions += [version] * len(new)
    _, prompt, metadata, finish, reward, status, completed = found
    return {
        "trajectory": trajectory,
        "prompt": list(unpack_tokens(prompt)),
        "tokens": tokens,
        "versions": versions,
        **answered(spans),
        "generated": sum(count for _, count, kind in spans if not kind),
        "reward": reward,
        "finish": finish or status,
        "completed_version": completed,
        "consumed_version": None,
        "metadata": json.loads(metadata),
    }
