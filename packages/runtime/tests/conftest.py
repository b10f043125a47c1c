import time

import pytest


@pytest.fixture
def until():
    """Waits for a condition, and fails when it does not come true."""

    def wait(condition, what, timeout_s=30.0):
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
            time.sleep(0.02)
        return found

    return wait


@pytest.fixture
def gather(until):
    """Polls a role as an executor does, until it has said enough; returns all events."""

    def poll(role, enough, what, timeout_s=30.0):
        events = []

        def more():
            events.extend(role.events(0.05))
            return enough(events)

        until(more, what, timeout_s)
        return events

    return poll
