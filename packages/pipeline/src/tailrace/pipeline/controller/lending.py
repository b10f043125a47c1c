"""Lends replicas' devices to the trainer's cells that stand on them (RollPacker, section 4.4; RobustRL, section 2.1).

    LendReplica ──► its work goes elsewhere ──► Lend ──► a snapshot shows it ──► cells there may add gradients
    ReturnReplica ──► cells there end what they compute ──► Return ──► work is routed to it again

Where hybrids yield (`YieldsDevices`), the trainer steps only while all that are up are lent, and they return between its steps.

A replica that goes down is no longer lent: a new process has its devices. While any is lent, none is resized, so that a cell's
devices are always those of whole replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.pipeline.controller.batches import Batches
from tailrace.pipeline.controller.coordinator import Coordinator
from tailrace.pipeline.controller.fleet import Replicas, ReplicaState
from tailrace.pipeline.controller.outbox import Outbox
from tailrace.pipeline.controller.shared_devices import cells_on, devices_for
from tailrace.pipeline.controller.trainer_state import TrainerState
from tailrace.pipeline.spec import PipelineSpec

_GONE = (c.Health.DOWN, c.Health.STOPPING)


class Lending:
    """Who has which devices, where replicas and cells share them; otherwise every cell has its own."""

    def __init__(
        self,
        spec: PipelineSpec,
        fleet: Replicas,
        trainer: TrainerState,
        coordinator: Coordinator,
        batches: Batches,
        outbox: Outbox,
    ) -> None:
        self._spec, self._fleet, self._trainer = spec, fleet, trainer
        self._coordinator, self._batches, self._outbox = coordinator, batches, outbox
        self._leaving: dict[str, c.Reason] = {}  # replicas that are emptied
        self._returning: dict[str, c.Reason] = {}
        self._yields = isinstance(spec.provisioning, c.YieldsDevices)
        if spec.colocated:
            batches.free_cells = frozenset()

    @property
    def lent(self) -> list[str]:
        """Replicas whose devices are lent, or about to be."""
        return [replica.id for replica in self._fleet.replicas.values() if replica.lent]

    def spans(self, name: str) -> None:
        """Give a replica, new or of a new size, its devices and the cells that stand on them. Those that stop leave theirs."""
        replica, others = self._fleet.replicas[name], self._fleet.replicas.values()
        replica.member.hybrid = self._spec.stands_on_trainer(replica.member.pool)
        if replica.member.hybrid:
            taken = {
                n for other in others if other.id != name and other.member.health not in _GONE for n in other.devices
            }
            replica.devices = devices_for(replica.member.tp, taken, replica.devices)
            replica.cells = cells_on(replica.devices, self._spec.cell_devices, self._spec.cells)

    def lend(self, action: c.LendReplica) -> None:
        """Begin to lend a replica's devices."""
        replica = self._fleet.replicas[action.replica]
        if not replica.lent:
            self._coordinator.empty(replica, c.Why.LENT)
            replica.lent = True
            self._leaving[replica.id] = action.reason

    def give_back(self, action: c.ReturnReplica) -> None:
        """Begin to take a replica's devices back."""
        if self._fleet.replicas[action.replica].lent:
            self._returning.setdefault(action.replica, action.reason)

    def go_on(self) -> None:
        """Lend what is empty, take back what no cell uses, and say which cells may compute. Call it before training."""
        if not self._spec.colocated:
            return
        replicas = self._fleet.replicas
        for waiting in (self._leaving, self._returning):
            for name in [name for name in waiting if not replicas[name].lent]:
                del waiting[name]  # it went down
        for name in [name for name in self._leaving if not replicas[name].assigned.states]:
            self._outbox.send_to(replicas[name], c.Lend, cells=replicas[name].cells, reason=self._leaving.pop(name))
        for name in [name for name in self._returning if not self._computes_on(replicas[name].cells)]:
            self._outbox.send_to(replicas[name], c.Return, reason=self._returning.pop(name))
            replicas[name].lent = False
            self._leaving.pop(name, None)
        self._batches.free_cells = frozenset(cell for cell in range(self._spec.cells) if self._free(cell))
        if self._yields:
            hybrids = [replica for replica in replicas.values() if replica.member.hybrid]
            self._batches.may_step = all(
                self._has_left(replica) for replica in hybrids if replica.member.health not in _GONE
            )

    def _computes_on(self, cells: Sequence[int]) -> bool:
        """Whether the trainer uses devices of these cells: all of it does in a step, and it has them where hybrids yield."""
        if self._yields and self._trainer.making is not None:
            return True
        return not self._trainer.adding.keys().isdisjoint(cells)

    def _has_left(self, replica: ReplicaState) -> bool:
        """Whether a replica's devices are lent, and a snapshot shows that it holds nothing and knows it."""
        waits = replica.id in self._leaving or replica.id in self._returning
        return replica.lent and replica.fresh and not waits

    def _free(self, cell: int) -> bool:
        """Whether a cell has its devices: a snapshot shows of all replicas there that they hold nothing and know it."""
        here = [replica for replica in self._fleet.replicas.values() if cell in replica.cells]
        here = [replica for replica in here if replica.member.health is not c.Health.DOWN]
        return bool(here) and all(self._has_left(replica) for replica in here)
