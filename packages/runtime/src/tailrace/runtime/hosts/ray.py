"""The Ray host: members are actors, on this machine or across a cluster. Ray carries control; weights go through relays."""

from __future__ import annotations

import atexit
import logging
import math
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tailrace.contracts import Place, ProcessSeat, extra
from tailrace.controller.errors import PipelineError
from tailrace.faulttol import FaultKind, strike
from tailrace.faulttol.elastic import NamedActors, cause_of_death
from tailrace.processes import ProcessId
from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.seam import Bundle, MachineDeadError, MemberDeadError, RoleSpec
from tailrace.runtime.hosts import ray_session
from tailrace.runtime.hosts.ray_actor import RayCaller, RoleActor
from tailrace.runtime.hosts.ray_cluster import RayCluster
from tailrace.runtime.hosts.ray_machines import ClusterMachines, RayMachine
from tailrace.runtime.hosts.ray_options import check_own, environment, options, own_cluster
from tailrace.runtime.hosts.ray_placement import (
    Needs,
    PlacementGroups,
    excluded,
    labelled_sites,
    labels_of,
    machines_at,
    room_elsewhere,
)
from tailrace.runtime.hosts.ray_session import own_signals
from tailrace.runtime.hosts.real_time import OwnProcess, RealTime

_log = logging.getLogger(__name__)

_THREADS_PER_MEMBER = 8
_CONTROL, _THREADS_OF_CONTROL = "control", 4  # heartbeats and commands do not wait for a thread behind what members ask
_FIRST = 1  # incarnation
_CLAIM_S = 10.0
LEAVE_S = 60.0
"""Seconds for Ray to let go of a controller's process."""


class RayAddressError(PipelineError, ConnectionError):
    """No Ray cluster answers at the address."""


