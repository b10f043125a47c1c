"""A pool of sessions in worker processes: what a worker's death does to them is decided here.

Consumes: calls of sessions, from one event loop. Waits for: room for a new session, and each call's reply, until its deadline.
Yields: the environment's answers; or why a session is over, as an exception.

What happens to a session:

* its worker dies, or stands still and is killed: the session goes to another worker, from its latest snapshot, else by playing
  its turns again, with every answer compared; then the call under way is made again. With neither of these it is lost.
  So it does if it says itself that what it held is gone.
* its call misses the deadline: it is over. Its worker gets no new sessions, and ends when its other sessions are over.
* the environment raises, or answers what is no answer: it is over.

No finished turn is ever computed into another answer: a replay that differs ends the session.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, Self

from tailrace.environment.errors import (
    ActionTooLongError,
    EnvironmentsError,
    NonsenseError,
    PoolClosedError,
    PoolFullError,
    RaisedError,
    SessionError,
    SessionLostError,
    SessionTimeoutError,
    UnknownSessionError,
)
from tailrace.environment.protocol import Action, Observation, StepResult
from tailrace.environment.worker import TEXT_CHARACTERS
from tailrace.environment.worker_link import WorkerGoneError, WorkerLink
from tailrace.environment.workers import Abilities, Workers
from tailrace.processes.errors import LineError


@dataclass(slots=True)
class SessionRecord:
    """A session, wherever it lives.

    Args:
        row: the row that it was begun with.
        link: the worker that has it; None or one that is gone: it has to be brought back before its next call.
        first: what `reset` returned; None before it did, and for a session that began with a snapshot.
        turns: the actions so far and their answers.
        state: the snapshot after the last of them, as the worker sent it; None where the environment has none.
        begun: whether there is anything to bring back.
    """

    number: int
    row: Mapping[str, Any]
    link: WorkerLink | None = None
    first: Observation | None = None
    turns: list[tuple[Action, StepResult]] = field(default_factory=list)
    state: str | None = None
    begun: bool = False
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def done(self) -> bool:
        """Whether the environment said so."""
        return bool(self.turns) and self.turns[-1][1].done

    @property
    def at_home(self) -> bool:
        """Whether its worker has it."""
        return self.link is not None and not self.link.gone


@dataclass(slots=True)
class PoolCounts:
    """What happened in a pool so far.

    Args:
        opened: sessions that began, anew or from elsewhere.
        steps: turns that were answered, each once, however often a worker computed it.
        workers_lost: workers that died or stood still and were killed.
        restored: sessions that went on from a snapshot.
        replayed: sessions that were played again.
        lost: sessions that could not be brought back, or whose replay answered otherwise.
        timeouts: sessions that ended since a call missed its deadline.
        raised: sessions that ended since the environment raised.
        nonsense: sessions that ended since the environment's answer was none.
    """

    opened: int = 0
    steps: int = 0
    workers_lost: int = 0
    restored: int = 0
    replayed: int = 0
    lost: int = 0
    timeouts: int = 0
    raised: int = 0
    nonsense: int = 0


class Opened(NamedTuple):
    """A session that began.

    Args:
        session: its number.
        observation: what the model reads first, beside the prompt.
    """

    session: int
    observation: Observation


class Replayed(NamedTuple):
    """A session that was played again.

    Args:
        session: its number.
        observation: what the model reads first.
        results: the answer to each action. Compare them with what you have: this pool did not see the first ones.
    """

    session: int
    observation: Observation
    results: tuple[StepResult, ...]


_MOST_DEATHS = 10  # in one call, for each attempt
_FIELDS = ("observation", "done", "reward", "metadata", "fresh")


class EnvironmentPool:
    """Sessions of one environment in worker processes: ``async with EnvironmentPool("python") as pool``.

    Args:
        environment: a registered name, ``module:Class`` or ``file.py:Class``.
        options: the environment's options; JSON values.
        workers: worker processes.
        sessions: sessions at a time; `open` waits while there are so many.
        call_s: deadline of one call.
        room_s: how long `open` waits for room.
        python: the interpreter of the workers, for environments whose packages cannot be installed here; empty: this one.
        start_s: deadline for a worker to load the environment.
        silent_s: a worker that answers no ping for so long is killed.
        attempts: deaths of its worker after which a call is given up; calls beside each other have a share of each.

    Raises:
        SetupError: no environment has this name.
        ValueError: a number is not above 0.
    """

    def __init__(
        self,
        environment: str,
        options: Mapping[str, Any] | None = None,
        *,
        workers: int = 1,
        sessions: int = 64,
        call_s: float = 60.0,
        room_s: float = 600.0,
        python: str = "",
        start_s: float = 60.0,
        silent_s: float = 10.0,
        attempts: int = 3,
    ) -> None:
        given = {"workers": workers, "sessions": sessions, "call_s": call_s, "room_s": room_s, "start_s": start_s}
        for name, value in {**given, "silent_s": silent_s, "attempts": attempts}.items():
            if not value > 0:
                raise ValueError(f"found {name} = {value!r}, expected a number above 0")
        self.environment = environment
        self._workers = Workers(environment, options or {}, workers, python, start_s, silent_s)
        self._most, self._call_s, self._room_s, self._attempts = sessions, call_s, room_s, attempts
        self._records: dict[int, SessionRecord] = {}
        self._numbers = itertools.count(1)
        self._room = asyncio.Semaphore(sessions)
        self._counts, self._started = PoolCounts(), False
        self._asking: set[asyncio.Task[dict[str, Any]]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def counts(self) -> PoolCounts:
        """What happened so far."""
        self._counts.workers_lost = self._workers.lost
        return self._counts

    @property
    def abilities(self) -> Abilities:
        """What the environment offers, as the workers found."""
        return self._workers.abilities

    @property
    def open_sessions(self) -> int:
        """Sessions that are open."""
        return len(self._records)

    @property
    def full(self) -> bool:
        """Whether another session would have to wait for room."""
        return self._room.locked()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that may be given sessions."""
        return tuple(link.pid for link in self._workers.links)

    def worker_in_call(self, session: int) -> int | None:
        """Process id of the worker that a call of a session is in; None while none is."""
        record = self._records.get(session)
        return record.link.pid if record and record.busy.locked() and record.link else None

    async def start(self) -> None:
        """Start the workers; calls before are refused. A pool is started once.

        Raises:
            SetupError: the environment cannot be had, in one line.
        """
        await self._workers.start()
        self._started = True

    async def stop(self) -> None:
        """End all sessions and kill the workers. Calls under way and calls that wait for room raise `PoolClosedError`."""
        self._started = False
        for _ in self._records:
            self._room.release()
        self._records.clear()
        await self._workers.stop()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def rows(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Rows of the environment's own, if `abilities` has them, from a number up to before another, or as many as it has.

        Raises:
            SessionError: it does not answer with rows; the subclass says why.
            SetupError: no worker is left, and none can be started.
        """
        self._check_open()
        link = await self._workers.join()
        try:
            reply = await self._reply(link, {"op": "rows", "start": start, "stop": stop})
        except WorkerGoneError as error:
            raise SessionLostError(f"the worker of {self.environment!r} died while it made rows: {error}") from None
        finally:
            await self._workers.leave(link)
        found: list[dict[str, Any]] = self._said(reply)["rows"]
        return found

    async def open(self, row: Mapping[str, Any]) -> Opened:
        """Begin a session, as soon as there is room.

        Args:
            row: the data row; JSON values only.

        Raises:
            PoolFullError: there was no room within `room_s`.
            SessionError: it could not begin; the subclass says why.
            SetupError: no worker is left, and none can be started.
            TypeError: the row has a value that JSON cannot carry.
        """
        record = await self._begin(row)
        self._counts.opened += 1
        return Opened(record.number, record.first or "")

    async def step(self, session: int, action: Action) -> StepResult:
        """The environment's answer to a turn: its text, or its token ids for an environment that is `tokenized`.

        Raises:
            SessionTimeoutError: it missed `call_s`; the session is over.
            RaisedError: the environment raised; the session is over.
            NonsenseError: it answered what is no answer; the session is over.
            SessionLostError: the worker died, and the session could not be brought back.
            UnknownSessionError: there is no such session.
            SessionError: the environment had said that it is done. It can still be closed.
            ActionTooLongError: the action is longer than 2**20 characters or tokens. The session stays as it was.
            TypeError: the action is neither text nor token ids. The session stays as it was.
        """
        record, action = self._record(session), _as_told(action)
        async with record.busy:
            if record.done:
                raise SessionError(f"found a turn of session {session}, which is done, expected none")
            result = await self._take(record, action)
        self._counts.steps += 1
        return result

    async def snapshot(self, session: int) -> bytes | None:
        """The session's snapshot after its last turn; None where the environment has none. No worker is asked.

        Raises:
            UnknownSessionError: there is no such session.
        """
        record = self._record(session)
        async with record.busy:
            return None if record.state is None else base64.b64decode(record.state)

    async def restore(self, row: Mapping[str, Any], state: bytes) -> int:
        """A session that goes on from a snapshot, perhaps of another pool. Returns its number.

        Args:
            row: the row that it was begun with.
            state: the snapshot.

        Raises:
            SessionError, PoolFullError, SetupError: as in `open`.
        """
        record = await self._admit(row)
        record.state = base64.b64encode(state).decode()
        async with record.busy:
            await self._call(record, {"op": "restore", "state": record.state})
            record.begun = True
        self._counts.restored += 1
        return record.number

    async def replay(self, row: Mapping[str, Any], actions: Sequence[Action]) -> Replayed:
        """A new session in which these turns are played again, for example those of a pool that is gone.

        Raises:
            SessionError, PoolFullError, SetupError, TypeError: as in `open` and `step`.
        """
        actions = list(map(_as_told, actions))
        record = await self._begin(row)
        async with record.busy:
            results = [await self._take(record, action) for action in actions]
        self._counts.replayed += 1
        return Replayed(record.number, record.first or "", tuple(results))

    async def close(self, session: int) -> None:
        """End a session. One that is over already, or never was, is no error."""
        if session in self._records:
            await self._drop(self._records[session])

    async def _admit(self, row: Mapping[str, Any]) -> SessionRecord:
        self._check_open()
        try:
            async with asyncio.timeout(self._room_s):
                await self._room.acquire()
        except TimeoutError:
            raise PoolFullError(
                f"found {self._most} sessions of {self.environment!r} open for {self._room_s:g} s, expected room for one more"
            ) from None
        if not self._started:
            self._room.release()
            self._check_open()
        record = SessionRecord(next(self._numbers), row)
        self._records[record.number] = record
        return record

    async def _begin(self, row: Mapping[str, Any]) -> SessionRecord:
        row = dict(row)  # before there is a session: what is no row takes no room
        record = await self._admit(row)
        async with record.busy:
            reply = await self._call(record, {"op": "open", "row": row})
            record.first, record.state, record.begun = reply["observation"], reply["state"], True
        return record

    def _check_open(self) -> None:
        if not self._started:
            raise PoolClosedError(
                "found a closed pool of environments, expected an open one: async with EnvironmentPool(...)"
            )

    def _record(self, session: int) -> SessionRecord:
        self._check_open()
        if session not in self._records:
            raise UnknownSessionError(f"found session {session}, expected one that is open")
        return self._records[session]

    async def _take(self, record: SessionRecord, action: Action) -> StepResult:
        reply = await self._call(record, {"op": "step", "action": action})
        result = StepResult(*(reply[name] for name in _FIELDS))
        record.turns.append((action, result))
        record.state = reply["state"]
        return result

    async def _call(self, record: SessionRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        """Make a call where the session lives; bring it back first if its worker is gone."""
        reason, blame, died = "", 0.0, 0
        try:
            while blame < self._attempts and died < _MOST_DEATHS * self._attempts:
                try:
                    await self._bring_home(record)
                    return await self._ask(record, request)
                except WorkerGoneError as error:
                    reason, died = str(error), died + 1
                    blame += 1 / error.calls if error.calls else 0.0  # which of them ended it, nobody knows
        except LineError as error:
            await self._drop(record)
            raise SessionError(f"the environment {self.environment!r} cannot be told its row: {error}") from error
        except (EnvironmentsError, TypeError, ValueError, asyncio.CancelledError):
            await self._drop(record)  # also of one that was cancelled nobody knows how far it got
            raise
        await self._drop(record)
        self._counts.lost += 1
        raise SessionLostError(f"the worker of {self.environment!r} died {died} times in one call: {reason}")

    async def _ask(self, record: SessionRecord, request: Mapping[str, Any]) -> dict[str, Any]:
        """One call of the session's worker, which has it.

        Raises:
            WorkerGoneError: it went.
            SessionError: the session is over; the subclass says why.
        """
        if record.link is None:
            raise _closed_within(record)
        asking = asyncio.create_task(self._reply(record.link, {**request, "session": record.number}))
        self._asking.add(asking)
        asking.add_done_callback(self._asked)
        reply = await asyncio.shield(asking)  # who is cancelled does not wait, but a call without end is noticed
        if reply.get("kind") == "gone":
            await self._leave(record)
            raise WorkerGoneError(reply["error"], 1)
        return self._said(reply)

    def _said(self, reply: dict[str, Any]) -> dict[str, Any]:
        if "error" in reply:
            if reply["kind"] == "nonsense":
                self._counts.nonsense += 1
                raise NonsenseError(f"the environment {self.environment!r} answered nonsense: {reply['error']}")
            self._counts.raised += 1
            raise RaisedError(f"the environment {self.environment!r} raised {reply['error']}")
        return reply

    async def _reply(self, link: WorkerLink, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await link.ask(request, self._call_s)
        except TimeoutError:
            await self._workers.retire(link)
            self._counts.timeouts += 1
            raise SessionTimeoutError(
                f"the environment {self.environment!r} did not answer {request['op']!r} within {self._call_s:g} s"
            ) from None

    def _asked(self, asking: asyncio.Task[dict[str, Any]]) -> None:
        self._asking.discard(asking)
        if not asking.cancelled():
            asking.exception()  # seen, also where nobody waits any more

    async def _bring_home(self, record: SessionRecord) -> None:
        """Give the session a worker that has it, with every turn so far."""
        if record.at_home:
            return
        self._record(record.number)
        await self._leave(record)
        abilities = self.abilities
        if record.begun and record.state is None and not (abilities.replayable and record.first is not None):
            self._lose(record, "it has neither a snapshot nor `replayable`")
        link = await self._workers.join()
        if record.number not in self._records:  # it was closed meanwhile
            await self._workers.leave(link)
            raise _closed_within(record)
        record.link = link
        if not record.begun:
            return
        if record.state is not None:
            await self._ask(record, {"op": "restore", "state": record.state})
            self._counts.restored += 1
            return
        again = await self._ask(record, {"op": "open", "row": dict(record.row)})
        if again["observation"] != record.first:
            self._lose(
                record, f"played again, it began with {again['observation']!r:.80} instead of {record.first!r:.80}"
            )
        for number, (action, before) in enumerate(record.turns, 1):
            reply = await self._ask(record, {"op": "step", "action": action})
            after = StepResult(*(reply[name] for name in _FIELDS))
            if _told(after) != _told(before):
                self._lose(
                    record, f"played again, it answered turn {number} with {after.observation!r:.80} instead of "
                    f"{before.observation!r:.80}"
                )  # fmt: skip
        self._counts.replayed += 1

    async def _leave(self, record: SessionRecord) -> None:
        """Note that the session's worker, if it has one, has it no longer."""
        left, record.link = record.link, None
        if left is not None:
            await self._workers.leave(left)

    def _lose(self, record: SessionRecord, why: str) -> NoReturn:
        self._counts.lost += 1
        raise SessionLostError(f"session {record.number} of {self.environment!r} is gone, and {why}")

    async def _drop(self, record: SessionRecord) -> None:
        """Forget a session and tell its worker so."""
        if self._records.pop(record.number, None) is None:
            return
        self._room.release()
        link, record.link = record.link, None
        if link is None:
            return
        link.tell({"op": "close", "session": record.number})
        await self._workers.leave(link)


def _closed_within(record: SessionRecord) -> UnknownSessionError:
    return UnknownSessionError(f"found session {record.number} closed within a call, expected it open")


def _as_told(action: Action) -> Action:
    """An action as a worker is told it: text, or a list of token ids."""
    if not isinstance(action, str):
        action = list(map(operator.index, action))
    if len(action) > TEXT_CHARACTERS:
        unit = "characters" if isinstance(action, str) else "tokens"
        raise ActionTooLongError(f"found an action of {len(action):,} {unit}, expected at most {TEXT_CHARACTERS:,}")
    return action


def _told(result: StepResult) -> tuple[object, ...]:
    """What an answer that is given again has to say alike."""
    return result.observation, result.done, result.reward, result.fresh
