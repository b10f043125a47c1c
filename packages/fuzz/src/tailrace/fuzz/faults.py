"""Faults of a fuzz case: what breaks, and when."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tailrace.faulttol import Fault
from tailrace.faulttol import FaultKind as Injury

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BreakKind(StrEnum):
    """What breaks.

    KILL: the member dies; the executor notices after a while.
    HANG: it lives and answers nothing; after its deadline it is killed.
    STALL: a replica lives and answers, but its engine stands still; the controller takes it for down.
    SLOW: it runs at `speed` for `for_s` seconds.
    PARTITION: messages to it and from it arrive only after `for_s` seconds; it counts as hung meanwhile.
    TORN_PULL: the next `count` pulls of a replica arrive damaged.
    LOST_CHECKPOINT: the next `count` checkpoints cannot be written, which ends the trainer.
    DAMAGED_CHECKPOINT: the newest checkpoint cannot be read any more.
    BROKEN_SCORING: nothing can be scored for `for_s` seconds.
    REPLAY: the controller dies alone; its log rebuilds it, and the rebuilt one goes on.
    CRASH: the driver dies with every role; the log rebuilds the controller, the stores say what survived.
    ATTACH: the controller dies at its `moment`, and the roles live on; after `for_s` seconds another one replays its log and
        attaches. A little later the first one wakes up, and is refused.
    MACHINE: a machine dies with all its members, unless it is the last one.
    """

    KILL = "kill"
    HANG = "hang"
    STALL = "stall"
    SLOW = "slow"
    PARTITION = "partition"
    TORN_PULL = "torn-pull"
    LOST_CHECKPOINT = "lost-checkpoint"
    DAMAGED_CHECKPOINT = "damaged-checkpoint"
    BROKEN_SCORING = "broken-scoring"
    REPLAY = "replay"
    CRASH = "crash"
    ATTACH = "attach"
    MACHINE = "machine"


class Moment(StrEnum):
    """Where in its work a controller dies: between two instants, or at the next one before it is in the log, before any of its
    commands is sent, or before one of them that follows the first."""

    BETWEEN = "between"
    BEFORE_LOG = "before-log"
    AFTER_LOG = "after-log"
    SENDING = "sending"


class CaseFault(BaseModel):
    """One fault. It strikes once, `after_s` seconds after the trainer's step number `at_step`; step 0 is the start.

    Args:
        role: replica, trainer, relay, scorer, data, ranker or environment, where the kind is about a member.
        member: its id, or the name of the machine.
        for_s: how long, where the kind lasts.
        speed: of a slow member, 1.0 as modelled.
        count: how often, where the kind says so.
        moment: where a controller dies that another one replaces.
        phase: the member is killed or hangs when it next comes to this phase; empty: wherever it is.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    kind: BreakKind
    role: str = ""
    member: str = ""
    at_step: Annotated[int, Field(ge=0)] = 0
    after_s: Seconds = 0.0
    for_s: Seconds = 0.0
    speed: Annotated[float, Field(gt=0, le=1)] = 1.0
    count: Annotated[int, Field(ge=1)] = 1
    moment: Moment = Moment.BETWEEN
    phase: str = ""

    def scripted(self) -> Fault | None:
        """The same for a real executor, at the step after which it strikes; None for what cannot be scripted there.

        A hang comes out as one where members are processes; the local host, whose members are threads, kills instead.
        """
        if self.kind not in (BreakKind.KILL, BreakKind.HANG, BreakKind.STALL):
            return None
        return Fault(
            kind=Injury(str(self.kind)), role=self.role, member=self.member, at_step=self.at_step, phase=self.phase
        )
