"""The seam between the executor and its hosts: where members live, how they are called, and what time it is.

Every role offers the same five methods, on every host:

    ready(...)         answers once it serves, with fields of its `Up` event
    submit(commands)   takes commands, in order, and returns at once
    events(timeout_s)  what happened since the last call; waits that long for something. Its answer is the heartbeat
    adopt(...)         another controller takes over, which numbers its commands anew
    close()            tidies up
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tailrace.contracts import Place
from tailrace.faulttol import FaultKind
from tailrace.pipeline.errors import RoleError


class MemberDeadError(RoleError):
    """A member is gone: its process died or was killed."""


class Answer(Protocol):
    """The result of a call, sooner or later. A `concurrent.futures.Future` is one."""

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        """Call this once it is there, at once if it is."""
        ...

    def cancelled(self) -> bool:
        """Whether it will never come, since its member was killed before it got to it."""
        ...

    def exception(self) -> BaseException | None:
        """The error that it ended with."""
        ...

    def result(self) -> Any:
        """The result. Raises the error that it ended with."""
        ...


class Caller(Protocol):
    """A member as another member calls it: by name, so that a restarted one is found again. Picklable among processes."""

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result. Where the member is gone, it is looked for again until `timeout_s`.

        Raises:
            MemberDeadError: it was not there again within `timeout_s`.
            DeadlineError: no answer within `timeout_s`.
        """
        ...


class Member(Protocol):
    """One running role."""

    @property
    def pid(self) -> int | None:
        """Its process, None before it is ready."""
        ...

    @property
    def machine(self) -> str:
        """The machine that it runs on, empty before it is ready."""
        ...

    def call(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the role. The answer is a `MemberDeadError` when the member is gone."""
        ...

    def strike(self, kind: FaultKind) -> None:
        """Injure it as a script says."""
        ...

    def kill(self) -> None:
        """End it now, without a chance to tidy up."""
        ...

    def close(self, timeout_s: float) -> None:
        """Let it tidy up, then end it."""
        ...


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How one role is started: ``factory(**arguments)`` on a machine.

    Args:
        cpus: share of CPU cores, for scheduling only.
        gpus: GPUs.
        environment: environment variables of its process.
    """

    factory: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    cpus: float = 0.0
    gpus: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)


class HostTime(Protocol):
    """The clock of a host, and what wakes the executor.

    `now` shows seconds on the run's clock.
    """

    def now(self) -> float:
        """Seconds on the run's clock, never decreasing."""
        ...

    def wake(self, number: int) -> None:
        """The answer with this number is there. Called from any thread."""
        ...

    def wait(self, until_s: float) -> Sequence[int]:
        """Numbers of answers that came, all of one instant together; none at `until_s`."""
        ...


class Host(Protocol):
    """Starts members, carries calls, owns the clock.

    `poll_s` is how long a member may keep the question for its events before it answers with none, `tick_s` the time between
    two ticks of the executor.
    """

    poll_s: float
    tick_s: float

    @property
    def time(self) -> HostTime:
        """The clock."""
        ...

    def spawn(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> Member:
        """Start a member. Returns at once; its first call waits for the start."""
        ...

    def caller(self, role: str, id_: str = "0") -> Caller:
        """A member, for other members and for the driver."""
        ...

    def close(self) -> None:
        """End whatever is left."""
        ...


class _Done:
    """Over already, with no result."""

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        call(self)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> BaseException | None:
        return None

    def result(self) -> Any:
        return None


DONE: Answer = _Done()
"""The answer of a host on which a command has arrived as soon as it is given."""
