"""Why something was decided, as data: an enumeration and its numbers, from the policy to the log.

Displays turn a reason into words; no code parses those words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from tailrace.contracts.record import record


class Why(StrEnum):
    """Reasons of commands. Each line lists the numbers of a kind, and whom `Reason.who` names.

    CHOSEN: the routing policy placed the trajectory; `gain` and `least` in tokens per second, if the policy computes them.
    LONG_TAIL: it is predicted to be among the longest, for which the replica stands apart; `predicted` and `limit` in tokens:
        what is predicted to be longer than the limit is among them.
    REGULAR: it is predicted to be none of the longest; `predicted` and `limit` in tokens, `limit` if any trajectory is longer.
    UNPREDICTED: nothing is predicted for it, so it counts as none of the longest.
    CHANCE: predictions found the longest no better than chance of late, so it is placed as if there were none; `recall` and
        `chance`, the recall up to which that is so.
    DRY: the replica ran out of work, so it takes the longest that waits, whichever it is; `predicted` in tokens, if known.
    CACHED: the prefix cache of its replica has tokens of it: `saved`, which need no prefill there. What it has to do beyond the
        least loaded counts as much as `costs` tokens of prefill.
    CROWDED: the prefix cache of `who` has tokens of it, but the load there counts for more; `saved` and `costs` there.
    MOVED: the trajectory moves between replicas; `who` is the other replica.
    TURNED: its environment has answered, and it goes on where it was.
    EVALUATION: an evaluation is due or continues; `version`.
    BEHIND: an idle replica is behind; `version` is the one to pull.
    ALL_IDLE: every replica is idle, so all pull together; `version`.
    USEFUL: with the new weights the replica may start groups that it may not start now; `version`.
    NEWER: newer weights are published, and running work is interrupted for them; `version`.
    STRANDED: trajectories of an old version wait and no replica serves it; `version`.
    PULLING: the replica is about to pull; `version`.
    WAITING_TOO_LONG: too many trajectories wait in the engine; `waiting`, `limit`.
    LOW_THROUGHPUT: another replica has far lower throughput, so this one's work is redistributed; `here` and `there` in
        tokens per second, `who` is the other.
    STOPPING: the replica stops.
    LENT: the replica's devices are lent to a cell of the trainer.
    RESIZING: the replica starts anew on another number of devices.
    REPLICA_DOWN: the replica that ran the trajectory went down; `who`.
    VERSION_GONE: no one has the weights of its version any more, so the trajectory starts again; `version`.
    LOST_IN_CRASH: the driver died before the command that dropped the trajectory was answered.
    TRAINED: it was trained on; `version` is the version that this made.
    NO_SIGNAL: the batching policy does not train on a group with such rewards.
    SURPLUS_SAMPLE: its group has all the samples that it needs.
    SURPLUS_GROUP: the batch has all the groups that it needs.
    DEFERRED: the round has all the groups that it keeps, and its prompt comes again in a long round.
    EVICTED: the buffer is full of groups that were not trained on, and the eviction policy chose this one.
    EXPIRED: it is too old to be trained on within the bound.
    DELAYED: training waited for it while later batches had complete groups in its place, and its prompt does not come again;
        `waited_s`, `limit_s`.
    DELAYED_AGAIN: the same, and its prompt comes again later; `waited_s`, `limit_s`.
    NOT_SCORED: its verifier failed too often; `attempts`.
    NOT_SCORED_YET: its verifier failed too often for now, and its prompt comes again later; `attempts`.
    REFUSED: the engine of replica `who` did not take its prompt.
    UNANSWERED: environment `who` gave no answer to a turn that can be used, or none in time.
    SESSION_LOST: its session was lost with its environment and could not be had again, so the trajectory starts again.
    OVER: every batch is trained on.
    PLANNED: the provisioning policy asked for it.
    ALLOCATED: the run starts with what Algorithm 1 of StreamRL finds best; `replicas`, the `devices` of each, and the predicted
        `generation_s` and `training_s` of an iteration.
    GENERATION_SLOWER: generation takes longer than training, so a replica is added; `generation_s` and `training_s` of an
        iteration, and `saved_s`, by which generation is predicted to become faster.
    TRAINING_SLOWER: training takes longer than generation, so a replica is removed; `generation_s`, `training_s`, and
        `cost_s`, by which generation is predicted to become slower.
    FAILED: a member failed; `failures` in a row, of which the policy allows `allowed`, if it says so. More than those means
        that it starts on another machine, or is given up: then `left` members of its role are left to do its work.
    DAMAGED: its checkpoint cannot be used, so an older one is tried; `version` of the damaged one.
    NOT_TAKEN: newer weights than those of its checkpoint could not be taken, so it starts with those; `version` of the newer.
    STILL: a member stands still with work in flight; `still_s`, `limit_s`; a command also has `failures`, `allowed` and `left`
        as above.
    SILENT: a member does not answer; `silent_s`, `limit_s`; a command also has `failures`, `allowed`, `left`.
    MACHINE_SILENT: machine `who` does not answer; `silent_s`, `limit_s`; a command also has `failures`, `allowed`, `left`.
    DIFFERS: a replica's engine has other weights than were published; `version`; a command also has `failures`, `allowed` and
        `left`.
    HYBRID: replica `who`, which stands on the trainer's devices, is down, so the fault is the trainer's; `limit_s` if it stood
        still for longer; a command also has `failures`, `allowed`, `left`.
    TASK_RESTART: the whole task starts anew because of `who`, a role and an id; `task_restarts` in a row without a step.
    MACHINE: its machine is no longer used; `who`.
    STANDBY: its machine goes to the trainer, `who`, which lost its own.
    POLICY: a policy's own reason; its numbers are the policy's.

    Why a member has nothing to do, which no command carries; a controller says it of each:
    OCCUPIED: it is down, and begins anew once the trainer's cells have moved away what they have on its devices.
    UNPUBLISHED: no weights are published yet.
    NO_RELAY: there is no relay to pull from.
    NOT_TOLD: it serves older weights than there are, or none, and was not told to pull them yet; `version` is the newest.
    NO_USE: it serves older weights than there are, and newer ones would bring it no work yet; `version` is the newest.
    IN_ENVIRONMENTS: environments answer its trajectories; `trajectories`.
    SCORING: every response that was begun is generated, and scores are awaited.
    ADMITTED: every prompt of the run has started.
    BUFFER_FULL: as many groups are open as the buffer holds, and the trainer is behind; `open`, `limit`.
    POOL_EMPTY: as many groups are open as admission has room for, none waits for a replica, and the trainer is behind; `open`,
        `limit`.
    ELSEWHERE: the same, and the trainer waits too: what is left runs on other replicas; `open`, `limit`.
    NOT_ADMITTED: admission lets nothing start on it before the trainer is further; `version` is what it serves.
    HELD_BACK: the routing policy gives it nothing of what waits.
    FIRST_BATCH: the first batch is being generated.
    NO_BATCH: no batch is complete; `buffered` groups of `needed` are.
    HELD_FOR_LATER: groups enough for a batch are complete, but the oldest batch lacks one; `buffered`, `needed`.
    NEXT_NOT_STARTED: the batch is complete, and held until the next one has started whole.
    DONE: all steps are done, and the last evaluations or the last checkpoint are not.
    """

    CHOSEN = "chosen"
    LONG_TAIL = "long-tail"
    REGULAR = "regular"
    UNPREDICTED = "unpredicted"
    CHANCE = "chance"
    DRY = "dry"
    CACHED = "cached"
    CROWDED = "crowded"
    MOVED = "moved"
    TURNED = "turned"
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
    LENT = "lent"
    RESIZING = "resizing"
    REPLICA_DOWN = "replica-down"
    VERSION_GONE = "version-gone"
    LOST_IN_CRASH = "lost-in-crash"
    TRAINED = "trained"
    NO_SIGNAL = "no-signal"
    SURPLUS_SAMPLE = "surplus-sample"
    SURPLUS_GROUP = "surplus-group"
    DEFERRED = "deferred"
    EVICTED = "evicted"
    EXPIRED = "expired"
    DELAYED = "delayed"
    DELAYED_AGAIN = "delayed-again"
    NOT_SCORED = "not-scored"
    NOT_SCORED_YET = "not-scored-yet"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    SESSION_LOST = "session-lost"
    OVER = "over"
    PLANNED = "planned"
    ALLOCATED = "allocated"
    GENERATION_SLOWER = "generation-slower"
    TRAINING_SLOWER = "training-slower"
    FAILED = "failed"
    DAMAGED = "damaged"
    NOT_TAKEN = "not-taken"
    STILL = "still"
    SILENT = "silent"
    MACHINE_SILENT = "machine-silent"
    DIFFERS = "differs"
    HYBRID = "hybrid"
    TASK_RESTART = "task-restart"
    MACHINE = "machine"
    STANDBY = "standby"
    POLICY = "policy"
    OCCUPIED = "occupied"
    UNPUBLISHED = "unpublished"
    NO_RELAY = "no-relay"
    NOT_TOLD = "not-told"
    NO_USE = "no-use"
    IN_ENVIRONMENTS = "in-environments"
    SCORING = "scoring"
    ADMITTED = "admitted"
    BUFFER_FULL = "buffer-full"
    POOL_EMPTY = "pool-empty"
    ELSEWHERE = "elsewhere"
    NOT_ADMITTED = "not-admitted"
    HELD_BACK = "held-back"
    FIRST_BATCH = "first-batch"
    NO_BATCH = "no-batch"
    HELD_FOR_LATER = "held-for-later"
    NEXT_NOT_STARTED = "next-not-started"
    DONE = "done"


@record
class Reason:
    """Why something was decided.

    Args:
        why: the kind of reason.
        who: the other member or machine concerned; empty for none.
        numbers: the numbers by name, as `Why` lists them.
    """

    why: Why
    who: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)


SUSPICIONS = frozenset({Why.STILL, Why.SILENT, Why.MACHINE_SILENT, Why.DIFFERS, Why.HYBRID})
"""Why the controller took a member for down whose process was not seen to end: it may live still."""

CHOSEN = Reason(Why.CHOSEN)
"""The reason given by a routing policy that computes no gain."""