class RayMember:
    """A handle of a member that is an actor.

    Args:
        name: the member's name, for messages.
        actor: Ray's handle.
        logs: the directory of the cluster's logs, if it is on this machine.
        epoch: of the controller that calls.
        machines: the run's own machines, by Ray's ids; none if it has none.
        place: name of the one where it was told to start, until its own word is heard.
        spec: what it was started as.
        known: the machines of the cluster, if the run has none of its own.
    """

    def __init__(
        self,
        name: str,
        actor: Any,
        logs: Path | None,
        epoch: int,
        machines: Mapping[str, RayMachine] = MappingProxyType({}),
        place: str = "",
        spec: RoleSpec | None = None,
        known: ClusterMachines | None = None,
    ) -> None:
        self._name, self._logs, self._epoch = name, logs, epoch
        self._known = known
        self._lost: bool | None = None  # whether its machine was gone as it died
        self._share, self._cores = (1.0, False) if spec is None else (min(1.0, spec.gpus), spec.cores)
        self._actor, self._machines, self._place = actor, machines, place
        # a controller's calls have threads that no other member's call takes
        self._control = actor.call.options(concurrency_group=_CONTROL)
        self._node: str | None = None
        self._process: ProcessId | None = None
        self._devices: tuple[int, ...] = ()
        self._mps = False
        self._killed = self._ending = False
        self._where = _translated(self._actor.where.remote(), self._dead, apart=known is not None)
        self._where.add_done_callback(self._remember)

    @property
    def alive(self) -> bool:
        """Whether it was not ended by the run."""
        return not self._killed

    @property
    def pid(self) -> int | None:
        """The actor's process, once it is up."""
        return None if self._process is None else self._process.pid

    @property
    def machine(self) -> str:
        """Its machine's name in the run, or else Ray's id of it, once it is up."""
        if self._node is None:
            return self._place
        own = self._machines.get(self._node)
        if own is not None:
            return own.name
        return self._node if self._known is None else self._known.name(self._node)

    @property
    def seat(self) -> ProcessSeat:
        """Its machine and the devices that Ray gave it there, once it is up."""
        on_gpus = bool(self._devices) and not self._cores
        kind = "core" if self._cores else "GPU"
        return ProcessSeat(self.machine, self._devices, kind, self._share, mps=on_gpus and self._mps)

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of the role. `ready` also finds out the member's process and machine."""
        # Ray's own thread, on which all answers come, must not wait while a machine is asked whether it is there.
        answer = _translated(self._begin(method, arguments), self._dead, apart=self._known is not None)
        return _after(self._where, answer) if method == "ready" else answer

    def _begin(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Begin a controller's call. Returns Ray's reference of its result."""
        return self._control.remote(method, arguments, self._epoch)

    def strike(self, kind: FaultKind) -> None:
        """Inject a fault into the role's engine or own process, if the role handles it, else into the actor's process."""
        self.call("strike", kind).add_done_callback(lambda done: self._unless_struck(kind, done))

    def _unless_struck(self, kind: FaultKind, done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, MemberDeadError) or (error is None and done.result()):
            return
        # Answers come on Ray's own thread, which a kill through Ray would wait for without end.
        threading.Thread(target=self._strike_process, args=(kind,), name=f"strike {self._name}", daemon=True).start()

    def _strike_process(self, kind: FaultKind) -> None:
        if kind is FaultKind.KILL:
            self.kill()
        elif self._process is not None and kind.signal is not None and self._process.alive():
            strike(self._process.pid, kind)

    def kill(self) -> None:
        """Send SIGKILL to the process if it is on this machine; otherwise kill it through Ray."""
        import ray

        self._killed = self._ending = True
        here = self._node in (ray.get_runtime_context().get_node_id(), *self._machines)
        if not (here and self._process is not None and self._process.kill()):
            ray.kill(self._actor, no_restart=True)

    def close(self, timeout_s: float) -> None:
        """Call the role's `close`, then end the actor."""
        import ray

        if self._killed:
            return
        self._ending = True
        try:
            ray.get(self._begin("close", ()), timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(f"{self._name} did not close within {timeout_s:.0f} s") from error
        except ray.exceptions.RayActorError:
            return
        ray.kill(self._actor, no_restart=True)

    def _dead(self, error: BaseException) -> MemberDeadError:
        own = next((machine for machine in self._machines.values() if machine.name == self.machine), None)
        if own is not None and not own.alive:
            return MachineDeadError(f"its machine {own.name} is gone")
        if self._known is not None and self._node is not None and not self._ending:
            if self._lost is None:
                self._lost = self._known.gone(self._node)
            if self._lost:
                return MachineDeadError(f"its machine {self.machine} is gone")
        return MemberDeadError(cause_of_death(str(error), self._logs, self.pid))

    def _remember(self, future: Future[Any]) -> None:
        if not future.exception():
            self._node, self._process, self._devices, row, self._mps = future.result()
            if self._known is not None and row is not None:  # it may have joined since the host looked
                self._known.look([row])


class RayHost(OwnProcess):
    """Starts members as actors.

    Args:
        address: ``None`` starts a cluster on this machine that ends with this process; ``"auto"`` or ``"host:port"`` joins one.
        cpus: logical CPUs of a cluster that is started here.
        cores: cores that stand for GPUs there, see `own_cluster`.
        started_s: time now on the run's clock, in seconds.
        cluster: where the members live that controllers share, instead; they outlive this process.
        root: the run directory, with `cluster`.
        epoch: counts the controllers of the run.
    """

    poll_s = 0.5  # a member answers at once when it has something to say; else each answer only costs
    tick_s = 0.5

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: int = 64,
        cores: int = 0,
        started_s: float = 0.0,
        cluster: RayCluster | None = None,
        root: Path | None = None,
        epoch: int = 1,
    ) -> None:
        own = address is None and cluster is None
        environment(own=own or (cluster is not None and cluster.keeper is not None))
        if cluster is not None and root is not None:
            cluster.join(root)
        with extra("tailrace-runtime", "ray"):
            import ray

        self._ray = ray
        self.time = RealTime(started_s)
        self.epoch, self._cluster = epoch, cluster
        run = f"tailrace-{secrets.token_hex(6)}" if cluster is None else cluster.run
        self._actors = NamedActors(run, detached=cluster is not None)
        self._groups, self._joined = PlacementGroups(run, detached=cluster is not None), not own
        arguments = options(None if cluster is None else cluster.run)
        self._folder = ray_session.make() if own and not ray.is_initialized() else None
        if self._folder is not None:
            arguments |= own_cluster(cpus, self._folder, cores)
        elif not own:
            arguments["address"] = address if cluster is None else cluster.address
        self._machines = {} if cluster is None else {machine.node: machine for machine in cluster.own_machines}
        joins = not own and (cluster is None or cluster.keeper is None)
        self._known = None if self._machines else ClusterMachines(lost=joins)
        self._newest: dict[tuple[str, str], int] = {}
        self._prepared: dict[tuple[str, str], Any] = {}
        self._claiming: threading.Thread | None = None
        self._over = threading.Event()
        self._needs: dict[tuple[str, str], tuple[RayMember, Needs | None]] = {}  # None: another controller started it
        try:
            with own_signals():
                context = ray.init(**arguments)
            # its warnings about members that ended, beside ours
            logging.getLogger("ray._private.worker").setLevel(logging.CRITICAL)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            address = arguments.get("address")
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            if self._folder is not None:
                ray_session.remove(self._folder)
                raise RayAddressError(f"Ray could not be started on this machine: {first}") from error
            raise RayAddressError(
                f"ray address {address!r}: no cluster answers there ({first}); start one with `ray start --head`, or join one "
                "that asks for a token with RAY_AUTH_MODE=token"
            ) from error

        self._session: Path | None = None
        if own:
            self._session = check_own(context)
            if self._folder is not None:  # else this process has a cluster already, which others may use
                ray_session.seal(self._session)
        elif cluster is not None and cluster.session:
            self._session = Path(cluster.session)

    @property
    def gpus(self) -> float:
        """GPUs of the cluster, whoever uses them."""
        return float(self._ray.cluster_resources().get("GPU", 0.0))

    @property
    def most_gpus(self) -> float:
        """GPUs of the machine that has most."""
        return max((float(row["Resources"].get("GPU", 0.0)) for row in self._ray.nodes() if row["Alive"]), default=0.0)

    @property
    def machines(self) -> int:
        """Machines of the cluster that live."""
        return sum(bool(node["Alive"]) for node in self._ray.nodes())

    def on_machines(self, function: Callable[[], Any], timeout_s: float = 120.0) -> dict[str, Any]:
        """What a function returns on each living machine of the cluster, by the machine's address.

        Raises:
            DeadlineError: a machine did not answer in time.
        """
        task = self._ray.remote(num_cpus=0, max_retries=0)(function)
        alive = {row["NodeManagerAddress"]: row["NodeID"] for row in self._ray.nodes() if row["Alive"]}
        asked = {at: task.options(**_affinity(node, soft=False)).remote() for at, node in alive.items()}
        try:
            return dict(zip(asked, self._ray.get(list(asked.values()), timeout=timeout_s), strict=True))
        except self._ray.exceptions.GetTimeoutError as error:
            raise DeadlineError(
                f"waited {timeout_s:.0f} s for the {len(alive)} machines of the cluster to answer"
            ) from error

    def prepare(self, role: str, id_: str, spec: RoleSpec, place: Place, after: Any = None) -> Any:
        """Start the process of a member's first incarnation ahead of `spawn`, which takes it if it asks for the same.

        Args:
            spec: what the process is, and a function to call there, such as one that imports libraries.
            place: where it is to stand.
            after: what another `prepare` returned; the function is called once that one's is done.

        Returns:
            Stands for the end of the function.
        """
        options = self._options(role, id_, _FIRST, spec, place)
        actor = self._start(options, spec)
        self._prepared[role, id_] = actor, options, spec.nice, spec.cores
        if self._claiming is None and self._unclaimed_s < math.inf:
            self._claiming = threading.Thread(target=self._claim, name="claiming", daemon=True)
            self._claiming.start()
        return actor.prepare.options(concurrency_group=_CONTROL).remote(spec.factory, dict(spec.arguments), after)

    def _claim(self) -> None:
        """Tell processes that were started ahead that this one lives: nobody else calls them before they have their roles."""
        while not self._over.wait(min(_CLAIM_S, self._unclaimed_s / 4)):
            for actor, *_ in list(self._prepared.values()):
                actor.claimed.options(concurrency_group=_CONTROL).remote()

    def spawn(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> RayMember:
        """Start an actor on a machine that the run may use."""
        self._newest[role, id_] = incarnation
        options = self._options(role, id_, incarnation, spec, place)
        actor, *prepared_as = self._prepared.pop((role, id_), (None,))
        if actor is not None and _plain(prepared_as) != _plain([options, spec.nice, spec.cores]):
            self._actors.replace(actor, role, id_, _FIRST)
            actor = None
        if actor is None:
            actor = self._start(options, spec)
        _build(actor, spec)
        member = self._member(f"{role}-{id_}-{incarnation}", actor, place.machine, spec)
        self._needs[role, id_] = member, (spec.cpus, spec.gpus)
        return member

    def find(self, role: str, id_: str, incarnation: int, spec: RoleSpec | None = None) -> RayMember | None:
        """A handle of a member that another controller of this run has started; None if it does not live.

        Calls that wait for an actor's process wait in the caller's, and are gone with it.
        """
        actor = self._actors.find(role, id_, incarnation)
        if actor is None:
            return None
        self._newest[role, id_] = incarnation
        if spec is not None:
            _build(actor, spec)
        member = self._member(f"{role}-{id_}-{incarnation}", actor, spec=spec)
        self._needs[role, id_] = member, None if spec is None else (spec.cpus, spec.gpus)
        return member

    def _member(self, name: str, actor: Any, place: str = "", spec: RoleSpec | None = None) -> RayMember:
        logs = None if self._session is None else self._session / "logs"
        if self._known is not None:
            self._known.look(self._ray.nodes())
        return RayMember(name, actor, logs, self.epoch, self._machines, place, spec, self._known)

    def _options(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> dict[str, Any]:
        options = self._actors.options(role, id_, incarnation)
        options |= {"num_cpus": spec.cpus, "num_gpus": spec.gpus, "max_concurrency": _THREADS_PER_MEMBER}
        if self._machines:
            options |= self._on_own(place)
        elif spec.bundle is not None and (self._joined or any(spec.bundle.parts)):
            labels = labels_of(place.site, spec.device, self.sites())
            options |= self._groups.options(
                spec.bundle, self._ids(place.avoid), labels, self._whole(spec.bundle, place)
            )
        elif spec.home and self._joined and self._here not in self._ids(place.avoid):
            options |= _affinity(self._here, soft=_takes(spec))
        elif place.machine or place.index is not None or place.avoid:
            options |= self._placed(place, incarnation, spec) or self._anywhere(spec, place)
        else:
            options |= self._anywhere(spec, place)
        if spec.environment:
            options["runtime_env"] = {"env_vars": dict(spec.environment)}
        return options

    @property
    def _here(self) -> str:
        return str(self._ray.get_runtime_context().get_node_id())

    def _start(self, options: dict[str, Any], spec: RoleSpec) -> Any:
        actor = self._ray.remote(concurrency_groups={_CONTROL: _THREADS_OF_CONTROL})(RoleActor)
        patience_s = math.inf if self._cluster is None else self._cluster.patience_s
        return self._actors.start(actor, options, spec.nice, self._unclaimed_s, spec.cores, patience_s)

    def _anywhere(self, spec: RoleSpec, place: Place) -> dict[str, Any]:
        selector = labels_of(place.site, spec.device, self.sites())
        return {"label_selector": selector} if selector else {}

    def _placed(self, place: Place, incarnation: int, spec: RoleSpec) -> dict[str, Any]:
        """Ray options: the machine that the place names, if it lives; else one that it does not rule out."""
        alive = sorted(machines_at(place.site, self._ray.nodes()))
        avoid, (wanted, *_) = self._ids(place.avoid), (*self._ids((place.machine,)), "")
        fit = [node for node in alive if node not in avoid] or alive
        if wanted in fit:
            return _affinity(wanted, soft=_takes(spec))
        if place.index is None and not place.avoid:
            return {}
        if spec.gpus and len(fit) < len(alive):  # whichever of the others has what it needs, now or later
            labels = labels_of(place.site, spec.device, self.sites())
            return {"label_selector": labels | excluded([node for node in alive if node not in fit])}
        index = incarnation if place.index is None else place.index
        return _affinity(fit[index % len(fit)], soft=_takes(spec))

    def _ids(self, machines: Sequence[str]) -> list[str]:
        """Ray's ids of machines by their names in the run."""
        if self._known is None:
            return list(machines)
        self._known.look(self._ray.nodes())
        return [self._known.id(machine) for machine in machines]

    def _whole(self, bundle: Bundle, place: Place) -> str:
        """Ray's id of the machine that a place names, if a whole group has room there; empty: Ray chooses."""
        wanted = self._ids((place.machine,))[0] if place.machine else ""
        rows = {row["NodeID"]: row for row in self._ray.nodes() if row["Alive"]}
        if wanted not in rows or bundle.strategy.endswith("spread"):
            return ""
        return wanted if sum(bundle.parts) <= float(rows[wanted]["Resources"].get("GPU", 0.0)) else ""

    def _on_own(self, place: Place) -> dict[str, Any]:
        """Ray options: the machine that the place names, or if it is gone the first that lives; the head if it names none."""
        alive = {machine.name: node for node, machine in self._machines.items() if machine.alive}
        at = self._here
        if place.machine:
            others = [node for name, node in alive.items() if name not in place.avoid]
            at = alive.get(place.machine, next(iter((*others, *alive.values())), at))
        return _affinity(at, soft=False)

    def room(self, machine: str) -> tuple[str, ...] | None:
        """The other machines that have room, together, for all members of the run that stand on one; None if unknown."""
        rows = [row for row in self._ray.nodes() if not self._machines or row["NodeID"] in self._machines]
        if self._known is not None:
            self._known.look(rows)
            nodes = {self._known.name(row["NodeID"]): row["NodeID"] for row in rows}
        else:
            nodes = {own.name: node for node, own in self._machines.items()}
        names = {node: name for name, node in nodes.items()}
        standing: dict[str, list[Needs]] = {}
        for member, needs in self._needs.values():
            if member.alive:
                if needs is None:
                    return None
                standing.setdefault(nodes.get(member.machine, member.machine), []).append(needs)
        found = room_elsewhere(nodes.get(machine, machine), rows, standing)
        return tuple(names.get(node, node) for node in found)

    def strike_machine(self, name: str | None) -> str | None:
        """Kill one of the run's own machines; the last one lives on."""
        alive = [machine for machine in self._machines.values() if machine.alive]
        struck = next((machine for machine in alive if name in (None, machine.name)), None)
        if struck is None or len(alive) < 2:
            return None
        struck.kill()
        return struck.name

    def sites(self) -> dict[str, int]:
        """Machines of the cluster at each site other than the trainer's, by the label `tailrace-site`."""
        return labelled_sites(self._ray.nodes())

    def caller(self, role: str, id_: str = "0") -> RayCaller:
        """A caller of the member that has the name at the time of a call."""
        return RayCaller(self._actors, role, id_, self._newest.get((role, id_), 1) - 1)

    def close(self) -> None:
        """End all members, and leave the cluster. One of the run's own ends, and its directory goes.

        With ``TAILRACE_DEBUG`` the directory stays.
        """
        self._stop_claiming()
        if self._cluster is not None and self._cluster.keeper is None:
            self._actors.end_all()
        self._groups.end_all()
        self._let_go()
        if self._cluster is not None:
            self._cluster.end()
        elif self._folder is not None and not os.environ.get("TAILRACE_DEBUG"):
            ray_session.remove(self._folder)

    def end_run(self, run: str) -> None:
        """End what another run left on this cluster, as Ray's namespace `run`: members and placement groups.

        Ray kills a process that stands still after some seconds.
        """
        NamedActors(run, detached=True).end_all()
        PlacementGroups(run, detached=True).end_all()

    def leave(self) -> None:
        """Leave the cluster to another controller."""
        self._stop_claiming()
        self._let_go()

    def _let_go(self) -> None:
        """Disconnect from Ray. If that hangs, the run writes its summary all the same, and Ray ends with this process."""
        over: Future[None] = Future()

        def disconnect() -> None:
            try:
                over.set_result(self._ray.shutdown())
            except BaseException as error:
                over.set_exception(error)

        threading.Thread(target=disconnect, name="disconnect from Ray", daemon=True).start()
        try:
            over.result(LEAVE_S)
        except TimeoutError:
            if over.done():
                raise
            _log.warning("Ray did not let go of this process within %.0f s, and is left alone", LEAVE_S)
            atexit.unregister(self._ray.shutdown)  # it would hang once more

    def _stop_claiming(self) -> None:
        self._over.set()
        if self._claiming is not None:
            self._claiming.join()

    @property
    def _unclaimed_s(self) -> float:
        return math.inf if self._cluster is None else self._cluster.unclaimed_s


def _build(actor: Any, spec: RoleSpec) -> None:
    """Have an actor build its role, in a thread of the controller's: others find the actor before, and wait for its role."""
    actor.build.options(concurrency_group=_CONTROL).remote(spec.factory, dict(spec.arguments))


def _takes(spec: RoleSpec) -> bool:
    """Whether a machine may lack what a member needs. Ray places who needs nothing at random, unless its machine is a must."""
    return bool(spec.cpus or spec.gpus)


def _affinity(node: str, *, soft: bool) -> dict[str, Any]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=soft)}


def _plain(prepared: Sequence[Any]) -> list[Any]:
    """What a process was started as, with Ray's strategy, which equals only itself, as its fields."""
    options = dict(prepared[0])
    strategy = options.pop("scheduling_strategy", None)
    return [options, None if strategy is None else (type(strategy), vars(strategy)), *prepared[1:]]


def _after(first: Future[Any], answer: Future[Any]) -> Future[Any]:
    """The second answer, once both are there."""
    out: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            out.set_result(done.result())
        else:
            out.set_exception(error)

    first.add_done_callback(lambda _: answer.add_done_callback(settle))
    return out


def _translated(ref: Any, dead: Callable[[BaseException], MemberDeadError], *, apart: bool) -> Future[Any]:
    """A Ray result as a future, with Ray's exceptions translated to those of this package.

    Args:
        ref: Ray's reference.
        dead: finds why a member died.
        apart: whether `dead` takes time and so gets a thread of its own.
    """
    import ray

    out: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            out.set_result(done.result())
        elif isinstance(error, ray.exceptions.RayTaskError):
            out.set_exception(error.cause)
        elif isinstance(error, ray.exceptions.RayActorError) and apart:
            threading.Thread(target=lambda: out.set_exception(dead(error)), name="cause of death", daemon=True).start()
        elif isinstance(error, ray.exceptions.RayActorError):
            out.set_exception(dead(error))
        else:
            out.set_exception(error)

    ref.future().add_done_callback(settle)
    return out
