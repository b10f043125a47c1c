"""The scorer role: verifies finished trajectories, away from the trainer and the replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace.pipeline.executors.host import Caller
from tailrace.reward import Score, ScoreItem, Scorer


class ScorerRole:
    """Reads responses from the data role, verifies them and writes their rewards back.

    Args:
        data: the data role.
        verifier: the one that most rows name.
        timeout_s: deadline of one verification.
        workers: verifier processes.
    """

    def __init__(self, *, data: Caller, verifier: str, timeout_s: float = 10.0, workers: int = 1) -> None:
        self._data = data
        self._scorer = Scorer(workers=workers, timeout_s=timeout_s)
        # A verifier's first use imports it, which can take seconds: not while the first responses wait.
        self._scorer.score([ScoreItem("", "", "", verifier)])

    def ready(self) -> bool:
        """Answers once the role is up."""
        return True

    def score(self, ids: Sequence[str]) -> list[tuple[str, float | None, str]]:
        """(trajectory, reward or None, reason of a failure) for each."""
        outcomes = self._scorer.score(self._data.call("to_score", list(ids)))
        rewards: Mapping[str, float] = {o.trajectory: o.reward for o in outcomes if isinstance(o, Score)}
        self._data.call("set_rewards", rewards)
        return [
            (o.trajectory, o.reward, "") if isinstance(o, Score) else (o.trajectory, None, o.reason) for o in outcomes
        ]

    def close(self) -> None:
        """End the verifier processes."""
        self._scorer.close()
