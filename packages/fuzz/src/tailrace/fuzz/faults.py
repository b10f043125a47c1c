"""Faults of a fuzz case: what breaks, and when."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tailrace.faulttol import Fault
from tailrace.faulttol import FaultKind as Injury
from tailrace.faulttol.injection import LENDING, LOAD, PHASES
from tailrace.fuzz.policies import SHARE_OF_NEWER, Policies, takes

STANDBYS = 0.8
"""Share of the cases with machines and a recovery that knows of standbys in which it uses them."""
MACHINES = 1 / 3
"""Share of the cases whose members stand on machines, but for those with sites."""
IN_A_STEP = 0.5
"""Share of the cases with batches in order in which the trainer is struck in a phase of its steps."""
SILENT = 0.06
"""Share of cases with a checkpoint that never ends. As many have forgetful verifiers, and as many a store that drops slowly."""
_TRAINER_PHASES = tuple(phase for phase in PHASES["trainer"] if phase not in {LOAD, *LENDING})
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class BreakKind(StrEnum):
    """What breaks.

    KILL: the member dies; the executor notices after a while.
    HANG: it lives and answers nothing; after its deadline it is killed.
    STALL: a replica lives and answers, but its engine stands still; the controller takes it for down.
    SLOW: it runs at `speed` for `for_s` seconds.
    PARTITION: messages to it and from it arrive only after `for_s` seconds; it counts as hung meanwhile.
    TORN_PULL: the next `count` pulls of a replica arrive damaged.
    WRONG_LOAD: after the next `count` pulls of a replica its engine has other weights than were published.
    LOST_CHECKPOINT: the next `count` checkpoints cannot be written, which ends the trainer.
    STUCK_CHECKPOINT: the next `count` checkpoints never end, and the trainer lives on.
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
    WRONG_LOAD = "wrong-load"
    LOST_CHECKPOINT = "lost-checkpoint"
    STUCK_CHECKPOINT = "stuck-checkpoint"
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


# What breaks in a random case, and when: each kind of fault from a random stream of its own.


def how_many(random: Random) -> int:
    """How many faults a case has, beside those that are drawn apart."""
    return random.choice([0, 1, 2, 3, 4, 6])


_KINDS: tuple[tuple[BreakKind, int], ...] = (
    (BreakKind.KILL, 8),
    (BreakKind.HANG, 4),
    (BreakKind.STALL, 2),
    (BreakKind.SLOW, 2),
    (BreakKind.PARTITION, 4),
    (BreakKind.TORN_PULL, 2),
    (BreakKind.LOST_CHECKPOINT, 2),
    (BreakKind.DAMAGED_CHECKPOINT, 1),
    (BreakKind.BROKEN_SCORING, 1),
    (BreakKind.REPLAY, 2),
    (BreakKind.CRASH, 2),
)


