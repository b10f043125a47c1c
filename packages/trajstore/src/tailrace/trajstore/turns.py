"""Turns in the store: where each ended, what its environment answered, and the state of the environment's session.

A turn is known by its *serial*, which is never used again. So what an environment answers to a turn that was dropped and
generated anew, or that another member answered first, changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from tailrace.contracts import FinishReason, SpanKind
from tailrace.trajstore.records import Turn
from tailrace.trajstore.token_bytes import unpack_tokens

SCHEMA = """
-- Turns that ended with a question to an environment; `count` tokens of its answer follow, NULL until there is one.
CREATE TABLE turn (
    serial INTEGER PRIMARY KEY AUTOINCREMENT,
    num INTEGER NOT NULL REFERENCES trajectory,
    ends INTEGER NOT NULL,
    count INTEGER,
    reward REAL NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    UNIQUE (num, ends)
);
-- The state of a trajectory's environment after the turn of this serial, the last one that has a state.
CREATE TABLE session (num INTEGER PRIMARY KEY REFERENCES trajectory, serial INTEGER NOT NULL, data BLOB NOT NULL);
"""

TABLES = ("turn", "session")
"""The tables of this module, with a column `num`."""

TURNED = "EXISTS (SELECT 1 FROM turn WHERE turn.num = trajectory.num)"
"""Whether a row of `trajectory` has turns."""

OPEN_TURNS = (
    "SELECT t.num, max(u.ends + coalesce(u.count, 0)), max(CASE WHEN u.count IS NULL THEN u.serial END) "
    "FROM trajectory t JOIN turn u USING (num) WHERE t.status = 'partial' GROUP BY t.num"
)
"""For each unfinished trajectory with turns: where its last turn begins, or ended, and the serial of one not answered."""


def end_turn(connection: sqlite3.Connection, num: int, ends: int) -> int:
    """Note that a turn of a trajectory has ended behind this many response tokens. Returns its serial."""
    cursor = connection.execute("INSERT INTO turn (num, ends) VALUES (?, ?)", (num, ends))
    return cursor.lastrowid or 0


def ends_a_turn(connection: sqlite3.Connection, num: int, ends: int) -> bool:
    """Whether a turn of the trajectory ended behind this many response tokens."""
    return connection.execute("SELECT 1 FROM turn WHERE num = ? AND ends = ?", (num, ends)).fetchone() is not None


def forget_turns(connection: sqlite3.Connection, num: int) -> None:
    """Drop the turns and the session of a trajectory."""
    for table in TABLES:
        connection.execute(f"DELETE FROM {table} WHERE num = ?", (num,))  # noqa: S608


def turns_of(connection: sqlite3.Connection, num: int) -> Iterator[Turn]:
    """The turns of a trajectory that ended with a question to an environment, in order."""
    tokens: tuple[int, ...] = ()
    fresh = set()
    for data, kind in connection.execute("SELECT tokens, observation FROM delta WHERE num = ? ORDER BY start", (num,)):
        if kind == SpanKind.FRESH:
            fresh.add(len(tokens))
        tokens += unpack_tokens(data)
    start = 0
    rows = connection.execute(
        "SELECT u.serial, u.ends, u.count, u.reward, CASE WHEN u.done THEN t.finish END "
        "FROM turn u JOIN trajectory t USING (num) WHERE num = ? ORDER BY u.ends",
        (num,),
    )
    for number, (serial, ends, count, reward, finish) in enumerate(rows, 1):
        answered = ends + (count or 0)
        observation = None if count is None else tokens[ends:answered]
        finished = None if finish is None else FinishReason(finish)
        yield Turn(serial, number, start, tokens[start:ends], observation, reward, finished, ends in fresh)
        start = answered


def environment_of(connection: sqlite3.Connection, num: int) -> dict[str, object]:
    """What environments made of a trajectory, for its metadata; empty if none was asked."""
    answered, reward, done = connection.execute(
        "SELECT count(*), total(reward), max(done) FROM turn WHERE num = ? AND count IS NOT NULL", (num,)
    ).fetchone()
    return {"environment": {"turns": answered, "reward": reward, "done": bool(done)}} if answered else {}
