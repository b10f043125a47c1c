"""What roles ask of each other: protocols, beside those of what the executor asks them (`tailrace.runtime.executor.doors`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.contracts import (
    Experience,
    ExperienceOutline,
    FinishReason,
    PackedTokens,
    PartialDelta,
    Resume,
    TrajectoryRef,
)
from tailrace.runtime.executor.deployment import DATA, RELAY, TRAINER
from tailrace.runtime.executor.doors import Role, RoleDoor, StoreCalls, TrainerCalls

if TYPE_CHECKING:
    from tailrace.reward import ScoreItem
    from tailrace.trajstore import Conversation, Prompt, Turn
else:
    # Only who asks for these imports where they come from: a relay needs neither.
    _HOMES = {"ScoreItem": "reward", "Conversation": "trajstore", "Prompt": "trajstore", "Turn": "trajstore"}

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"tailrace.{_HOMES[name]}"), name)


class RankCalls(TrainerCalls, Protocol):
    """One rank of the trainer, as the first rank calls the others."""

    def follow(self, address: str, /) -> None:
        """Send to this relay from now on."""
        ...


class RelayCalls(Role, Protocol):
    """A machine's relay."""

    def memory(self, but: str | None, /) -> str:
        """Address of a process that holds checkpoints in this machine's memory; empty on the machine `but`."""
        ...


class DataCalls(StoreCalls, Protocol):
    """The trajectory store and the prompts; `DataRole` says what each call does. A call may be repeated."""

    def begin(self, owner: str, version: int, refs: Sequence[TrajectoryRef], seq: int, /) -> list[Resume]: ...

    def append(self, owner: str, deltas: Sequence[PartialDelta], /) -> list[str]: ...

    def conversations(self, ids: Sequence[str], /) -> list[tuple[Conversation, Prompt, str]]: ...

    def observe(
        self,
        trajectory: str,
        serial: int,
        tokens: Sequence[int],
        finish: FinishReason | None,
        reward: float,
        session: bytes | None,
        fresh: bool = False,
        /,
    ) -> Turn | None: ...

    def to_score(self, ids: Sequence[str], /) -> list[ScoreItem]: ...

    def set_rewards(self, rewards: Mapping[str, float], /) -> None: ...

    def prompt_texts(self, prompts: Sequence[int], /) -> list[str]: ...

    def finished_lengths(self, after: int, /) -> list[FinishedLength]: ...

    def experiences(self, ids: Sequence[str], /) -> list[Experience]: ...

    def outlines(self, ids: Sequence[str], /) -> list[ExperienceOutline]: ...

    def packed(self, wanted: Sequence[tuple[str, bool]], /) -> list[PackedTokens]: ...

    def consume(self, ids: Sequence[str], version: int, /) -> None: ...

    def roll_back(self, version: int, /) -> None: ...

    def trim(self, version: int, /) -> int: ...

    def audit(self) -> dict[str, Any]: ...

    def trained_lengths(self) -> list[int]: ...

    def export(self, path: Path, /) -> None: ...


DATA_DOOR = RoleDoor[DataCalls](DATA, DataCalls)
TRAINER_DOOR = RoleDoor[RankCalls](TRAINER, RankCalls)
RELAY_DOOR = RoleDoor[RelayCalls](RELAY, RelayCalls)


MOST = 16_384  # responses that are kept: some batches of a large run


@dataclass(frozen=True, slots=True)
class FinishedLength:
    """A finished response of training.

    Args:
        number: place in the order in which they finished, from 1.
        prompt: its prompt's text.
        tokens: its response tokens, without what environments answered.
        version: the oldest version of its tokens.
        truncated: whether a limit ended it: on its tokens, on its turns or of the context.
    """

    number: int
    prompt: str
    tokens: int
    version: int
    truncated: bool = False


class FinishedLengths:
    """The last ones, each once; older ones are forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._number = most, 0
        self._of: dict[str, FinishedLength] = {}

    def note(self, trajectory: str, prompt: str, tokens: int, version: int, *, truncated: bool) -> None:
        """Note a finished response. A repeated one, which is scored again, changes nothing."""
        if trajectory in self._of:
            return
        self._number += 1
        self._of[trajectory] = FinishedLength(self._number, prompt, tokens, version, truncated)
        if len(self._of) > self._most:
            del self._of[next(iter(self._of))]

    def since(self, number: int) -> list[FinishedLength]:
        """Lengths after a number, in order; all if the number exceeds every known one: the data role restarted."""
        if number > self._number:
            number = 0
        oldest = self._number - len(self._of)
        return list(islice(self._of.values(), max(0, number - oldest), None))
