"""A member all of whose threads serve other members, while its controller asks."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

from tailrace.contracts import Place
from tailrace.runtime.executor.seam import Host, RoleSpec

_CALLS = 24  # more than a member has threads
_AGES_S, _SOON_S = 60.0, 20.0


def ask_behind_members(host: Host) -> None:
    """Have members wait in calls of a role, and check that a controller's call is answered meanwhile.

    Raises:
        AssertionError: it waited for them.
        TimeoutError: it was not answered at all.
    """
    member = host.spawn("waiter", "0", 1, RoleSpec(threading.Event), Place())

    def asked(method: str, timeout_s: float) -> Any:
        answer = member.call(method)
        assert isinstance(answer, Future)
        return answer.result(timeout_s)

    assert asked("is_set", _AGES_S) is False
    caller = host.caller("waiter")
    calls = [threading.Thread(target=caller.call, args=("wait", _AGES_S), daemon=True) for _ in range(_CALLS)]
    for call in calls:
        call.start()
    time.sleep(1.0)  # they are under way
    assert asked("is_set", _SOON_S) is False
    assert asked("set", _SOON_S) is None
    for call in calls:
        call.join(_AGES_S)
        assert not call.is_alive()
