"""Members alone: where they stand, what is known of them, and what recovery is told when one fails."""

import pytest

from tailrace.contracts import Activity, Cause, Down, Health, MachineView, ProcessSeat, Silent, Up
from tailrace.controller.members import Members
from tailrace.faulttol import Troubles

WINDOW_S = 100.0


def told(members, replica):
    """Addresses of a replica's relays, in order."""
    return tuple(relay.address for relay in members.relays_for(replica))


def up(members, role, id_="0", machine="", now=0.0, address=""):
    state = members.get(role, id_) or members.add(role, id_)
    assert members.came_up(Up(role, id_, machine=machine, address=address), now) is state
    return state


def fails(members, state, *, now=0.0, machine="", room=None, step=3, troubles=None, standbys=0, cause=Cause.DIED):
    event = Down(state.role, state.id, "killed", cause, machine, room)
    return members.failure(state, event, now, WINDOW_S, step, troubles or Troubles(), standbys)


def test_a_failure_says_who_where_and_how_often():
    members = Members()
    up(members, "data", machine="m1")
    first, second = (up(members, "replica", f"r{i}", machine="m1") for i in (0, 1))
    up(members, "replica", "r2", machine="m2")
    first.phase, first.hybrid = "generating", True
    found = fails(members, first, now=5.0, standbys=2)
    assert (found.role, found.member, found.cause, found.reason) == ("replica", "r0", Cause.DIED, "killed")
    assert (found.machine, found.stood, found.phase, found.step) == ("m1", "m1", "generating", 3)
    assert (found.failures, found.role_failures, found.machine_failures) == (1, 1, 1)
    assert (found.others, found.starting, found.hybrid, found.standbys, found.moved) == (2, False, True, 2, 0)
    assert (found.elsewhere, found.beside_store) == (1, True)
    assert (found.first_iteration, found.step_failures, found.failed_starts, found.task_restarts) == (True, 1, 0, 0)
    second.health = Health.DOWN
    again = fails(members, first, now=6.0)
    assert (again.failures, again.role_failures, again.machine_failures, again.others) == (2, 2, 2, 1)
    other = fails(members, up(members, "replica", "r2", machine="m2"), now=7.0)
    assert (other.failures, other.role_failures, other.machine_failures) == (1, 3, 1)
    assert (other.beside_store, other.hybrid, other.standbys) == (False, False, 0)


def test_old_failures_count_for_their_member_and_not_for_its_machine():
    members = Members()
    state = up(members, "replica", "r0", machine="m1")
    fails(members, state, now=0.0)
    found = fails(members, state, now=WINDOW_S)
    assert (found.failures, found.role_failures, found.machine_failures) == (2, 1, 1)
    found = fails(members, state, now=2 * WINDOW_S - 1.0)
    assert (found.failures, found.role_failures, found.machine_failures) == (3, 2, 2)
    assert not found.beside_store  # no store stands anywhere


def test_one_whose_machine_is_not_known_blames_none():
    members = Members()
    state = up(members, "scorer")
    fails(members, state)
    found = fails(members, state)
    assert (found.machine, found.machine_failures, found.stood, found.elsewhere, found.others) == ("", 0, "", 0, 0)


def test_one_that_fails_while_it_starts_stood_where_it_was_told_to_start():
    members, troubles = Members(("m0", "m1")), Troubles()
    state = members.add("trainer", "0")
    place = members.place(state)
    found = fails(members, state, troubles=troubles)
    assert (found.starting, found.failed_starts, found.machine, found.stood) == (True, 1, "", place.machine)
    assert fails(members, state, troubles=troubles).failed_starts == 2
    lost = fails(members, state, machine=place.machine, cause=Cause.MACHINE, troubles=troubles)
    assert (lost.starting, lost.failed_starts, lost.machine) == (
        True,
        0,
        place.machine,
    )  # no start failed: its machine did


def test_work_makes_up_for_failures():
    members = Members()
    state = up(members, "relay", machine="m1")
    fails(members, state)
    state.moved = 1
    members.worked("relay", "1")  # it is gone for good
    members.worked("scorer")
    assert len(state.failures) == 1
    members.worked("relay")
    assert (state.failures, state.moved) == ([], 0)


def test_a_step_makes_up_for_failures_in_it_and_before():
    members = Members()
    state = up(members, "trainer")
    for step in (2, 3, 3, 5):
        fails(members, state, step=step)
    state.moved = 2
    state.trained(2)
    assert (state.failures, state.moved) == ([3, 3, 5], 1)
    state.trained(4)
    assert (state.failures, state.moved) == ([5], 0)


