"""Bugs planted in the executor, at its seam to hosts, and in what the controller decides in its place."""

from mutants import Mutant

from tailrace import contracts as c
from tailrace.controller.coordinator import Coordinator
from tailrace.controller.discards import Discards
from tailrace.controller.members import Members
from tailrace.faulttol import HeartbeatMonitor
from tailrace.fuzz.checks.bookkeeping import BOOKS, REBUILT
from tailrace.fuzz.checks.data_plane import TOKENS, WEIGHTS
from tailrace.fuzz.checks.progress import PROGRESS
from tailrace.fuzz.checks.training import ONCE
from tailrace.fuzz.trial import CRASHED
from tailrace.runtime.executor.command_deadlines import Answers
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.executor.membership import Membership
from tailrace.runtime.executor.waits import Waits


def _a_route_before_its_discard(patch):
    """What begins anew is back in the pool at once; the store drops it when it has begun."""

    def begin_anew(discards, states, reason):
        discards.abort([state.id for state in states], reason)
        for state in states:
            discards.ledger.restarted(state)

    patch.setattr(Discards, "begin_anew", begin_anew)


def _a_poll_without_deadline(patch):
    patch.setattr(HeartbeatMonitor, "check", lambda monitor, now: [])


def _a_pull_lost_while_no_relay_lives(patch):
    """The replica is taken to be pulling, but there was nobody to pull from, and nobody remembers."""
    pull = Coordinator._pull

    def lost(coordinator, replica, version, reason, **how):
        pull(coordinator, replica, version, reason, **how)
        if replica.pulling is None and not coordinator._members.relays_for(replica.id):
            replica.pulling = version

    patch.setattr(Coordinator, "_pull", lost)


def _up_inside_the_loop_over_commands(patch):
    """A member is reported up while the commands that started it are still being carried out."""
    spawn = Membership._spawn

    def at_once(membership, command, version):
        spawn(membership, command, version)  # type: ignore[call-arg]
        membership._tell(c.Up(command.role, command.id, answers=command.seq))
        executor = membership._tell.__self__
        executor._deliver(executor.now())

    patch.setattr(Membership, "_spawn", at_once)


def _an_answer_of_a_dead_incarnation(patch):
    patch.setattr(Waits, "forget", lambda waits, owner: None)
    patch.setattr(Waits, "dismiss", lambda waits, number: None)


def _a_discard_forgotten_on_resume(patch):
    patch.setattr(Discards, "again", lambda discards: discards.pending.clear())


def _a_chain_that_keeps_a_dead_relay(patch):
    """The address at which a relay was first reached is kept for ever."""
    came_up = Members.came_up

    def keeps(members, event):
        state = members.get(event.role, event.id)
        before = getattr(members, "machines", {}).get("first " + event.id) if event.role == "relay" else None
        found = came_up(members, event)
        if event.role == "relay" and found is not None:
            if before is None:
                members.machines["first " + event.id] = c.MachineView(event.address)
            else:
                state.address = before.id
        return found

    patch.setattr(Members, "came_up", keeps)


def _a_stale_heartbeat(patch):
    """The last sign of life of a dead incarnation is held against the one that came in its place."""
    expect = HeartbeatMonitor.expect

    def once(monitor, member, now):
        if member not in monitor.members:
            expect(monitor, member, now)

    def beat(monitor, member, now):
        return True

    patch.setattr(HeartbeatMonitor, "forget", lambda monitor, member: None)
    patch.setattr(HeartbeatMonitor, "expect", once)
    patch.setattr(HeartbeatMonitor, "beat", beat)


def _a_heartbeat_that_nobody_notes(patch):
    """Whoever answers counts as silent all the same, and is replaced again and again."""
    patch.setattr(HeartbeatMonitor, "beat", lambda monitor, member, now: member in monitor.members)


def _commands_in_another_order(patch):
    """Commands of one instant go out last first."""
    put = Executor._send

    def first(executor, key, command):
        running = put(executor, key, command)
        if running is not None:
            running._queue.insert(0, running._queue.pop())
        return running

    patch.setattr(Executor, "_send", first)


def _a_checkpoint_without_deadline(patch):
    """A trainer that lives and never says that its checkpoint is durable is waited for, for ever."""
    expect = Answers.expect

    def forgets(answers, running, command, now):
        if not isinstance(command, c.Checkpoint):
            expect(answers, running, command, now)

    patch.setattr(Answers, "expect", forgets)


def _waits_of_the_dead(patch):
    """What a member was waited for stays among the waits when it is gone."""
    patch.setattr(Waits, "forget", lambda waits, owner: None)


def _a_discard_that_is_over_at_its_first_answer(patch):
    """A trajectory that is being dropped twice is back in the pool after the first answer."""

    def done(discards, event):
        for name in discards.pending.pop(event.answers, ((), None))[0]:
            if name in discards.ledger.discarding:
                discards.ledger.restarted(discards.ledger.trajectories[name])

    patch.setattr(Discards, "done", done)


ANY = (PROGRESS, BOOKS, TOKENS, WEIGHTS, ONCE, REBUILT, CRASHED)
EXECUTOR_MUTANTS = {
    "a route sent before its discard": Mutant(_a_route_before_its_discard, ANY),
    "a poll without deadline": Mutant(_a_poll_without_deadline, (PROGRESS, CRASHED)),
    "a pull lost while no relay lives": Mutant(_a_pull_lost_while_no_relay_lives, ANY),
    "Up inside the loop over commands": Mutant(_up_inside_the_loop_over_commands, ANY),
    "an answer of a dead incarnation believed": Mutant(_an_answer_of_a_dead_incarnation, ANY),
    "a discard forgotten on resume": Mutant(_a_discard_forgotten_on_resume, ANY),
    "a chain that keeps a dead relay": Mutant(_a_chain_that_keeps_a_dead_relay, ANY),
    "a stale heartbeat": Mutant(_a_stale_heartbeat, ANY),
    "a heartbeat that nobody notes": Mutant(_a_heartbeat_that_nobody_notes, (PROGRESS,)),
    "commands in another order": Mutant(_commands_in_another_order, ANY),
    "a checkpoint without deadline": Mutant(_a_checkpoint_without_deadline, (PROGRESS,)),
    "waits of the dead": Mutant(_waits_of_the_dead, (PROGRESS,)),
    "a discard that is over at its first answer": Mutant(_a_discard_that_is_over_at_its_first_answer, ANY),
}
