"""Hypothesis searches for a sequence of operations in which manager and reference differ, and shrinks it."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailrace.staleness.testing.beside import BesideReference, can_reserve_by_hall

lags = st.integers(0, 4)
picks = st.integers(0, 1 << 16)


class Manager(RuleBasedStateMachine):
    beside = None

    @initialize(
        bound=st.integers(0, 4),
        batch_size=st.integers(1, 4),
        surplus=st.integers(0, 2),
        needed=st.integers(1, 2),
        extra=st.integers(0, 1),
    )
    def begin(self, bound, batch_size, surplus, needed, extra):
        self.beside = BesideReference(
            bound=bound, batch_size=batch_size, surplus=surplus, needed=needed, size=needed + extra
        )

    def version(self, lag):
        return max(0, self.beside.manager.version - lag)

    def group(self, pick):
        groups = list(self.beside.ran_at)
        return groups[pick % len(groups)]

    @rule(lag=lags)
    def start(self, lag):
        self.beside.start(self.version(lag))

    @precondition(lambda self: self.beside.ran_at)
    @rule(pick=picks)
    def finish_member(self, pick):
        self.beside.finish_member(self.group(pick))

    @precondition(lambda self: self.beside.ran_at)
    @rule(pick=picks, lag=lags)
    def route_member(self, pick, lag):
        self.beside.route_member(self.group(pick), self.version(lag), again=False)

    @precondition(lambda self: self.beside.ran_at)
    @rule(pick=picks, lag=lags)
    def partial_rollout(self, pick, lag):
        self.beside.route_member(self.group(pick), self.version(lag), again=True)

    @precondition(lambda self: self.beside.ran_at)
    @rule(pick=picks)
    def lose_member(self, pick):
        self.beside.lose_member(self.group(pick))

    @precondition(lambda self: self.beside.ran_at)
    @rule(pick=picks)
    def drop(self, pick):
        self.beside.drop(self.group(pick))

    @rule(planned=st.lists(lags, min_size=1, max_size=8), fork_at=st.integers(0, 8), commit=st.booleans())
    def plan(self, planned, fork_at, commit):
        self.beside.plan([self.version(lag) for lag in planned], fork_at, commit)

    @precondition(lambda self: self.beside.manager.ready())
    @rule()
    def consume(self):
        assert self.beside.consume()

    @rule()
    def round_trip(self):
        self.beside.round_trip()

    @rule()
    def rebuild(self):
        self.beside.rebuild()

    @invariant()
    def can_reserve_is_what_hall_says(self):
        if self.beside is not None:
            for lag in range(3):
                version = self.version(lag)
                assert self.beside.manager.can_reserve(version) == can_reserve_by_hall(self.beside.reference, version)


Manager.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestManager = Manager.TestCase
