"""The environment role: answers turns in sessions of worker processes, and stores each answer before anybody goes on with it.

    Call ──► conversations (data role) ──► its session, held, restored or replayed ──► step ──► observe (data role) ──► Turned
                  └─ answered already: said again                └─ lost ──► CallFailed(lost)      └─ too late: nothing
                                                                    step fails ──► CallFailed
    Close ──► its call is dropped, its session ends

The turns, the answers and a session's last snapshot are in the data role's store, with ids that are never tokenised again. So a
session goes on here that began in a process that is gone: from its snapshot, or by playing its turns again, if the answers are
those that the store has. Everything here belongs to one event loop in one thread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import (
    Call,
    CallFailed,
    Close,
    Command,
    Event,
    FinishReason,
    SessionOrigin,
    SpanKind,
    Turned,
    repeated_tokens,
)
from tailrace.environment import Action, EnvironmentPool, Observation, SessionError, SessionLostError, StepResult
from tailrace.faulttol import FaultKind, strike
from tailrace.pipeline.roles.calls import DATA_DOOR
from tailrace.pipeline.roles.observations import Glue, Observations
from tailrace.pipeline.roles.phase_stops import Stops
from tailrace.pipeline.roles.prompts import beginning_of, session_row
from tailrace.pipeline.roles.role_loop import RoleLoop
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import EnvironmentCalls, Ready
from tailrace.runtime.executor.seam import MemberStart
from tailrace.trajstore import Conversation, Prompt, Turn

TOOL = "tool"
_TURNS_OF_THE_LOOP = 4
"""Until a call that was begun is written to its worker."""
_EVERY_SESSION = (
    1_000_000  # the controller limits how many are at work; a limit of the pool could hold up what it let through
)


@dataclass(slots=True)
class _Session:
    """A session of the pool, and the serial of the turn that it answered last; None before the first."""

    number: int
    answered: int | None


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """Settings of the environments.

    Args:
        environment: see `EnvironmentPool`, as are `options`, `workers`, `call_s`, `python` and `start_s`.
        max_turns: turns that are answered in a trajectory; the answer to the last one ends it.
        max_tokens: most response tokens, answers included but for what contexts repeat (`repeated_tokens`). An answer that
            leaves no token for the next turn ends its trajectory, as the end of the context does; one that fits no response
            at all fails its group.
        tokenizer, stop_token_ids, glue: see `Observations`.
    """

    environment: str
    options: Mapping[str, Any]
    workers: int
    call_s: float
    max_turns: int
    max_tokens: int
    tokenizer: Path
    stop_token_ids: Sequence[int]
    glue: Glue | None = None
    python: str = ""
    start_s: float = 60.0


class EnvironmentRole:
    """Answers the turns of trajectories."""

    def __init__(self, settings: EnvironmentSettings, start: MemberStart) -> None:
        self._data = DATA_DOOR.open(start.data, start.data_s)
        self._name, self._max_turns, self._max_tokens = settings.environment, settings.max_turns, settings.max_tokens
        self._observations = Observations(settings.tokenizer, settings.stop_token_ids, settings.glue)
        self._pool = EnvironmentPool(
            settings.environment,
            settings.options,
            workers=settings.workers,
            sessions=_EVERY_SESSION,
            call_s=settings.call_s,
            python=settings.python,
            start_s=settings.start_s,
        )
        self.stops = Stops()
        self._faults = ToolFaults(self._pool, self.stops)
        self._loop = RoleLoop("environments")
        self._sessions: dict[str, _Session] = {}
        self._calls: dict[str, tuple[int, asyncio.Task[None]]] = {}
        self._told = {SessionOrigin.RESTORED: 0, SessionOrigin.REPLAYED: 0}
        self._loop.start(self._serve)  # starting workers has a deadline of its own

    def ready(self) -> Ready:
        """Returns once the workers are up."""
        return Ready()

    def submit(self, commands: Sequence[Command]) -> None:
        """Answer the trajectories of each `Call`, and end the sessions of each `Close`."""
        for command in commands:
            if not isinstance(command, Call | Close):
                raise RoleError(f"an environment got {type(command).__name__} {command.seq}, expected Call or Close")
        self._loop.post(self._take, tuple(commands))

    def events(self, timeout_s: float) -> list[Event]:
        """Answers since the last call; waits up to `timeout_s` seconds for one."""
        return self._loop.events(timeout_s)

    def adopt(self) -> None:
        """Prepare for another controller: end the last one's sessions."""
        self.stops.forget()
        self._faults.forget()
        self._loop.adopt(self._forget)

    def stop_at(self, phase: str, timeout_s: float) -> bool:
        """See `Stops.stop_at`."""
        return self.stops.stop_at(phase, timeout_s)

    def strike_worker(self, how: tuple[FaultKind, str], timeout_s: float) -> bool:
        """See `ToolFaults.strike_worker`; `how` is the kind and the phase."""
        return self._faults.strike_worker(*how, timeout_s)

    def close(self) -> None:
        """End the sessions and the workers."""
        self.stops.close()
        self._loop.close()

    # ---- in the loop's thread ---------------------------------------------------------------------------------------

    async def _serve(self, up: Callable[[], None]) -> None:
        async with self._pool:
            up()
            await self._loop.closing.wait()
            await self._forget()

    def _take(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if isinstance(command, Call):
                for name in command.trajectories:
                    self._calls[name] = (command.seq, self._loop.task(self._answer(name, command.seq)))
            elif isinstance(command, Close):
                for name in command.trajectories:
                    self._end(name)

    def _end(self, name: str) -> None:
        call, session = self._calls.pop(name, None), self._sessions.pop(name, None)
        if call is not None:
            call[1].cancel()
        if session is not None:
            self._loop.task(self._pool.close(session.number))

    async def _forget(self) -> None:
        for name in {*self._calls, *self._sessions}:
            self._end(name)

    # ---- one call -------------------------------------------------------------------------------------------------

    async def _answer(self, name: str, seq: int) -> None:
        """Answer the last turn of a trajectory and say so, or why not."""
        event: Turned | CallFailed | None = None
        try:
            found = await asyncio.to_thread(self._data.conversations, [name])
            for talk, prompt, begun in found:
                event = await self._turned(talk, prompt, begun, seq)
        except SessionLostError as error:
            event = CallFailed(name, str(error), seq, lost=True)
        except SessionError as error:
            event = CallFailed(name, str(error), seq)
        if self._calls.get(name, (0,))[0] != seq:
            return  # it was closed meanwhile
        del self._calls[name]
        over = event is None or isinstance(event, CallFailed) or event.done
        session = self._sessions.pop(name, None) if over else None
        if session is not None:
            await self._pool.close(session.number)
        if event is not None:  # otherwise it was dropped, and a `Close` follows
            self._loop.queue.put(event)

    async def _turned(self, talk: Conversation, prompt: Prompt, begun: str, seq: int) -> Turned | None:
        turn = talk.turns[-1]
        if turn.observation is not None:  # a process that is gone has answered, and could not say so
            return self._event(talk.trajectory, turn, 0.0, seq)
        session = await self._session(talk, prompt, begun)
        began_s = time.monotonic()
        result = await self._faults.step(session.number, self._action(turn, begun))
        seconds = time.monotonic() - began_s
        session.answered = turn.serial
        tokens, finish = self._fitted(talk, prompt, result)
        state = None if finish else await self._pool.snapshot(session.number)
        stored = await asyncio.to_thread(
            self._data.observe, talk.trajectory, turn.serial, tokens, finish, result.reward, state, result.fresh
        )
        if stored is None:
            return None
        same = (stored.observation, stored.fresh) == (tokens, result.fresh and not finish)
        if not same and self._sessions.pop(talk.trajectory, None) is session:
            await self._pool.close(session.number)  # a member that was given up was first, and its answer stays
        return self._event(talk.trajectory, stored, seconds, seq)

    def _fitted(
        self, talk: Conversation, prompt: Prompt, result: StepResult
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        """The tokens of an answer, and why it ends its trajectory; None if it does not.

        Raises:
            SessionError: no response has room for so many tokens.
        """
        turn = talk.turns[-1]
        if result.done:
            return (), FinishReason.STOP
        if turn.number >= self._max_turns:
            return (), FinishReason.LENGTH
        tokens = self._observations.tokens(result.observation, prompt.prompt)
        before = _repeated(talk)
        repeated = _repeated(talk, tokens) if result.fresh else before
        new = len(tokens) - (repeated - before)
        if new >= self._max_tokens:
            raise SessionError(
                f"the environment {self._name!r} answered with {new:,} tokens, expected fewer than the "
                f"{self._max_tokens:,} of a response"
            )
        if not tokens:
            raise SessionError(
                f"the environment {self._name!r} answered turn {turn.number} with nothing, expected an observation or `done`"
            )
        full = turn.start + len(turn.response) + len(tokens) - repeated >= self._max_tokens
        return ((), FinishReason.LENGTH) if full else (tokens, None)

    async def _session(self, talk: Conversation, prompt: Prompt, begun: str) -> _Session:
        """The session that has answered all turns but the last: held, restored, replayed or, for the first turn, begun.

        Raises:
            SessionLostError: it is gone and cannot be had again.
            SessionError: it cannot begin.
        """
        name, before = talk.trajectory, talk.turns[:-1]
        last = before[-1].serial if before else None
        session = self._sessions.get(name)
        if session is not None and session.answered == last:
            return session
        if session is not None:  # its trajectory has begun anew, or another answer than its own stays
            del self._sessions[name]
            await self._pool.close(session.number)
        row = session_row(prompt, name)
        number = await self._again(talk, prompt, begun, row) if before else await self._begin(prompt, row)
        session = self._sessions[name] = _Session(number, last)
        return session

    async def _begin(self, prompt: Prompt, row: Mapping[str, Any]) -> int:
        opened = await self._pool.open(row)
        unread = self._unread(prompt, opened.observation)
        if unread:
            await self._pool.close(opened.session)
            raise SessionError(unread)
        return opened.session

    def _unread(self, prompt: Prompt, observation: Observation) -> str:
        """Why the model has not read what a session began with; empty if it has."""
        said, first = f"the environment {self._name!r} began with {observation!r:.80}", beginning_of(prompt)
        if first is not None:
            same = first.same(observation)
            return (
                "" if same else f"{said}, and the model has read {first.observation!r:.80}: expected the same each time"
            )
        read = not observation or (isinstance(observation, str) and observation in prompt.prompt)
        return "" if read else f"{said}, which the model has not read: expected the row's prompt to say it"

    async def _again(self, talk: Conversation, prompt: Prompt, begun: str, row: Mapping[str, Any]) -> int:
        before = talk.turns[:-1]
        if talk.session is not None and talk.session_serial == before[-1].serial:
            return await self._pool.restore(row, talk.session)
        if not self._pool.abilities.replayable:
            raise SessionLostError(
                f"the session of {talk.trajectory} was lost with its member, and the environment {self._name!r} has neither a "
                "snapshot of it nor `replayable`"
            )
        replayed = await self._pool.replay(row, [self._action(turn, begun) for turn in before])
        unread = self._unread(prompt, replayed.observation)
        if unread:
            await self._pool.close(replayed.session)
            raise SessionLostError(f"{talk.trajectory} was played again, and {unread}")
        for turn, result in zip(before, replayed.results, strict=True):
            again = self._observations.tokens(result.observation, prompt.prompt)
            if (again, result.fresh) != (turn.observation, turn.fresh):
                await self._pool.close(replayed.session)
                raise SessionLostError(
                    f"{talk.trajectory}, played again, was answered {result.observation!r:.80} to turn {turn.number}, which is "
                    "not what the store has"
                )
        return replayed.session

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _action(self, turn: Turn, begun: str) -> Action:
        """What a turn says to the environment: the first one with the text with which it was made to begin (a control)."""
        forced = begun if turn.number == 1 else ""
        return self._observations.said(turn.response, forced, tokenized=self._pool.abilities.tokenized)

    def _event(self, name: str, turn: Turn, seconds: float, seq: int) -> Turned:
        tokens = turn.start + len(turn.response) + len(turn.observation or ())
        reason = turn.finish or FinishReason.STOP
        return Turned(name, turn.number, tokens, turn.done, round(seconds, 4), seq, self._origin(), reason)

    def _origin(self) -> SessionOrigin:
        """Where a session was had from, counted by the pool, which also brings back those of its own dead workers.

        Several calls are under way at once, so that the sum is right, and which of them it was is not always.
        """
        counts = self._pool.counts
        for origin, count in ((SessionOrigin.RESTORED, counts.restored), (SessionOrigin.REPLAYED, counts.replayed)):
            if count > self._told[origin]:
                self._told[origin] += 1
                return origin
        return SessionOrigin.HELD


class ToolFaults:
    """Makes an environment's calls, and is struck in the middle of one if a fault says so.

    Args:
        pool: the sessions.
        stops: where the member stops.
    """

    def __init__(self, pool: EnvironmentPool, stops: Stops) -> None:
        self._pool, self._stops = pool, stops
        self._changed = threading.Condition()
        self._kind: FaultKind | None = None

    def strike_worker(self, kind: FaultKind, phase: str, timeout_s: float) -> bool:
        """Kill or stop a worker process: at once, or the one of the next call. Returns whether that was done in time."""
        if not phase:
            return any(strike(pid, kind) for pid in self._pool.pids[:1])
        with self._changed:
            self._kind = kind
            return self._changed.wait_for(lambda: self._kind is None, timeout_s)

    def forget(self) -> None:
        """Strike no worker: another controller takes over."""
        with self._changed:
            self._kind = None

    async def step(self, session: int, action: Action) -> StepResult:
        """What `EnvironmentPool.step` answers."""
        if self._kind is None and not self._stops.wanted(TOOL):
            return await self._pool.step(session, action)
        call = asyncio.create_task(self._pool.step(session, action))
        try:
            for _ in range(_TURNS_OF_THE_LOOP):
                await asyncio.sleep(0)
            self._strike_worker_of(session)
            if self._stops.wanted(TOOL):
                await asyncio.to_thread(self._stops.at, TOOL)
            return await call
        finally:
            call.cancel()  # nothing if it has ended

    def _strike_worker_of(self, session: int) -> None:
        pid = self._pool.worker_in_call(session)
        with self._changed:
            if self._kind is not None and pid is not None and strike(pid, self._kind):
                self._kind = None
                self._changed.notify_all()


def _repeated(talk: Conversation, begins: Sequence[int] = ()) -> int:
    """Response tokens of a conversation that its contexts repeat, with those of one that is to begin with these tokens."""
    parts: list[tuple[Sequence[int], int]] = []
    for turn in talk.turns:
        parts.append((turn.response, SpanKind.GENERATED))
        if turn.observation is not None:
            parts.append((turn.observation, SpanKind.FRESH if turn.fresh else SpanKind.OBSERVATION))
    return repeated_tokens(talk.prompt, [*parts, (begins, SpanKind.FRESH)])


if TYPE_CHECKING:
    _: type[EnvironmentCalls] = EnvironmentRole  # mypy checks it here
