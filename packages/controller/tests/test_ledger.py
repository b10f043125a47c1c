"""The ledger's transitions: one that does not fit the state names what it found and expected, and changes nothing."""

import dataclasses
import random
from collections import Counter
from typing import Any

import pytest

from tailrace.contracts import GroupEnd, Launch, Purpose, SessionOrigin
from tailrace.controller.errors import ControllerError
from tailrace.controller.fleet import Assigned
from tailrace.controller.ledger import Ledger
from tailrace.controller.lengths import measured_lengths
from tailrace.controller.trajectories import GroupPhase, Phase, TrajectoryState

REPLICA = "r0"


class Books:
    """A ledger with one group of two trajectories."""

    def __init__(self, *, needed=2):
        self.ledger = Ledger()
        self.group = self.ledger.groups[self.ledger.admit(Launch(7, 2, needed))]

    def started(self, *, route=True):
        self.ledger.start(self.group, 3)
        if route:
            self.ledger.routed(self.group.states, REPLICA, 3)
        self.ledger.pool_rest(self.group)
        return self

    def finished(self):
        for state in self.started().group.states:
            self.ledger.finished(state, 10, 3)
        return self

    def scored(self):
        for state in self.finished().group.states:
            self.ledger.scored(state, 1.0)
        return self

    def complete(self):
        self.scored().ledger.complete(self.group)
        return self

    def given(self):
        self.complete().ledger.consume([self.group.index], 4)
        return self

    @property
    def first(self):
        return self.group.states[0]


def evaluation(books):
    state = TrajectoryState("e3.greedy.0", 0, 0, Purpose.EVAL, "greedy", 0)
    books.ledger.add(state)
    return state


