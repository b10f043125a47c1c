"""Actors that have names: role, id and incarnation. A successor has the next one, and is never mistaken for the dead."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tailrace.contracts import extra
from tailrace.faulttol.errors import LateAnswerError, MemberGoneError

LOOK_AHEAD = 8
"""How many incarnations a search by names looks at. A caller that has missed more finds the newest in Ray's list of actors."""


def actor_name(run: str, role: str, id_: str, incarnation: int) -> str:
    """The name of an actor."""
    return f"{run}/{role}-{id_}-{incarnation}"


class NamedActors:
    """Starts, finds and ends the actors of a run, from any process of the cluster. Ray is joined before.

    Args:
        run: the first part of their names; actors of two runs do not meet.
        detached: whether they outlive the process that starts them; then `run` is also their namespace.
    """

    def __init__(self, run: str, *, detached: bool = False) -> None:
        self.run, self._detached = run, detached

    def options(self, role: str, id_: str, incarnation: int) -> dict[str, Any]:
        """Ray's options that make an actor one of these. It is not restarted by Ray: a policy decides."""
        found: dict[str, Any] = {"name": actor_name(self.run, role, id_, incarnation), "max_restarts": 0}
        return found | {"lifetime": "detached", "namespace": self.run} if self._detached else found

    def start(self, worker: Any, options: Mapping[str, Any], *arguments: Any, **named: Any) -> Any:
        """Start an actor. Returns Ray's handle at once.

        Args:
            worker: its class.
            options: `options` of it, and others of Ray's.
            arguments, named: of the class.

        Raises:
            MissingExtraError: Ray is not installed.
        """
        ray = _ray()
        actor = worker if hasattr(worker, "remote") else ray.remote(worker)
        return actor.options(**options).remote(*arguments, **named)

    def find(self, role: str, id_: str, incarnation: int) -> Any | None:
        """Ray's handle of an actor; None if it does not live."""
        try:
            return _ray().get_actor(
                actor_name(self.run, role, id_, incarnation), namespace=self.run if self._detached else None
            )
        except ValueError:
            return None

    def newest(self, role: str, id_: str, after: int = 0, *, listed: bool = False) -> tuple[int, Any] | None:
        """The newest incarnation that lives, and Ray's handle of it; None if none does.

        Args:
            role, id_: whose.
            after: an incarnation that is gone, and all before it.
            listed: look among all actors that Ray lists, and not among the next `LOOK_AHEAD` incarnations alone.
        """
        following = range(after + 1, after + 1 + LOOK_AHEAD)
        for incarnation in reversed(self._listed(role, id_, after) if listed else following):
            actor = self.find(role, id_, incarnation)
            if actor is not None:
                return incarnation, actor
        return None

    def _listed(self, role: str, id_: str, after: int) -> list[int]:
        """The incarnations that Ray lists, rising."""
        names = _ray().util.list_named_actors(all_namespaces=self._detached)
        if self._detached:
            names = [found["name"] for found in names if found["namespace"] == self.run]
        beginning = actor_name(self.run, role, id_, 0)[:-1]
        numbers = [name.removeprefix(beginning) for name in names if name.startswith(beginning)]
        return sorted(number for number in map(int, filter(str.isdecimal, numbers)) if number > after)

    def end(self, actor: Any) -> None:
        """End an actor without cleaning up."""
        _ray().kill(actor, no_restart=True)

    def replace(self, actor: Any, role: str, id_: str, incarnation: int, timeout_s: float = 30.0) -> None:
        """End an actor without cleaning up, and wait until another may have its name.

        Raises:
            LateAnswerError: Ray still has it after `timeout_s`.
        """
        self.end(actor)
        deadline = time.monotonic() + timeout_s
        while self.find(role, id_, incarnation) is not None:
            if time.monotonic() > deadline:
                name = actor_name(self.run, role, id_, incarnation)
                raise LateAnswerError(f"{name} was ended, and Ray has not given its name up within {timeout_s:.0f} s")
            time.sleep(_GIVEN_UP_S)

    def end_all(self) -> None:
        """End all detached actors of the run: they outlive whoever started them."""
        ray = _ray()
        for found in ray.util.list_named_actors(all_namespaces=True):
            if found["namespace"] == self.run:
                with suppress(ValueError):  # it has just ended
                    self.end(ray.get_actor(found["name"], namespace=self.run))

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (self.run, self._detached)


