"""Contract suite for batching policies."""

from __future__ import annotations

import json
import random

from tailrace.contracts.axes import check_policy
from tailrace.contracts.policies import BatchingPolicy, BatchingSource
from tailrace.contracts.views import GroupEnd, Launch, Progress, PromptFate

_STEPS, _PATIENCE = 200, 2000


def check_batching_policy(policy: BatchingPolicy, *, seed: int = 0, cases: int = 60) -> int:
    """Check a batching policy and its sources against the rules of `BatchingPolicy` and `BatchingSource`.

    Groups complete in any order; they are filtered, trained on, surplus, too old or not scored. The suite tracks what the
    source says becomes of their prompts. Where a source launches rounds, what a round keeps is a batch.

    Args:
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Prompts that were done, over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    check_policy("batching", policy)
    done = 0
    for case in range(seed, seed + cases):
        drive = BatchingDrive(policy, case)
        for _ in range(_STEPS):
            drive.step()
        drive.check_deferred_prompts()
        done += len(drive.done)
    return done


class BatchingDrive:
    """Drives one source through a run. A second source gets the same calls, a third gets none, for comparison."""

    def __init__(self, policy: BatchingPolicy, seed: int) -> None:
        self.where = f"seed {seed}, {policy!r}"
        self.random = random.Random(seed)
        self.policy = policy
        self.surplus = policy.surplus_groups
        assert self.surplus >= 0, f"{self.where}: found surplus_groups={self.surplus}, expected at least 0"
        self.source, self.twin, self.bystander = policy.open(), policy.open(), policy.open()
        self.untouched = self.bystander.state()
        self.batch = self.random.choice([1, 2, 4])
        self.limit = self.batch + self.surplus + self.random.choice([0, 1, self.batch, 3 * self.batch])
        self.version = self.admitted = self.consumed = self.dropped = 0
        self.next_group = self.random.choice([0, 1, 1000])
        self.generating: dict[int, Launch] = {}
        self.buffered: dict[int, Launch] = {}
        self.trained: dict[int, Launch] = {}  # groups that no durable checkpoint holds yet
        self.open: set[int] = set()  # prompts that have a group
        self.deferred: set[int] = set()
        self.done: set[int] = set()
        self.rounds = self.source if self.source.launches_rounds() else None

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return Progress(
            version=self.version,
            published=self.version,
            admitted=self.admitted,
            generating=len(self.generating),
            buffered=len(self.buffered),
            consumed=self.consumed,
            dropped=self.dropped,
            batch_groups=self.batch,
            last_version=10**6,
        )

    def step(self) -> None:
        """Start groups while there is room, then do something at random."""
        self.fill()
        chance = self.random.random()
        if chance < 0.75 and self.generating:
            self.complete(self.random.choice(list(self.generating)))
        elif chance < 0.80 and self.generating:
            how = self.random.choice([GroupEnd.FAILED, GroupEnd.UNSCORED, GroupEnd.UNSCORED, GroupEnd.DELAYED])
            self.end(self.generating, self.random.choice(list(self.generating)), how)
            self.end_surplus()
        elif chance < 0.83 and self.buffered:
            self.end(self.buffered, self.random.choice(list(self.buffered)), GroupEnd.EXPIRED)
            self.end_surplus()
        elif chance < 0.90:
            self.make_durable()
        self.consume()

    def fill(self) -> None:
        """Ask for groups as a controller does."""
        while self.rounds is not None or len(self.generating) + len(self.buffered) < self.limit:
            pending = 0 if self.rounds is None else self.rounds.unlaunched()
            launch = self.ask()
            assert self.rounds is None or bool(pending) is (launch is not None), (
                f"{self.where}: found {pending} groups pending, and `next` says {launch}"
            )
            if launch is None or (self.buffered and self.waits_for_step(launch)):
                return
            self.check_launch(launch)
            self.source.launched(self.next_group, launch)
            self.check_sources_apart()
            self.twin.launched(self.next_group, launch)
            self.compare("launched")
            self.generating[self.next_group] = launch
            self.open.add(launch.prompt)
            self.deferred.discard(launch.prompt)
            self.next_group += self.random.choice([1, 1, 1, 2])
            self.admitted += 1

    def waits_for_step(self, launch: Launch) -> bool:
        """Whether a group is the first of a round that may not begin before the last one is trained on."""
        return self.rounds is not None and self.rounds.open_round() is None and launch.round is not None

    def ask(self) -> Launch | None:
        """The next group; asking changes nothing."""
        before = self.plain_state()
        launch = self.source.next(self.progress)
        assert self.plain_state() == before, f"{self.where}: `next` changed the source, which only `launched` may"
        again = self.source.next(self.progress)
        assert again == launch, f"{self.where}: `next` says {launch} and then {again}"
        other = self.twin.next(self.progress)
        assert other == launch, f"{self.where}: `next` says {launch}, and {other} where the same happened"
        enough = 1 if self.rounds is not None else self.batch
        assert launch is not None or self.generating or len(self.buffered) >= enough, (
            f"{self.where}: `next` starts nothing while no group is generating and {len(self.buffered)} of a batch of "
            f"{self.batch} are complete, so nothing will ever happen; {self.plain_state():.200}"
        )
        return launch

    def check_launch(self, launch: Launch) -> None:
        """Check that the prompt may start and that the numbers are in range."""
        assert isinstance(launch, Launch), f"{self.where}: `next` answers {launch!r}, expected a Launch or None"
        assert launch.prompt >= 0, f"{self.where}: {launch} has no prompt of the stream"
        assert 1 <= launch.needed <= launch.samples, f"{self.where}: {launch} cannot complete"
        assert launch.prompt not in self.open, f"{self.where}: {launch} while another group of its prompt is open"
        assert launch.prompt not in self.done, f"{self.where}: {launch}, and its prompt was done"
        if self.rounds is not None:
            now = self.rounds.open_round()
            assert launch.round is not None, f"{self.where}: {launch} has no round"
            assert now is None or launch.round == now.number, f"{self.where}: {launch} while round {now} is open"

    def complete(self, group: int) -> None:
        """Give a group all the rewards that it needs."""
        launch = self.generating.pop(group)
        self.buffered[group] = launch
        same = self.random.random() < 0.3
        rewards = [1.0 if same else float(self.random.randrange(3)) for _ in range(launch.needed)]
        kept = self.source.keeps(group, list(rewards))
        assert kept == self.twin.keeps(group, rewards), f"{self.where}: group {group} is kept, and is not"
        self.compare("keeps")
        if not kept:
            self.end(self.buffered, group, GroupEnd.FILTERED)
        elif self.rounds is not None:
            self.source.completed(group)
            self.twin.completed(group)
            self.compare("completed")
        self.end_surplus()

    def end_surplus(self) -> None:
        """End the groups that their round does not need, as the controller does at once."""
        while self.rounds is not None and (late := list(self.rounds.surplus())):
            assert late[0] in self.generating, f"{self.where}: group {late[0]} is surplus, and is not generating"
            self.end(self.generating, late[0], GroupEnd.SURPLUS)

    def consume(self) -> None:
        """Train on a complete batch and drop the groups that are surplus to it."""
        batch = self.batch
        if self.rounds is not None:
            batch = max(1, len(self.buffered)) if self.rounds.open_round() is None else len(self.buffered) + 1
        if len(self.buffered) < batch:
            return
        for group in list(self.buffered)[:batch]:
            self.trained[group] = self.buffered.pop(group)
        self.version += 1
        self.consumed += batch
        late = self.random.randint(0, min(self.surplus, len(self.generating)))
        for group in self.random.sample(list(self.generating), late):
            self.end(self.generating, group, GroupEnd.SURPLUS)

    def make_durable(self) -> None:
        """Report all groups that were trained on as held by a durable checkpoint."""
        for group in list(self.trained):
            self.end(self.trained, group, GroupEnd.TRAINED)

    def end(self, groups: dict[int, Launch], group: int, how: GroupEnd) -> None:
        """End a group and note whether its prompt is done or comes again."""
        prompt = groups.pop(group).prompt
        self.dropped += how is not GroupEnd.TRAINED
        fate = self.source.ended(group, how)
        other = self.twin.ended(group, how)
        assert isinstance(fate, PromptFate), f"{self.where}: `ended` answers {fate!r}, expected a PromptFate"
        assert fate is other, f"{self.where}: prompt {prompt} is {fate}, and {other} where the same happened"
        assert fate is PromptFate.DONE or how is not GroupEnd.TRAINED, (
            f"{self.where}: {prompt} would be trained on twice"
        )
        self.compare("ended")
        self.open.remove(prompt)
        (self.done if fate is PromptFate.DONE else self.deferred).add(prompt)

    def check_deferred_prompts(self) -> None:
        """Check that every deferred prompt is launched again if the run continues."""
        waiting, started = set(self.deferred), self.admitted
        while waiting & self.deferred and self.admitted - started < _PATIENCE:
            self.fill()
            if self.generating:
                self.complete(next(iter(self.generating)))
            self.consume()
            self.make_durable()
        left = sorted(waiting & self.deferred)
        assert not left, f"{self.where}: prompts {left!r:.200} were to come again, and {_PATIENCE} other groups started"

    def check_sources_apart(self) -> None:
        """Check that calls to one source changed no other."""
        assert self.bystander.state() == self.untouched, f"{self.where}: a source changed although it got no call"
        assert self.policy.open().state() == self.untouched, f"{self.where}: a new source is not at the beginning"
        assert self.policy.surplus_groups == self.surplus, f"{self.where}: surplus_groups changed"

    def compare(self, what: str) -> None:
        """Check that both sources, which got the same calls, have the same state."""
        one, other = self.plain_state(), self.plain_state(self.twin)
        assert one == other, f"{self.where}: after `{what}` {one:.200} is not {other:.200}, and the same happened"

    def plain_state(self, source: BatchingSource | None = None) -> str:
        """The source's state as JSON; fails if it is not plain data."""
        state = (source or self.source).state()
        try:
            return json.dumps(state, sort_keys=True)
        except TypeError as error:
            raise AssertionError(f"{self.where}: the state {state!r:.200} is not plain data: {error}") from error
