"""The Ray host: members are actors, on this machine or across a cluster. Ray carries control; weights go through relays."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from tailrace.faulttol import FaultKind, strike
from tailrace.pipeline.errors import DeadlineError, PipelineError
from tailrace.pipeline.executors.host import MemberDeadError, Placement

_THREADS_PER_MEMBER = 8


class RayAddressError(PipelineError, ConnectionError):
    """No Ray cluster answers at the address."""


class _RoleActor:
    """A role in a process of its own."""

    def __init__(self, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        self._role = factory(**arguments)

    def where(self) -> tuple[str, int]:
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def call(self, method: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self._role, method)(*arguments)


class RayMember:
    """An actor."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name = name
        self._actor = actor
        self._node: str | None = None
        self._pid: int | None = None
        self._killed = False
        _translated(self._actor.where.remote(), name).add_done_callback(self._remember)

    @property
    def pid(self) -> int | None:
        """The actor's process, once it is up."""
        return self._pid

    @property
    def node(self) -> str | None:
        """Ray's id of its machine, once it is up."""
        return self._node

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of the role."""
        return _translated(self._actor.call.remote(method, arguments), self._name)

    def caller(self) -> RayCaller:
        """The member for other members."""
        return RayCaller(self._name, self._actor)

    def kill(self) -> None:
        """SIGKILL to the process where it is on this machine, else through Ray."""
        import ray

        self._killed = True
        if self._pid is not None and self._node == ray.get_runtime_context().get_node_id():
            strike(self._pid, FaultKind.KILL)
        else:
            ray.kill(self._actor, no_restart=True)

    def close(self, timeout_s: float) -> None:
        """Call the role's `close`, then end the actor."""
        import ray

        if self._killed:
            return
        try:
            ray.get(self._actor.call.remote("close", ()), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(f"{self._name} did not close within {timeout_s:.0f} s") from error
        except ray.exceptions.RayActorError:
            return
        ray.kill(self._actor, no_restart=True)

    def _remember(self, future: Future[Any]) -> None:
        if not future.exception():
            self._node, self._pid = future.result()


class RayCaller:
    """Calls an actor from any process and waits."""

    def __init__(self, name: str, actor: Any) -> None:
        self._name = name
        self._actor = actor

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call and wait."""
        import ray

        try:
            return ray.get(self._actor.call.remote(method, arguments), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(f"{self._name}.{method} did not return within {timeout_s:.0f} s") from error
        except ray.exceptions.RayActorError as error:
            raise MemberDeadError(f"{self._name} is gone") from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error


class RayHost:
    """Starts members as actors.

    Args:
        address: ``None`` starts a cluster on this machine that ends with this process; ``"auto"`` or ``"host:port"`` joins one.
        cpus: logical CPUs of a cluster that is started here.
    """

    def __init__(self, address: str | None = None, *, cpus: int = 64) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if address is None:
            # Under `uv run` Ray would start each worker through uv again: seconds each, for the environment that is here.
            # It reads this when it is imported.
            os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        import ray

        self._ray = ray
        options: dict[str, Any] = {
            "log_to_driver": False,
            "logging_level": logging.ERROR,
            "configure_logging": True,
            "include_dashboard": False,
            "ignore_reinit_error": True,
        }
        if address is None:
            options |= {"num_cpus": cpus, "_node_ip_address": "127.0.0.1"}
        else:
            options["address"] = address
            del options["include_dashboard"]
        try:
            ray.init(**options)
            # the raylet's words on a worker that died: the executor reports it, in one line
            logging.getLogger("ray._private.worker").setLevel(logging.CRITICAL)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise RayAddressError(
                f"ray address {address!r}: no cluster answers there ({first}); start one with `ray start --head`"
            ) from error

    def spawn(
        self, name: str, factory: Callable[..., Any], arguments: Mapping[str, Any], placement: Placement
    ) -> RayMember:
        """Start an actor."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options: dict[str, Any] = {
            "num_cpus": placement.cpus,
            "num_gpus": placement.gpus,
            "max_concurrency": _THREADS_PER_MEMBER,
            "max_restarts": 0,
        }
        if placement.node is not None:
            alive = sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"])
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                alive[placement.node % len(alive)], soft=True
            )
        if placement.environment:
            options["runtime_env"] = {"env_vars": dict(placement.environment)}
        actor = self._ray.remote(_RoleActor).options(**options).remote(factory, dict(arguments))
        return RayMember(name, actor)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        self._ray.shutdown()


def _cause(error: BaseException) -> str:
    """The line of Ray's account that says why: the last of a traceback, the first otherwise; without colours."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if any("Traceback" in line or "Error" in line for line in lines[1:]) else lines[0]


def _translated(ref: Any, name: str) -> Future[Any]:
    """A Ray result as a future whose exceptions are ours."""
    import ray

    out: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            out.set_result(done.result())
        elif isinstance(error, ray.exceptions.RayTaskError):
            out.set_exception(error.cause)
        elif isinstance(error, ray.exceptions.RayActorError):
            out.set_exception(MemberDeadError(f"{name} is gone: {_cause(error)}"))
        else:
            out.set_exception(error)

    ref.future().add_done_callback(settle)
    return out
