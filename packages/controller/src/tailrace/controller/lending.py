"""Lends replicas' devices to the trainer's cells that stand on them (RollPacker, section 4.4; RobustRL, section 2.1).

    LendReplica ──► its work goes elsewhere ──► Lend ──► a snapshot shows it ──► cells there may add gradients
    ReturnReplica ──► cells there end what they compute ──► Offload ──► Offloaded ──► Return ──► work is routed to it again

Where hybrids yield (`yields_from`), the trainer steps only while all that are up are lent, and they return between its steps.
A cell that has not its devices for itself, and computes nothing, is told to move away what it has on them: before a replica
returns, after a step, and after the trainer came up.

A replica that goes down is no longer lent: a new process has its devices. While any is lent, none is resized, so that a cell's
devices are always those of whole replicas.

    device   0   1   2   3   4   5   6   7
    cell     0   0   1   1   2   2   3   3      cell_devices = 2
    replica  r0      r1  r2  r3                 of 2, 1, 1 and 4 devices: on the cells 0; 1; 1; 2 and 3

Devices are numbered, and a replica has as many in a row as its engine spans, beginning at a multiple of their number. So a
replica stands on no more cells than it must, and those that shrink leave room for as many of their new size. With
shares of devices on Ray, replica and rank of a number stand on one device; elsewhere that a number is a certain device is a
convention, which holds where all devices are alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from itertools import count

from tailrace import contracts as c
from tailrace.controller.batches import Batches
from tailrace.controller.fleet import ReplicaState
from tailrace.controller.plugin_faults import answered
from tailrace.controller.state import State

_GONE = (c.Health.DOWN, c.Health.STOPPING)
_LOANS = 16  # that policies are shown


class Lending:
    """Who has which devices, where replicas and cells share them; otherwise every cell has its own."""

    def __init__(self, state: State, batches: Batches) -> None:
        self._state, self._batches = state, batches
        self._fleet, self._trainer, self._outbox = state.fleet, state.trainer, state.outbox
        self._leaving: dict[str, c.Reason] = {}  # replicas that are emptied
        self._returning: dict[str, c.Reason] = {}
        self.loans: deque[c.LoanRecord] = deque(maxlen=_LOANS)
        self._decided: dict[str, tuple[int, float]] = {}  # the version, and when it was decided to lend
        self._left: dict[str, tuple[int, float]] = {}  # the version, and the seconds until a replica had left
        self._done_s: dict[str, float] = {}  # when the cells on the devices of a replica that returns had ended
        self._at = _share(state.spec.provisioning)
        self._seen: tuple[object, ...] | None = None
        if state.spec.colocated:
            batches.free_cells = frozenset()

    @property
    def lent(self) -> list[str]:
        """Replicas whose devices are lent, or about to be."""
        return [replica.id for replica in self._fleet.replicas.values() if replica.lent]

    def spans(self, name: str) -> None:
        """Give a replica, new or of a new size, its devices and the cells that stand on them. Those that stop leave theirs."""
        replica, others = self._fleet.replicas[name], self._fleet.replicas.values()
        replica.member.hybrid = self._state.spec.stands_on_trainer(replica.member.pool)
        if replica.member.hybrid:
            taken = {
                n for other in others if other.id != name and other.member.health not in _GONE for n in other.devices
            }
            replica.devices = devices_for(replica.member.tp, taken, replica.devices)
            replica.cells = cells_on(replica.devices, self._state.spec.cell_devices, self._state.spec.cells)
            replica.kept = self._state.spec.judge_cell in replica.cells

    def lend(self, action: c.LendReplica) -> None:
        """Begin to lend a replica's devices."""
        replica = self._fleet.replicas[action.replica]
        if not replica.lent:
            self._state.empty(replica, c.Why.LENT)
            replica.lent = True
            replica.emptied += 1  # its KV cache is released
            self._leaving[replica.id] = action.reason
            self._decided[replica.id] = self._trainer.version, self._state.now
            self._left.pop(replica.id, None)
            self._done_s.pop(replica.id, None)

    def give_back(self, action: c.ReturnReplica) -> None:
        """Begin to take a replica's devices back."""
        if self._fleet.replicas[action.replica].lent:
            self._returning.setdefault(action.replica, action.reason)

    def left(self, event: c.Lent) -> None:
        """Note that a replica has left its devices."""
        decided = self._decided.pop(event.replica, None)
        if decided is not None:
            self._left[event.replica] = decided[0], self._state.now - decided[1]

    def came_back(self, event: c.Returned) -> None:
        """Note that a replica has its devices again, and what the loan took."""
        left, done_s = self._left.pop(event.replica, None), self._done_s.pop(event.replica, None)
        if left is not None and done_s is not None:
            self.loans.append(c.LoanRecord(*left, self._state.now - done_s))

    def go_on(self) -> None:
        """Lend what is empty, and say which cells may compute. Call it before training."""
        if not self._state.spec.colocated:
            return
        replicas = self._fleet.replicas
        for waiting in (self._leaving, self._returning):
            for name in [name for name in waiting if not replicas[name].lent]:
                del waiting[name]  # it went down
        for name in [name for name in self._leaving if not replicas[name].assigned.states]:
            self._outbox.send_to(replicas[name], c.Lend, cells=replicas[name].cells, reason=self._leaving.pop(name))
        self._batches.free_cells = frozenset(cell for cell in range(self._state.spec.cells) if self._free(cell))
        if self.yields:
            hybrids = [replica for replica in replicas.values() if replica.member.hybrid]
            self._batches.may_step = all(
                self._has_left(replica) for replica in hybrids if replica.member.health not in _GONE
            )

    def give_way(self) -> None:
        """Tell idle cells to leave shared devices; then tell returning replicas to take theirs back.

        Call it after training is decided: a step keeps its devices.
        """
        trainer, replicas = self._trainer, self._fleet.replicas
        for cell in range(self._state.spec.cells) if self._state.spec.colocated and trainer.up else ():
            stays = cell in trainer.away or cell in trainer.leaving or trainer.computes(cell)
            if not stays and not self._free(cell):
                trainer.leaves(cell, self._outbox.send(c.Offload, cell=cell))
        for name in [name for name in self._returning if not self._computes_on(replicas[name].cells)]:
            self._done_s.setdefault(name, self._state.now)
            if not trainer.up or trainer.away.issuperset(replicas[name].cells):
                self._outbox.send_to(replicas[name], c.Return, reason=self._returning.pop(name))
                replicas[name].lent = False
                self._leaving.pop(name, None)

    # ---- hybrids that yield -----------------------------------------------------------------------------------------

    @property
    def yields(self) -> bool:
        """Whether provisioning decides when hybrids yield to the trainer (`yields_from`)."""
        return self._at is not None

    def batch(self) -> c.BatchView | None:
        """The next batch, for a policy that decides when hybrids yield; else None."""
        return None if self._at is None else self._batches.view()

    def look(self) -> bool:
        """Whether such a policy must be asked: what it would decide on has changed since the last look.

        That is whether the next batch is so far that they yield, whether the trainer computes, which hybrids are lent and which
        can be.
        """
        if self._at is None:
            return False
        batch = self._batches.view()
        reached = batch is not None and (batch.ready or batch.trains or batch.done >= self._at * batch.size)
        if not reached and self._seen == (False,):
            return False  # nothing was lent then, and nothing is without being asked for
        hybrids = [replica for replica in self._fleet.replicas.values() if replica.member.hybrid]
        lent = tuple([replica.id for replica in hybrids if replica.lent])
        before = self._seen
        if reached:
            assert batch is not None
            can = tuple([replica.id for replica in hybrids if _may_leave(replica)])
            self._seen = (batch.ready, batch.trains, batch.away, lent, can)
        else:
            self._seen = (lent, batch is not None and batch.away) if lent else (False,)
        return self._seen != before

    # ---- helpers ----------------------------------------------------------------------------------------------------

    def _computes_on(self, cells: Sequence[int]) -> bool:
        """Whether the trainer uses devices of these cells: all of it does in a step, and it has them where hybrids yield."""
        if self.yields and self._trainer.making is not None:
            return True
        return any(self._trainer.computes(cell) for cell in cells)

    def _has_left(self, replica: ReplicaState) -> bool:
        """Whether a replica's devices are lent, and a snapshot shows that it holds nothing and knows it."""
        waits = replica.id in self._leaving or replica.id in self._returning
        return replica.lent and replica.fresh and not waits

    def _free(self, cell: int) -> bool:
        """Whether a cell has its devices: a snapshot shows of all replicas there that they hold nothing and know it."""
        here = [replica for replica in self._fleet.replicas.values() if cell in replica.cells]
        here = [replica for replica in here if replica.member.health is not c.Health.DOWN]
        return bool(here) and all(self._has_left(replica) for replica in here)


