"""What became of faults, from a log: when they struck, were noticed and made good, and which never struck."""

from tailrace import contracts as c
from tailrace.faulttol import parse_fault
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.pipeline.run.figures.folding import Audience, follow


def fault_figures(log, scripted=()):
    fold = FaultFold()
    follow(log, Audience(fold))
    return fold.figures(scripted)


def instant(now, *events, commands=()):
    return Instant(now, list(events), list(commands))


def restarts(role, id_, why=c.Why.FAILED):
    return [c.Restart(1, role, id_, reason=c.Reason(why))]


def struck(role, id_, kind="kill", phase="", fault=""):
    return c.Struck(role, id_, kind, phase, fault)


def test_a_fault_is_struck_noticed_and_made_good():
    log = [
        instant(1.0, c.Up("trainer", "0", machine="m7")),
        instant(4.0, *map(c.Stepped, (1, 2, 3))),
        instant(5.0, struck("trainer", "0", "hang", "backward", "hang:trainer@step3:backward")),
        instant(6.0, c.Down("trainer", "0", "silent for 1 s", c.Cause.SILENT), commands=restarts("trainer", "0")),
        instant(9.5, c.Up("trainer", "0", machine="m8", took={"place": 2.0, "load": 1.5})),
        instant(10.0, commands=[c.Step(2, 4, ())]),
        instant(11.0, c.Down("trainer", "0", "by itself", c.Cause.DIED), commands=restarts("trainer", "0")),
    ]
    (row,) = fault_figures(log).plain()["faults"]
    assert row == {
        "fault": "hang:trainer@step3:backward", "role": "trainer", "member": "0", "machine": "m7", "phase": "backward",
        "step": 3, "kind": "hang", "struck_s": 5.0, "detected_s": 6.0, "serving_s": 9.5, "action": "restart",
        "reason": "silent for 1 s", "stages": {"detect": 1.0, "place": 2.0, "load": 1.5, "reconnect": 0.5},
    }  # fmt: skip


def test_the_step_of_a_fault_counts_batches_also_behind_a_fall_back():
    """What a trainer published anew, and what it makes from there on, has newer numbers than batches."""
    log = [
        *(instant(float(version), c.Stepped(version)) for version in (1, 2, 3)),
        instant(4.0, c.Down("trainer", "0", "gone", c.Cause.DIED), commands=restarts("trainer", "0")),
        instant(5.0, c.Up("trainer", "0", version=2), commands=[c.Checkpoint(2, 4, ())]),
        instant(6.0, struck("trainer", "0")),
        instant(7.0, c.Up("trainer", "0", version=4)),
        instant(8.0, c.Stepped(5)),
        instant(9.0, struck("replica", "r1")),
    ]
    assert [one.step for one in fault_figures(log).struck] == [2, 3]


def test_a_still_engine_is_noticed_by_the_controller():
    log = [
        instant(5.0, struck("replica", "r1", "stall"), struck("replica", "r0", "kill")),
        instant(6.0, c.Down("replica", "r0", "gone", c.Cause.DIED), commands=restarts("replica", "r0")),
        instant(36.0, commands=restarts("replica", "r1", c.Why.STILL)),
        instant(37.0, c.Up("replica", "r1")),
    ]
    still, killed = fault_figures(log).struck
    assert (still.detected_s, still.serving_s, still.action, still.reason) == (36.0, 37.0, "restart", "still")
    assert (killed.detected_s, killed.serving_s) == (6.0, None)


def test_a_machine_is_made_good_once_all_its_members_stand_elsewhere():
    log = [
        instant(1.0, *(c.Up(*member, machine="1") for member in (("relay", "1"), ("replica", "r0")))),
        instant(1.0, c.Up("trainer", "0", machine="0")),
        instant(5.0, struck("machine", "1", fault="machine@5s")),
        instant(6.0, c.Down("replica", "r0", "its machine 1 is gone", c.Cause.MACHINE, "1")),
        instant(7.0, c.Up("relay", "1", machine="2")),
        instant(8.0, c.Up("trainer", "0", machine="0")),
        instant(9.0, c.Up("replica", "r0", machine="2")),
    ]
    (machine,) = fault_figures(log).struck
    assert (machine.machine, machine.detected_s, machine.serving_s) == ("1", 6.0, 9.0)
    assert (machine.action, machine.reason) == ("evict-machine", "its machine 1 is gone")
    assert machine.stages == {}  # the trainer did not stand there


def test_the_stages_of_a_machine_are_those_of_the_trainer_that_stood_there():
    log = [
        instant(1.0, *(c.Up(*member, machine="1") for member in (("trainer", "0"), ("replica", "r0")))),
        instant(5.0, struck("machine", "1", fault="machine@5s")),
        instant(6.0, c.Down("replica", "r0", "its machine 1 is gone", c.Cause.MACHINE, "1")),
        instant(8.0, c.Up("trainer", "0", machine="0", took={"place": 2.0})),
        instant(9.0, c.Up("replica", "r0", machine="2", took={"place": 3.0})),
        instant(9.5, c.Pulled("r0", 2), commands=[c.Accumulate(2, 4, ())]),
    ]
    (machine,) = fault_figures(log).struck
    assert machine.serving_s == 9.0
    assert machine.stages == {"detect": 1.0, "place": 2.0, "reconnect": 1.5}


def test_a_driver_is_followed_by_the_next_and_a_given_up_member_by_nobody():
    log = [
        instant(5.0, struck("controller", "0", fault="controller@5s")),
        instant(5.0, c.Resumed(())),
        instant(6.0, struck("replica", "r1")),
        instant(7.0, c.Down("replica", "r1", "gone", c.Cause.DIED), commands=[c.Fail(2, "no replica is left")]),
    ]
    driver, replica = fault_figures(log).struck
    assert (driver.detected_s, driver.serving_s, driver.action) == (5.0, 5.0, "resume")
    assert (replica.detected_s, replica.serving_s, replica.action) == (7.0, None, "fail")


def test_what_did_not_strike_is_told_as_often_as_it_was_written():
    scripted = [parse_fault(text) for text in ("replica:r5@3s", "trainer@step1", "trainer@step1", "data@step1")]
    log = [instant(2.0, struck("trainer", "0", fault="trainer@step1"), struck("data", "0", fault="data@step1"))]
    found = fault_figures(log, scripted).plain()
    assert found["faults_not_struck"] == ["replica:r5@3s", "trainer@step1"]
