"""Trajectories of several turns: where they go between two turns, and what becomes of them when somebody dies meanwhile."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.errors import ControllerError
from tailrace.controller.spec import EvaluationPlan
from tailrace.controller.trajectories import TrajectoryState

TURN, ANSWER = 4, 3  # tokens


class Turning(Scripted):
    """Its replicas end turns of 4 tokens, which environments answer with 3, until a trajectory has had all its turns.

    `turns` says how many each has. The store knows what every trajectory has: `kept`, and whether its last turn is answered.
    """

    def __init__(self, pipeline=None, *, turns=2, members=1, **changes):
        super().__init__(pipeline or spec(environments=members, **changes))
        self.turns = turns
        self.kept, self.ended = {}, {}

    def answers(self, command):
        match command:
            case c.Route(replica=replica, seq=seq, trajectories=refs):
                said = [self._generates(replica, ref, seq) for ref in refs]
                return [*said, c.Snapshot(replica, 0.0, 0, 0, 0, self._serves.get(replica), seq)]
            case c.Call(trajectories=names, seq=seq):
                mine = [name for name in names if self.controller.sessions.calls.get(name, ("", 0))[1] == seq]
                return [self.observes(name, seq) for name in mine]  # a `Close` or a death took the others away
            case c.Abort(trajectories=names):
                for name in names:
                    self.kept.pop(name, None)
                    self.ended.pop(name, None)
        return super().answers(command)

    def _generates(self, replica, ref, seq):
        name = ref.trajectory
        assert self.kept.get(name, 0) == ref.kept, "the controller knows what the store has"
        turn = self.ended.get(name, 0)
        self.kept[name] = ref.kept + TURN
        if turn + 1 >= self.turns:
            return c.Finished(replica, name, self.kept[name], c.FinishReason.LENGTH, seq)
        self.ended[name] = turn + 1
        return c.TurnEnded(replica, name, self.kept[name], seq)

    def observes(self, name, seq=None, *, done=False, session=c.SessionOrigin.HELD):
        self.kept[name] += ANSWER
        return c.Turned(name, self.ended[name], self.kept[name], done, 0.1, seq, session)

    def state(self, name):
        return self.controller.ledger.trajectories[name]

    def replica(self, name):
        return next(view for view in self.controller.owned.views() if view.replica == name)


def away(run, *, leave=(c.Call,)):
    """Every trajectory of the first groups is in its environment."""
    run.go(c.Tick(), leave=leave)
    return run


def one_replica(**changes):
    """One group at a time, of two trajectories."""
    one = {"provisioning": policy("provisioning", "static", count=1), "batch_groups": 1, "replica_batch": 2}
    return Turning(**{**one, **changes})


def test_a_turn_is_answered_and_goes_on_where_it_was():
    run = away(one_replica())
    (call,) = of(c.Call, run.given)
    assert (call.environment, call.trajectories) == ("0", ("0.0", "0.1"))
    assert run.view.waits("0.0") == "in environment 0, version 0"
    given = run.catch_up(c.Call, leave=(c.Route,))
    (route,) = of(c.Route, given)
    assert (route.replica, [ref.kept for ref in route.trajectories]) == ("r0", [TURN + ANSWER] * 2)
    assert [route.reason(0).why, route.reason(1).why] == [c.Why.TURNED] * 2
    given = run.catch_up(leave=(c.Score, c.Call))
    assert [command.trajectories for command in of(c.Close, given)] == [("0.0",), ("0.1",)]  # the length ended them
    assert of(c.Score, given)[0].trajectories == ("0.0", "0.1")
    run.catch_up()
    counts = run.view.counts
    assert run.view.finished
    assert (counts.turns, counts.turns_lost) == (6, 0)
    assert counts.trained_tokens == 3 * 2 * 2 * TURN  # what was observed is not counted
    assert run.controller.sessions.plain() == {"of": {}, "calls": {}, "waiting": []}


def test_a_replica_all_of_whose_trajectories_are_with_environments_waits_for_those():
    run = away(one_replica())
    reason = run.view.why_idle("replica", "r0")
    assert reason is not None
    assert (reason.why, dict(reason.numbers)) == (c.Why.IN_ENVIRONMENTS, {"trajectories": 2.0})
    assert (run.view.answering, run.view.generates, run.view.on_replicas) == (2, True, 0)
    waits = run.view.why_idle("trainer", "0")
    assert waits is not None
    assert waits.why is c.Why.FIRST_BATCH


def test_an_environment_ends_a_trajectory_with_its_session():
    run = away(one_replica())
    given = run.go(run.observes("0.0", done=True), run.observes("0.1", done=True), leave=(c.Score, c.Call, c.Route))
    assert of(c.Score, given)[0].trajectories == ("0.0", "0.1")
    assert not of(c.Close, given)
    assert run.state("0.0").tokens == TURN + ANSWER
    assert run.controller.sessions.of == {}


def test_who_waits_for_an_environment_holds_no_place_but_is_owed():
    run = away(one_replica())
    view = run.replica("r0")
    assert (view.in_flight, view.in_environment, view.held, dict(view.trajectories)) == (2, 2, 0, {})
    row = next(iter(run.view.replicas()))
    assert (row.doing, row.trajectories, row.in_environment) == ("waiting for environments", 2, 2)
    run.controller.trainer.newest = run.controller.trainer.publishing = 1
    run.go(c.Published(1), leave=(c.Call,))  # a replica on-idle would pull this if it owed nothing
    assert not [pull for pull in of(c.Pull, run.given) if pull.version]
    assert run.view.contradictions == 0


def test_what_an_engine_runs_at_once_is_in_the_view_of_its_replica():
    run = away(one_replica())
    assert (run.replica("r0").max_running, run.replica("r0").places) == (0, 2)
    run.go(c.Snapshot("r0", 0.0, 0, 0, 0, 0, 999, max_running=1), leave=(c.Call,))
    assert (run.replica("r0").max_running, run.replica("r0").places) == (1, 1)


def test_repeated_reports_change_nothing():
    run = away(one_replica())
    call = of(c.Call, run.given)[0]
    before = run.controller.state()
    run.go(c.TurnEnded("r0", "0.0", TURN), leave=(c.Call,))
    assert run.controller.state() == before
    answer = run.observes("0.0", call.seq)
    run.go(answer, leave=(c.Route,))
    before = run.controller.state()
    run.go(answer, c.TurnEnded("r0", "0.0", TURN), leave=(c.Route,))
    assert run.controller.state() == before
    assert run.state("0.0").phase == "running"


def test_fewer_tokens_than_before_contradict_the_state():
    run = away(one_replica())
    with pytest.raises(ControllerError, match=r"found Turned\(0\.0\) with 2 tokens, expected at least the 4"):
        run.go(c.Turned("0.0", 1, 2))


@pytest.mark.parametrize("cause", [c.Cause.DIED, c.Cause.SILENT])
def test_a_home_that_dies_loses_nothing(cause):
    run = away(Turning(batch_groups=1, provisioning=policy("provisioning", "static", count=2)))
    home = run.state("0.0").home
    run.down("replica", home, cause, leave=(c.Call, "replica"))
    assert run.state("0.0").home is None
    other = {"r0": "r1", "r1": "r0"}[home]
    given = run.catch_up(c.Call, leave=(c.Route, "replica"))
    routes = {ref.trajectory: (route.replica, ref.kept) for route in of(c.Route, given) for ref in route.trajectories}
    assert routes["0.0"] == routes["0.1"] == (other, TURN + ANSWER)
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.turns_lost == 0


def test_an_environment_that_dies_in_a_call_is_asked_again():
    run = away(one_replica())
    given = run.down("environment", leave=(c.Call,))
    assert [command.role for command in of(c.Restart, given)] == ["environment"]
    assert [command.trajectories for command in of(c.Call, given)] == [("0.0", "0.1")]
    seqs = [command.seq for command in of(c.Call, run.given)]
    run.go(run.observes("0.0", seqs[0]), leave=(c.Call,))  # the answer of the one that is gone
    assert run.state("0.0").phase == "in environment"
    run.kept["0.0"] -= ANSWER
    run.forget(c.Call)
    replayed = c.SessionOrigin.REPLAYED
    run.go(run.observes("0.0", seqs[1]), run.observes("0.1", seqs[1], session=replayed))
    assert run.view.finished
    counts = run.view.counts
    assert (counts.sessions_replayed, counts.sessions_lost, counts.turns_lost) == (1, 0, 0)


def test_a_member_is_asked_for_what_it_has_and_the_others_for_what_is_new():
    run = away(one_replica(turns=3, members=2))
    first = {name: command.environment for command in of(c.Call, run.given) for name in command.trajectories}
    assert sorted(first.values()) == ["0", "1"]
    given = run.catch_up(c.Call, leave=(c.Call, c.Score))
    again = {name: command.environment for command in of(c.Call, given) for name in command.trajectories}
    assert again == first
    run.down("environment", "1", leave=(c.Call, "environment"))
    lost = next(name for name, member in first.items() if member == "1")
    assert run.controller.sessions.of == dict.fromkeys(first, "0")  # the one that lives takes over
    assert run.controller.sessions.calls[lost][0] == "0"


def test_a_member_has_so_many_sessions_and_others_wait():
    run = away(one_replica(environment_sessions=1, replica_batch=8))
    assert [command.trajectories for command in of(c.Call, run.given)] == [("0.0",)]
    assert run.view.waits("0.1") == "in environment (waits for a session), version 0"
    run.catch_up()
    calls = of(c.Call, run.given)
    assert all(len(command.trajectories) == 1 for command in calls)
    assert run.view.finished


def test_a_session_whose_trajectory_waits_for_a_replica_holds_up_nobody():
    run = away(one_replica(environment_sessions=1))
    run.down("replica", "r0", leave=(c.Call, "replica"))
    given = run.catch_up(c.Call, leave=(c.Call,))
    assert run.state("0.0").phase == "pending"
    assert [command.trajectories for command in of(c.Call, given)] == [("0.1",)]


def test_what_is_not_answered_fails_its_group_by_name():
    run = away(one_replica())
    given = run.go(c.CallFailed("0.1", "no answer within 5 s"), leave=(c.Call,))
    (abort,) = of(c.Abort, given)
    assert (abort.trajectories, abort.replicas) == (("0.0", "0.1"), ())
    assert (abort.reason.why, abort.reason.who) == (c.Why.UNANSWERED, "0")
    assert [command.trajectories for command in of(c.Close, given)] == [("0.0",)]
    counts = run.view.counts
    assert (counts.failed_because, counts.failed_words) == ({"unanswered": 1}, {"unanswered": "no answer within 5 s"})
    run.catch_up()
    assert run.view.finished
    assert counts.admitted == counts.trained + counts.failed == 4


def test_many_in_a_row_end_the_run_with_the_environments_words():
    run = away(one_replica(failed_groups_limit=2))
    run.go(c.CallFailed("0.0", "nonsense"), leave=(c.Call,))
    run.go(c.CallFailed("1.0", "more nonsense"), leave=(c.Call,))
    assert run.view.failure == "environments did not answer 2 groups in a row, the last: more nonsense"


def test_a_session_that_is_lost_begins_its_trajectory_anew_and_is_counted():
    run = away(one_replica(turns=3))
    run.catch_up(c.Call, leave=(c.Call,))  # the second turn has ended
    given = run.go(c.CallFailed("0.0", "no snapshot, and not replayable", lost=True), leave=(c.Call, c.Abort))
    (abort,) = of(c.Abort, given)
    assert (abort.trajectories, abort.reason.why) == (("0.0",), c.Why.SESSION_LOST)
    assert not of(c.Close, given)
    given = run.catch_up(c.Abort, leave=(c.Route, c.Call))
    assert [ref.kept for route in of(c.Route, given) for ref in route.trajectories] == [0]
    counts = run.view.counts
    assert (counts.sessions_lost, counts.turns_lost, counts.failed) == (1, 2, 0)
    run.catch_up()
    assert run.view.finished
    assert counts.trained == 3


def test_an_answer_to_what_was_dropped_changes_nothing():
    run = away(one_replica())
    run.go(c.CallFailed("0.1", "late"), leave=(c.Call, c.Abort, c.Route))
    before = run.controller.state()
    run.go(c.Turned("0.0", 1, 7), c.TurnEnded("r0", "0.0", TURN), c.CallFailed("0.0", "late"))
    after = run.controller.state()
    assert after["ledger"] == before["ledger"]
    assert after["environments"] == before["environments"]


@dataclasses.dataclass(frozen=True)
class EmptyFirst(c.RelocationPolicy):
    """Moves everything of r0 to r1 once."""

    def due(self, now_s, last_s, stepped):
        del last_s
        return not stepped and now_s == 5.0

    def plan(self, cycle):
        known = {view.replica: view for view in cycle.replicas}
        return [c.Move("r0", "r1")] if known["r0"].in_flight else []


def test_a_move_gives_those_in_environments_a_new_home_and_moves_nothing():
    run = away(Turning(relocation=EmptyFirst(), batch_groups=2, buffer_groups=2))
    before = {name for name, state in run.controller.ledger.trajectories.items() if state.home == "r0"}
    assert before
    given = run.later(5.0, leave=(c.Call,))
    assert not of(c.Interrupt, given)
    assert run.view.moves == 0  # no replica was told to do anything
    assert all(run.state(name).home == "r1" for name in before)
    assert (run.replica("r0").in_flight, run.replica("r1").in_environment) == (0, 4)
    given = run.catch_up(c.Call, leave=(c.Score,))
    homes = {ref.trajectory: route.replica for route in of(c.Route, given) for ref in route.trajectories}
    assert {homes[name] for name in before} == {"r1"}


def test_an_evaluation_in_its_environment_pins_its_replica():
    run = one_replica(evaluation=EvaluationPlan(size=2, modes=("sampled",)))
    run.go(c.Tick(), leave=(c.Call, c.Score))
    name = next(name for name in run.controller.ledger.trajectories if name.startswith("e"))
    assert run.state(name).phase == "in environment"
    assert run.replica("r0").pinned
    run.catch_up()
    assert run.view.finished
    first = run.view.evaluations[0]
    assert (len(first.rewards), first.failed) == (2, 0)


def test_a_held_out_problem_that_is_not_answered_counts_neither_way():
    run = one_replica(evaluation=EvaluationPlan(size=2, modes=("sampled",)))
    run.go(c.Tick(), leave=(c.Call, c.Score))
    run.go(c.CallFailed("e0.sampled.1", "nonsense"), leave=(c.Call, c.Score))
    run.forget(c.Call)
    open_calls = {name: seq for name, (_, seq) in run.controller.sessions.calls.items()}
    run.go(*(run.observes(name, seq) for name, seq in open_calls.items()))
    run.catch_up()
    first = run.view.evaluations[0]
    assert (len(first.rewards), first.failed) == (1, 1)
    assert run.view.counts.failed == 0


@pytest.mark.parametrize("observed", [False, True])
def test_the_driver_dies_between_two_turns_and_no_turn_is_lost(observed):
    run = away(one_replica())
    if observed:  # the store has the answers, of which nobody was told
        for name in ("0.0", "0.1"):
            run.observes(name)
    run.partial = {name: (0, kept) for name, kept in run.kept.items()}
    run.left.clear()
    given = run.go(c.Resumed((0,)), leave=(c.Route,))
    routed = {ref.trajectory: (route.replica, ref.kept) for route in of(c.Route, given) for ref in route.trajectories}
    assert routed == dict.fromkeys(("0.0", "0.1"), ("r0", TURN + ANSWER * observed))
    run.forget(c.Route)
    if not observed:  # the replica finds that the turn has ended, and says it again
        run.go(*(c.TurnEnded("r0", name, TURN) for name in routed))
    else:
        run.go(*(c.Finished("r0", name, 2 * TURN + ANSWER) for name in routed))
    assert run.view.finished, run.view.failure
    counts = run.view.counts
    assert (counts.turns, counts.turns_lost, counts.trained) == (6, 0, 3)


@pytest.mark.parametrize("done", [False, True])
def test_an_answer_that_the_log_has_and_the_store_lost_is_asked_for_again(done):
    """A machine crashed: the log had `Turned`, and the last second of the store is gone."""
    run = away(one_replica(turns=3))
    if done:
        run.go(*(run.observes(name, done=True) for name in ("0.0", "0.1")), leave=(c.Score, c.Call, c.Route))
    else:
        run.catch_up(c.Call, leave=(c.Route,))
    run.left.clear()
    run.partial, run.kept = dict.fromkeys(("0.0", "0.1"), (0, TURN)), dict.fromkeys(("0.0", "0.1"), TURN)
    run.ended = dict.fromkeys(("0.0", "0.1"), 1)
    run.go(c.Resumed((0,)), leave=(c.Route,))
    route = of(c.Route, run.left)[-1]
    run.forget(c.Route)
    run.go(*(c.TurnEnded(route.replica, ref.trajectory, TURN, route.seq) for ref in route.trajectories))
    run.catch_up()
    assert run.view.finished, run.view.failure
    assert run.view.contradictions == 0


def test_turns_that_the_store_lost_are_counted():
    run = away(one_replica())
    run.partial, run.kept, run.ended = {}, {}, {}
    run.left.clear()
    run.go(c.Resumed((0,)))
    counts = run.view.counts
    assert run.view.finished, run.view.failure
    assert (counts.turns, counts.turns_lost) == (8, 2)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6), st.data())
def test_a_state_knows_its_turns(turns, data):
    """Against the plain list of what each turn and each answer adds."""
    state, tokens, ends = TrajectoryState("0.0", 0, 0, c.Purpose.TRAIN, "", 0), 0, []
    for generated, answered in turns:
        tokens += generated
        assert state.may_end_turn(tokens)
        assert state.ends_turn(tokens)
        assert state.may_end_turn(tokens), "nobody has answered: it may be said again"
        assert not state.ends_turn(tokens)
        ends.append(tokens)
        tokens += answered
        state.is_answered(tokens)
        assert not state.may_end_turn(ends[-1]), "it is answered"
    assert (state.tokens, state.observed) == (tokens, sum(answered for _, answered in turns))
    kept = data.draw(st.integers(0, tokens))
    assert state.keeps(kept) == sum(end > kept for end in ends)
    assert state.turns == tuple(end for end in ends if end <= kept)
    assert state.tokens == kept
    assert state.may_end_turn(kept) == (kept >= max(state.turns, default=1)), (
        "a turn whose answer is lost is said again"
    )


def test_what_is_left_of_a_response_is_counted_without_what_environments_answered():
    run = Turning(turns=3, steps=2)
    run.go(c.Tick(), leave=(c.Route, c.Call))
    run.go(*(c.Predicted(prompt, 100.0, p90=300.0) for prompt in range(10)), leave=(c.Route, c.Call))
    ledger = run.controller.ledger
    name = next(name for name, state in ledger.trajectories.items() if state.replica is not None)
    state = ledger.trajectories[name]
    assert ledger.view(state).left == ledger.predictions.of(state.prompt, 0)[1]
    state.tokens, state.observed = 90, 50
    assert ledger.view(state).left == ledger.predictions.of(state.prompt, 40)[1]
    assert ledger.view(state, 5).left == ledger.predictions.of(state.prompt, 45)[1]


# ---- routing that sees prefix caches: two replicas, each with a group of two that wait for their environments ---


def two_away(place_tokens):
    routing = policy("routing", "prefix-aware", place_tokens=place_tokens)
    return away(Turning(routing=routing, turns=3, batch_groups=2, replica_batch=4))


def turned(run, *names):
    """Environments have answered. Returns where each goes on, and why."""
    calls = run.controller.sessions.calls
    given = run.go(*(run.observes(name, calls[name][1]) for name in names), leave=(c.Route, c.Call))
    return {
        ref.trajectory: (route.replica, route.reason(number))
        for route in of(c.Route, given)
        for number, ref in enumerate(route.trajectories)
    }


def test_a_turn_goes_where_its_tokens_are_cached_and_says_what_that_saves():
    run = two_away(10.0)
    homes = {name: run.state(name).home for name in ("0.0", "0.1", "1.0", "1.1")}
    assert set(homes.values()) == {"r0", "r1"}
    found = turned(run, "0.0", "1.0")
    assert {name: replica for name, (replica, _) in found.items()} == {name: homes[name] for name in ("0.0", "1.0")}
    for _, reason in found.values():
        assert (reason.why, reason.numbers["saved"]) == (c.Why.CACHED, 30.0 + TURN)


def test_a_turn_leaves_a_home_that_is_more_crowded_than_its_cache_is_worth():
    run = two_away(10.0)
    home = run.state("0.0").home
    other = {"r0": "r1", "r1": "r0"}[home]
    run.controller.fleet.replicas[home].capacity = 1  # a trajectory there takes all its places
    pair = [name for name in run.controller.sessions.calls if run.state(name).home == home][:2]
    assert len(pair) == 2
    found = turned(run, *pair)
    assert sorted(replica for replica, _ in found.values()) == ["r0", "r1"]
    (moved,) = [(reason.why, reason.who) for replica, reason in found.values() if replica == other]
    assert moved == (c.Why.CROWDED, home)
    assert all(run.state(name).home is None for name in pair)  # they are not owed there any more
    run.catch_up()
    assert run.view.finished
    counts = run.view.counts
    assert (counts.turns_lost, counts.regenerated_trajectories) == (0, 0)


@pytest.mark.parametrize("name", ["least-loaded", "prefix-aware"])
def test_the_run_is_as_long_with_it_and_loses_nothing(name):
    run = Turning(routing=policy("routing", name), turns=3, steps=2)
    run.go(c.Tick())
    assert run.view.finished
    assert run.view.counts.trained_tokens == 2 * 2 * 2 * 3 * TURN
    assert run.view.counts.turns_lost == 0


def test_a_policy_that_does_not_ask_costs_nothing():
    run = away(Turning())
    assert not any(state.cached for state in run.controller.ledger.trajectories.values())
    assert not any(group.cached for group in run.controller.ledger.groups.values())


def test_of_a_home_that_died_nothing_is_cached():
    run = two_away(0.0)
    home = run.state("0.0").home
    run.down("replica", home, leave=(c.Call, c.Route))
    found = turned(run, "0.0")
    assert found["0.0"][1].why is c.Why.CHOSEN
