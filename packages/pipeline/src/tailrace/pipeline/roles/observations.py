"""What an environment answers, as tokens: encoded once, and never together with what was said before.

A chat model reads an answer in the words of its template: what ends the model's turn, the answer as a message, and what begins
the next turn. These words are the same for every answer (`Glue`). A model without a template reads the answer as it stands; an
answer of no words, such as of a program that prints nothing, is an empty line, which it can tell from its own end of turn.
An environment that renders prompts itself speaks in token ids, which stay as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tailrace.contracts import extra
from tailrace.environment import Action, Observation, SessionError


@dataclass(frozen=True, slots=True)
class Glue:
    """What a chat template writes around an environment's answer, behind the token that ended the model's turn.

    Args:
        before: text between that token and the answer.
        after: text between the answer and the model's next turn.
    """

    before: str = ""
    after: str = ""


class Observations:
    """Turns the model's turns into text, and an environment's answers into tokens.

    Args:
        tokenizer: a Hugging Face ``tokenizer.json``.
        stop_token_ids: tokens that end a turn.
        glue: the words of the model's chat template, for prompts that it wrote; None if it has none.
    """

    def __init__(self, tokenizer: Path, stop_token_ids: Collection[int], glue: Glue | None) -> None:
        with extra("tailrace-trainer", "torch"):
            from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._stops, self._glue = frozenset(stop_token_ids), glue
        self._before, self._after = (self._encode(text) for text in ((glue.before, glue.after) if glue else ("", "")))

    def action(self, response: tuple[int, ...]) -> str:
        """The text of a turn, without the token that ended it."""
        tokens = response[:-1] if response and response[-1] in self._stops else response
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def said(self, response: tuple[int, ...], forced: str = "", *, tokenized: bool) -> Action:
        """What an environment gets of a turn, with the text with which it was made to begin: its text, or all its tokens."""
        return [*self._encode(forced), *response] if tokenized else forced + self.action(response)

    def tokens(self, answer: Observation, prompt: str) -> tuple[int, ...]:
        """The tokens of an answer, in a conversation that began with a prompt's text.

        Text of the answer that looks like a special token, such as the end of a turn, is encoded as the text that it is.

        Raises:
            SessionError: the answer is a token that the model does not have.
        """
        if not isinstance(answer, str):
            check_tokens(answer, self._tokenizer.get_vocab_size())
            return tuple(answer)
        chats = self._glue is not None and bool(self._glue.after) and prompt.endswith(self._glue.after)
        if chats:
            return (*self._before, *self._encode(answer, literally=True), *self._after)
        return self._encode(answer or "\n", literally=True)

    def _encode(self, text: str, *, literally: bool = False) -> tuple[int, ...]:
        self._tokenizer.encode_special_tokens = literally
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)


def check_tokens(tokens: Sequence[int], size: int) -> None:
    """Check that a tokenizer of so many tokens has these.

    Raises:
        SessionError: it has not.
    """
    most = max(tokens, default=0)
    if most >= size:
        raise SessionError(
            f"the environment said the token {most}, expected one below {size}: does it have the model's tokenizer?"
        )
