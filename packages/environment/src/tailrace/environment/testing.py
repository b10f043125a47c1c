"""Contract suite for environments: run ``check_environment(Mine, rows=..., actions=...)`` on your own class.

It plays the same turns in several sessions, one after the other, side by side, restored, and in a worker process, and odd ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tailrace.environment.errors import EnvironmentsError
from tailrace.environment.protocol import Action, Environment, Observation, StepResult, is_restorable
from tailrace.environment.session_pool import EnvironmentPool
from tailrace.environment.worker import (
    DATA_BYTES,
    WrongAnswerError,
    is_tokenized,
    read_observation,
    read_result,
    read_rows,
)

ODD_ACTIONS = (
    "",
    " \n\t",
    "```python\n",
    "```python\n```",
    "\x00\x1b[2J",
    "\ud800",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc",
    "{" * 2000,
    "a" * 100_000,
)
"""Turns as models write them."""
ODD_TOKENS = ((), (0,), (0,) * 1000)
"""The same for an environment that is `tokenized`."""

Script = Sequence[tuple[Mapping[str, Any], Sequence[Action]]]
"""Rows, each with the actions of a session."""


def check_environment(
    make: Callable[..., Environment],
    *,
    rows: Script,
    options: Mapping[str, Any] | None = None,
    call_s: float = 60.0,
    reference: str = "",
) -> None:
    """Check the rules of `Environment` on which a pool relies.

    Args:
        make: the class, or what returns a session.
        rows: rows with the actions of a session each, of which the last may end it; two rows at least, so that sessions that
            share something show it.
        options: keyword arguments of each session.
        call_s: deadline of each call.
        reference: how a worker process finds the class, ``module:Class`` or ``file.py:Class``; empty: by the class's own names.

    Raises:
        AssertionError: the environment breaks the contract; the message says how.
        ValueError: there are fewer than two rows.
    """
    given = dict(options or {})
    if len(rows) < 2:
        raise ValueError(f"found {len(rows)} rows, expected two at least")
    _expect_json(rows)
    with _session(make, given) as unused:  # one that nobody uses is closed
        _check_rows(unused)
    first = [_played(make, given, row, actions) for row, actions in rows]
    _check_odd_actions(make, given, rows)
    replayable = bool(getattr(make, "replayable", False))
    if replayable:
        again = [_played(make, given, row, actions) for row, actions in rows]
        _expect(again == first, f"it says that it is replayable, and answered {again!r:.300} after {first!r:.300}")
        beside = _played_side_by_side(make, given, rows)
        _expect(beside == first, f"sessions side by side answered {beside!r:.300} instead of {first!r:.300}")
    if is_restorable(make):
        _check_snapshots(make, given, rows, first if replayable else None)
    _check_in_a_worker(make, given, rows, first if replayable else None, call_s, reference)


@contextlib.contextmanager
def _session(make: Callable[..., Environment], options: Mapping[str, Any]) -> Iterator[Environment]:
    made = make(**options)
    try:
        yield made
    finally:
        made.close()


def _begun(session: Environment, row: Mapping[str, Any]) -> Observation:
    before = json.dumps(row, sort_keys=True)
    try:
        observation: Observation = read_observation(session.reset(json.loads(before)), is_tokenized(session))
    except WrongAnswerError as error:
        raise AssertionError(f"reset: {error}") from error
    _expect(json.dumps(row, sort_keys=True) == before, "it changed its row")
    return observation


def _stepped(session: Environment, action: Action) -> dict[str, Any]:
    try:
        return read_result(session.step(action), is_tokenized(session))
    except WrongAnswerError as error:
        raise AssertionError(f"the turn {action[:40]!r}: {error}") from error
    except Exception as error:
        raise AssertionError(
            f"the turn {action[:40]!r} raised {type(error).__name__}: {error}; what a model writes is answered"
        ) from error


def _played(
    make: Callable[..., Environment], options: Mapping[str, Any], row: Mapping[str, Any], actions: Sequence[Action]
) -> list[Any]:
    with _session(make, options) as session:
        return [_begun(session, row), *_answers(_stepped(session, action) for action in actions)]


def _played_side_by_side(make: Callable[..., Environment], options: Mapping[str, Any], rows: Script) -> list[list[Any]]:
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(_session(make, options)) for _ in rows]
        said: list[list[Any]] = [[_begun(session, row)] for session, (row, _) in zip(sessions, rows, strict=True)]
        for actions in itertools.zip_longest(*(actions for _, actions in rows)):
            for session, answers, action in zip(sessions, said, actions, strict=True):
                if action is not None:
                    answers += _answers([_stepped(session, action)])
        return said


def _check_odd_actions(make: Callable[..., Environment], options: Mapping[str, Any], rows: Script) -> None:
    with _session(make, options) as session:
        actions: Sequence[Action] = ODD_TOKENS if is_tokenized(session) else ODD_ACTIONS
    for (row, _), action in itertools.product(rows[:1], actions):
        with _session(make, options) as session:
            _begun(session, row)
            _stepped(session, action)


def _check_rows(environment: Environment) -> None:
    """Rows of its own, if it has any: the same numbers have the same rows, however they are asked for."""
    rows = getattr(environment, "rows", None)
    if not callable(rows):
        return
    try:
        whole, parts = read_rows(rows(0, 5)), [*read_rows(rows(0, 2)), *read_rows(rows(2, 5))]
    except WrongAnswerError as error:
        raise AssertionError(f"rows: {error}") from error
    _expect(len(whole) <= 5, f"rows(0, 5) returned {len(whole)} rows, expected 5 at most")
    _expect(whole == parts, f"rows(0, 5) returned {whole!r:.300}, and in two parts {parts!r:.300}")


def _check_snapshots(
    make: Callable[..., Environment], options: Mapping[str, Any], rows: Script, expected: Sequence[list[Any]] | None
) -> None:
    """Restore after each turn, and go on."""
    for place, (row, actions) in enumerate(rows):
        for kept in range(len(actions)):
            with _session(make, options) as session:
                said = [_begun(session, row), *_answers(_stepped(session, action) for action in actions[:kept])]
                state = session.snapshot()  # type: ignore[attr-defined]  # it is restorable
                _expect(isinstance(state, bytes), f"found a snapshot of type {type(state).__name__}, expected bytes")
                _expect(
                    len(state) <= DATA_BYTES,
                    f"found a snapshot of {len(state):,} bytes, expected at most {DATA_BYTES:,}",
                )
                with _session(make, options) as restored:
                    restored.restore(state)  # type: ignore[attr-defined]
                    after = _answers(_stepped(restored, action) for action in actions[kept:])
                on = _answers(_stepped(session, action) for action in actions[kept:])
            if expected is None:
                continue
            _expect([*said, *on] == expected[place], f"after a snapshot it answered {on!r:.300}")
            _expect(
                [*said, *after] == expected[place],
                f"restored after {kept} turns it answered {after!r:.300} instead of {on!r:.300}",
            )


def _check_in_a_worker(
    make: Callable[..., Environment],
    options: Mapping[str, Any],
    rows: Script,
    expected: Sequence[list[Any]] | None,
    call_s: float,
    reference: str,
) -> None:
    named = reference or f"{make.__module__}:{make.__qualname__}"

    async def play(pool: EnvironmentPool, row: Mapping[str, Any], actions: Sequence[Action]) -> list[Any]:
        opened = await pool.open(row)
        answers = [await pool.step(opened.session, action) for action in actions]
        await pool.close(opened.session)
        return [opened.observation, *_answers(map(_as_mapping, answers))]

    async def all_at_once() -> list[list[Any]]:
        async with EnvironmentPool(named, options, sessions=len(rows), call_s=call_s) as pool:
            return await asyncio.gather(*(play(pool, row, actions) for row, actions in rows))

    try:
        said = asyncio.run(all_at_once())
    except EnvironmentsError as error:
        raise AssertionError(f"in a worker process, as {named}: {error}") from error
    if expected is not None:
        _expect(said == expected, f"in a worker process it answered {said!r:.300} instead of {expected!r:.300}")


def _as_mapping(result: StepResult) -> dict[str, Any]:
    return {"observation": result.observation, "done": result.done, "reward": result.reward}


def _answers(results: Any) -> list[tuple[Observation, bool, float]]:
    """What a replay compares of each answer; metadata may differ."""
    return [(each["observation"], each["done"], each["reward"]) for each in results]


def _expect_json(rows: Script) -> None:
    for row, _ in rows:
        _expect(json.loads(json.dumps(dict(row))) == dict(row), f"found the row {row!r:.80}, expected JSON values")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
