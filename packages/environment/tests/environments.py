"""Environments for the tests of the pool. Standard library only: workers load this file."""

import os
import signal
import sys
import time
from pathlib import Path


def struck(kind):
    os.kill(os.getpid(), kind)
    time.sleep(600)  # a signal may take effect in another thread first


class Sum:
    """Adds up the numbers that it is told, beginning with the row's; "stop" ends it. It can be restored and replayed."""

    replayable = True

    def __init__(self, greeting=""):
        self.greeting, self.total = greeting, 0

    def reset(self, row):
        self.total = row.get("begin", 0)
        return self.greeting

    def step(self, action):
        if action == "stop":
            return {"observation": "", "done": True, "reward": self.total}
        try:
            self.total += int(action)
        except ValueError:
            return {"observation": "no number", "done": False}
        return {"observation": str(self.total), "done": False, "reward": 1, "metadata": {"pid": os.getpid()}}

    def snapshot(self):
        return str(self.total).encode()

    def restore(self, state):
        self.total = int(state)

    def close(self):
        pass


class Replayed(Sum):
    """The same without snapshots."""

    snapshot = restore = None


class Fragile(Replayed):
    """The same without anything."""

    replayable = False


class Drifting(Replayed):
    """It says that it is replayable, and is not."""

    def step(self, action):
        return {"observation": f"{os.getpid()} {action}", "done": False}


class Told(Sum):
    """Does what it is told, in the worker process."""

    def step(self, action):
        word, _, rest = action.partition(" ")
        if word == "die":
            struck(signal.SIGKILL)
        elif word == "die-once":
            try:
                Path(rest).touch(exist_ok=False)
            except FileExistsError:
                return super().step("1")
            struck(signal.SIGKILL)
        elif word == "stand-still-once":
            try:
                Path(rest).touch(exist_ok=False)
            except FileExistsError:
                return super().step("1")
            struck(signal.SIGSTOP)
        elif word == "sleep":
            time.sleep(float(rest))
        elif word == "wait-for":
            while not Path(rest).exists():
                time.sleep(0.01)
        elif word == "raise":
            raise ZeroDivisionError(rest)
        elif word == "exit":
            sys.exit(3)
        elif word == "print":
            print(rest, flush=True)
            os.write(1, b'{"id": 0}\n')
        elif word == "answer":
            return eval(rest)
        elif word == "child":
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            return {"observation": str(child), "done": False}
        else:
            return super().step(action)
        return {"observation": word, "done": False}

    def close(self):
        if self.greeting:
            Path(self.greeting).touch()


class ToldAgain(Told):
    """The same without snapshots."""

    snapshot = restore = None


class ToldOnce(ToldAgain):
    """The same without anything."""

    replayable = False


class FirstMade(Sum):
    """The first of several workers with a folder loads; the others do not."""

    def __init__(self, folder):
        super().__init__()
        try:
            Path(folder, "made").touch(exist_ok=False)
        except FileExistsError:
            time.sleep(600)


class SlowlyMade(Sum):
    """Where there is a file ``hold`` in the folder, it is made once there is ``go``. Such a one leaves ``closed``."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.held = Path(folder), Path(folder, "hold").exists()
        if self.held:
            Path(folder, "begun").touch()
            while not Path(folder, "go").exists():
                time.sleep(0.01)

    def close(self):
        if self.held:
            Path(self.folder, "closed").touch()


class Tokens:
    """Speaks in token ids: adds up those that it is told, beginning with the row's. It can be played again."""

    replayable = tokenized = True

    def __init__(self, last=9, answer=None):
        self.last, self.answer = last, answer

    def rows(self, start, stop):
        return [{"prompt": "", "begin": number} for number in range(start, min(stop, self.last))]

    def reset(self, row):
        self.total = row["begin"]
        return [self.total, 1]

    def step(self, action):
        self.total += sum(action)
        said = (self.total,) if self.answer is None else self.answer
        return {"observation": said, "done": False, "reward": 1}

    def close(self):
        pass


class Garbling(Sum):
    """Writes into the descriptor of the replies."""

    def step(self, action):
        for fd in range(3, 20):
            try:
                os.write(fd, b"nonsense\n")
            except OSError:
                continue
        return super().step(action)


class Unfinished:
    """Has no step."""

    def reset(self, row):
        return ""

    def close(self):
        pass


class Unready:
    """Does not load in time."""

    def __init__(self):
        time.sleep(600)


class Crashing:
    """Ends its process while it is made."""

    def __init__(self):
        print("out of luck", flush=True)
        os._exit(7)