REFUSED = {
    "a group starts once": (Books.started, lambda b: b.ledger.start(b.group, 4), "0 is of version 3, .*not started"),
    "what runs is not routed": (
        Books.started,
        lambda b: b.ledger.routed([b.first], REPLICA, 3),
        "0.0 is running, expected pending",
    ),
    "what the store is dropping is not routed": (
        lambda b: b.started(route=False).ledger.discarding_begins(b.first) or b,
        lambda b: b.ledger.routed([b.first], REPLICA, 3),
        "0.0 is being discarded, expected pending",
    ),
    "only what was away returns": (
        lambda b: b.started(route=False),
        lambda b: b.ledger.returned("0.0", 5),
        "0.0 is pending, expected running or in environment",
    ),
    "what is done does not return": (
        Books.finished,
        lambda b: b.ledger.returned("0.0", 5),
        "0.0 is done, expected running or in environment",
    ),
    "a turn ends where it runs": (
        lambda b: b.started(route=False),
        lambda b: b.ledger.turn_ended(b.first, 5),
        "0.0 is pending, expected running",
    ),
    "only an environment answers": (
        Books.started,
        lambda b: b.ledger.answered(b.first, 5, None),
        "0.0 is running, expected in environment",
    ),
    "an answer takes no tokens away": (
        lambda b: b.started().ledger.turn_ended(b.first, 5) or b,
        lambda b: b.ledger.answered(b.first, 4, SessionOrigin.RESTORED),
        "with 4 tokens, expected at least the 5",
    ),
    "a session is lost where it is": (
        Books.started,
        lambda b: b.ledger.session_lost("0.0"),
        "0.0 is running, expected in environment",
    ),
    "what runs is not discarded": (
        Books.started,
        lambda b: b.ledger.discarding_begins(b.first),
        "0.0 is running, expected pending",
    ),
    "what was dropped does not begin anew": (
        lambda b: b.started().ledger.drop(0, GroupPhase.FAILED, "refused") and b,
        lambda b: b.ledger.restarted(b.first),
        "0.0 is not in the ledger",
    ),
    "what waits does not move": (
        lambda b: b.started(route=False),
        lambda b: b.ledger.bind(b.first, "r1"),
        "0.0 is pending, expected running",
    ),
    "what moves has one destination": (
        lambda b: b.started().ledger.bind(b.first, "r1") or b,
        lambda b: b.ledger.bind(b.first, "r2"),
        "0.0 is running and moves to r1",
    ),
    "what waits is not relocated": (
        lambda b: b.started(route=False),
        lambda b: b.ledger.relocated(["0.0"]),
        "0.0 is pending, expected running",
    ),
    "what runs has no reward": (
        Books.started,
        lambda b: b.ledger.scored(b.first, 1.0),
        "0.0 is running, expected done",
    ),
    "what nobody began is not finished": (
        lambda b: b.started(route=False),
        lambda b: b.ledger.finished(b.first, 10, 3),
        "0.0 is finished without a version",
    ),
    "a reward comes once": (Books.scored, lambda b: b.ledger.scored(b.first, 0.0), "0.0 is scored, expected done"),
    "no verifier fails on what runs": (
        Books.started,
        lambda b: b.ledger.scoring_failed(b.first),
        "0.0 is running, expected done",
    ),
    "what runs was not given up": (
        Books.started,
        lambda b: b.ledger.never_scored(b.first, 3),
        "0.0 is running, expected pending or done",
    ),
    "a group keeps as many as it needs": (
        Books.started,
        lambda b: b.ledger.trim(b.group, [b.first]),
        "group 0 is left with 1, expected 2 samples",
    ),
    "a group is complete with all its rewards": (
        Books.finished,
        lambda b: b.ledger.complete(b.group),
        "generating with 0 rewards, expected generating with 2",
    ),
    "a group is complete once": (Books.complete, lambda b: b.ledger.complete(b.group), "group 0 is buffered"),
    "what is not complete is not trained on": (
        Books.scored,
        lambda b: b.ledger.consume([0], 4),
        "group 0 is generating, expected buffered",
    ),
    "a group is given to one batch": (
        Books.given,
        lambda b: b.ledger.consume([0], 5),
        "group 0 is training, expected buffered",
    ),
    "a group is trained on once": (
        lambda b: b.given().ledger.trained(4) or b,
        lambda b: b.ledger.trained(4),
        "group 0 is trained, expected training",
    ),
    "what waits as a whole does not start over": (
        lambda b: b,
        lambda b: b.ledger.start_over(b.group, 3),
        "group 0 is not started",
    ),
    "what the trainer has does not start over": (
        Books.given,
        lambda b: b.ledger.start_over(b.group, 3),
        "group 0 is training, expected started and generating or buffered",
    ),
    "what the trainer has is not dropped": (
        Books.given,
        lambda b: b.ledger.drop(0, GroupPhase.FILTERED, str(GroupEnd.EXPIRED)),
        "group 0 is training, expected generating or buffered",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(name):
    prepare, transition, message = REFUSED[name]
    books = prepare(Books())
    before = dataclasses.asdict(books.ledger)
    with pytest.raises(ControllerError, match=message):
        transition(books)
    assert dataclasses.asdict(books.ledger) == before


@pytest.mark.parametrize("finished", [False, True])
def test_a_held_out_problem_that_nobody_can_answer_or_score_ends_without_a_reward(finished):
    books = Books().started()
    state = evaluation(books)
    books.ledger.routed([state], REPLICA, 3)
    if finished:
        books.ledger.finished(state, 10, 3)
    else:
        books.ledger.returned(state.id, None)
    books.ledger.never_scored(state, 3)
    assert (state.phase, state.reward) == (Phase.SCORED, None)


def test_starting_over_undoes_a_complete_group():
    books = Books().complete()
    assert books.ledger.generating == 0
    pending = books.ledger.start_over(books.group, 5)
    assert books.ledger.generating == 1
    assert not books.ledger.buffered
    assert {state.phase for state in pending} == {Phase.PENDING}
    assert books.group.version == 5
    assert (books.group.scored, books.group.rewards) == (0, [None, None])


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_what_the_groups_say(seed):
    """Random transitions, of which those that do not fit are refused; whatever happens, totals and groups agree."""
    draw, ledger = random.Random(seed), Ledger()
    trained = dropped = refused = 0
    for step in range(150):
        groups = list(ledger.groups.values())
        group = draw.choice(groups) if groups else None
        state = draw.choice(group.states) if group is not None and group.states else None
        moves = {
            "admit": lambda step=step: ledger.admit(Launch(step, 2, 2)),
            "start": lambda group=group: ledger.start(group, 1) or ledger.pool_rest(group),
            "route": lambda state=state: ledger.routed([state], REPLICA, 1),
            "return": lambda state=state: ledger.returned(state.id, 3),
            "finish": lambda state=state: ledger.finished(state, 9, 1),
            "score": lambda state=state: ledger.scored(state, 1.0),
            "complete": lambda group=group: ledger.complete(group),
            "consume": lambda group=group, step=step: ledger.consume([group.index], step),
            "train": lambda group=group: ledger.trained(group.consumed_for),
            "over": lambda group=group: ledger.start_over(group, 1),
            "drop": lambda group=group: draw.random() < 0.1 and ledger.drop(group.index, GroupPhase.FAILED, "why"),
        }
        kind = draw.choice([*moves, *["route", "finish", "score", "complete"] * 3]) if group is not None else "admit"
        if state is None and kind in ("route", "return", "finish", "score"):
            continue
        before = dataclasses.asdict(ledger)
        try:
            moves[kind]()
        except ControllerError:
            refused += 1
            assert dataclasses.asdict(ledger) == before, f"seed {seed}: {kind}"
        phases = Counter(one.phase for one in ledger.groups.values())
        counts = ledger.counts
        assert ledger.generating == phases[GroupPhase.GENERATING], f"seed {seed}: {kind}"
        assert len(ledger.buffered) == phases[GroupPhase.BUFFERED], f"seed {seed}: {kind}"
        assert counts.trained == phases[GroupPhase.TRAINED], f"seed {seed}: {kind}"
        assert counts.admitted == len(ledger.groups) + counts.failed, f"seed {seed}: {kind}"
        trained, dropped = counts.trained, counts.failed
    assert refused, f"seed {seed}: {trained} trained, {dropped} dropped"


def test_a_group_is_as_old_as_its_oldest_trajectory():
    books = Books().started()
    first, second = books.group.states
    assert books.ledger.returned(first.id, None) is first
    books.ledger.routed([first], REPLICA, 5)
    assert (books.ledger.counts.regenerated_trajectories, books.ledger.unfinished) == (1, {3: 1, 5: 1})
    for state in (first, second):
        books.ledger.finished(state, 10, 6)
        books.ledger.scored(state, 1.0)
    assert books.ledger.complete(books.group).version == 3
    assert books.group.newer == {5: 1}


def test_what_starts_over_has_nothing_of_before():
    books = Books().finished()
    first, second = books.group.states
    assert books.ledger.scoring_failed(second) == 1
    books.ledger.scored(first, 1.0)
    books.ledger.start_over(books.group, 4)
    for state in books.group.states:
        assert (state.reward, state.scoring_attempts, state.completed_at, state.tokens, state.version) == (
            None,
            0,
            0,
            0,
            None,
        )
    assert books.group.version == 4
    assert books.ledger.counts.regenerated_trajectories == 2


def test_a_move_ends_with_its_trajectory():
    books = Books().started()
    first, second = books.group.states
    for state in (first, second):
        books.ledger.bind(state, "r1")
    assert books.ledger.moving == {first.id: REPLICA, second.id: REPLICA}
    books.ledger.bind(first, None)
    assert (list(books.ledger.moving), first.destination) == ([second.id], None)
    books = Books().started()
    books.ledger.bind(books.first, "r1")
    books.ledger.drop(books.group.index, GroupPhase.FAILED, "why")
    assert books.ledger.moving == {}


def test_where_a_session_came_from_is_counted():
    books = Books().started()
    state = books.first
    for origin, expected in ((SessionOrigin.RESTORED, (1, 0)), (SessionOrigin.REPLAYED, (1, 1)), (None, (1, 1))):
        state.phase = Phase.IN_ENVIRONMENT
        books.ledger.answered(state, state.tokens + 5, origin)
        assert (books.ledger.counts.sessions_restored, books.ledger.counts.sessions_replayed) == expected
    assert (state.tokens, state.observed) == (15, 15)


def test_what_is_lost_of_a_trajectory_takes_its_turns_along():
    state = TrajectoryState("0.0", 0, 0, Purpose.TRAIN, "", 0)
    for ended, answered in ((10, 16), (30, 39)):
        assert state.ends_turn(ended)
        state.is_answered(answered)
    assert (state.turns, state.answered, state.observed, state.generated) == ((10, 30), 2, 15, 24)
    assert state.keeps(20) == 1
    assert (state.tokens, state.turns, state.answered, state.observed) == (20, (10,), 1, 15)
    assert state.keeps(5) == 1
    assert (state.tokens, state.turns, state.answered, state.observed) == (5, (), 0, 5)


@pytest.mark.parametrize("mixes", [True, False])
def test_only_where_versions_mix_does_a_trajectory_go_on_under_another(mixes):
    books = Books()
    books.ledger.mixes_versions = mixes
    books.started()
    assert books.ledger.view(books.first, 4).exact is not mixes
    held_out = evaluation(books)
    books.ledger.routed([held_out], REPLICA, 3)
    assert books.ledger.view(held_out).exact is True


def test_a_view_has_what_a_replica_has_probably_made_since_it_got_each():
    def view(state, generated) -> Any:
        return state.id, generated

    assigned: Any = Assigned(view)
    first, second = (TrajectoryState(f"0.{i}", 0, i, Purpose.TRAIN, "", 0) for i in (0, 1))
    assigned.add([first])
    assigned.advanced(5.0)
    assigned.add([second])
    assert [assigned[state.id][1] for state in (first, second)] == [5, 0]
    assigned.advanced(2.0)
    assert [assigned[state.id][1] for state in (first, second)] == [7, 2]


def test_lengths_are_summed_up_by_rank():
    assert measured_lengths([]) is None
    found = measured_lengths([*range(10, 0, -1)])
    assert (found.p50, found.p90, found.trajectories) == (5.0, 9.0, 10)
    assert measured_lengths([0]).p50 == 1.0


@pytest.mark.parametrize("name", ["1.0", "one", "7.0", ""])
def test_a_trajectory_that_nobody_knows_must_have_been_one(name):
    ledger = Books().ledger
    for known in ("0.0", "0.9", "e3.greedy.0"):
        ledger.expect_admitted(known)
    with pytest.raises(ControllerError, match="expected one of the 1 groups that were admitted"):
        ledger.expect_admitted(name)


def test_what_of_a_group_was_not_routed_with_its_first_waits():
    books = Books()
    ledger, (first, second) = books.ledger, books.started(route=False).group.states
    assert list(ledger.levels[3]) == [first.id, second.id]
    books = Books()
    ledger = books.ledger
    ledger.start(books.group, 3)
    first, second = books.group.states
    ledger.routed([first], REPLICA, 3)
    ledger.pool_rest(books.group)
    assert {version: list(queue) for version, queue in ledger.levels.items()} == {3: [second.id]}


def test_what_begins_anew_waits_once_and_only_what_needs_a_lost_version_is_lost():
    books = Books().started()
    ledger, (first, second) = books.ledger, books.group.states
    ledger.returned(first.id, 5)
    ledger.restarted(first)
    ledger.routed([first], REPLICA, 4)
    for state in (first, second):
        ledger.returned(state.id, 5)
    assert {version: list(queue) for version, queue in ledger.levels.items()} == {3: [second.id], 4: [first.id]}
    assert ledger.version_lost(3) == [second]
    ledger.restarted(first)
    assert {version: list(queue) for version, queue in ledger.levels.items()} == {3: [second.id, first.id]}
