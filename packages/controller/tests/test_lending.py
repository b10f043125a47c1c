"""Devices that change hands: a replica leaves its own to a cell of the trainer, and gets them back."""

import dataclasses

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.errors import PluginAnswerError


@dataclasses.dataclass(frozen=True)
class Told(c.ProvisioningPolicy):
    """Does what a test says."""

    actions: list = dataclasses.field(default_factory=list, compare=False)
    seen: list = dataclasses.field(default_factory=list, compare=False)
    sizes: tuple = (1, 1)

    def round_milestones(self):
        return (0.25, 0.5, 0.75)

    def plan(self, view):
        self.seen.append(view)
        if not view.of("replica"):
            return [c.StartReplica(tp=size) for size in self.sizes]
        actions = tuple(self.actions)
        self.actions.clear()
        return actions


def colocated(told, cells=2, **changes):
    batching = policy("batching", "tail-batching", prompts=2, samples=2, prompt_factor=1.0, sample_factor=1.0)
    run = Scripted(
        spec(
            admission=policy("admission", "on-policy"), batching=batching, sync=policy("sync", "barrier"), steps=3,
            batch_groups=2, replica_batch=8, buffer_groups=None, training=policy("training", "streamed"),
            provisioning=told, cells=cells, colocated=True, **changes,
        )
    )  # fmt: skip
    run.go(c.Tick(), leave=(c.Route, c.Score))
    return run


def on(run, replica):
    return [
        ref.trajectory for route in of(c.Route, run.given) if route.replica == replica for ref in route.trajectories
    ]


def shows(run, replica, leave=(c.Route, c.Score)):
    """A snapshot that shows all commands."""
    state = run.controller.fleet.replicas[replica]
    held = len(state.assigned.states)
    return run.go(c.Snapshot(replica, 0.1, held, 0, 0, state.version, 10_000), leave=leave)


def lend_r1(run, told):
    """Group 0 is complete on r0; then the devices of r1 are lent."""
    told.actions.append(c.LendReplica("r1"))
    first = on(run, "r0")
    run.go(*(c.Finished("r0", name, 10) for name in first), leave=(c.Route,))
    return shows(run, "r1", leave=(c.Route, c.Accumulate))


def test_a_cell_computes_only_once_its_devices_are_lent_and_their_replica_is_empty():
    told = Told()
    run = colocated(told)
    assert on(run, "r0")
    moved = on(run, "r1")
    assert moved
    told.actions.append(c.LendReplica("r1"))
    first = on(run, "r0")
    given = run.go(*(c.Finished("r0", name, 10) for name in first), leave=(c.Route, c.Interrupt))
    (interrupt,) = of(c.Interrupt, given)
    assert (interrupt.replica, set(interrupt.trajectories), interrupt.reason.why) == ("r1", set(moved), c.Why.LENT)
    assert run.view.counts.completed == 1
    assert not of(c.Accumulate, run.given)
    given = run.catch_up(c.Interrupt, leave=(c.Route, c.Lend))
    (lend,) = of(c.Lend, given)
    assert (lend.replica, lend.cells) == ("r1", (1,))
    assert not of(c.Accumulate, run.given)  # until a snapshot shows that it knows
    given = shows(run, "r1", leave=(c.Route, c.Accumulate))
    assert {ref.trajectory for route in of(c.Route, given) for ref in route.trajectories} == set(moved)
    assert {route.replica for route in of(c.Route, given)} == {"r0"}  # at their own version
    (added,) = of(c.Accumulate, given)
    assert (added.cell, added.update) == (1, False)
    assert set(added.trajectories) == set(first)
    assert run.controller.lending.lent == ["r1"]


def test_a_replica_beside_a_judge_is_shown_as_kept_and_is_not_lent():
    told = Told()
    run = colocated(told, judge_cell=0)
    told.actions.append(c.LendReplica("r0"))
    first = on(run, "r0")
    run.go(*(c.Finished("r0", name, 10) for name in first), leave=(c.Route, c.Score))
    assert run.view.failure is not None
    assert "none on the cell of a judge" in run.view.failure
    assert {load.replica: load.kept for load in told.seen[-1].loads} == {"r0": True, "r1": False}


