"""One trajectory's work for an engine."""

from __future__ import annotations

from math import inf

from tailrace.fleetsim.errors import WorkError


class Work:
    """A trajectory to generate from its beginning or to resume.

    Args:
        id: the trajectory's id.
        prompt_tokens: number of prompt tokens, at least 1.
        done_tokens: number of response tokens generated earlier. If they end with a turn, the next turn follows.
        turns: for each turn its response tokens (at least 1) and the seconds in the environment after it (0 after the last).
        environment_s: seconds in the environment before it first queues, for work that left an engine while it was there.
        cached_tokens: tokens of its context that are in the engine's cache already.
    An engine that gives work back (`Engine.remove`, `Engine.clear`) writes its progress into `done_tokens` and
    `environment_s`, so that the same object can resume elsewhere.
    """

    __slots__ = (
        "cached",
        "cached_tokens",
        "done_tokens",
        "environment_s",
        "final",
        "id",
        "last",
        "left",
        "prompt_tokens",
        "turn",
        "turns",
    )

    # Used by the engine alone, set by `begin`.
    cached: int  # context tokens in the cache at its next prefill
    final: int  # context tokens at the end of the current or next turn
    last: bool  # whether that turn is the last one
    left: int  # response tokens left to generate when it last joined the queue
    turn: int  # index of that turn

    def __init__(
        self,
        id: str,  # noqa: A002  the vocabulary's word
        prompt_tokens: int,
        done_tokens: int,
        turns: tuple[tuple[int, float], ...],
        environment_s: float = 0.0,
        cached_tokens: int = 0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.done_tokens = done_tokens
        self.turns = turns
        self.environment_s = environment_s
        self.cached_tokens = cached_tokens

    def __repr__(self) -> str:
        return f"Work({self.id!r}, {self.prompt_tokens}, {self.done_tokens}, {self.turns}, {self.environment_s})"

    def begin(self) -> int:
        """Find the next turn. Returns the tokens of the whole trajectory, including the prompt.

        Raises:
            WorkError: it has no prompt, no response token left, or a turn whose numbers are out of range.
        """
        turns = self.turns
        prompt, done = self.prompt_tokens, self.done_tokens
        if len(turns) == 1:
            total, after_s = turns[0]
            self.turn, end = 0, total
        else:
            total, after_s, self.turn, end = 0, 0.0, -1, 0
            for index, (tokens, after_s) in enumerate(turns):
                if tokens < 1 or not 0.0 <= after_s < inf:
                    raise WorkError(
                        f"trajectory {self.id}: turn {index} has {tokens} tokens and then {after_s} s in the "
                        f"environment, expected at least 1 token and a finite time"
                    )
                total += tokens
                if self.turn < 0 and done < total:
                    self.turn, end = index, total
        if prompt < 1 or not 0 <= done < total or after_s or not 0.0 <= self.environment_s < inf:
            raise WorkError(
                f"trajectory {self.id}: found {prompt} prompt tokens, {done} of {total} response tokens done, {after_s} s in "
                f"the environment after the last turn and {self.environment_s} s before the first, "
                f"expected at least 1, fewer done than there are, 0 s, and a finite time"
            )
        self.last = end == total
        self.final = prompt + end
        self.left = end - done
        self.cached = self.cached_tokens
        return prompt + total

    def next_turn(self, cached_share: float) -> float:
        """End the turn and go to the next one. Returns the seconds in the environment before it."""
        context = self.final
        tokens = self.turns[self.turn + 1][0]
        latency_s = self.turns[self.turn][1]
        self.turn += 1
        self.last = self.turn + 1 == len(self.turns)
        self.final = context + tokens
        self.left = tokens
        self.cached = int(context * cached_share)
        return latency_s
