"""What every generated task offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tailrace.reward.tasks.demonstrations import Demonstration
from tailrace.reward.tasks.rows import Split, TaskRow


class GeneratedTask(Protocol):
    """A distribution over questions, with demonstrations of mixed quality."""

    @property
    def name(self) -> str:
        """The task's name."""
        ...

    @property
    def verifier(self) -> str:
        """The verifier of its rows."""
        ...

    @property
    def environment(self) -> str:
        """The environment that answers its responses, a plugin of `tailrace.environment`; empty: a response is one turn."""
        ...

    @property
    def no_tool_prefix(self) -> str:
        """The beginning of a response that does without the environment, for a control; empty where there is none."""
        ...

    @property
    def forced_prefix(self) -> str:
        """The beginning of a response in the demonstrations' style. Forcing it in an evaluation shows a gain in style."""
        ...

    def generate(self, split: Split, size: int, seed: int) -> list[TaskRow]:
        """Rows of one split. The same arguments give the same rows.

        Training rows are independent draws, so short questions repeat; held-out rows are distinct. A question's text decides
        its split, so no held-out question is ever in a training set, whatever the sizes and seeds.

        Raises:
            TooFewQuestionsError: the task has fewer distinct held-out questions than `size`.
        """
        ...

    def demonstrations(self, rows: Sequence[TaskRow], seed: int, misread: float | None = None) -> list[Demonstration]:
        """A response to each row's prompt, in which some minus signs are misread as plus signs.

        Args:
            rows: rows of this task.
            seed: decides which are misread.
            misread: probability of misreading each; 0 makes every demonstration right; None: the task's default.
        """
        ...

    def warm_start(self, size: int, seed: int, misread: float | None = None) -> list[Demonstration]:
        """Demonstrations of training questions, for supervised fine-tuning before RL.

        Args:
            size: number of demonstrations.
            seed: decides the questions and which signs are misread.
            misread: as in `demonstrations`.
        """
        ...