def test_devices_return_once_the_cell_has_ended_and_then_work_is_routed_again():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    told.actions.append(c.ReturnReplica("r1"))
    left = [name for name in dict.fromkeys(on(run, "r0")) if run.controller.ledger.get(name).phase == "running"]
    given = run.go(c.Finished("r0", left[0], 10), leave=(c.Route, c.Score, c.Accumulate))
    assert not of(c.Return, given)  # the cell still computes on its devices
    given = run.catch_up(c.Accumulate, leave=(c.Route, c.Offload))
    assert [command.cell for command in of(c.Offload, given)] == [1]
    assert not of(c.Return, given)  # the cell has its gradients there
    given = run.catch_up(c.Offload, leave=(c.Route,))
    assert [command.replica for command in of(c.Return, given)] == ["r1"]
    assert not run.controller.lending.lent
    run.go(*(c.Finished("r0", name, 10) for name in left[1:]), leave=())
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6
    assert "r1" in {route.replica for route in of(c.Route, run.given[-60:])}


def test_nothing_is_moved_for_a_trainer_that_is_gone():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    told.actions.append(c.ReturnReplica("r1"))
    run.controller.failures.troubles.first_iteration = False
    before = len(of(c.Offload, run.given))
    run.go(c.Down("trainer", "0", "killed"), leave=(c.Route, "trainer"))
    run.later(1, leave=(c.Route, "trainer"))
    assert [command.replica for command in of(c.Return, run.given)] == ["r1"]
    assert len(of(c.Offload, run.given)) == before


def test_a_step_keeps_devices_and_every_cell_leaves_them_after_it():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    run.catch_up(c.Accumulate, leave=(c.Route, c.Accumulate, c.Step))
    left = [name for name in dict.fromkeys(on(run, "r0")) if run.controller.ledger.get(name).phase == "running"]
    run.go(*(c.Finished("r0", name, 10) for name in left), leave=(c.Route, c.Accumulate, c.Step))
    run.catch_up(c.Accumulate, leave=(c.Route, c.Accumulate, c.Step))
    (step,) = of(c.Step, run.given)
    told.actions.append(c.ReturnReplica("r1"))
    run.go(c.Up("relay", "0"), leave=(c.Route, c.Step))
    assert not of(c.Return, run.given)
    run.left.clear()
    run.later(2)
    given = run.go(c.Stepped(step.version, {"wall_s": 3.0}, step.seq), leave=(c.Route, c.Step, c.Accumulate))
    assert {command.cell for command in of(c.Offload, given)} == {0, 1}
    assert [command.replica for command in of(c.Return, given)] == ["r1"]
    seqs = [command.seq for kind in (c.Publish, c.Offload, c.Return) for command in of(kind, given)]
    assert seqs == sorted(seqs)  # weights are published before they are moved away


def test_policies_are_told_what_loans_took():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    run.left.clear()
    run.later(4)
    told.actions.append(c.ReturnReplica("r1"))
    run.go(c.Up("relay", "0"), leave=(c.Route, c.Accumulate, c.Offload))
    busy = of(c.Accumulate, run.given)[-1]
    run.go(
        c.Accumulated(busy.version, busy.trajectories, {"wall_s": 6.0}, busy.seq, cell=1),
        leave=(c.Route, c.Offload, c.Accumulate),
    )
    run.later(1.5)
    run.go(c.Offloaded(1, of(c.Offload, run.given)[-1].seq), leave=(c.Route, c.Return, c.Accumulate))
    run.later(0.5)
    run.go(c.Returned("r1", of(c.Return, run.given)[-1].seq), leave=(c.Route, c.Accumulate))
    (loan,) = told.seen[-1].loans
    assert (loan.version, loan.return_s) == (0, 2.0)
    assert loan.lend_s >= 0
    assert run.controller.trainer.added_s == 3.0  # six seconds on one of two cells


def test_a_lent_replica_that_goes_down_is_no_longer_lent():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    run.down("replica", "r1", leave=(c.Route, c.Accumulate))
    assert not run.controller.lending.lent
    run.catch_up()
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6


