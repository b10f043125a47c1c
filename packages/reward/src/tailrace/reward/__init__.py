"""Verifiers by name, generated verifiable tasks with a real long tail, and the scorer that applies them.

`Scorer` applies verifiers in worker processes with deadlines. ``tailrace.reward.verifiers`` holds the verifiers and their
protocol, ``tailrace.reward.extraction`` finds answers in responses, ``tailrace.reward.tasks`` generates tasks and
demonstrations.
"""

from tailrace.reward.errors import RewardError, ScorerClosedError, ScoringError
from tailrace.reward.scorer import Failure, Score, ScoreItem, Scorer
from tailrace.reward.verifiers import Verifier, load_verifier, verifier_names

__all__ = [
    "Failure",
    "RewardError",
    "Score",
    "ScoreItem",
    "Scorer",
    "ScorerClosedError",
    "ScoringError",
    "Verifier",
    "load_verifier",
    "verifier_names",
]
