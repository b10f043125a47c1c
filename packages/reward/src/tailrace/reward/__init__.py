"""Verifiers by name, the scheduler that applies them, and generated verifiable tasks, one with long-tailed response lengths.

`RewardScheduler` scores responses as they come, in an event loop; `Scorer` does the same for a list, without one.
``tailrace.reward.sandbox`` runs programs safely, ``tailrace.reward.verifiers`` holds the verifiers and their protocol,
``tailrace.reward.extraction`` finds answers in responses, ``tailrace.reward.tasks`` generates tasks and demonstrations.

A verifier's worker imports this package and no scheduler, so `Scorer`, `RewardScheduler` and their settings load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.contracts.lazy import loads_lazily
from tailrace.reward.errors import RewardError, ScorerClosedError, ScoringError, SettingsError
from tailrace.reward.items import Outcome, Recheck, ScoreItem, ScoringFailure, ScoringResult
from tailrace.reward.verifiers import Verdict, Verifier, load_verifier, read_verdict, verifier_names

if TYPE_CHECKING:
    from tailrace.reward.scheduler import RewardScheduler
    from tailrace.reward.scorer import Scorer
    from tailrace.reward.settings import CodeSettings, JudgeSettings, Kind, PoolSettings, VerifierSettings, kind_of
    from tailrace.reward.timeouts import AdaptiveTimeout, Anchors

__version__ = "0.1.0"
__all__ = [
    "AdaptiveTimeout",
    "Anchors",
    "CodeSettings",
    "JudgeSettings",
    "Kind",
    "Outcome",
    "PoolSettings",
    "Recheck",
    "RewardError",
    "RewardScheduler",
    "ScoreItem",
    "Scorer",
    "ScorerClosedError",
    "ScoringError",
    "ScoringFailure",
    "ScoringResult",
    "SettingsError",
    "Verdict",
    "Verifier",
    "VerifierSettings",
    "kind_of",
    "load_verifier",
    "read_verdict",
    "verifier_names",
]

if not TYPE_CHECKING:
    __getattr__ = loads_lazily(__name__, __all__, ("timeouts", "settings", "scheduler", "scorer"))