def _may_leave(replica: ReplicaState) -> bool:
    return replica.serves and not replica.evaluating


def _share(policy: c.ProvisioningPolicy) -> float | None:
    share = policy.yields_from()
    if share is None:
        return None
    if not isinstance(share, float | int) or not 0 < share <= 1:
        raise answered("provisioning", policy, "yields_from", share, "a share of a batch, above 0 and at most 1")
    return float(share)


def devices_for(size: int, taken: Set[int], own: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The devices of a replica of a new size: the row around its own if nobody else has any of it, else the first free row.

    Args:
        size: how many it spans, a power of two.
        taken: devices of the other replicas that stay.
        own: devices that it has now.

    Returns:
        `size` numbers in a row, rising, the first of them a multiple of `size`.
    """
    if own:
        around = _row(own[0], size)
        if taken.isdisjoint(around):
            return around
    return next(row for first in count(0, size) if taken.isdisjoint(row := _row(first, size)))


def cells_on(devices: tuple[int, ...], cell_devices: int, cells: int) -> tuple[int, ...]:
    """The trainer's cells that stand on devices, wholly or in part, rising.

    Devices beyond those of the last cell begin with the first one again: replicas that a run was given later share them too.

    Args:
        cell_devices: devices of each cell.
        cells: how many cells there are.
    """
    return tuple(sorted({device // cell_devices % cells for device in devices}))


def _row(device: int, size: int) -> tuple[int, ...]:
    first = device - device % size
    return tuple(range(first, first + size))
