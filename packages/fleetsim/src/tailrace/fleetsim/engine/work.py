"""One turn of a trajectory, as work for an engine."""

from __future__ import annotations

from tailrace.fleetsim.errors import WorkError


class Work:
    """A trajectory to generate from its beginning or to resume, up to the end of a turn: an environment answers outside.

    Args:
        id: the trajectory's id.
        prompt_tokens: number of prompt tokens, at least 1.
        done_tokens: number of response tokens generated earlier.
        response_tokens: number of response tokens at the end of the turn.
        cached_tokens: tokens of its context that are in the engine's cache already.
    An engine that gives work back (`Engine.remove`, `Engine.clear`) writes its progress into `done_tokens`, so that the same
    object can resume elsewhere.
    """

    __slots__ = ("cached", "cached_tokens", "done_tokens", "final", "id", "left", "prompt_tokens", "response_tokens")

    # Used by the engine alone, set by `begin`.
    cached: int  # context tokens in the cache at its next prefill
    final: int  # context tokens at the end
    left: int  # response tokens left to generate when it last joined the queue

    def __init__(
        self,
        id: str,  # noqa: A002  the vocabulary's word
        prompt_tokens: int,
        done_tokens: int,
        response_tokens: int,
        cached_tokens: int = 0,
    ) -> None:
        self.id = id
        self.prompt_tokens = prompt_tokens
        self.done_tokens = done_tokens
        self.response_tokens = response_tokens
        self.cached_tokens = cached_tokens

    def __repr__(self) -> str:
        return f"Work({self.id!r}, {self.prompt_tokens}, {self.done_tokens}, {self.response_tokens})"

    def begin(self) -> int:
        """Make it ready for a queue. Returns its tokens at the end, including the prompt.

        Raises:
            WorkError: it has no prompt, or no response token left.
        """
        prompt, done, total = self.prompt_tokens, self.done_tokens, self.response_tokens
        if prompt < 1 or not 0 <= done < total:
            raise WorkError(
                f"trajectory {self.id}: found {prompt} prompt tokens and {done} of {total} response tokens done, expected at "
                "least 1, and fewer done than there are"
            )
        self.final = final = prompt + total
        self.left = total - done
        self.cached = self.cached_tokens
        return final
