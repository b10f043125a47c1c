"""Bugs planted in what becomes of trajectories between two turns."""

from mutants import Mutant

from tailrace.controller.environments import Environments
from tailrace.controller.fleet import ReplicaState
from tailrace.controller.sessions import Sessions
from tailrace.controller.trajectories import TrajectoryState
from tailrace.fuzz.checks.bookkeeping import BOOKS
from tailrace.fuzz.checks.data_plane import TOKENS
from tailrace.fuzz.checks.progress import PROGRESS
from tailrace.fuzz.checks.turns import TURNS
from tailrace.fuzz.trial import CRASHED
from tailrace.runtime.executor.command_deadlines import Answers


def _a_turn_that_is_believed_as_often_as_it_is_said(patch):
    patch.setattr(TrajectoryState, "may_end_turn", lambda state, tokens: True)


def _calls_that_die_with_their_environment(patch):
    """Whoever was called is forgotten, since no answer comes."""
    went_down = Sessions.went_down

    def forgotten(sessions, member):
        waiting = dict(sessions.waiting)
        went_down(sessions, member)
        sessions.waiting = waiting

    patch.setattr(Sessions, "went_down", forgotten)


def _sessions_without_a_limit(patch):
    patch.setattr(Sessions, "_at_work", lambda sessions, members: dict.fromkeys(members, 0))


def _sessions_that_nobody_ends(patch):
    def close(sessions, trajectories):
        for name in trajectories:
            sessions.waiting.pop(name, None)
            sessions.calls.pop(name, None)
            sessions.of.pop(name, None)

    patch.setattr(Sessions, "close", close)


def _answers_that_nobody_waits_for_any_more(patch):
    """The controller takes an answer of a process that is gone, or of a trajectory that has begun anew."""
    answered = Sessions.answered

    def believed(sessions, event):
        member, seq = sessions.calls.get(event.trajectory, ("", 0))
        event = type(event)(**{**{name: getattr(event, name) for name in event.__slots__}, "answers": seq})
        return answered(sessions, event) if member else None

    patch.setattr(Sessions, "answered", believed)


def _a_home_that_forgets(patch):
    """What waits for its environment is of no concern to the replica that it left."""
    patch.setattr(ReplicaState, "awaits", lambda replica, state: setattr(state, "home", replica.id))


def _a_call_without_deadline(patch):
    patch.setattr(Answers, "calling", lambda answers, environment, names, seq, now: None)


def _an_unanswered_turn_that_goes_on(patch):
    """What was not answered is finished as it is."""
    turn_ended = Environments.turn_ended

    def goes_on(environments, event):
        turn_ended(environments, event)
        name = event.trajectory
        if name in environments._sessions.waiting and name.endswith(".1"):
            environments._sessions.waiting.pop(name)
            state = environments._ledger.trajectories[name]
            environments._fleet.comes_back(state)
            environments._ledger.returned(name, None)

    patch.setattr(Environments, "turn_ended", goes_on)


TURN_MUTANTS = {
    "a turn believed as often as it is said": Mutant(
        _a_turn_that_is_believed_as_often_as_it_is_said, (TURNS, BOOKS, TOKENS, CRASHED)
    ),
    "calls that die with their environment": Mutant(_calls_that_die_with_their_environment, (BOOKS, PROGRESS)),
    "sessions without a limit": Mutant(_sessions_without_a_limit, (TURNS,)),
    "sessions that nobody ends": Mutant(_sessions_that_nobody_ends, (TURNS,)),
    "answers that nobody waits for": Mutant(_answers_that_nobody_waits_for_any_more, (TURNS, TOKENS, BOOKS, CRASHED)),
    "a home that forgets": Mutant(_a_home_that_forgets, (BOOKS,)),
    "a call without deadline": Mutant(_a_call_without_deadline, (PROGRESS,)),
    "an unanswered turn that goes on": Mutant(_an_unanswered_turn_that_goes_on, (TURNS, TOKENS, PROGRESS)),
}
