"""What an environment is: the other side of a conversation of several turns.

A model's response ends a turn; the environment answers with an observation, and the model goes on, until the environment
says that it is done. One class makes many sessions: an instance is one session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

GROUP = "tailrace.environment"
"""The entry-point group of environments: a class, or a function that returns a session."""

Observation = str | Sequence[int]
"""What a model is given to read: text; of an environment that is `tokenized`, token ids."""
Action = str | Sequence[int]
"""What a model says in a turn: text; for an environment that is `tokenized`, token ids."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """An environment's answer to one turn.

    An environment of another interpreter, which may not have this package, returns a mapping with the same keys, or any
    object with these attributes.

    Args:
        observation: what the model reads next; empty where there is nothing to say.
        done: whether the conversation is over.
        reward: what this turn earned, finite; a trajectory's own reward is the sum of its turns'.
        metadata: anything else, as JSON values.
        fresh: whether the observation begins a context, as where an agent forks or asks a sub-agent: it is all that the model
            reads before its next turn, and takes the place of the prompt and of everything so far. Only of an environment
            that is `tokenized`.
    """

    observation: Observation = ""
    done: bool = False
    reward: float = 0.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    fresh: bool = False


@runtime_checkable
class Environment(Protocol):
    """One session of an environment.

    A worker process holds many sessions, each in a thread of its own while it works: calls of one session never overlap, calls
    of several do. What a constructor does is cheap and checks the options; it raises for options that cannot be.

    A session may offer more:

    * ``replayable = True`` (of the class): a new session that is given the same row and the same actions answers the same.
      A session whose worker died is then played again, and its answers are compared.
    * ``snapshot() -> bytes`` and ``restore(state)``: what the session knows after a turn, and a new session that goes on from
      there instead of `reset`. A snapshot changes nothing. It is taken after each turn, so it should be small.

    Without either, a session ends with its worker. The same goes for a session that raises an exception with ``gone = True``:
    what it held elsewhere, such as a process, was killed.

    In a run, an option ``tokenizer`` that is left out is the directory of the run's model.

    * ``tokenized = True``: the environment renders its prompts itself and speaks in token ids of the model's tokenizer. Its
      observations and the actions that it gets are sequences of ids; an action has the token that ended the turn, if any.
      With ``reads_prompts = True`` its rows may have prompts, which it puts into its own; otherwise they have none.
    * ``rows(start, stop)``: rows of its own (such as those of a taskset), as a list from number `start` up to before `stop`,
      fewer where there are no more. The same numbers always have the same rows. Called instead of `reset`.
    """

    def reset(self, row: Mapping[str, Any]) -> Observation:
        """Begin, and return what the model reads before its first turn, beside the row's prompt. Often it is empty.

        Called once, before everything else.

        Args:
            row: the data row: ``prompt``, ``answer``, ``metadata`` and whatever else it has; JSON values only. In a run that
                reads its prompts from the environment, ``seed`` is a whole number, the same for all sessions of a row.

        Raises:
            Exception: it cannot begin; the session has failed, with the exception as its reason.
        """
        ...

    def step(self, action: Any) -> StepResult | Mapping[str, Any]:
        """Answer one turn. What a model writes is no error: nonsense of a model gets an observation that says so.

        Args:
            action: the text of the model's turn, any text; token ids where it is `tokenized`.

        Raises:
            Exception: the environment itself failed; so has the session, with the exception as its reason.
        """
        ...

    def close(self) -> None:
        """Release what the session holds. Called once, whatever happened before, also where `reset` was not called."""
        ...


def is_restorable(environment: object) -> bool:
    """Whether a class or a session offers `snapshot` and `restore`."""
    return callable(getattr(environment, "snapshot", None)) and callable(getattr(environment, "restore", None))
