"""The lengths of the responses that finished last, for a ranker to learn from."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

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
