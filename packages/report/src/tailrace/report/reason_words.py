"""Reasons in words: the one place that turns what the log says of a decision into text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.contracts import SUSPICIONS, Reason, Why, shown

REASONS = {
    Why.CHOSEN: "the routing policy chose it",
    Why.LONG_TAIL: "{predicted:,.0f} tokens are predicted, and the replica is for those above {limit:,.0f}",
    Why.REGULAR: "{predicted:,.0f} tokens are predicted: none of the longest",
    Why.UNPREDICTED: "no length is predicted, so it counts as none of the longest",
    Why.CHANCE: "predictions find {recall:.0%} of the longest, and chance up to {chance:.0%}: it has the least load",
    Why.DRY: "the replica had run dry and takes the longest that waits",
    Why.CACHED: "{saved:,.0f} of its tokens are in the cache there, and the load there counts as {costs:,.0f}",
    Why.CROWDED: "{saved:,.0f} of its tokens are in the cache of {who}, but the load there counts as {costs:,.0f}",
    Why.MOVED: "a move to {who}",
    Why.TURNED: "its environment answered, and it goes on where it was",
    Why.EVALUATION: "an evaluation of version {version:.0f}",
    Why.BEHIND: "idle, and version {version:.0f} is newer",
    Why.ALL_IDLE: "every replica is idle, so all pull version {version:.0f}",
    Why.USEFUL: "version {version:.0f} lets it start groups that its own may not",
    Why.NEWER: "version {version:.0f} is published",
    Why.STRANDED: "what is left of version {version:.0f} has nobody else to go on with",
    Why.PULLING: "it pulls version {version:.0f}",
    Why.WAITING_TOO_LONG: "{waiting:.0f} wait in the engine, more than {limit:.0f}",
    Why.LOW_THROUGHPUT: "{who} does {there:,.0f} tokens/s, far less than the {here:,.0f} here: work is spread again",
    Why.STOPPING: "the replica is to stop",
    Why.LENT: "its devices are lent to the trainer",
    Why.RESIZING: "the replica starts anew on another number of devices",
    Why.REPLICA_DOWN: "{who} went down with it",
    Why.VERSION_GONE: "nobody has version {version:.0f} any more",
    Why.LOST_IN_CRASH: "the driver died",
    Why.TRAINED: "it was trained on for version {version:.0f}",
    Why.NO_SIGNAL: "rewards of its group have no signal",
    Why.SURPLUS_SAMPLE: "its group has all the samples that it needs",
    Why.SURPLUS_GROUP: "the batch has all the groups that it needs",
    Why.DEFERRED: "its round has all the groups that it keeps, and its prompt comes again in a long round",
    Why.EVICTED: "the experience buffer is full",
    Why.EXPIRED: "too old to be trained on within the bound",
    Why.DELAYED: "training waited for it for {waited_s:.3g} s, longer than {limit_s:.3g} s",
    Why.DELAYED_AGAIN: (
        "training waited for it for {waited_s:.3g} s, longer than {limit_s:.3g} s, and its prompt comes again later"
    ),
    Why.NOT_SCORED: "its verifier broke {attempts:.0f} times",
    Why.NOT_SCORED_YET: "its verifier broke {attempts:.0f} times, and its prompt comes again later",
    Why.REFUSED: "{who}'s engine refused its prompt",
    Why.UNANSWERED: "environment {who} did not answer a turn",
    Why.SESSION_LOST: "the session of its environment was lost, and could not be had again",
    Why.OVER: "every batch is trained on",
    Why.PLANNED: "the provisioning policy wants it so",
    Why.ALLOCATED: (
        "replicas of {devices:.0f} devices each, {replicas:.0f} of them, are predicted to generate a batch in "
        "{generation_s:.3g} s, and training takes {training_s:.3g} s"
    ),
    Why.GENERATION_SLOWER: (
        "generation took {generation_s:.3g} s an iteration, training {training_s:.3g} s; one more replica saves generation "
        "{saved_s:.3g} s"
    ),
    Why.TRAINING_SLOWER: (
        "training took {training_s:.3g} s an iteration, generation {generation_s:.3g} s; one replica fewer costs generation "
        "{cost_s:.3g} s"
    ),
    Why.FAILED: "it failed, {failures:.0f} in a row",
    Why.DAMAGED: "the checkpoint of version {version:.0f} cannot be used",
    Why.NOT_TAKEN: "the weights of version {version:.0f}, newer than its checkpoint's, could not be taken",
    Why.STILL: "stood still for {still_s:.0f} s with work in flight, longer than {limit_s:.0f} s",
    Why.SILENT: "did not answer for {silent_s:.0f} s, longer than {limit_s:.0f} s",
    Why.MACHINE_SILENT: "nobody on machine {who} answered for {silent_s:.0f} s, longer than {limit_s:.0f} s",
    Why.DIFFERS: "its engine had other weights than version {version:.0f} as it was published",
    Why.HYBRID: "replica {who}, on its devices, is down",
    Why.TASK_RESTART: "the whole task starts anew, for {who} failed",
    Why.MACHINE: "machine {who} is given up",
    Why.STANDBY: "its machine goes to {who}, which lost its own",
    Why.POLICY: "the policy's own reason",
}

WAITS = {
    Why.OCCUPIED: "it begins anew once the trainer has left its devices",
    Why.UNPUBLISHED: "no weights published yet",
    Why.NO_RELAY: "no relay to pull from",
    Why.NOT_TOLD: "behind the newest weights, and not told to pull them yet",
    Why.NO_USE: "behind the newest weights, which would bring it no work yet",
    Why.IN_ENVIRONMENTS: "its trajectories are in environments",
    Why.SCORING: "every response is generated, and scores are awaited",
    Why.ADMITTED: "every prompt of the run is admitted",
    Why.BUFFER_FULL: "buffer full: the trainer is behind",
    Why.POOL_EMPTY: "the pool is empty: the trainer is behind",
    Why.ELSEWHERE: "the pool is empty: what is left runs on other replicas",
    Why.NOT_ADMITTED: "admission: nothing may start before the trainer is further",
    Why.HELD_BACK: "held back: no replica gains enough",
    Why.FIRST_BATCH: "the first batch is being generated",
    Why.NO_BATCH: "no complete batch",
    Why.HELD_FOR_LATER: "enough groups are complete, but the oldest batch lacks one",
    Why.NEXT_NOT_STARTED: "the batch is complete, and held until the next one has started whole",
    Why.DONE: "all steps done: last evaluations and checkpoint",
}
"""Why a member has nothing to do. It names no version and no number: the report adds up the time of each."""
ADMITTED, NOT_TOLD = WAITS[Why.ADMITTED], WAITS[Why.NOT_TOLD]
OTHERS = "waiting for the other replicas"
"""What a replica that was not told to pull had waited for, once all pull together."""

_COUNTED = ("failures", "allowed")
_MEMBERS_FAULT = frozenset({Why.FAILED, Why.TASK_RESTART, *SUSPICIONS})

ENDS = {
    Why.NO_SIGNAL: "no signal",
    Why.SURPLUS_SAMPLE: "surplus sample",
    Why.SURPLUS_GROUP: "surplus",
    Why.DEFERRED: "deferred",
    Why.EVICTED: "evicted",
    Why.EXPIRED: "too old",
    Why.DELAYED: "delayed",
    Why.DELAYED_AGAIN: "delayed, comes again",
    Why.NOT_SCORED: "not scored",
    Why.NOT_SCORED_YET: "not scored yet",
    Why.REFUSED: "refused",
    Why.UNANSWERED: "not answered by an environment",
    Why.OVER: "left over",
}
"""Why groups and samples end that are not trained on, in a word or two."""


def why(reason: Reason) -> str:
    """A reason in words, with the numbers that it has beyond those that its words name."""
    template = REASONS.get(reason.why, "{nothing}")
    try:
        said = template.format(**{**reason.numbers, "who": reason.who or "another"})
    except (KeyError, TypeError, ValueError):  # a policy of somebody else leaves numbers out, or gives none
        said, template = str(reason.why).replace("-", " "), ""
    said_elsewhere = (*_COUNTED, "task_restarts") if reason.why in _MEMBERS_FAULT else ()
    more = [
        f"{name} {_plain(value)}"
        for name, value in reason.numbers.items()
        if f"{{{name}" not in template and name not in said_elsewhere
    ]
    return f"{said} ({', '.join(more)})" if more else said


def _plain(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, int | float) else shown(str(value))


def waits(reason: Reason) -> str:
    """Why a member has nothing to do, in words without numbers."""
    return WAITS.get(reason.why) or why(reason)


def here(reason: Reason) -> str:
    """Why a trajectory comes to a replica: where it belongs to a move, `who` is where it comes from."""
    return f"a move from {reason.who or 'another'}" if reason.why is Why.MOVED else why(reason)


def changes_in_words(change: Mapping[str, Any]) -> str:
    """What a resumed run changed in its configuration; an entry of `RunDirectory.changes`."""
    return ", ".join(f"{key} from {before} to {after}" for key, (before, after) in change["changed"].items())


def end(why: str) -> str:
    """How groups ended, for a row of a table. One that nobody here knows is said as it is."""
    return ENDS.get(Why(why), why) if why in set(Why) else why


def many(count: int, one: str, more: str = "") -> str:
    """A number and what it counts."""
    return f"{count:,} {one if count == 1 else more or f'{one}s'}"


def percent(share: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def price(value: float) -> str:
    """A number as text, with three digits that matter."""
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def money(value: float) -> str:
    """A sum as text, in whole units from a thousand on; the currency is the user's."""
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def device_hours(hours: Mapping[str, float]) -> str:
    """Hours of devices by their names: ``0.277 H800, 0.277 H20``. Empty for none."""
    return ", ".join(f"{price(value)} {name}" for name, value in hours.items())


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:,.1f} days" if seconds < 100 * 86400 else f"{seconds / 86400:,.0f} days"
