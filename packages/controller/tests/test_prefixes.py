"""What prefix caches are believed to have, beside a cache of blocks that forgets what was used least recently."""

from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import Health, Purpose, Snapshot
from tailrace.controller.fleet import Replicas
from tailrace.controller.members import Members
from tailrace.controller.prefix_caches import begins, leaves, prefixes
from tailrace.controller.trajectories import GroupState, TrajectoryState

PROMPT = 5  # tokens


class Blocks:
    """A cache whose blocks hold one token, as vLLM keeps them: what is free and was freed first makes room first."""

    def __init__(self, capacity):
        self.capacity, self.virgin = capacity, capacity
        self.held, self.free = Counter[Any](), OrderedDict[Any, None]()

    def fits(self, keys):
        new = sum(key not in self.held for key in keys)
        return new <= self.capacity - len(self.held)

    def take(self, keys):
        hits = True
        for key in keys:
            hits = hits and (key in self.held or key in self.free)
            if key in self.held:
                self.held[key] += 1
                continue
            if key in self.free:
                del self.free[key]
            elif self.virgin:
                self.virgin -= 1
            else:
                self.free.popitem(last=False)
            self.held[key] = 1

    def release(self, keys):
        for key in reversed(keys):
            self.held[key] -= 1
            if not self.held[key]:
                del self.held[key]
                self.free[key] = None

    def has(self, keys):
        for number, key in enumerate(keys):
            if key not in self.held and key not in self.free:
                return number
        return len(keys)


class Beside:
    """The same work on the reference and on what the controller notes."""

    def __init__(self, capacity):
        self.blocks, self.now = Blocks(capacity), 0.0
        self.fleet = Replicas(lambda state, generated: (state, generated), False)  # type: ignore[arg-type, return-value]
        self.replica = self.fleet.add(Members().add("replica", "r0"), 8)
        self.replica.member.health = Health.UP
        groups = {
            group: GroupState(group, [f"{group}.{n}" for n in range(2)], group, 2, states=self._fresh(group))
            for group in range(4)
        }
        states = {state.id: state for group in groups.values() for state in group.states}
        self.ledger: Any = SimpleNamespace(
            groups=groups, trajectories=states, prompts=SimpleNamespace(of=lambda _: PROMPT)
        )
        self.tell(0)

    @staticmethod
    def _fresh(group):
        return [TrajectoryState(f"{group}.{n}", group, n, Purpose.TRAIN, "", group) for n in range(2)]

    def keys(self, state):
        return [(state.group, n) for n in range(PROMPT)] + [(state.id, n) for n in range(state.tokens)]

    def tell(self, generated):
        self.now += 1.0
        blocks = self.blocks
        self.fleet.observed(
            Snapshot("r0", len(blocks.held) / blocks.capacity, 1, 0, 0, 0, 0, float(generated), blocks.capacity),
            self.now,
        )

    def does(self, what, number):
        state = list(self.ledger.trajectories.values())[number]
        runs = state.replica is not None
        if what == "go" and not runs and self.blocks.fits(self.keys(state)):
            begins(self.ledger, self.replica, [state])
            self.blocks.take(self.keys(state))
            state.replica = "r0"
            self.tell(0)
        elif what == "generate" and runs and self.blocks.fits([(state.id, state.tokens)]):
            self.blocks.take([(state.id, state.tokens)])
            state.tokens += 1
            self.tell(1)
        elif what == "stop" and runs:
            state.replica = None
            leaves(self.ledger, self.replica, state)
            self.blocks.release(self.keys(state))
            self.tell(0)

    def believed(self, state):
        return prefixes(self.ledger, self.fleet, state.id, state.group).get("r0", 0)


STEPS = st.lists(
    st.tuples(st.sampled_from(["go", "generate", "generate", "generate", "stop"]), st.integers(0, 7)), max_size=120
)


@given(capacity=st.integers(8, 60), steps=STEPS)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_what_is_believed_to_be_cached_is(capacity, steps):
    beside = Beside(capacity)
    for what, number in steps:
        beside.does(what, number)
        for state in beside.ledger.trajectories.values():
            if state.replica is None:
                found = beside.blocks.has(beside.keys(state))
                assert beside.believed(state) <= found, f"{state.id} after {what} {number}"


@given(steps=STEPS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_all_that_is_cached_is_believed_to_be_where_nothing_is_forgotten(steps):
    beside = Beside(10_000)
    for what, number in steps:
        beside.does(what, number)
    for state in beside.ledger.trajectories.values():
        if state.replica is None:
            assert beside.believed(state) == beside.blocks.has(beside.keys(state))


def test_nothing_is_left_of_other_weights_or_of_a_process_that_is_gone():
    for lose in (lambda replica: replica.reset(), lambda replica: setattr(replica, "emptied", replica.emptied + 1)):
        beside = Beside(10_000)
        for what in ("go", "generate", "stop"):
            beside.does(what, 0)
        state = beside.ledger.trajectories["0.0"]
        assert beside.believed(state) == PROMPT + 1
        lose(beside.replica)
        assert beside.believed(state) == 0
