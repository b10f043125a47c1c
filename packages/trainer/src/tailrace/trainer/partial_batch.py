"""A batch whose gradients are added up group by group, before it is complete (RollPacker, section 4.4).

add ... add    this cell, its own groups
end            all cells: each group came once; then what is left of the batch, shared among them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch.distributed as dist

from tailrace.contracts import Experience
from tailrace.trainer.batch import check_experiences, grpo_samples
from tailrace.trainer.critic import Critic
from tailrace.trainer.errors import BatchError, TrainerConfigError
from tailrace.trainer.forward_backward import Gradients
from tailrace.trainer.sharded_model import ShardedModel
from tailrace.trainer.tally import Tally


class PartialBatch:
    """What this rank's cell has added to the batch under way.

    Args:
        gradients: adds gradients up.
        model: the model, which has the sums.
        critic: the critic, whose gradients are added up beside the policy's; None without one.
        vocabulary: token ids that the model knows.
    """

    def __init__(
        self, gradients: Gradients, model: ShardedModel, critic: Critic | None = None, vocabulary: int | None = None
    ) -> None:
        self._gradients, self._model, self._config, self._critic = gradients, model, model.config, critic
        self._vocabulary = vocabulary
        self._groups: dict[int, None] = {}
        self._tally = Tally(model.device)

    @property
    def begun(self) -> int:
        """Groups that this cell has added."""
        return len(self._groups)

    def add(self, experiences: Sequence[Experience]) -> Tally:
        """Add groups of this cell alone. Collective within it. Returns this rank's tally of them.

        Raises:
            BatchError: a group came before, or cannot be trained on. Nothing was changed.
            TrainerConfigError: advantages need the whole batch.
        """
        self._check([self._groups], experiences)
        return self._add(experiences, alone=True)

    def end(self, rest: Sequence[Experience]) -> Tally:
        """Add what is left of the batch, shared among all cells. Collective. Returns this rank's tally of the batch.

        Raises:
            BatchError: a group came twice, on whatever cell, or cannot be trained on. What was added is forgotten.
            TrainerConfigError: advantages need the whole batch.
        """
        try:
            self._check(self._of_all_cells(), rest)
            self._add(rest, alone=False)
        except BaseException:
            self.forget()
            raise
        tally, self._tally, self._groups = self._tally, Tally(self._model.device), {}
        return tally

    def forget(self) -> None:
        """Drop what was added."""
        self._drop_gradients()
        self._tally, self._groups = Tally(self._model.device), {}

    def _add(self, experiences: Sequence[Experience], *, alone: bool) -> Tally:
        (samples,) = grpo_samples([experiences], self._config, self._vocabulary)
        if not self._groups:
            self._drop_gradients()
        try:
            if self._critic is None:
                found = self._gradients.add(samples, alone=alone)
            else:
                advantages = self._critic.add(samples, alone=alone)
                found = self._gradients.add(samples, alone=alone, advantages=advantages, learn=self._critic.is_warm)
        except BaseException:  # some of it may be in the sums
            self.forget()
            raise
        if self._model.counts_all(alone=alone):
            found.count(experiences, self._config)
        self._tally.add(found)
        self._groups.update(dict.fromkeys(experience.group for experience in experiences))
        return found

    def _drop_gradients(self) -> None:
        self._model.drop_gradients()
        if self._critic is not None:
            self._critic.forget()

    def _check(self, before: Iterable[Iterable[int]], experiences: Sequence[Experience]) -> None:
        """Check that groups may be added to those that cells have."""
        if refused := self._config.early_gradients_refused():
            raise TrainerConfigError(refused)
        check_experiences(experiences, self._vocabulary)
        seen: set[int] = set()
        for groups in [*before, {experience.group for experience in experiences}]:
            for group in groups:
                if group in seen:
                    raise BatchError(
                        f"found group {group} twice in a batch, expected each once and whole: its advantages need all of it"
                    )
                seen.add(group)

    def _of_all_cells(self) -> list[list[int]]:
        """The groups of each cell. Collective."""
        mine = list(self._groups)
        if self._model.cells == 1:
            return [mine]
        found: list[list[int]] = [[] for _ in range(dist.get_world_size(self._model.group))]
        dist.all_gather_object(found, mine if self._model.counts_all(alone=True) else [], group=self._model.group)
        return found
