"""What crosses a host, in types: what the executor asks of each role, and callers that a type checker sees through.

    another member ── data.consume(ids, version) ──► RoleDoor ──► Caller ──► the role ──► its answer, checked by the protocol
    executor ──────── ask(member, TrainerCalls.adopt, held) ─► Mailbox ──► the role ──► its answer, as it is

A mailbox checks what its role answers `ready` and `events` with; what else the executor asks is typed and not checked.
What roles ask of each other stands beside the roles, in protocols that inherit those here. Each role's class is checked against
its protocol in its own file. Arguments of calls are positional.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from tailrace.contracts import Command, Event, HeldWeights
from tailrace.faulttol import FaultKind
from tailrace.runtime.errors import AnswerError
from tailrace.runtime.executor.seam import Answer, Caller, Member

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Ready:
    """What a role says of itself once it serves; these are fields of its `Up` event.

    Args:
        version: for the trainer, the version of the weights that it loaded.
        address: for a relay, and a replica that offers what it serves, where others reach it.
        held: for the data role, the finished trajectories in its store.
        partial: for the data role, the unfinished ones, each with its version and its number of response tokens.
        took: seconds of the stages of its start, which its mailbox fills in.
        notes: what it serves otherwise than its settings say, and why, a line each.
    """

    version: int | None = None
    address: str = ""
    held: tuple[str, ...] = ()
    partial: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    took: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Role(Protocol):
    """What every role answers to the executor: scorer and ranker have no more."""

    def ready(self) -> Ready:
        """Return once the role serves."""
        ...

    def submit(self, commands: Sequence[Command], /) -> None:
        """Take commands, in order, and return at once."""
        ...

    def events(self, timeout_s: float, /) -> list[Event]:
        """The events since the last call; waits up to `timeout_s` seconds for the first."""
        ...

    def adopt(self) -> None:
        """Prepare for another controller, which numbers its commands anew."""
        ...

    def close(self) -> None:
        """Clean up."""
        ...


class StopCalls(Role, Protocol):
    """A role that stops in its phases, so that a scripted fault strikes it there."""

    def stop_at(self, phase: str, timeout_s: float, /) -> bool:
        """Have the member stop in a phase. Returns whether it waits there within `timeout_s` seconds."""
        ...


class PhaseStops(Protocol):
    """Where a role stops in its phases."""

    def struck(self, kind: FaultKind, /) -> bool:
        """The fault has struck. Returns whether a thread of the role waited for it in a phase, and goes on."""
        ...


@runtime_checkable
class HasStops(Protocol):
    """A role that stops in its phases, as its mailbox sees it."""

    stops: PhaseStops


@runtime_checkable
class StrikesItself(Protocol):
    """A role that carries out faults inside itself."""

    def strike(self, kind: FaultKind, /) -> bool:
        """Inject a fault. Returns whether that was done; it is not, where the fault concerns the whole process."""
        ...


class TrainerCalls(StopCalls, Protocol):
    """One rank of the trainer."""

    def ready(self, version: int | None = None, stops: bool = False, weights: HeldWeights | None = None, /) -> Ready:
        """Load the checkpoint of a version; None for the model that the run began with. `stops` before it is loaded.

        With `weights` the parameters are those, and the rest is the checkpoint's.
        """
        ...

    def adopt(self, held: Path | None = None, /) -> None:
        """Prepare for another controller; the weights of the directory `held` are published from then on (for controls)."""
        ...


class EnvironmentCalls(StopCalls, Protocol):
    """The sessions of an environment."""

    def strike_worker(self, how: tuple[FaultKind, str], timeout_s: float, /) -> bool:
        """Kill or stop a worker process, in a phase if one is named. Returns whether that was done in time."""
        ...


class StoreCalls(Role, Protocol):
    """The data role. What other roles ask of it is theirs to say."""

    def ready(self, version: int | None = None, /) -> Ready:
        """Roll back to the state at a version of the trainer; None for what was stored last."""
        ...


class Mail(Protocol):
    """What a member's `Mailbox` answers in place of its role."""

    def events(self, timeout_s: float, told: int, logged: int, /) -> tuple[int, list[Event]]:
        """The number of the last event, and the events after number `told`; those up to `logged` are forgotten."""
        ...


