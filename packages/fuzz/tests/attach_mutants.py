"""Bugs planted where another controller takes the place of one that died."""

from mutants import Mutant

from tailrace.fleetsim.host.host import VirtualHandle, VirtualHost
from tailrace.fuzz.checks.bookkeeping import BOOKS, REBUILT
from tailrace.fuzz.checks.checker import RESTARTS
from tailrace.fuzz.checks.data_plane import TOKENS, WEIGHTS
from tailrace.fuzz.checks.progress import PROGRESS
from tailrace.fuzz.checks.training import ONCE
from tailrace.fuzz.controller_deaths import REPLACED
from tailrace.fuzz.trial import CRASHED
from tailrace.runtime.executor.membership import Membership
from tailrace.runtime.executor.roster import Listed
from tailrace.runtime.hosts.mailbox import Correspondence


def _no_acknowledgement(patch):
    """A member forgets what it has told, whether or not the controller has logged it."""
    after = Correspondence.after

    def forgets(said, told):
        found = after(said, told)
        said.acknowledge(found[0])
        return found

    patch.setattr(Correspondence, "after", forgets)


def _no_epoch(patch):
    """A controller that was replaced and wakes up is obeyed."""
    patch.setattr(Correspondence, "claim", lambda said, epoch: None)


def _commands_sent_once(patch):
    """What the dead controller decided is believed to be on its way."""
    patch.setattr(Membership, "_take_over", _forgets_sent(Membership._take_over))


def _forgets_sent(take_over):
    def without(membership, ranks, listed):
        listed.sent.clear()
        take_over(membership, ranks, listed)

    return without


def _commands_taken_twice(patch):
    """A member carries out whatever comes."""
    patch.setattr(Correspondence, "fresh", lambda said, commands: commands)


def _the_dead_among_the_living(patch):
    """A member that died meanwhile is taken over with the others."""

    def find(host, role, id_, incarnation):
        member = host.members.get((role, id_))
        return None if member is None else VirtualHandle(member, host.epoch)

    patch.setattr(VirtualHost, "find", find)


def _starts_that_are_forgotten(patch):
    """What was to be started, and was not, is never started."""
    patch.setattr(Membership, "_start_now", lambda membership, keys, listed: None)


def _pieces_that_count_as_taken(patch):
    """A command without an answer counts as sent."""
    patch.setattr(Listed, "taken", lambda listed, seq: listed.sent.clear())


ANY = (PROGRESS, BOOKS, TOKENS, WEIGHTS, ONCE, REBUILT, CRASHED, RESTARTS)
ATTACH_MUTANTS = {
    "no acknowledgement": Mutant(_no_acknowledgement, ANY),
    "no epoch": Mutant(_no_epoch, (REPLACED,)),
    "commands sent once": Mutant(_commands_sent_once, ANY),
    "commands taken twice": Mutant(_commands_taken_twice, ANY),
    "the dead among the living": Mutant(_the_dead_among_the_living, ANY),
    "starts that are forgotten": Mutant(_starts_that_are_forgotten, ANY),
    "commands that count as taken": Mutant(_pieces_that_count_as_taken, ANY),
}
