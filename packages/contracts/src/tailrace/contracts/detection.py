"""Detection: what is known of each live member at a moment, who is suspected, and the base class of a detection policy.

    executor, members ──silence, activity, tokens──► controller ──Signs──► DetectionPolicy ──Suspected──► on_down (recovery)

A policy says who counts as down although nobody has seen its process end. What becomes of it is for recovery alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from tailrace.contracts.policies import AxisPolicy
from tailrace.contracts.reasons import Reason
from tailrace.contracts.record import record


@record
class Signs:
    """The signs of life of a member that is up, at a moment.

    Args:
        role: its role.
        id: its id.
        machine: the machine it runs on; empty while unknown.
        phase: what it does: "generating", "pulling" or "idle" for a replica; for the trainer "training" while it computes and
            says which micro-batches are done, "stepping" where its backend does not say, else "publishing", "saving" or
            "idle". Empty where nothing is known.
        work: trajectories that a replica holds now; those that environments answer are not among them.
        away: trajectories of a replica that environments answer now.
        silent_s: seconds since it answered last, once that is longer than the executor's patience; 0 while it answers.
        still_s: seconds for which, as it says itself, it had work and did not move.
        slowest_s: seconds of its slowest step in this phase so far; 0 before the first.
        quiet_s: seconds since it last showed progress, whatever it waited for: a token of a replica, a micro-batch or another
            phase of the trainer. 0 for other roles.
    """

    role: str
    id: str
    machine: str = ""
    phase: str = ""
    work: int = 0
    away: int = 0
    silent_s: float = 0.0
    still_s: float = 0.0
    slowest_s: float = 0.0
    quiet_s: float = 0.0


@record
class Suspected:
    """Treat a live member as down: it is ended, and recovery's `on_down` says what becomes of it."""

    role: str
    id: str
    reason: Reason


class DetectionPolicy(AxisPolicy):
    """Who counts as down although its process was not seen to end. Entry-point group ``tailrace.detection``."""

    __slots__ = ()

    @property
    @abstractmethod
    def look_s(self) -> float:
        """Seconds between two looks at members of which none is silent or says that it stands still: above 0 and finite."""

    @abstractmethod
    def suspects(self, signs: Sequence[Signs]) -> Sequence[Suspected]:
        """Members that count as down from now on, each once, with the reason.

        All are among those whose signs are given. The same signs give the same answer: it keeps no state, and changes nothing.

        Args:
            signs: of every member that is up, each once.
        """

    @abstractmethod
    def within_s(self, role: str) -> float:
        """The longest time, in seconds, for which a member of a role that does nothing any more may go unnoticed.

        It counts from when it had work or stopped to answer. Infinite for a role that is not watched.
        """