def ask(member: Member, method: Callable[Concatenate[Any, P], object], *arguments: P.args, **none: P.kwargs) -> Answer:
    """Call a method of a member's role. It is given as its protocol's, so that its name and arguments are checked."""
    del none  # the protocols' arguments are positional
    return member.call(method.__name__, *arguments)


class RoleDoor(Generic[T]):
    """Makes typed callers of one role: they have the methods of its protocol.

    Args:
        role: its name, for errors.
        protocol: the protocol.
    """

    def __init__(self, role: str, protocol: type) -> None:
        names = [name for base in protocol.__mro__ for name in vars(base) if not name.startswith("_")]
        methods = {name: _remote(role, getattr(protocol, name)) for name in names}
        self._made = type(f"{protocol.__name__}Caller", (_Remote,), methods)

    def open(self, caller: Caller, timeout_s: float = 60.0) -> T:
        """A caller of a member. Each call raises what `Caller.call` does within `timeout_s` seconds, and `AnswerError`."""
        return cast(T, self._made(caller, timeout_s))


class _Remote:
    def __init__(self, caller: Caller, timeout_s: float) -> None:
        self.caller, self.timeout_s = caller, timeout_s


def _remote(role: str, method: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    def call(self: _Remote, *arguments: Any) -> Any:
        return checked(role, method, self.caller.call(name, *arguments, timeout_s=self.timeout_s))

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def checked(role: str, method: Callable[..., T], answer: object) -> T:
    """A role's answer to a method of its protocol, if it is of the protocol's type.

    Raises:
        AnswerError: it is not. The message names the role and the method.
    """
    if not _answers(method)(answer):
        wanted = method.__annotations__["return"]
        found = f"{reprlib.repr(answer)} of type {type(answer).__name__}"
        raise AnswerError(f"{role} answered {method.__name__} with {found}, expected {wanted}")
    return cast(T, answer)


@cache
def _answers(method: Callable[..., Any]) -> Callable[[object], bool]:
    return _fits(get_type_hints(method, localns=_TypesOf(method))["return"])


class _TypesOf(dict[str, Any]):
    """Names in the hints of a protocol's method, but for those of its module: what `__getattr__` of the module finds.

    So a member that never makes a call need not import the type of its answer.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        super().__init__()
        self._module = sys.modules[method.__module__]

    def __missing__(self, name: str) -> Any:
        try:
            return getattr(self._module, name)
        except AttributeError:
            raise KeyError(name) from None  # one of the interpreter's


def _fits(hint: Any) -> Callable[[Any], bool]:
    """Whether a value is of a type: collections with all that is in them, classes as `isinstance` says."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return lambda _: True
    if origin in (Union, UnionType):
        if all(isinstance(each, type) for each in inner):
            return lambda value: isinstance(value, inner)
        parts = [_fits(each) for each in inner]
        return lambda value: any(fits(value) for fits in parts)
    if origin is list:
        each = _fits(inner[0])
        return lambda value: isinstance(value, list) and all(map(each, value))
    if origin is tuple:
        parts = [_fits(part) for part in inner]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(parts)
            and all(fits(part) for fits, part in zip(parts, value, strict=True))
        )
    if origin is not None and issubclass(origin, Mapping):
        key, one = _fits(inner[0]), _fits(inner[1])
        return lambda value: isinstance(value, origin) and all(key(name) and one(got) for name, got in value.items())
    kind = NoneType if hint is None else (int, float) if hint is float else hint
    return lambda value: isinstance(value, kind)
