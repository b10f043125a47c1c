"""Devices that replicas and cells of the trainer share: one user at a time, and hybrids yield no earlier than said."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.trajectories import GroupPhase
from tailrace.fuzz.errors import InvariantError
from tailrace.runtime.executor.deployment import REPLICA, TRAINER

SHARED = "devices that are shared have one user at a time"


class DeviceCheck:
    """Who has which devices, and on which of them the trainer has its state, from commands and events alone."""

    def __init__(self) -> None:
        self.lent: set[str] = set()
        self.loans = 0
        self._holds: dict[str, set[str]] = {}  # trajectories that were routed to each replica and have not come back
        self._moved: dict[
            int, int
        ] = {}  # number of the last command to each cell to leave, if it was given no work since
        self._left: set[int] = set()  # cells of the trainer that have left their devices
        self._trainer_up = False

    def up(self, event: c.Up) -> None:
        """A trainer has its state on all of its devices."""
        if event.role == TRAINER:
            self._trainer_up = True
            self._all_are_there()

    def down(self, event: c.Down) -> None:
        """A replica is gone; the next process has its devices. A trainer has nothing on them any more."""
        if event.role == REPLICA:
            self.lent.discard(event.id)
            self._holds.pop(event.id, None)
        elif event.role == TRAINER:
            self._trainer_up = False

    def offload(self, command: c.Offload, controller: Controller) -> None:
        """A cell is to leave its devices, on which it computes nothing."""
        trainer = controller.trainer
        if command.cell in trainer.adding or trainer.stepping is not None or trainer.accumulating is not None:
            raise InvariantError(SHARED, f"cell {command.cell} is to leave its devices while it computes there")
        self._moved[command.cell] = command.seq

    def offloaded(self, event: c.Offloaded) -> None:
        """A cell has left them, if it was given nothing since."""
        if self._moved.get(event.cell) == event.answers:
            self._left.add(event.cell)

    def _all_are_there(self) -> None:
        self._moved.clear()
        self._left.clear()

    def restarts(self, commands: Sequence[c.Command]) -> None:
        """A trainer that begins anew in this instant has nothing on its devices, wherever among the commands that is said."""
        if any(isinstance(command, c.Restart) and command.role == TRAINER for command in commands):
            self._trainer_up = False

    def restart(self, command: c.Restart, controller: Controller) -> None:
        """A replica begins anew on devices that the trainer's cells have left. If it stood still, no `Down` was there."""
        if command.role == REPLICA:
            self._check_left(command.id, controller)
            self.lent.discard(command.id)
            self._holds.pop(command.id, None)

    def start(self, command: c.Start, controller: Controller) -> None:
        """A new replica, too, begins on devices that the trainer's cells have left."""
        if command.role == REPLICA:
            self._check_left(command.id, controller)

    def _check_left(self, name: str, controller: Controller) -> None:
        there = sorted({*controller.fleet.replicas[name].cells} - self._left)
        if there and self._trainer_up:
            raise InvariantError(SHARED, f"{name} begins anew while cells {there} have their state there")

    def left(self, event: c.Finished | c.TurnEnded | c.Interrupted | c.Refused) -> None:
        """A trajectory has left a replica."""
        self._holds.get(event.replica, set()).discard(event.trajectory)

    def resumed(self, event: c.Resumed) -> None:
        """The driver came back; every process is new."""
        del event
        self.lent.clear()
        self._holds.clear()
        self._trainer_up = False

    def route(self, command: c.Route) -> None:
        """Nothing runs on devices that are lent."""
        if command.replica in self.lent:
            raise InvariantError(SHARED, f"{command.replica} is given work while its devices are lent")
        self._holds.setdefault(command.replica, set()).update(ref.trajectory for ref in command.trajectories)

    def abort(self, command: c.Abort) -> None:
        """Trajectories are dropped."""
        for replica in command.replicas:
            self._holds.get(replica, set()).difference_update(command.trajectories)

    def lend(self, command: c.Lend, controller: Controller) -> None:
        """A replica leaves its devices, which are its alone, with all cells that stand on them."""
        owner: dict[int, str] = {}
        for replica in controller.fleet.replicas.values():
            if replica.member.health not in (c.Health.DOWN, c.Health.STOPPING):
                for device in replica.devices:
                    if owner.setdefault(device, replica.id) != replica.id:
                        raise InvariantError(SHARED, f"device {device} is that of {owner[device]} and of {replica.id}")
        spec, mine = controller.spec, [device for device, name in owner.items() if name == command.replica]
        cells = {device // spec.cell_devices % spec.cells for device in mine}
        if cells != set(command.cells) or len(mine) != controller.fleet.replicas[command.replica].member.tp:
            raise InvariantError(
                SHARED,
                f"{command.replica} lends cells {command.cells} on devices {mine}, expected cells {sorted(cells)}",
            )
        if spec.judge_cell in cells:
            raise InvariantError(SHARED, f"{command.replica} lends cell {spec.judge_cell}, on which a judge stands")
        held = sorted(self._holds.get(command.replica, ()))
        if held:
            raise InvariantError(SHARED, f"the devices of {command.replica} are lent while it holds {held!r:.100}")
        self.lent.add(command.replica)
        self.loans += 1
        self._check_share(command.replica, controller)

    def _check_share(self, name: str, controller: Controller) -> None:
        """A hybrid yields only for a step, or once its share of the batch is complete and others generate on."""
        trainer, policy = controller.trainer, controller.spec.provisioning
        at = policy.yields_from()
        if at is None or trainer.making is not None or controller.batches.view() is None:
            return
        complete = [one for one in controller.ledger.groups.values() if one.phase is GroupPhase.BUFFERED]
        done, size = len(complete) + len(trainer.accumulated), controller.rounds.due
        others = [
            one for one in controller.members.of(REPLICA) if one.health is not c.Health.STOPPING and not one.hybrid
        ]
        share = at if others else 1.0
        if done < share * size:
            raise InvariantError(
                SHARED, f"{name} yields with {done} of {size} groups complete, expected {share:g} of them"
            )

    def step(self, controller: Controller) -> None:
        """The trainer steps on its devices alone."""
        self._all_are_there()
        if controller.spec.provisioning.yields_from() is not None:
            hybrids = [one for one in controller.members.of(REPLICA) if one.hybrid and one.health is c.Health.UP]
            busy = [one.id for one in hybrids if one.id not in self.lent]
            if busy:
                raise InvariantError(SHARED, f"the trainer is to step on the devices of {busy!r:.100}")

    def resize(self, command: c.Resize, controller: Controller) -> None:
        """A replica begins anew on other devices: nobody else may count on those that it has, nor have its state there."""
        self._check_left(command.replica, controller)
        if self.lent:
            raise InvariantError(SHARED, f"{command.replica} is resized while devices of {sorted(self.lent)} are lent")
        self._holds.pop(command.replica, None)

    def give_back(self, command: c.Return, controller: Controller) -> None:
        """A replica has its devices again."""
        trainer, cells = controller.trainer, set(controller.fleet.replicas[command.replica].cells)
        computing = trainer.adding.keys() & cells
        if trainer.stepping is not None or trainer.accumulating is not None:
            computing = cells
        if controller.spec.provisioning.yields_from() is not None and trainer.making is not None:
            computing = cells
        if computing:
            raise InvariantError(
                SHARED, f"{command.replica} takes its devices back while cell {min(computing)} computes there"
            )
        there = sorted(cells - self._left)
        if there and self._trainer_up:
            raise InvariantError(
                SHARED, f"{command.replica} takes its devices back while cells {there} have their state there"
            )
        self.lent.discard(command.replica)

    def accumulate(self, command: c.Accumulate, controller: Controller) -> None:
        """A cell computes on its devices alone."""
        if command.cell is None:
            self._all_are_there()
        else:
            self._moved.pop(command.cell, None)
            self._left.discard(command.cell)
        if not controller.spec.colocated or command.cell is None:
            return
        here = [
            r for r in controller.fleet.replicas.values() if command.cell in r.cells and r.member.health is c.Health.UP
        ]
        busy = [replica.id for replica in here if replica.id not in self.lent]
        if busy or not here:
            raise InvariantError(SHARED, f"cell {command.cell} is to compute on the devices of {busy or 'nobody'}")
