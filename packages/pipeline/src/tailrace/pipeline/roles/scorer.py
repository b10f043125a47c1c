"""The scorer role: verifies finished trajectories in its own process.

If a verifier fails, its trajectory loses one attempt. If the data role is gone for too long, this role goes down too; the
controller then has the trajectories scored again, without counting an attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice

from tailrace.contracts import Abort, Command, Event, Scored, ScoringFailed
from tailrace.contracts import Score as ScoreCommand
from tailrace.pipeline.errors import RoleError
from tailrace.pipeline.executor.seam import Caller
from tailrace.pipeline.roles.worker import Worker
from tailrace.reward import ScoreItem, Scorer, ScoringResult
from tailrace.reward.verifiers import is_reference

_AT_ONCE = 64  # trajectories of one call for each verifier process; their outcomes are reported together


class ScorerRole:
    """Reads responses from the data role, verifies them and writes their rewards back.

    Args:
        data: the data role.
        verifier: the verifier of rows that name none: an installed one, or a reference such as ``my_task.py:verify``.
        named: further verifiers that rows name; references among them are found only if they stand here.
        timeout_s: deadline of one verification.
        workers: number of verifier processes.
        data_timeout_s: how long the data role may be gone before a restarted one must answer.
    """

    def __init__(
        self,
        *,
        data: Caller,
        verifier: str,
        named: Sequence[str] = (),
        timeout_s: float = 10.0,
        workers: int = 1,
        data_timeout_s: float = 180.0,
    ) -> None:
        self._data, self._data_timeout_s = data, data_timeout_s
        own = {name: name for name in (verifier, *named) if is_reference(name)}
        self._scorer = Scorer(own, workers=workers, timeout_s=timeout_s)
        self._at_once = _AT_ONCE * workers
        # A verifier's first use imports it, which can take seconds; do that before the first responses wait.
        self._scorer.score([ScoreItem("", "", "", name) for name in dict.fromkeys((verifier, *named))])
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}  # number of the command by trajectory
        self._under_way: dict[str, int] = {}
        self._worker = Worker("scoring", self._carry_out)

    def ready(self) -> dict[str, object]:
        """Returns once the role is up."""
        return {}

    def submit(self, commands: Sequence[Command]) -> None:
        """Verify the trajectories of each `ScoringResult`, except those that a later `Abort` names."""
        with self._lock:
            for command in commands:
                match command:
                    case ScoreCommand(seq=seq, trajectories=names):
                        self._waiting.update(dict.fromkeys(names, seq))
                    case Abort(trajectories=names):
                        for name in names:
                            self._waiting.pop(name, None)
                            self._under_way.pop(name, None)
                    case _:
                        raise RoleError(
                            f"the scorer got {type(command).__name__} {command.seq}, expected Score or Abort"
                        )
        self._worker.submit(commands)

    def events(self, timeout_s: float) -> list[Event]:
        """Outcomes since the last call; waits up to `timeout_s` seconds for one."""
        return self._worker.events(timeout_s)

    def adopt(self) -> None:
        """Prepare for another controller: drop the last one's trajectories."""
        with self._lock:
            self._waiting.clear()
            self._under_way.clear()
            self._worker.forget()

    def close(self) -> None:
        """End the verifier processes."""
        self.adopt()
        self._worker.close(0.0)
        self._scorer.close()

    def _carry_out(self, command: Command) -> None:
        """Verify all waiting trajectories, of whichever command."""
        del command
        while True:
            with self._lock:
                self._under_way = dict(islice(self._waiting.items(), self._at_once))
                for name in self._under_way:
                    del self._waiting[name]
                names = list(self._under_way)
            if not names:
                return
            self._verify(names)

    def _verify(self, names: list[str]) -> None:
        items = self._data.call("to_score", names, timeout_s=self._data_timeout_s)
        outcomes = self._scorer.score(items)
        rewards = {
            o.trajectory: o.reward for o in outcomes if isinstance(o, ScoringResult) and o.trajectory in self._under_way
        }
        if rewards:
            self._data.call("set_rewards", rewards, timeout_s=self._data_timeout_s)
        with self._lock:
            for outcome in outcomes:
                seq = self._under_way.get(outcome.trajectory)
                if seq is None:
                    continue  # it was dropped meanwhile
                self._worker.put(
                    Scored(outcome.trajectory, outcome.reward, answers=seq, correct=outcome.correct)
                    if isinstance(outcome, ScoringResult)
                    else ScoringFailed(outcome.trajectory, outcome.reason, answers=seq)
                )