def test_one_that_comes_up_has_no_signs_of_the_one_before():
    members = Members()
    state = up(members, "replica", "r0", machine="m1", now=1.0)
    members.says(Activity("replica", "r0", "generating", 1, still_s=7.0, slowest_s=3.0), now=9.0)
    members.silent(Silent("replica", "r0", 4.0), now=9.0)
    assert (state.phase, state.still_s, state.slowest_s, state.moved_s, state.heard_s) == (
        "generating",
        7.0,
        3.0,
        1.0,
        5.0,
    )
    assert members.alarming == {("replica", "r0"): None}
    up(members, "replica", "r0", machine="m2", now=20.0)
    assert (state.phase, state.still_s, state.slowest_s, state.moved_s, state.heard_s) == ("", 0.0, 0.0, 20.0, None)
    assert (members.alarming, state.machine, state.stood, state.stands) == ({}, "m2", "m2", "")
    assert members.machines == {"m1": MachineView("m1"), "m2": MachineView("m2")}
    up(members, "replica", "r0")
    assert (state.machine, state.stood) == ("", "m2")
    assert fails(members, state).stood == "m2"
    state.stands = "m1"
    assert fails(members, state).stood == "m1"
    assert fails(members, state, machine="m3").stood == "m3"
    up(members, "replica", "r0")
    assert (state.stands, set(members.machines)) == ("m1", {"m1", "m2"})
    up(members, "replica", "r0", machine="m2")
    assert state.stands == "m2"  # it came up elsewhere than it was told


def test_a_machine_that_was_given_up_stays_so_when_somebody_comes_up_there():
    members = Members()
    up(members, "replica", "r0", machine="m1")
    members.give_up("m1")
    up(members, "replica", "r0", machine="m1")
    assert members.given_up == ("m1",)


def test_who_stands_still_or_is_silent_alarms_until_it_is_neither():
    members = Members()
    state = up(members, "replica", "r0")
    members.says(Activity("replica", "r0", "generating", 1, still_s=2.0), now=3.0)
    assert list(members.alarming) == [("replica", "r0")]
    members.silent(Silent("replica", "r0", 1.0), now=3.0)
    members.says(Activity("replica", "r0", "generating", 2), now=4.0)
    assert (list(members.alarming), state.moved_s) == ([("replica", "r0")], 4.0)  # it is silent yet
    members.silent(Silent("replica", "r0", 0.0), now=5.0)
    assert (members.alarming, state.heard_s) == ({}, None)
    state.health = Health.STARTING
    members.silent(Silent("replica", "r0", 9.0), now=9.0)
    assert (members.alarming, state.heard_s) == ({}, None)  # it cannot answer
    members.says(Activity("replica", "r9", "generating", 1, still_s=2.0), now=3.0)
    members.silent(Silent("replica", "r9", 9.0), now=9.0)
    assert members.alarming == {}


@pytest.mark.parametrize("health", [Health.STOPPING, Health.RESIZING])
def test_one_that_is_to_end_is_not_up_when_it_says_so(health):
    members = Members()
    state = members.add("replica", "r0")
    state.health = health
    up(members, "replica", "r0")
    assert state.health is health
    assert members.is_up("replica", "r0") is members.is_up("replica", "r1") is False
    assert members.came_up(Up("replica", "r1"), 0.0) is None


def test_relays_count_by_site_and_a_replica_asks_its_own_first():
    members = Members()
    members.add("replica", "r0")
    assert (told(members, "r0"), members.get("replica", "r0").index) == ((), None)
    for id_, site, machine in (("0", "", "m0"), ("1", "", "m1"), ("2", "west", "m2"), ("3", "west", "m3")):
        members.add("relay", id_, site=site)
        up(members, "relay", id_, machine=machine, address=f"at {id_}")
    up(members, "replica", "r0", machine="m0")
    for id_, site, machine in (("r1", "", "m1"), ("r2", "west", "m9"), ("r3", "east", "m0")):
        members.add("replica", id_, site=site)
        up(members, "replica", id_, machine=machine)
    assert [state.index for state in members.of("relay")] == [0, 1, 0, 1]
    assert members.sites() == {"2": "west", "3": "west"}
    assert members.relays() == {id_: f"at {id_}" for id_ in "0123"}
    assert told(members, "r0") == ("at 0", "at 1")
    assert told(members, "r1") == ("at 1", "at 0")
    assert told(members, "r2") == ("at 2", "at 3")
    assert told(members, "r3") == ("at 0", "at 3", "at 1", "at 2")  # of no site: on its machine, then in turn
    for id_ in "23":
        members.get("relay", id_).health = Health.STARTING
    assert told(members, "r2") == ("at 0", "at 1")
    assert members.sites() == {}
    assert members.relays() == {"0": "at 0", "1": "at 1"}