def in_a_step(random: Random, pipeline: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Rare trainer faults inside a step, so that most old seeds keep their cases.

    Where batches are launched in order, in half of them, again and again in one run: what a batch waits for when the trainer
    falls back shows there only.
    """
    in_order = bool(pipeline["admission"].get("batchwise"))
    chosen = random.random() < (IN_A_STEP if in_order else SHARE_OF_NEWER / 3)
    faults = []
    if chosen and in_order:
        pipeline["steps"] = max(5, pipeline["steps"])
    for _ in range((3 if in_order else 1) if chosen else 0):
        kind, phase = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), random.choice(_TRAINER_PHASES)
        at_step = random.randint(0, pipeline["steps"] - 1)
        faults.append({"kind": kind, "role": "trainer", "member": "0", "at_step": at_step, "phase": phase})
    return tuple(faults)


def at_a_loan(random: Random, replicas: int, steps: int) -> tuple[dict[str, Any], ...]:
    """Faults as devices change hands, in half of the cases in which they do: of a replica that sleeps or wakes, or of a trainer
    that leaves devices or comes back."""
    if random.random() < 0.5:
        return ()
    faults = []
    for _ in range(random.choice([1, 1, 2, 3])):
        role = random.choice(["replica", "trainer"])
        phase = random.choice([phase for phase in PHASES[role] if phase in LENDING])
        member = "0" if role == "trainer" else f"r{random.randrange(replicas)}"
        kind, at_step = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), random.randrange(steps)
        faults.append({"kind": kind, "role": role, "member": member, "at_step": at_step, "phase": phase})
    return tuple(faults)


def stuck_checkpoints(random: Random, steps: int) -> tuple[dict[str, Any], ...]:
    """Checkpoints that never end, in few cases; half of them at the end, where no later one makes up for them."""
    if random.random() >= SILENT:
        return ()
    at_step = random.choice([steps - 1, random.randrange(steps)])
    return ({"kind": BreakKind.STUCK_CHECKPOINT, "at_step": at_step, "count": random.choice([1, 1, 2])},)


def wrong_loads(random: Random, replicas: int, steps: int) -> tuple[dict[str, Any], ...]:
    """Engines that do not load what they were given, in few cases: once, which a restart mends, or twice."""
    if random.random() >= SILENT:
        return ()
    member, at_step = f"r{random.randrange(replicas)}", random.randrange(steps)
    fault = {"kind": BreakKind.WRONG_LOAD, "role": "replica", "member": member, "at_step": at_step}
    return ({**fault, "count": random.choice([1, 1, 1, 2])},)


def restarts_twice(random: Random, content: dict[str, Any]) -> None:
    """Let a task that restarts as a whole do so again, in half of the cases, while the store still drops for the first time."""
    if content["pipeline"]["recovery"]["name"] != "restart-task" or random.random() < 0.5:
        return
    content["delays"]["detect_s"], content["drops_s"] = 0.0, 6.0
    at_step, after_s = random.randrange(content["pipeline"]["steps"]), round(random.random(), 3)
    for role, later_s in (("trainer", 0.0), ("scorer", 1.0 + random.random())):
        fault = {"kind": BreakKind.KILL, "role": role, "member": "0", "at_step": at_step}
        content["faults"] += ({**fault, "after_s": round(after_s + later_s, 3)},)


def of_an_environment(random: Random, members: int, steps: int, step_s: float) -> dict[str, Any]:
    """A random fault of one environment member; `members` is how many there are."""
    kind, member = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), str(random.randrange(members))
    at_step, after_s = random.randint(0, steps - 1), round(random.random() * step_s, 3)
    return {"kind": kind, "role": "environment", "member": member, "at_step": at_step, "after_s": after_s}


def machines(random: Random, content: dict[str, Any], step_s: float) -> dict[str, Any]:
    """Draw machines for a third of the cases; all but one of them may die."""
    if random.random() >= MACHINES or content.get("far"):
        return {}
    count, steps = random.choice([2, 3, 3, 5]), content["pipeline"]["steps"]
    dying = [
        {
            "kind": BreakKind.MACHINE,
            "member": str(random.randrange(count)),
            "at_step": random.randint(0, steps - 1),
            "after_s": round(random.choice([0.0, 0.5, 2.0]) * random.random() * step_s, 3),
        }
        for _ in range(random.choice([0, 1, 1, 2, 4]))
    ]
    return {"machines": count, "faults": content["faults"] + tuple(dying)}


def standbys(random: Random, content: dict[str, Any], policies: Policies) -> None:
    """Let a trainer that loses its machine take a replica's in most cases with machines, if recovery can do that."""
    recovery, count = content["pipeline"]["recovery"], content.get("machines", 0)
    if content.get("colocated"):  # its replicas are as many as the trainer's devices take
        return
    if count and "recovery" not in policies and "standby" in takes("recovery", recovery["name"]):
        recovery["standby"] = random.random() < STANDBYS
        content["machines"] = max(count, random.choice([3, 4]))
        content["replicas"] = max(content["replicas"], random.choice([1, 2, 3]))
        if random.random() < STANDBYS:
            dies = {"kind": BreakKind.MACHINE, "member": "0", "at_step": random.randrange(content["pipeline"]["steps"])}
            content["faults"] += ({**dies, "after_s": round(random.random(), 3)},)


def attaches(random: Random, steps: int, step_s: float) -> Iterator[dict[str, Any]]:
    """Yield deaths of controllers in some cases, at any moment of their work; another controller attaches after each."""
    if random.random() >= SHARE_OF_NEWER:
        return
    for _ in range(random.choice([1, 1, 2, 4])):
        yield {
            "kind": BreakKind.ATTACH,
            "at_step": random.randint(0, steps - 1),
            "after_s": round(random.choice([0.0, 0.5, 2.0]) * random.random() * step_s, 3),
            "for_s": random.choice([0.0, 0.2, 3.0]),
            "moment": random.choice(list(Moment)),
        }


def of_the_ranker(random: Random, steps: int, step_s: float) -> dict[str, Any]:
    """A random fault of the ranker."""
    kind, at_step = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG]), random.randint(0, steps - 1)
    after_s = round(random.random() * step_s, 3)
    return {"kind": kind, "role": "ranker", "member": "0", "at_step": at_step, "after_s": after_s}


def of_a_joiner(random: Random, replicas: int, steps: int, step_s: float) -> dict[str, Any]:
    """A random fault of the first replica that joins after the start; it strikes nothing if none has joined."""
    kind = random.choice([BreakKind.KILL, BreakKind.KILL, BreakKind.HANG])
    at_step, after_s = random.randint(1, steps - 1), round(random.random() * step_s, 3)
    return {"kind": kind, "role": "replica", "member": f"r{replicas}", "at_step": at_step, "after_s": after_s}


def fault_of_a_case(
    random: Random, counts: dict[str, int], steps: int, step_s: float, delays: dict[str, float]
) -> dict[str, Any]:
    """A random fault of a role that every case has; `counts` is the number of members by role."""
    kind = random.choices([kind for kind, _ in _KINDS], [weight for _, weight in _KINDS])[0]
    fault: dict[str, Any] = {
        "kind": kind,
        "at_step": random.randint(0, steps - 1),
        "after_s": round(random.choice([0.0, 0.5, 1.0, 2.0]) * random.random() * step_s, 3),
    }
    replica = {"role": "replica", "member": f"r{random.randrange(counts['replica'])}"}
    relay = {"role": "relay", "member": str(random.randrange(counts["relay"]))}
    trainer, scorer, data = ({"role": role, "member": "0"} for role in ("trainer", "scorer", "data"))
    if kind is BreakKind.KILL:
        fault |= random.choice([replica, replica, replica, trainer, trainer, relay, relay, relay, scorer, data])
    elif kind is BreakKind.HANG:
        fault |= random.choice([replica, replica, trainer, relay, scorer, data])
    elif kind in (BreakKind.SLOW, BreakKind.PARTITION):
        fault |= random.choice([replica, replica, trainer])
    elif kind in (BreakKind.TORN_PULL, BreakKind.STALL):
        fault |= replica
    if kind is BreakKind.SLOW:
        fault |= {"speed": random.choice([0.1, 0.5]), "for_s": random.choice([1.0, 10.0])}
    elif kind is BreakKind.PARTITION:
        fault["for_s"] = round(delays["hang_s"] * random.choice([0.1, 0.4, 0.9, 2.0]), 3)
    elif kind is BreakKind.TORN_PULL:
        fault["count"] = random.choice([1, 1, 2, 3])
    elif kind is BreakKind.BROKEN_SCORING:
        fault["for_s"] = random.choice([0.5, 3.0])
    return fault
