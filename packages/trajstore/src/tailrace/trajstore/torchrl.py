"""The experience buffer as a storage of TorchRL's replay buffers (TorchRL 0.14): trajectories of unequal length.

    TrajectoryStore ──► ExperienceStorage ──► ReplayBuffer.sample ──► the trainer ──► ExperienceStorage.consume

Samplers are TorchRL's, or `GroupSampler`: whole groups, each handed out once. An item is one trajectory, with TorchRL's keys:

    tokens.prompt, .response, .full       token ids, int64
    log_probs.response, .full             behaviour log-probabilities, float32; NaN of tokens that the model did not generate
    masks.all_assistant_mask              which of the full tokens the model generated
    masks.all_attention_mask              True for each of the full tokens
    next.reward, next.done                the reward, and True: shape [1]
    group, trajectory                     the number of its group, its id
    policy_version, completed_version     the oldest weight version in it, the trainer's when it finished
    versions                              the weight version of each response token

TorchRL's losses leave out tokens whose behaviour log-probability is NaN, `StalenessAwareSampler` reads `policy_version`, and
`PromptGroupSampler(group_key="group")` the group. One process has the store open and samples from it, in any number of threads.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import Candidate, Experience, PartialDelta, Segment, extra
from tailrace.trajstore.errors import TrajectoryDataError, TrajectoryStateError
from tailrace.trajstore.group_policies import Fifo
from tailrace.trajstore.records import Assignment, Trainable
from tailrace.trajstore.store import TrajectoryStore

with extra("tailrace-trajstore", "torchrl"):
    import torch
    from tensordict import NonTensorData, TensorDict, TensorDictBase, lazy_stack
    from torchrl.data.replay_buffers import PrioritizedSampler, Sampler, Storage

_OWNER = "torchrl"
_STATE = "tailrace.json"


class ExperienceStorage(Storage):
    """The trajectories of a store that may be trained on, for ``ReplayBuffer(storage=..., collate_fn=storage.collate)``.

    What a replay buffer is extended with is stored and rewarded, and cannot be overwritten. What was sampled stays until
    `consume` takes it, once, whatever the sampler. A checkpoint of the buffer (`state_dict`, `dumps`) has the trainer's version
    alone, since the trajectories are in the store's file; loading it rolls the store back to that version.

    Args:
        store: an open store.
    """

    def __init__(self, store: TrajectoryStore) -> None:
        super().__init__(max_size=torch.iinfo(torch.int64).max)
        self.store = store
        self._lock = threading.RLock()
        self._held: set[str] = set()
        # A sampler asks for the length, and then for indices below it: both are of the same view, whatever other threads do.
        self._view = threading.local()

    def attach(self, buffer: Any) -> None:
        """Called by a replay buffer that is made over it.

        Raises:
            TrajectoryStateError: its sampler keeps priorities by place, and places move when trajectories are consumed.
        """
        if isinstance(getattr(buffer, "_init_sampler", None), PrioritizedSampler):
            raise TrajectoryStateError(
                "found a PrioritizedSampler, expected one that keeps nothing by place, such as GroupSampler with a policy"
            )
        super().attach(buffer)

    # -- what a sampler sees

    def trainable(self) -> list[Trainable]:
        """The trajectories that are neither consumed nor handed out; their places are the indices until the next call."""
        with self._lock:
            found = [item for item in self.store.trainable() if item.trajectory not in self._held]
        self._view.items = found
        return found

    def __len__(self) -> int:
        return len(self.trainable())

    def __getitem__(self, index: Any) -> TensorDictBase:
        self.trainable()  # as it is now; what a sampler chose, `get` reads
        return self.get(index)

    def get(self, index: Any) -> TensorDictBase:
        """One item, for an integer, or a lazy stack of items, for a slice, a list or a tensor."""
        items: Sequence[Trainable] = getattr(self._view, "items", None) or self.trainable()
        if isinstance(index, int):
            return _item(self.store.experiences([items[index].trajectory])[0])
        places = range(len(items))[index] if isinstance(index, slice) else torch.as_tensor(index).flatten().tolist()
        return lazy_stack([_item(one) for one in self.store.experiences([items[place].trajectory for place in places])])

    def contains(self, item: Any) -> Any:
        """Whether there is such an index."""
        places = torch.as_tensor(item)
        return (places >= 0) & (places < len(self))

    @staticmethod
    def collate(batch: TensorDictBase) -> TensorDictBase:
        """The batch as it is: a lazy stack, of which ``get(key, as_padded_tensor=True)`` pads."""
        return batch

    # -- what a trainer does with a batch

    def take(self, ids: Iterable[str]) -> None:
        """Hand trajectories out: no sampler sees them until `release`, or the end of this process."""
        with self._lock:
            self._held.update(ids)

    def release(self, batch: TensorDictBase | Iterable[str]) -> None:
        """Give a batch back that was not trained on."""
        with self._lock:
            self._held.difference_update(_ids(batch))

    def consume(self, batch: TensorDictBase | Iterable[str], version: int) -> None:
        """Mark a batch as trained on, all of it or none: see `TrajectoryStore.consume`.

        Args:
            batch: what a replay buffer sampled, or the ids of its trajectories.
            version: the version that the trainer makes with it.

        Raises:
            AlreadyConsumedError: a trajectory was consumed before, or is in the batch twice.
        """
        ids = _ids(batch)
        self.store.consume(ids, version)
        self.release(ids)
        for entity in self._attached_entities:  # samplers that keep an index of their own build it anew
            entity.mark_update(torch.zeros(0, dtype=torch.int64))

    # -- what is written

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Store trajectories, whatever the cursor. They need `tokens`, `log_probs`, `next.reward` and a `group`, as in an item.

        Without a `trajectory` they get an id. Without `versions` all of their tokens are of `policy_version`.

        Raises:
            TrajectoryStateError: an item would be overwritten, or the store does not take it.
            TrajectoryDataError: a key is missing, or has another shape than expected.
        """
        if not set_cursor:
            raise TrajectoryStateError(
                f"found a write to item {cursor} of the experience buffer, expected none: trajectories are added "
                "(ReplayBuffer.extend), consumed or discarded, never changed"
            )
        items = [data] if isinstance(data, TensorDictBase) and not data.batch_dims else list(data)
        experiences = [_experience(item) for item in items]
        for experience in experiences:
            self._add(experience)

    def _add(self, experience: Experience) -> None:
        name, at = experience.trajectory, 0
        began = experience.segments[0].version
        self.store.begin(_OWNER, began, [Assignment(name, experience.group, experience.prompt)])
        deltas = []
        for segment in experience.segments:
            deltas.append(PartialDelta(name, at, segment.version, segment.tokens, segment.logprobs))
            at += len(segment.tokens)
        deltas.append(PartialDelta(name, at, experience.segments[-1].version, (), (), experience.finish))
        if self.store.append(_OWNER, deltas):
            raise TrajectoryStateError(
                f"trajectory {name}: found one that the store does not take, expected a new one, of one version unless it has "
                "mixed_versions"
            )
        self.store.set_reward(name, experience.reward or 0.0)

    def _bump_mutation_revision(self) -> None:
        """TorchRL calls it when `ReplayBuffer.set_` or `update_` changed what it had read, which does not reach the store."""
        raise TrajectoryStateError(
            "found a change in place of the experience buffer, expected none: change the sampled batch"
        )

    def _empty(self) -> None:
        raise TrajectoryStateError(
            "found ReplayBuffer.empty(), expected TrajectoryStore.discard, which says of which and why"
        )

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        return {"trainer_version": self.store.trainer_version}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Free what was consumed for later versions than the checkpoint's.

        Raises:
            TrajectoryStateError: that was trimmed.
        """
        self.store.rollback(int(state_dict["trainer_version"]))

    def dumps(self, path: Path | str) -> None:
        """Write `state_dict` into a directory."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / _STATE).write_text(json.dumps(self.state_dict()))

    def loads(self, path: Path | str) -> None:
        """Load what `dumps` wrote."""
        self.load_state_dict(json.loads((Path(path) / _STATE).read_text()))

    def __getstate__(self) -> dict[str, Any]:
        raise TrajectoryStateError(
            "found a replay buffer of a trajectory store on its way to another process, expected it where the store is open: "
            "make it there"
        )