def test_a_machine_that_is_given_up_is_used_by_nobody_who_starts():
    members = Members()
    here, there = up(members, "replica", "r0", machine="m1"), up(members, "replica", "r1", machine="m2")
    trainer = up(members, "trainer", machine="m2")
    here.stands, there.stands = "m1", "m2"
    assert members.give_up("m1") == [here]
    assert (members.given_up, here.stands, there.stands) == (("m1",), "", "m2")
    there.phase, there.still_s, trainer.heard_s = "generating", 3.0, 1.0
    members.alarming[there.role, there.id] = members.alarming[trainer.role, trainer.id] = None
    assert members.machines["m2"].healthy
    for state in (here, there, trainer):
        members.starts_anew(state)
        assert (state.health, state.machine, state.address, state.avoids) == (Health.STARTING, "", "", ("m1",))
    assert (here.stands, there.stands, trainer.stands) == ("", "m2", "")  # a replica that may starts where it was
    assert (there.phase, there.still_s, trainer.heard_s, members.alarming) == ("", 0.0, None, {})
    members.starts_anew(there)  # it had not come up yet
    assert there.stands == "m2"
    there = up(members, "replica", "r2", machine="m2")
    members.starts_anew(there)
    assert there.stands == "m2"
    assert members.place(there).machine == "m2"
    assert members.elsewhere("m2", None) == []
    assert members.elsewhere("m2", ("m1", "m3", "m2")) == ["m3"]
    assert members.elsewhere("", ("m3",)) == []
    named = Members(("m2", "m3"))
    up(named, "replica", "r0", machine="m3")
    assert named.elsewhere("m2", None) == ["m3"]


def test_machines_with_names_are_chosen_anew():
    members = Members(("m0", "m1"))
    state = members.add("replica", "r0")
    assert members.place(state).machine == members.place(state).machine == "m0"
    other = members.add("replica", "r1")
    assert members.place(other).machine == "m1"
    up(members, "replica", "r0", machine="m0")
    members.give_up("m0")
    assert state.stands == "m0"
    members.starts_anew(state)
    assert members.place(state).machine == "m1"
    members.give_up("m1")
    assert members.place(state).machine == "m0"  # there is no other
    assert members.place(other, "m7").machine == "m7"
    assert other.stands == "m7"
    for role in ("data", "scorer", "ranker"):
        assert members.place(members.add(role, "0")).machine == ""


def test_after_the_driver_died_everybody_starts_with_a_clean_record():
    members = Members()
    state, stopping = up(members, "replica", "r0", machine="m1"), up(members, "replica", "r1")
    fails(members, state)
    state.moved, stopping.health = 1, Health.STOPPING
    for id_ in ("r0", "r1"):
        members.says(Activity("replica", id_, "generating", 1, still_s=2.0), now=3.0)
    members.restarted()
    assert (state.failures, state.moved, members.failed, members.alarming) == ([], 0, [], {})
    assert (state.health, state.machine, state.still_s, state.phase) == (Health.STARTING, "", 0.0, "")
    assert members.get("replica", "r1") is None
    assert stopping.health is Health.DOWN


def seated(members, role, id_, *seats):
    if members.get(role, id_) is None:
        members.add(role, id_)
    return members.came_up(Up(role, id_, machine=seats[0].machine, seats=seats), 0.0)


def test_two_members_on_a_device_without_a_share_are_told_with_member_machine_and_device():
    members = Members()
    ranks = ProcessSeat("m1", (0,)), ProcessSeat("m2", (0,))
    assert members.crowded(seated(members, "trainer", "0", *ranks)) == ""
    assert members.crowded(seated(members, "replica", "r0", ProcessSeat("m1", (1, 2)))) == ""
    line = members.crowded(seated(members, "replica", "r1", ProcessSeat("m2", (0, 1))))
    assert line.startswith(
        "found trainer 0 with 1 and replica r1 with 1 of GPU 0 of machine m2, expected a device for each"
    )
    assert "\n" not in line


def test_shares_that_make_one_stand_together_and_whoever_is_gone_has_no_device():
    members = Members()
    rank = seated(members, "trainer", "0", ProcessSeat("m1", (0,), share=0.6))
    assert members.crowded(seated(members, "replica", "r0", ProcessSeat("m1", (0,), share=0.4))) == ""
    assert "replica r1 with 0.1 of GPU 0" in members.crowded(
        seated(members, "replica", "r1", ProcessSeat("m1", (0,), share=0.1))
    )
    members.starts_anew(rank)
    assert members.crowded(seated(members, "replica", "r1", ProcessSeat("m1", (0,), share=0.6))) == ""
    # a core and a GPU of one number are two devices
    assert members.crowded(seated(members, "replica", "r2", ProcessSeat("m1", (0,), kind="core"))) == ""
