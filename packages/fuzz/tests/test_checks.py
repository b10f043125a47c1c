"""What a controller that attaches may restart: who died, and whoever stands on the machine that is left for the dead's sake."""

import pytest

from tailrace import contracts as c
from tailrace.fuzz import InvariantError
from tailrace.fuzz.checks.checker import RESTARTS, _check_attached

DEAD = c.Down("trainer", "0", "killed")


def restart(role, *, why, who="", avoid=()):
    return c.Restart(1, role, "0", place=c.Place(avoid=avoid), reason=c.Reason(why, who=who))


ELSEWHERE = restart("trainer", why=c.Why.FAILED, avoid=("m0",))


@pytest.mark.parametrize(
    ("commands", "right"),
    [
        ([restart("trainer", why=c.Why.FAILED)], True),
        ([restart("relay", why=c.Why.FAILED)], False),
        ([restart("relay", why=c.Why.TASK_RESTART)], True),
        ([restart("relay", why=c.Why.MACHINE, who="m0"), ELSEWHERE], True),
        ([restart("relay", why=c.Why.MACHINE, who="m1"), ELSEWHERE], False),
        ([restart("relay", why=c.Why.MACHINE, who="m0")], False),
        ([restart("relay", why=c.Why.FAILED, avoid=("m0",)), ELSEWHERE], False),
        ([restart("replica", why=c.Why.FAILED), ELSEWHERE], True),  # it is among those that waited for their devices
    ],
)
def test_an_attached_controller_restarts_the_dead_and_those_on_a_machine_that_they_leave(commands, right):
    if right:
        _check_attached([DEAD], commands, held=("0",))
    else:
        with pytest.raises(InvariantError, match=RESTARTS):
            _check_attached([DEAD], commands, held=("0",))
