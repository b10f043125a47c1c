"""Verifiers by name, the scorer that applies them, and generated verifiable tasks, one with long-tailed response lengths.

`Scorer` applies verifiers in worker processes with deadlines. ``tailrace.reward.verifiers`` holds the verifiers and their
protocol, ``tailrace.reward.extraction`` finds answers in responses, ``tailrace.reward.tasks`` generates tasks and
demonstrations.
"""

from tailrace.reward.errors import RewardError, ScorerClosedError, ScoringError
from tailrace.reward.scorer import ScoreItem, Scorer, ScoringFailure, ScoringResult
from tailrace.reward.verifiers import Verdict, Verifier, load_verifier, read_verdict, verifier_names

__all__ = [
    "ScoringFailure",
    "RewardError",
    "ScoringResult",
    "ScoreItem",
    "Scorer",
    "ScorerClosedError",
    "ScoringError",
    "Verdict",
    "Verifier",
    "load_verifier",
    "read_verdict",
    "verifier_names",
]
