"""The events of a trajectory with several turns, between a replica and its environment.

    replica ──TurnEnded──► controller ──Call──► environment ──Turned──► controller ──Route──► the same replica, if it can
                                                   └──CallFailed──► its group fails by name, or the trajectory begins anew

What the events name is durable: the store has the tokens of the turn, and then those of the observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tailrace.contracts.errors import shown
from tailrace.contracts.record import record
from tailrace.contracts.trajectory import FinishReason


class SessionOrigin(StrEnum):
    """Where the environment has the session of a trajectory from that it was asked for.

    HELD: it had it, or this was its first turn.
    RESTORED: its member was gone, and another restored it from a snapshot.
    REPLAYED: its member was gone, and another replayed the turns of the store; what it observed was the same.
    """

    HELD = "held"
    RESTORED = "restored"
    REPLAYED = "replayed"


@record
class TurnEnded:
    """A turn of a trajectory is complete and the trajectory store has its tokens; an environment answers it next.

    Args:
        tokens: all response tokens so far, what environments answered before included.
    """

    replica: str
    trajectory: str
    tokens: int
    answers: int | None = None


@record
class Turned:
    """An environment has answered a turn, and the trajectory store has its observation.

    Args:
        turn: number of the turn that was answered, from 1.
        tokens: all response tokens so far, this observation included.
        done: whether the environment has ended the trajectory, which is then complete in the store. Its session is over.
        seconds: wall time of the environment's step, without its time in a queue.
        session: where the environment had the session from.
        reason: why the trajectory is complete, if it is: ``LENGTH`` where a limit on tokens or turns left no room for another
            turn. Logs from before there was this field have ``STOP`` for either.
    """

    trajectory: str
    turn: int
    tokens: int
    done: bool = False
    seconds: float = 0.0
    answers: int | None = None
    session: SessionOrigin = SessionOrigin.HELD
    reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True, slots=True)
class CallFailed:
    """An environment gave no answer that can be used, or none in time. That is never a reward of zero. Its session is over.

    Args:
        reason: what was found, in words.
        lost: whether only the session is lost, with a member that is gone, and cannot be had again: the trajectory begins anew.
            Otherwise its group fails.
    """

    trajectory: str
    reason: str
    answers: int | None = None
    lost: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", shown(self.reason))