class GroupSampler(Sampler):
    """Whole groups of an `ExperienceStorage`, each handed out once, by a policy such as `Fifo` or `RewardVariance`.

    What it handed out comes again after `ExperienceStorage.release`, or in the next process if this one dies before `consume`.
    A batch size is a number of trajectories. ``info["staleness"]`` has the trainer's version minus the oldest one of each.

    Args:
        group_size: trajectories of a complete group.
        policy: which complete groups come first (``tailrace.sampler``); None: `Fifo`.
    """

    def __init__(self, group_size: int, policy: Any = None) -> None:
        if group_size < 1:
            raise ValueError(f"found group_size={group_size}, expected 1 or more")
        self._size, self._policy = group_size, policy or Fifo()
        self._orders: dict[int, int] = {}

    def sample(self, storage: ExperienceStorage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        """The indices of a batch, group by group.

        Raises:
            TrajectoryStateError: there are not enough complete groups (`ReplayBuffer.can_sample` asks first).
            ValueError: the batch is no multiple of the group.
        """
        if batch_size % self._size:
            raise ValueError(f"found batch_size={batch_size}, expected a multiple of group_size={self._size}")
        wanted = batch_size // self._size
        with storage._lock:
            items = storage.trainable()
            groups = self._groups(items)
            if len(groups) < wanted:
                raise TrajectoryStateError(
                    f"found {len(groups)} complete groups of {self._size} in the experience buffer, expected {wanted}"
                )
            keys = self._policy.pick([self._candidate(key, groups[key], items) for key in groups], wanted)
            index = [place for key in keys for place in groups[key]]
            storage.take(items[place].trajectory for place in index)
        staleness = [storage.store.trainer_version - items[place].oldest_version for place in index]
        return torch.tensor(index), {"staleness": torch.tensor(staleness)}

    def can_sample(self, storage: ExperienceStorage, batch_size: int) -> bool:
        with storage._lock:
            return len(self._groups(storage.trainable())) * self._size >= batch_size

    def _groups(self, items: Sequence[Trainable]) -> dict[int, list[int]]:
        """The places of each complete group's first `group_size` trajectories."""
        places: dict[int, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            places[item.group].append(place)
        complete = {key: found[: self._size] for key, found in places.items() if len(found) >= self._size}
        self._orders = {key: order for key, order in self._orders.items() if key in complete}
        following = max(self._orders.values(), default=-1) + 1
        for key in complete:
            if key not in self._orders:
                self._orders[key], following = following, following + 1
        return complete

    def _candidate(self, key: int, places: Sequence[int], items: Sequence[Trainable]) -> Candidate:
        members = [items[place] for place in places]
        return Candidate(
            key,
            min(member.oldest_version for member in members),
            self._orders[key],
            tuple(member.reward for member in members),
            sum(member.tokens for member in members),
        )

    def _empty(self) -> None:
        self._orders = {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """It has no state that outlives a process."""

    def dumps(self, path: Path | str) -> None:
        """It has no state that outlives a process."""

    def loads(self, path: Path | str) -> None:
        """It has no state that outlives a process."""


def _ids(batch: TensorDictBase | Iterable[str]) -> list[str]:
    return list(batch["trajectory"] if isinstance(batch, TensorDictBase) else batch)


def _item(experience: Experience) -> TensorDictBase:
    """The item of a trajectory, of batch size [].

    Raises:
        TrajectoryDataError: it has several contexts.
    """
    if any(segment.fresh for segment in experience.segments):
        raise TrajectoryDataError(
            f"trajectory {experience.trajectory}: found several contexts, expected one: an item of TorchRL is one sequence"
        )
    prompt, response = (
        torch.tensor(experience.prompt, dtype=torch.int64),
        torch.tensor(experience.tokens, dtype=torch.int64),
    )
    generated = torch.tensor(experience.generated, dtype=torch.bool)
    logprobs = torch.tensor(experience.logprobs, dtype=torch.float32).masked_fill(~generated, math.nan)
    full = torch.cat([prompt, response])
    versions = [segment.version for segment in experience.segments for _ in segment.tokens]
    return TensorDict(
        {
            "tokens": {"prompt": prompt, "response": response, "full": full},
            "log_probs": {"response": logprobs, "full": torch.cat([torch.full(prompt.shape, math.nan), logprobs])},
            "masks": {
                "all_assistant_mask": torch.cat([torch.zeros_like(prompt, dtype=torch.bool), generated]),
                "all_attention_mask": torch.ones_like(full, dtype=torch.bool),
            },
            "next": {
                "reward": torch.tensor([math.nan if experience.reward is None else experience.reward]),
                "done": torch.ones(1, dtype=torch.bool),
            },
            "group": torch.tensor(experience.group),
            "policy_version": torch.tensor(experience.oldest_version),
            "completed_version": torch.tensor(experience.completed_version),
            "versions": torch.tensor(versions, dtype=torch.int64),
            "trajectory": NonTensorData(experience.trajectory),
        }
    )


def _experience(item: TensorDictBase) -> Experience:
    """The trajectory of an item that is to be stored, checked."""
    name = item.get("trajectory", default=None)
    name = f"torchrl-{uuid.uuid4().hex}" if name is None else str(getattr(name, "data", name))
    prompt, response = _one(item, name, ("tokens", "prompt")), _one(item, name, ("tokens", "response"))
    logprobs = _one(item, name, ("log_probs", "response"))
    if not response or len(logprobs) != len(response):
        raise TrajectoryDataError(
            f"trajectory {name}: found {len(response)} response tokens and {len(logprobs)} log-probabilities, expected one for "
            "each token, and one token at least"
        )
    if any(math.isnan(value) for value in logprobs):
        raise TrajectoryDataError(
            f"trajectory {name}: found response tokens without a log-probability, expected generated ones alone: what an "
            "environment answers is stored by TrajectoryStore.observe"
        )
    if item.get("versions", default=None) is None:
        versions = _one(item, name, ("policy_version",)) * len(response)
    else:
        versions = _one(item, name, ("versions",))
    (group,), reward = _one(item, name, ("group",)), _one(item, name, ("next", "reward"))
    if len(versions) != len(response) or len(reward) != 1:
        raise TrajectoryDataError(
            f"trajectory {name}: found {len(versions)} versions for {len(response)} response tokens and {len(reward)} rewards, "
            "expected a version for each token and one reward"
        )
    return Experience(name, group, tuple(prompt), tuple(_segments(versions, response, logprobs)), reward=reward[0])


def _one(item: TensorDictBase, name: str, key: tuple[str, ...]) -> list[Any]:
    found = item.get(key, default=None)
    if not isinstance(found, torch.Tensor):
        raise TrajectoryDataError(f"trajectory {name}: found no tensor {'.'.join(key)}, expected one in each item")
    values: list[Any] = found.flatten().tolist()
    return values


def _segments(versions: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> Iterator[Segment]:
    start = 0
    for version, run in itertools.groupby(versions):
        end = start + len(list(run))
        yield Segment(version, tuple(tokens[start:end]), tuple(logprobs[start:end]))
        start = end