def _named(run: str, detached: bool) -> NamedActors:
    return NamedActors(run, detached=detached)


def _ray() -> Any:
    with extra("tailrace-faulttol", "ray"):
        import ray
    return ray


_RETRY_S = 0.1
_LIST_EVERY, _LIST_AT = 20, 5  # misses in a row: listing costs Ray more than asking for a name
_GIVEN_UP_S = 0.02


class NamedCaller:
    """Calls the newest incarnation of a member, from any process of the cluster, and waits for the result.

    It can be pickled, and threads may share it.

    Args:
        actors: the run's actors.
        role: the member's role.
        id_: the member's id.
        before: an incarnation that is gone; later ones are looked for.
    """

    def __init__(self, actors: NamedActors, role: str, id_: str = "0", before: int = 0) -> None:
        self._actors, self._role, self._id = actors, role, id_
        self._lock = threading.Lock()
        self._known: tuple[int, Any] = (before, None)  # the newest incarnation; without an actor it is gone
        self._misses = 0

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result; if the member is gone, its next incarnation is looked for.

        A call whose answer was lost with the member is made again, so it must bear that.

        Raises:
            MemberGoneError: it is gone, and no successor came within `timeout_s`.
            LateAnswerError: it did not answer within `timeout_s`.
        """
        import ray

        deadline = time.monotonic() + timeout_s
        while True:
            called = None
            try:
                called = self._newest()
                answer = self.send(called[1], method, arguments)
                found = ray.get(answer, timeout=max(0.01, deadline - time.monotonic()))
                self._misses = 0
                return found
            except ray.exceptions.GetTimeoutError as error:
                raise LateAnswerError(f"{self}: {method} did not return within {timeout_s:.0f} s") from error
            except (ray.exceptions.RayActorError, MemberGoneError) as error:
                self._missed(called, gone=not isinstance(error, ray.exceptions.ActorUnavailableError))
                if time.monotonic() + _RETRY_S > deadline:
                    raise MemberGoneError(f"{self} is gone, and no successor came within {timeout_s:.0f} s") from error
                time.sleep(_RETRY_S)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error

    def send(self, actor: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Begin a call. Returns Ray's reference of its result."""
        return getattr(actor, method).remote(*arguments)

    def _newest(self) -> tuple[int, Any]:
        """The newest incarnation, after the one that is gone."""
        incarnation, actor = self._known
        if actor is None:
            found = self._actors.newest(
                self._role, self._id, incarnation, listed=self._misses % _LIST_EVERY == _LIST_AT
            )
            with self._lock:
                if found is not None and found[0] > self._known[0]:
                    self._known = found
        known = self._known
        if known[1] is None:
            raise MemberGoneError(f"{self} is not there")
        return known

    def _missed(self, called: tuple[int, Any] | None, *, gone: bool) -> None:
        """A call failed. Another thread may have found a newer incarnation meanwhile: that one is not gone.

        Args:
            called: whom; None if nobody was found.
            gone: whether it is; else it could not be reached, and may be again.
        """
        with self._lock:
            self._misses += 1
            if called is not None and called is self._known:
                self._known = (called[0] if gone else called[0] - 1, None)

    def __str__(self) -> str:
        return f"{self._role} {self._id}"

    def __reduce__(self) -> tuple[Any, ...]:
        incarnation, actor = self._known
        return type(self), (self._actors, self._role, self._id, incarnation if actor is None else incarnation - 1)