def test_a_lent_replica_that_goes_down_begins_anew_once_its_cell_has_left():
    """Until then its devices have no memory for it: the cell's gradients and the optimizer's state lie there."""
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    (busy,) = (command.cell for command in of(c.Accumulate, run.given))
    assert busy == 1
    leave, before = (c.Route, c.Accumulate, c.Offload), len(of(c.Offload, run.given))
    run.go(c.Down("replica", "r1", "killed"), leave=leave)
    run.go(c.Down("replica", "r1", "killed"), leave=leave)  # told twice, it fails once
    run.later(5, leave=leave)
    assert not of(c.Restart, run.given)
    assert run.view.why_idle("replica", "r1") == c.Reason(c.Why.OCCUPIED)  # it does not only start
    assert {name: reason.why for name, reason in run.view.occupied.items()} == {"r1": c.Why.FAILED}
    assert "devices" in next(row.doing for row in run.view.replicas() if row.id == "r1")
    assert len(of(c.Offload, run.given)) == before
    run.catch_up(c.Accumulate, leave=leave)
    assert [command.cell for command in of(c.Offload, run.given)[before:]] == [1]
    assert not of(c.Restart, run.given)
    run.catch_up(c.Offload, leave=(c.Route,))
    (restart,) = of(c.Restart, run.given)
    assert (restart.role, restart.id) == ("replica", "r1")
    assert not run.view.occupied
    run.catch_up()
    assert run.controller.fleet.replicas["r1"].member.health is c.Health.UP


def test_a_lent_replica_that_went_down_does_not_wait_for_a_trainer_that_is_gone():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    run.controller.failures.troubles.first_iteration = False
    leave = (c.Route, c.Accumulate, "trainer")
    run.go(c.Down("replica", "r1", "killed"), leave=leave)
    assert not of(c.Restart, run.given)
    run.go(c.Down("trainer", "0", "killed"), leave=leave)
    assert [(restart.role, restart.id) for restart in of(c.Restart, run.given)] == [("trainer", "0"), ("replica", "r1")]


def test_a_replica_does_not_begin_anew_in_the_instant_in_which_a_trainer_on_its_devices_ends_the_run():
    class Suspects(c.DetectionPolicy):
        look_s = 1.0
        still = ()

        def suspects(self, signs):
            return [
                c.Suspected(role, name, c.Reason(c.Why.STILL, numbers={"still_s": 9.0})) for role, name in self.still
            ]

        def within_s(self, role):
            return float("inf")

    told, detection = Told(), Suspects()
    recovery = policy("recovery", "isolate", max_restarts=3, trainer_restarts=0)
    run = colocated(told, recovery=recovery, detection=detection)
    lend_r1(run, told)
    detection.still = (("trainer", "0"), ("replica", "r1"))
    run.later(2, leave=(c.Route, c.Accumulate, c.Fail))  # the trainer's process may live
    assert "trainer 0 is down and is not restarted" in of(c.Fail, run.given)[0].reason
    assert not of(c.Restart, run.given)


def test_a_replica_of_a_new_size_begins_once_the_cells_have_left_its_devices():
    """The trainer steps when the policy resizes: on these devices all of its state lies."""
    told = Told()
    run = colocated(told)
    leave = (c.Route, c.Step, c.Offload)
    run.catch_up(leave=leave)
    assert run.view.making == 1
    told.actions.extend([c.ResizeReplica("r0", 2), c.StopReplica("r1")])
    given = run.go(c.Up("relay", "0"), leave=leave)
    assert [command.id for command in of(c.Stop, given)] == ["r1"]
    run.catch_up(c.Step, leave=leave)
    assert [command.cell for command in of(c.Offload, run.left)] == [0, 1]
    assert not of(c.Resize, run.given)
    run.catch_up(c.Offload, leave=leave)
    assert [command.replica for command in of(c.Resize, run.given)] == ["r0"]
    told.actions.extend([c.ResizeReplica("r0", 1), c.StartReplica()])
    run.go(c.Up("relay", "0"), leave=leave)
    assert [command.id for command in of(c.Start, run.given) if command.role == "replica"] == ["r0", "r1", "r2"]


def test_a_new_replica_starts_once_the_cells_have_left_its_devices():
    told = Told()
    run = colocated(told)
    leave = (c.Route, c.Step, c.Offload)
    run.catch_up(leave=leave)
    told.actions.append(c.StartReplica())
    run.go(c.Up("relay", "0"), leave=leave)
    run.catch_up(c.Step, leave=leave)
    assert "r2" not in [command.id for command in of(c.Start, run.given)]
    run.catch_up(c.Offload, leave=leave)
    assert "r2" in [command.id for command in of(c.Start, run.given)]


def test_a_replica_that_waits_for_its_devices_still_waits_if_it_is_resized():
    told = Told()
    run = colocated(told)
    lend_r1(run, told)
    leave = (c.Route, c.Accumulate, c.Offload)
    run.go(c.Down("replica", "r1", "killed"), leave=leave)
    told.actions.append(c.ResizeReplica("r1", 1))
    run.go(c.Up("relay", "0"), leave=leave)
    run.catch_up(c.Accumulate, leave=leave)
    assert not of(c.Resize, run.given)
    run.catch_up(c.Offload, leave=leave)
    assert [command.replica for command in of(c.Resize, run.given)] == ["r1"]


