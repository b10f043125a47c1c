"""Environments that break the contract, each in one way."""

import itertools
import os

from environments import Fragile, Replayed, Sum

TICKS = itertools.count()
SHARED = []


class NoText(Sum):
    """Begins with something that is no text."""

    def reset(self, row):
        return None


class NoAnswer(Sum):
    """Answers nothing."""

    def step(self, action):
        return None


class Strict(Sum):
    """Raises for what is no number."""

    def step(self, action):
        return {"observation": str(int(action)), "done": False}


class Counting(Replayed):
    """Says that it is replayable, and is not."""

    def step(self, action):
        return {"observation": str(next(TICKS)), "done": False}


class Sharing(Replayed):
    """Its sessions share what they know."""

    def reset(self, row):
        SHARED[:] = [row.get("begin")]
        return ""

    def step(self, action):
        return {"observation": str(SHARED), "done": False}


class TextSnapshot(Sum):
    """Its snapshot is no bytes."""

    def snapshot(self):
        return "3"


class EmptySnapshot(Sum):
    """Its snapshot says nothing."""

    def snapshot(self):
        return b"0"


class CostlySnapshot(Sum):
    """Taking a snapshot changes the session."""

    def snapshot(self):
        self.total += 1
        return str(self.total).encode()


class LargeSnapshot(Sum):
    """Its snapshot is too large."""

    def snapshot(self):
        return bytes(2**21)


class Placed(Replayed):
    """Answers differently in each process."""

    def step(self, action):
        return {"observation": str(os.getpid()), "done": False}


class Homesick(Fragile):
    """Works in the test's own process only."""

    def step(self, action):
        if os.environ["HOME_PID"] != str(os.getpid()):
            raise OSError("only at home")
        return super().step(action)


class Shuffled(Sum):
    """Has other rows each time."""

    def rows(self, start, stop):
        return [{"begin": next(TICKS)} for _ in range(start, stop)]


class OneRow(Sum):
    """Gives a row instead of a list."""

    def rows(self, start, stop):
        return {"begin": start}
