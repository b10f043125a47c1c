"""How an executor starts each role (a factory, its settings, and what each member is told), and its deadlines."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from tailrace.contracts import Place
from tailrace.faulttol.machine_checks import check_machine
from tailrace.runtime.errors import MachineUnfitError
from tailrace.runtime.executor.seam import Bundle, Host, MemberStart, RoleSpec


@dataclass(frozen=True, slots=True)
class MachineChecks:
    """The checks of a run.

    Args:
        names: plugins of ``tailrace.machine_check``, in their order.
        directory: a directory on the disk that the run uses.
        timeout_s: deadline for each check in seconds.
    """

    names: tuple[str, ...]
    directory: Path
    timeout_s: float


def start_checked(factory: Callable[..., Any], checks: MachineChecks, **arguments: Any) -> Any:
    """Build a role once this machine has passed its checks.

    Raises:
        MachineUnfitError: it did not.
    """
    for finding in check_machine(checks.directory, checks.names, timeout_s=checks.timeout_s):
        if not finding.fit:
            raise MachineUnfitError(f"its machine did not pass the check {finding.check!r}: {finding.found}")
    return factory(**arguments)


DATA, SCORER, TRAINER, REPLICA, RELAY, RANKER = "data", "scorer", "trainer", "replica", "relay", "ranker"
ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The executor's deadlines in seconds. The run's status shows the current waits.

    Args:
        start_s: deadline for the start of a role, including loading a model.
        step_s: deadline for one training step.
        publish_s: deadline until a version is visible on a relay.
        pull_s: deadline for a replica to load a version.
        score_s: deadline for the next outcome while trajectories are scored.
        predict_s: deadline for the next answer while lengths are predicted.
        call_s: deadline for the next answer of an environment while it has calls; a call's own deadline is the environment's.
        suspect_s: silence after which a member is reported as silent. When it counts as down is for detection to say.
        close_s: deadline for a role to clean up.
        save_s: deadline until more bytes of a checkpoint are written, or it is durable.
        data_s: deadline of each call of the data role by the others, in which one that is gone may come back. A batch of any
            size is fetched in slices, each with this deadline.
        hand_over_s: deadline for a replica to sleep or to wake, and for a cell of the trainer to move away what it has on its
            devices.
    """

    start_s: float = 600.0
    step_s: float = 1800.0
    publish_s: float = 600.0
    pull_s: float = 600.0
    score_s: float = 300.0
    suspect_s: float = 10.0
    close_s: float = 30.0
    predict_s: float = 120.0
    call_s: float = 300.0
    save_s: float = 600.0
    data_s: float = 180.0
    hand_over_s: float = 300.0

    @classmethod
    def all(cls, limit_s: float, *, suspect_s: float) -> Deadlines:
        """Deadlines that are all `limit_s`, except that for silence."""
        return cls(**dict.fromkeys((each.name for each in fields(cls)), limit_s) | {"suspect_s": suspect_s})


@dataclass(frozen=True, slots=True)
class PoolReplicas:
    """How the replicas of a pool are started.

    Args:
        role: their role, as `Deployment.roles` has it for replicas that are all alike.
        tp: devices of the engine for which `role` says what it needs.
    """

    role: RoleSpec
    tp: int = 1


@dataclass(frozen=True, slots=True)
class Deployment:
    """All roles of a run.

    Args:
        name: prefix of the relays' names; unique on the machine.
        token: shared secret of the run's peers.
        roles: how to start each role, by its name.
        trainer_ranks: number of trainer processes.
        trainer_cells: cells that they form.
        holders: ids of relays whose machines hold checkpoints beside the trainer's disk.
        rendezvous: directory where several ranks of the trainer find each other.
        deadlines: the executor's deadlines.
        adopting_held: a model directory whose weights a trainer that stays up from an earlier run publishes; None: its own.
        tp: devices of a replica's engine for which `roles` says what it needs.
        pools: the replicas of each pool that differ from `roles`, by its name.
        checks: checks of a machine before a member that failed starts on it; None: none.
        bundles: members that are placed in groups, by role and id.
    """

    name: str
    token: str
    roles: dict[str, RoleSpec]
    trainer_ranks: int = 1
    trainer_cells: int = 1
    holders: tuple[str, ...] = ()
    rendezvous: Path | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)
    adopting_held: Path | None = None
    tp: int = 1
    pools: Mapping[str, PoolReplicas] = field(default_factory=dict)
    checks: MachineChecks | None = None
    bundles: Mapping[tuple[str, str], Bundle] = field(default_factory=dict)

    def role(
        self,
        host: Host,
        role: str,
        id_: str,
        incarnation: int,
        rank: int = 0,
        tp: int | None = None,
        place: Place = Place(),  # noqa: B008 - frozen
    ) -> RoleSpec:
        """How to start a member.

        Args:
            host: the host, which gives callers of other members.
            role: the member's role.
            id_: the member's id.
            incarnation: counts the starts of this member, from 1.
            rank: rank of a trainer's process.
            tp: devices that a replica's engine spans; None: as `roles` or its pool says.
            place: where it may stand, which says also the pool of a replica.
        """
        replicas = self.pools.get(place.pool) if role == REPLICA else None
        spec = self.roles[role] if replicas is None else replicas.role
        if tp is not None and role == REPLICA:
            factor = tp / (self.tp if replicas is None else replicas.tp)
            spec = dataclasses.replace(spec, cpus=spec.cpus * factor, gpus=spec.gpus * factor)
        resized = role == REPLICA and tp not in (None, self.tp)
        bundle = None if resized else self.bundles.get((role, rank_id(id_, rank) if role == TRAINER else id_))
        start = MemberStart(
            id_,
            incarnation,
            self.token,
            f"{self.name}-{id_}",
            data_s=self.deadlines.data_s,
            tp=tp if role == REPLICA else None,
        )
        if role not in (DATA, RELAY):
            start = dataclasses.replace(start, store=host.caller(DATA))
        if role == TRAINER:
            start = self._ranked(host, start, rank)
        factory = partial(start_checked, spec.factory, self.checks) if place.check and self.checks else spec.factory
        return dataclasses.replace(spec, factory=factory, arguments={**spec.arguments, "start": start}, bundle=bundle)

    def _ranked(self, host: Host, start: MemberStart, rank: int) -> MemberStart:
        several = self.rendezvous is not None and self.trainer_ranks > 1
        others = range(1, self.trainer_ranks) if rank == 0 else ()
        return dataclasses.replace(
            start,
            rank=rank,
            world_size=self.trainer_ranks,
            rendezvous=self._meeting(start.incarnation) if several else None,
            cells=self.trainer_cells,
            holders=[host.caller(RELAY, relay) for relay in self.holders],
            followers=[host.caller(TRAINER, rank_id(start.id, other)) for other in others],
        )

    def _meeting(self, incarnation: int) -> Path | None:
        """Where the ranks of one start of the trainer meet: what an earlier cluster of the run left is not theirs."""
        cluster = hashlib.sha256(self.token.encode()).hexdigest()[:8]
        return None if self.rendezvous is None else self.rendezvous / f"meeting-{cluster}-{incarnation}"


def rank_id(leader: str, rank: int) -> str:
    """The id of a trainer's rank; the first rank has the id of the trainer."""
    return leader if rank == 0 else f"{leader}.{rank}"
