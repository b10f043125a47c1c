"""Policies that go wrong, and what a run has to say then."""

from dataclasses import dataclass
from typing import Any

from scripted import Scripted, spec

from tailrace import contracts as c


@dataclass
class Wrong:
    """A policy with one method that goes wrong when it is asked the n-th time, once; otherwise the policy that it wraps."""

    right: Any
    method: str
    wrong: Any
    left: int = 0
    mended: bool = False

    @property
    def __class__(self):  # what `isinstance` asks
        return type(self.right)

    def __getattr__(self, name):
        if name != self.__dict__.get("method"):
            return getattr(self.right, name)
        return self._ask

    def _ask(self, *arguments):
        right = getattr(self.right, self.method)(*arguments)
        if self.mended or self.left > 0:
            self.left -= 1
            return right
        return self.wrong(right, *arguments)


def boom(right, *arguments):
    raise ZeroDivisionError("a mistake\nof two lines")


def ended(run):
    """The line that the run ended with; nothing follows any more."""
    line = run.view.failure
    assert line is not None
    assert "\n" not in line
    assert run.given[-1] == c.Fail(run.given[-1].seq, line)
    assert run.go(c.Tick()) == []
    return line


def goes_on(run, *wrong, checkpoints=None):
    """Once the policy is mended, the run can be resumed."""
    for plugin in wrong:
        plugin.mended = True
    known = range(run.view.steps + 1) if checkpoints is None else checkpoints
    run.left = []
    run.go(c.Resumed(tuple(known)))
    assert run.view.finished, run.view.failure
    counts = run.view.counts
    assert counts.trained == run.view.steps * 2
    assert counts.admitted == counts.trained + counts.filtered + counts.failed


def with_wrong(axis, method, wrong, *, left=0, run_to_the_end=True, **changes):
    """A run whose policy of an axis goes wrong, and that policy."""
    made = Wrong(getattr(spec(**changes), axis), method, wrong, left)
    run = Scripted(spec(**{**changes, axis: made}))
    if run_to_the_end:
        run.go(c.Tick())
    return run, made


class Raises:
    """A gate or source that raises in one method."""

    def __init__(self, right, method, left):
        self.right, self.method, self.left = right, method, left

    def __getattr__(self, name):
        if name != self.method:
            return getattr(self.right, name)
        return self.go_wrong

    def go_wrong(self, *arguments):
        self.left -= 1
        if self.left == -1:
            raise LookupError("it has no such group")
        return getattr(self.right, self.method)(*arguments)