@pytest.mark.parametrize("action", [c.LendReplica("r9"), c.ReturnReplica("r9")])
def test_devices_of_nobody_are_not_lent(action):
    told = Told()
    run = colocated(told)
    told.actions.append(action)
    names = on(run, "r0")
    run.go(*(c.Finished("r0", name, 10) for name in names), leave=(c.Route, c.Score))
    assert "provisioning" in run.view.failure


def test_a_replica_without_a_cell_cannot_lend():
    told = Told()
    run = colocated(told)
    run.controller.fleet.replicas["r1"].cells = ()
    with pytest.raises(PluginAnswerError, match="a cell of the trainer"):
        run.controller.provisioning._lend(c.LendReplica("r1"))


def cells(run):
    return {name: replica.cells for name, replica in run.controller.fleet.replicas.items()}


def test_a_replica_of_two_devices_lends_two_cells():
    told = Told(sizes=(2, 2))
    run = colocated(told, cells=4)
    assert cells(run) == {"r0": (0, 1), "r1": (2, 3)}
    told.actions.append(c.LendReplica("r1"))
    first = on(run, "r0")
    run.go(*(c.Finished("r0", name, 10) for name in first), leave=(c.Route,))
    (lend,) = of(c.Lend, run.given)
    assert lend.cells == (2, 3)
    shows(run, "r1", leave=(c.Route, c.Accumulate))
    assert run.controller.batches.free_cells == {2, 3}
    assert {command.cell for command in of(c.Accumulate, run.given)} <= {2, 3}
    told.actions.append(c.ReturnReplica("r1"))
    busy = set(run.controller.trainer.adding)
    assert busy  # one of its two cells computes, which is enough to wait for
    run.later(1, leave=(c.Route, c.Accumulate))
    run.go(c.Up("relay", "0"), leave=(c.Route, c.Accumulate))
    assert not of(c.Return, run.given)
    run.catch_up(c.Accumulate, leave=(c.Route, c.Accumulate))
    assert [command.replica for command in of(c.Return, run.given)] == ["r1"]


@pytest.mark.parametrize("lent", ["r0", "r1"])
@pytest.mark.parametrize("action", [c.ResizeReplica("r1", 2), c.StopReplica("r1")], ids=["resize", "stop"])
def test_devices_return_before_sizes_change(action, lent):
    """One that keeps its devices may stop beside a loan, since the cells that have devices keep them."""
    told = Told()
    run = colocated(told)
    other = "r1" if lent == "r0" else "r0"
    told.actions.append(c.LendReplica(lent))
    names = on(run, other)
    run.go(*(c.Finished(other, name, 10) for name in names), leave=(c.Route, c.Score))
    assert run.controller.lending.lent == [lent]
    told.actions.append(action)
    run.go(c.Up("relay", "0"), leave=(c.Route, c.Score, c.Accumulate))
    if isinstance(action, c.StopReplica) and lent == "r0":
        assert run.view.failure is None
    else:
        assert "lent" in run.view.failure
        assert "provisioning" in run.view.failure


def test_nothing_is_lent_while_sizes_change():
    told = Told()
    run = colocated(told)
    told.actions.extend([c.ResizeReplica("r0", 2), c.LendReplica("r1")])
    run.go(c.Up("relay", "0"), leave=(c.Route, c.Interrupt))
    assert "LendReplica" in run.view.failure
    assert "expected none while replicas are resized: r0" in run.view.failure


def test_a_replica_that_was_stopping_when_the_driver_died_holds_no_devices():
    told = Told()
    run = colocated(told)
    told.actions.extend([c.StopReplica("r1"), c.ResizeReplica("r0", 2)])
    run.go(c.Up("relay", "0"), leave=(c.Route, c.Interrupt))
    assert cells(run)["r0"] == (0, 1)
    run.left.clear()
    run.go(c.Resumed(()), leave=(c.Route, c.Score))
    told.actions.append(c.LendReplica("r0"))
    names = on(run, "r0")[-1:]
    run.go(c.Up("relay", "0"), *(c.Finished("r0", name, 10) for name in names), leave=(c.Route, c.Score))
    assert [command.cells for command in of(c.Lend, run.given)] == [(0, 1)]
    shows(run, "r0")
    assert run.controller.batches.free_cells == {0, 1}
