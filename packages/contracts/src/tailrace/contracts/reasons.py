"""Why something was decided, as data: an enumeration and its numbers, from the policy to the log.

A display makes words of it; nobody parses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from tailrace.contracts.record import record


class Why(StrEnum):
    """Reasons of commands. Each member says which numbers come with it, and whom `Reason.who` names.

    CHOSEN: the routing policy placed it; `gain` and `least` in tokens per second where the policy counts them.
    MOVED: it belongs to a move; `who` is the other replica.
    EVALUATION: an evaluation is due, or goes on; `version`.
    BEHIND: an idle replica is behind; `version` is the one to pull.
    ALL_IDLE: every replica is idle, so all pull together; `version`.
    USEFUL: new weights let the replica start groups that its own may not; `version`.
    NEWER: newer weights are published, and running work is interrupted for them; `version`.
    STRANDED: work of an old version is left, and nobody serves it; `version`.
    PULLING: the replica is about to pull; `version`.
    WAITING_TOO_LONG: more wait in the engine than should; `waiting`, `limit`.
    LOW_THROUGHPUT: another replica does far less than this one, whose work is spread again; `here` and `there` in tokens per
        second, `who` is the other.
    STOPPING: the replica is to stop.
    REPLICA_DOWN: the replica went down with it; `who`.
    VERSION_GONE: nobody has the weights of its version any more, so it begins anew; `version`.
    LOST_IN_CRASH: the driver died with the command that dropped it unanswered.
    TRAINED: it was trained on; `version` is the one that was made.
    NO_SIGNAL: the batching policy keeps no group of such rewards.
    SURPLUS_SAMPLE: its group has all the samples that it needs.
    SURPLUS_GROUP: the batch has all the groups that it needs.
    EXPIRED: it is too old to be trained on within the bound.
    NOT_SCORED: its verifier broke too often; `attempts`.
    OVER: every batch is trained on.
    PLANNED: the provisioning policy wants it so.
    FAILED: a member failed; `failures` in the window.
    DAMAGED: the checkpoint that it was to start from cannot be used, an older one is tried; `version` of the damaged one.
    STILL: a member stands still with work in flight; `still_s` and `limit_s`.
    MACHINE: the machine is given up; `who`.
    POLICY: a policy's own reason; its numbers are the policy's.
    """

    CHOSEN = "chosen"
    MOVED = "moved"
    EVALUATION = "evaluation"
    BEHIND = "behind"
    ALL_IDLE = "all-idle"
    USEFUL = "useful"
    NEWER = "newer"
    STRANDED = "stranded"
    PULLING = "pulling"
    WAITING_TOO_LONG = "waiting-too-long"
    LOW_THROUGHPUT = "low-throughput"
    STOPPING = "stopping"
    REPLICA_DOWN = "replica-down"
    VERSION_GONE = "version-gone"
    LOST_IN_CRASH = "lost-in-crash"
    TRAINED = "trained"
    NO_SIGNAL = "no-signal"
    SURPLUS_SAMPLE = "surplus-sample"
    SURPLUS_GROUP = "surplus-group"
    EXPIRED = "expired"
    NOT_SCORED = "not-scored"
    OVER = "over"
    PLANNED = "planned"
    FAILED = "failed"
    DAMAGED = "damaged"
    STILL = "still"
    MACHINE = "machine"
    POLICY = "policy"


@record
class Reason:
    """Why something was decided.

    Args:
        why: the kind of reason.
        who: the other member or machine that it names, empty for none.
        numbers: by name, as `Why` lists them.
    """

    why: Why
    who: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)


CHOSEN = Reason(Why.CHOSEN)
"""What a routing policy says that counts nothing."""
