"""The coordinator against a small world of relays that do what they are told."""

import random
import time

import pytest

from tailrace.paramserver import VersionNotYet
from tailrace.paramserver.group.coordinator import GroupStateMachine, RelayState
from tailrace.paramserver.group.messages import (
    Ask,
    Deny,
    Done,
    EvictRelay,
    Fetch,
    Fetched,
    Grant,
    Heard,
    Join,
    Leave,
    Lost,
    Report,
    Retarget,
    SetNext,
    TimePassed,
    Watch,
)

DEAD_AFTER = 1.0


class World:
    """Carries out `SetNext` at once, remembers the rest."""

    def __init__(self, names="abcd", **options):
        self.coordinator = GroupStateMachine(dead_after_s=DEAD_AFTER, **options)
        self.now, self.log = 0.0, []
        self.next, self.orders, self.versions, self.arriving, self.sealed = {}, {}, {}, {}, {}
        for name in names:
            self.tell(Join(name, f"{name}:1", ""))
        for name in names:
            self.hear(name)

    def tell(self, event):
        commands = self.coordinator.handle(event, self.now)
        for command in commands:
            if isinstance(command, SetNext):
                assert command.order == self.orders.get((command.name, command.life), 0) + 1
                self.orders[command.name, command.life] = command.order
                self.next[command.name] = command.addresses
        self.log += commands
        return commands

    def hear(self, name, **changes):
        life = changes.get("life", self.coordinator.members[name].life)
        report = Report(
            self.versions.get(name, ()),
            self.arriving.get(name, {}),
            self.next.get(name, ()),
            self.sealed.get(name, ()),
        )
        return self.tell(Heard(name, life, changes.get("orders", self.orders.get((name, life), 0)), report))

    def beat(self, seconds, *, but=()):
        """Everybody but some is heard of, all the time."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            for name, member in list(self.coordinator.members.items()):
                if name not in but and member.state is not RelayState.DEAD:
                    self.hear(name)
            self.tell(TimePassed())

    @property
    def chain(self):
        (tree,) = self.coordinator.forest.trees
        return "".join(tree)

    def of(self, kind):
        return [command for command in self.log if isinstance(command, kind)]


def test_the_first_forest_is_the_given_order_once_all_are_heard():
    world = World("ba")
    assert world.chain == "ba"
    assert world.of(Watch) == [Watch("b", 1, "b:1"), Watch("a", 1, "a:1")]
    assert world.of(SetNext) == [SetNext("b", 1, 1, ("a:1",)), SetNext("a", 1, 1, ())]
    assert world.of(Retarget) == [Retarget(0, "b", "b:1")]
    assert world.coordinator.master().address == "b:1"


def test_a_relay_that_is_never_heard_holds_the_others_up_for_so_long_only():
    world = World("")
    for name in "ab":
        world.tell(Join(name, f"{name}:1", ""))
    world.hear("a")
    assert world.coordinator.forest is None
    world.beat(1.2, but="b")
    assert world.chain == "a"
    assert world.coordinator.members["b"].state is RelayState.DEAD


def test_a_silent_relay_is_suspected_then_dead_and_bridged():
    world = World()
    world.beat(0.7, but="b")
    assert world.coordinator.members["b"].state is RelayState.SUSPECTED
    assert world.chain == "abcd"
    world.log.clear()
    world.beat(0.5, but="b")
    assert world.chain == "acd"
    assert world.of(SetNext) == [SetNext("a", 1, 2, ("c:1",))]
    (evicted,) = world.of(EvictRelay)
    assert (evicted.name, evicted.again) == ("b", True)
    assert "said nothing for 1 s" in evicted.reason


def test_a_relay_where_nobody_listens_is_dead_at_once():
    world = World()
    assert world.tell(Lost("b", 1, False, "it closed the connection")) == []
    assert world.coordinator.members["b"].state is RelayState.SUSPECTED
    world.tell(Lost("b", 1, True, "connection refused"))
    assert world.chain == "acd"
    assert world.coordinator.members["b"].why == "connection refused; it closed the connection"


def test_a_broken_connection_that_comes_back_is_no_death():
    world = World()
    world.tell(Lost("b", 1, False, "reset"))
    world.hear("b")
    assert world.coordinator.members["b"].state is RelayState.ALIVE
    assert world.chain == "abcd"


def test_the_election_takes_the_newest_then_the_most_chunks_then_the_name():
    world = World()
    world.versions = {"a": ((4, 40),), "b": ((3, 30),), "c": ((3, 30),), "d": ((3, 30),)}
    world.arriving = {"b": {4: 2}, "c": {4: 5}, "d": {4: 5}}
    world.beat(0.1)
    world.log.clear()
    world.tell(Lost("a", 1, True, "refused"))
    assert world.of(Retarget) == [Retarget(0, "c", "c:1")]
    assert world.chain == "cbd"
    assert world.next == {"a": ("b:1",), "b": ("d:1",), "c": ("b:1",), "d": ()}


def test_a_sealed_version_counts_as_one_that_has_arrived():
    world = World()
    world.arriving, world.sealed = {"b": {4: 99}}, {"d": (4,)}
    world.beat(0.1)
    world.tell(Lost("a", 1, True, "refused"))
    assert world.chain == "dbc"


def test_the_last_master_is_told_again_when_it_returns():
    world = World("a")
    world.tell(Lost("a", 1, True, "refused"))
    assert world.coordinator.master() is None
    world.log.clear()
    world.tell(Join("a", "a:2", ""))
    assert world.of(Retarget) == []
    world.hear("a")
    assert world.of(Retarget) == [Retarget(0, "a", "a:2")]


def test_a_relay_that_comes_back_is_appended_and_its_past_life_is_not_heard():
    world = World()
    world.tell(Lost("b", 1, True, "refused"))
    assert world.tell(Join("b", "b:2", "")) == [Watch("b", 2, "b:2")]
    world.log.clear()
    for late in (Lost("b", 1, True, "late"), Heard("b", 1, 1, Report()), Fetched("b", 1, 3, "a", "late")):
        assert world.tell(late) == []
    assert world.coordinator.members["b"].state is RelayState.JOINING
    world.next.pop("b")
    world.hear("b")
    assert world.chain == "acdb"
    assert world.of(SetNext) == [SetNext("d", 1, 2, ("b:2",)), SetNext("b", 2, 1, ())]
    assert world.tell(Lost("x", 1, True, "no member")) == []


def test_a_restart_that_was_not_seen_is_a_new_life():
    """Another process answers at the address before the old one was missed."""
    world = World()
    world.tell(Join("a", "a:1", ""))
    assert world.chain == "bcd"
    world.hear("a")
    assert world.chain == "bcda"
    assert [command.name for command in world.of(Retarget)] == ["a", "b"]


def test_edges_that_are_not_as_ordered_are_ordered_again():
    world = World()
    world.next["b"] = ("stale:1",)
    assert world.hear("b", orders=0) == []  # it was asked before the order reached it
    assert world.hear("b") == [SetNext("b", 1, 2, ("c:1",))]
    assert world.hear("b") == []


def test_leaving():
    world = World()
    world.tell(Leave("c"))
    assert world.chain == "abd"
    assert "c" not in world.coordinator.members
    assert world.tell(Leave("c")) == []


def test_a_relay_that_gets_nothing_is_told_to_fetch():
    world = World(fetch_after_s=2.0)
    world.beat(1)
    world.versions = dict.fromkeys("abd", ((1, 10),))
    world.beat(1.5)
    assert world.of(Fetch) == []
    world.beat(1)
    assert world.of(Fetch) == [Fetch("c", 1, 1, "a", "a:1")]
    world.tell(Fetched("c", 1, 1, "a", "the source is ill"))
    assert world.of(Fetch)[1:] == [Fetch("c", 1, 1, "b", "b:1")]
    world.log.clear()
    world.tell(Lost("b", 1, True, "refused"))
    assert world.of(Fetch) == [Fetch("c", 1, 1, "d", "d:1")]  # resumes elsewhere
    world.versions["c"] = ((1, 10),)
    world.beat(5, but="b")
    assert len(world.of(Fetch)) == 1


def test_a_relay_whose_predecessor_waits_too_lets_it_fetch_first():
    world = World(fetch_after_s=1.0)
    world.versions = {"a": ((1, 10),)}
    world.beat(1.5)
    assert world.of(Fetch) == [Fetch("b", 1, 1, "a", "a:1")]
    world.beat(2)
    assert [fetch.name for fetch in world.of(Fetch)] == ["b"]  # c and d could, but a serves b
    world.versions["b"] = ((1, 10),)
    world.beat(2)
    assert [fetch.name for fetch in world.of(Fetch)][:2] == ["b", "c"]


def test_what_another_root_publishes_is_not_missed():
    """Every root stamps its own publications."""
    world = World(roots=2, fetch_after_s=0.5)
    assert world.coordinator.forest.trees == (("a", "c"), ("b", "d"))
    assert [(told.root, told.name) for told in world.of(Retarget)] == [(0, "a"), (1, "b")]
    world.versions = {"a": ((1, 10),), "c": ((1, 10),), "b": ((1, 11),), "d": ((1, 11),)}
    world.beat(3)
    assert world.of(Fetch) == []
    grants = [world.tell(Ask(f"r{index}", "", 1, 99.0))[0].source for index in range(4)]
    assert sorted(grants) == list("abcd")


def test_a_relay_that_makes_progress_is_left_alone():
    world = World("ab", fetch_after_s=0.5)
    world.versions = {"a": ((1, 10),)}
    for chunks in range(30):
        world.arriving = {"b": {1: chunks}}
        world.beat(0.2)
    assert world.of(Fetch) == []


def test_readers_take_turns_at_a_source():
    world = World("ab")
    world.versions = {"a": ((1, 10),), "b": ((1, 10),)}
    world.beat(0.1)
    assert world.tell(Ask("r1", "", 1, 99.0)) == [Grant("r1", 1, "a", "a:1")]
    assert world.tell(Ask("r2", "", 1, 99.0)) == [Grant("r2", 1, "b", "b:1")]
    assert world.tell(Ask("r3", "", 1, world.now + 1)) == []
    assert world.tell(Ask("r4", "", 1, 99.0)) == []
    world.log.clear()
    world.beat(1.1)
    (denied,) = world.of(Deny)
    assert denied.puller == "r3"
    assert isinstance(denied.error, VersionNotYet)
    assert world.tell(Done("r1")) == [Grant("r4", 1, "a", "a:1")]
    world.log.clear()
    world.tell(Lost("b", 1, True, "refused"))
    assert world.of(Grant) == []  # r2 must ask again: only it knows whether it was done
    assert world.tell(Done("r4")) == [Grant("r2", 1, "a", "a:1")]
    for reader in ("r1", "r2", "r3", "r4"):
        world.tell(Done(reader))
    assert world.coordinator._pulls._sites.keys() == {"a", "b"}, "readers that have gone are kept for good"


def test_after_a_rollback_only_the_newer_publication_of_a_number_is_a_source():
    world = World("ab")
    world.versions = {"a": ((5, 10),), "b": ((5, 20),)}
    world.beat(0.2)
    assert world.tell(Ask("r", "", 5, 99.0)) == [Grant("r", 5, "b", "b:1")]


def test_a_tick_is_cheap_in_a_large_group():
    names = [f"r{index:03}" for index in range(128)]
    world = World(names)
    world.versions = {names[0]: ((1, 10),)}
    for name in names:
        world.hear(name)
    start = time.perf_counter()
    for _ in range(10):
        world.now += 0.01
        world.tell(TimePassed())
    assert (time.perf_counter() - start) / 10 < 0.05  # it takes about 0.2 ms on an idle core


@pytest.mark.parametrize("seed", range(30))
def test_random_lives(seed):
    """Whatever dies and returns: in the end everybody who lives is in one chain, and has been told so."""
    random_ = random.Random(seed)
    world = World("abcdef")
    for _ in range(60):
        world.now += random_.random() * 0.4
        name = random_.choice("abcdef")
        member = world.coordinator.members[name]
        match random_.randrange(4):
            case 0 if member.state is not RelayState.DEAD:
                world.tell(Lost(name, random_.choice([member.life, max(1, member.life - 1)]), True, "refused"))
            case 1:
                world.next.pop(name, None)  # a new process
                world.tell(Join(name, f"{name}:{random_.randrange(99)}", ""))
            case 2 if member.state is not RelayState.DEAD:
                world.hear(name)
            case _:
                world.tell(TimePassed())
    world.beat(3)
    living = [member.name for member in world.coordinator.living()]
    assert sorted(world.chain) == sorted(living), seed
    for name, hops in world.coordinator.forest.next_hops().items():
        assert world.next.get(name, ()) == tuple(world.coordinator.members[hop].address for hop in hops), seed
    if living:
        told = world.of(Retarget)[-1]
        assert (told.name, told.address) == (world.chain[0], world.coordinator.master().address), seed
