"""Random cycles, for the contract suites and for your own tests."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field

from tailrace.contracts import Cycle, Progress, ReplicaView, RoutingPolicy, TrajectoryView
from tailrace.repack.routing import LeastLoaded

OLDEST, NEWEST = 2, 5
"""The versions in random cycles; the newest is published."""


class NotAdmittedError(AssertionError):
    """A group was started that admission does not allow."""


@dataclass(slots=True)
class SlotAdmission:
    """A tentative admission: each version has slots, and a group takes one of its own version or of an older one.

    Args:
        slots: number of groups that may start, by version.
        taken: version of each started group.
    """

    slots: dict[int, int]
    taken: dict[int, int] = field(default_factory=dict)

    def allows(self, version: int) -> bool:
        """Whether a slot is left."""
        return any(left > 0 for slot, left in self.slots.items() if slot <= version)

    def take(self, group: int, version: int) -> None:
        """Use up the newest slot that a group of the version may take.

        Raises:
            NotAdmittedError: no slot is left, or the group was started before.
        """
        left = [slot for slot, count in self.slots.items() if slot <= version and count > 0]
        if not left:
            raise NotAdmittedError(f"found group {group} started at version {version}, for which no slot is left")
        if group in self.taken:
            raise NotAdmittedError(f"found group {group} started at version {self.taken[group]} and again at {version}")
        self.slots[max(left)] -= 1
        self.taken[group] = version

    def fork(self) -> SlotAdmission:
        """A copy."""
        return SlotAdmission(dict(self.slots), dict(self.taken))


def random_views(random_numbers: random.Random, count: int) -> list[ReplicaView]:
    """Replicas in every state: filling up, full, in their long tail, idle, pulling, pinned, or with stale load."""
    views = []
    for index in range(count):
        capacity = random_numbers.choice([4, 16, 64])
        peak = random_numbers.choice([0.0, 0.25, 0.5, 0.99, 1.0])
        kv = random_numbers.choice([0.0, 0.01, 0.1, 0.25, 0.5, round(random_numbers.random(), 3)])
        in_flight = random_numbers.choice([0, 1, 2, capacity // 2, capacity])
        waiting = min(in_flight, random_numbers.choice([0, 0, 0, 3, 6]))
        version = random_numbers.choice([None, 3, 3, 4, 4, 4, NEWEST])
        views.append(
            ReplicaView(
                replica=f"replica-{index}",
                version=version,
                pulling=random_numbers.random() < 0.1,
                in_flight=in_flight,
                capacity=capacity,
                kv=kv,
                kv_before=random_numbers.choice([kv, round(random_numbers.random(), 3)]),
                kv_peak=max(kv, peak),
                waiting=waiting,
                fresh=random_numbers.random() < 0.9,
                running=in_flight - waiting,
                kv_capacity_tokens=random_numbers.choice([0, 20_000, 100_000, 1_000_000]),
                open=random_numbers.random() < 0.8,
                pinned=random_numbers.random() < 0.1,
                trajectories={
                    view.trajectory: view
                    for number in range(in_flight)
                    if (view := _running(random_numbers, f"on-{index}-{number}", version)) is not None
                },
            )
        )
    away = random.Random(f"in environments {len(views)} {views[0].kv if views else 0}")  # the rest stays as it was
    views = [_with_some_away(view, away.choice([0, 0, 0, 1, 3])) for view in views]
    says = random.Random(f"what engines say {len(views)} {views[0].kv if views else 0}")
    views = [dataclasses.replace(view, max_running=says.choice([0, 0, view.running, view.capacity])) for view in views]
    prompts = random.Random(f"prompts {len(views)} {views[0].kv if views else 0}")
    return [
        dataclasses.replace(
            view, trajectories={name: _with_prompt(each, prompts) for name, each in view.trajectories.items()}
        )
        for view in views
    ]


def _with_prompt(view: TrajectoryView, random_numbers: random.Random) -> TrajectoryView:
    """The same trajectory, whose prompt may be known: its tokens come first."""
    prompt = random_numbers.choice([0, 0, 30, 2_000])
    return dataclasses.replace(view, tokens=view.tokens + prompt, prompt_tokens=prompt)


def _with_some_away(view: ReplicaView, count: int) -> ReplicaView:
    """The same replica, some of whose trajectories are in environments."""
    count = 0 if view.version is None else count
    return dataclasses.replace(view, in_flight=view.in_flight + count, in_environment=count)


def _running(random_numbers: random.Random, name: str, version: int | None) -> TrajectoryView | None:
    if version is None:
        return None
    exact = random_numbers.random() < 0.1
    oldest = version if exact else random_numbers.randint(OLDEST, version)
    group, tokens = 1000 + random_numbers.randrange(9), random_numbers.randrange(3000)
    predicted = _predicted(random_numbers)
    return TrajectoryView(name, group, oldest, tokens, exact, predicted, _left(group, predicted, tokens))


def _predicted(random_numbers: random.Random) -> float | None:
    """A prediction: few values, so that some are equal, and often none."""
    return random_numbers.choice(
        [None, None, 1.0, 250.0, 250.0, 900.0, 8_000.0, round(random_numbers.uniform(1, 4e3), 1)]
    )


def _left(group: int, predicted: float | None, tokens: int) -> float | None:
    """What is left of a trajectory, where its ranker says more than a median: of every other group."""
    return None if predicted is None or group % 2 else max(1.0, 1.2 * predicted - 0.5 * tokens)


def random_cycle(
    random_numbers: random.Random, *, replicas: int = 12, groups: int = 12, routing: RoutingPolicy | None = None
) -> Cycle:
    """A cycle with replicas in every state, and a pool of resumed trajectories and of groups that have not started.

    Args:
        random_numbers: the source of randomness.
        replicas: most replicas.
        groups: most groups in the pool.
        routing: the cycle's routing policy; the least loaded replica if None.
    """
    queues: dict[int | None, dict[str, TrajectoryView]] = {}
    for group in range(random_numbers.randint(0, groups)):
        version = random_numbers.choice([None, None, OLDEST, 3, 4, NEWEST])
        exact, tokens = random_numbers.random() < 0.2, random_numbers.choice([0, 100, 2000])
        predicted = _predicted(random_numbers)
        for member in range(random_numbers.choice([1, 2, 4, 8])):
            left = _left(group, predicted, 0 if version is None else tokens + member)
            view = TrajectoryView(f"group-{group}-{member}", group, version, tokens + member, exact, predicted, left)
            queues.setdefault(version, {})[view.trajectory] = view
    prompts = random.Random(f"prompts that wait {sum(map(len, queues.values()))}")
    queues = {
        version: {name: _with_prompt(view, prompts) for name, view in queue.items()}
        for version, queue in queues.items()
    }
    order = sorted(queues, key=lambda version: (version is None, version or 0))
    return Cycle(
        replicas=random_views(random_numbers, random_numbers.randint(0, replicas)),
        pool={version: queues[version] for version in order},
        admits=SlotAdmission({version: random_numbers.choice([0, 1, 3]) for version in range(OLDEST, NEWEST + 1)}),
        progress=Progress(
            version=NEWEST,
            published=NEWEST,
            admitted=0,
            generating=0,
            buffered=0,
            consumed=0,
            dropped=0,
            batch_groups=4,
            last_version=100,
        ),
        routing=routing or LeastLoaded(),
        routings=random_numbers.randrange(1000),
    )


def shuffled(cycle: Cycle, random_numbers: random.Random) -> Cycle:
    """The same cycle with its replicas in another order: no plan may depend on it."""
    return dataclasses.replace(cycle, replicas=random_numbers.sample(cycle.replicas, len(cycle.replicas)))
