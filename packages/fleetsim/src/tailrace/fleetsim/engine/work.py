"""One trajectory's work, as an engine is given it."""

from __future__ import annotations

from math import inf

from tailrace.fleetsim.errors import WorkError


class Work:
    """A trajectory to generate, all of it or what is left of it.

    Args:
        id: the trajectory's name.
        prompt_tokens: at least 1.
        done_tokens: response tokens that are kept from earlier. Where they end with a turn, the next turn comes next.
        turns: for each turn its response tokens (at least 1) and the seconds in the environment after it (0 after the last).
        environment_s: seconds in the environment before it first queues; for work that left an engine from there.

    An engine that gives work back (`Engine.remove`, `Engine.clear`) writes its progress into `done_tokens` and
    `environment_s`, so the same object can go on elsewhere.
    """

    __slots__ = (
        "cached",
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

    # The engine's own, set by `begin`.
    cached: int  # context tokens that its next prefill finds in the cache
    final: int  # context tokens at the end of the turn that comes next or runs
    last: bool  # that turn is the last one
    left: int  # response tokens that it still needed when it last joined the queue
    turn: int  # its index

    def __init__(
        self,
        id: str,  # noqa: A002  the vocabulary's word
        prompt_tokens: int,
        done_tokens: int,
        turns: tuple[tuple[int, float], ...],
        environment_s: float = 0.0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.done_tokens = done_tokens
        self.turns = turns
        self.environment_s = environment_s

    def __repr__(self) -> str:
        return f"Work({self.id!r}, {self.prompt_tokens}, {self.done_tokens}, {self.turns}, {self.environment_s})"

    def begin(self) -> int:
        """Find the turn that comes next; returns the tokens of the whole trajectory, prompt included.

        Raises:
            WorkError: it has no prompt, no response token left, or a turn that cannot be.
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
        self.cached = 0
        return prompt + total

    def next_turn(self, cached_share: float) -> float:
        """The turn is over: go on to the next one; returns the seconds in the environment before it."""
        context = self.final
        tokens = self.turns[self.turn + 1][0]
        latency_s = self.turns[self.turn][1]
        self.turn += 1
        self.last = self.turn + 1 == len(self.turns)
        self.final = context + tokens
        self.left = tokens
        self.cached = int(context * cached_share)
        return latency_s
