"""Prompts as tokens: the prompt stream for training, held-out problems for evaluation, and the decoding modes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tailrace.contracts import Purpose, Sampling, TrajectoryRef, extra
from tailrace.environment import Observation
from tailrace.trajstore import Prompt, PromptMix, PromptPool

COLUMN = "beginning"
"""The column of a run's own prompt files with a row's beginning."""
METADATA = "metadata"
"""The column of a run's own prompt files with what a verifier gets beside the answer."""


BEFORE = "before"
"""The column of a run's own prompt files with the tokens that stand before a prompt's text; none: none do."""


@dataclass(frozen=True, slots=True)
class DecodingMode:
    """How one kind of response is drawn.

    Args:
        temperature: sampling temperature; 0 is greedy.
        prefix: text with which each response is forced to begin (the control that forces a style).
        turns: whether the task's environment answers, if it has one; otherwise a response ends with its first turn.
    """

    temperature: float = 1.0
    prefix: str = ""
    turns: bool = True


@dataclass(frozen=True, slots=True)
class PromptSettings:
    """Which prompts a run has.

    Args:
        tokenizer: a Hugging Face ``tokenizer.json``.
        train: prompts to train on, a file or several.
        held_out: problems to evaluate on; None if there are none.
        modes: decoding modes of evaluations by name.
        shares: share of each of several files in the prompts.
        shuffle_seed: seed of the order of training prompts; None keeps the file's order.
        end_tokens: tokens that say that a response or a turn is over; their text is no part of what a response says.
    """

    tokenizer: Path
    train: Path | Sequence[Path]
    held_out: Path | None = None
    modes: Mapping[str, DecodingMode] = field(default_factory=dict)
    shares: Sequence[float] = (1.0,)
    shuffle_seed: int | None = 0
    end_tokens: Collection[int] = ()


class Prompts:
    """Looks prompts up and encodes them."""

    def __init__(self, settings: PromptSettings) -> None:
        with extra("tailrace-trainer", "torch"):
            from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(settings.tokenizer))
        seed = settings.shuffle_seed
        files = [settings.train] if isinstance(settings.train, Path) else settings.train
        pools = [PromptPool.from_file(file, shuffle_seed=seed) for file in files]
        self._train = pools[0] if len(pools) == 1 else PromptMix(pools, settings.shares, shuffle_seed=seed)
        self._held_out = PromptPool.from_file(settings.held_out) if settings.held_out else None
        self._modes, self._ends = dict(settings.modes), frozenset(settings.end_tokens)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ends = {token for token in self._ends if token in added and added[token].special}

    def prompt(self, ref: TrajectoryRef) -> Prompt:
        """The row of a trajectory."""
        if ref.purpose is Purpose.TRAIN:
            return self._train[ref.prompt]
        assert self._held_out is not None
        return self._held_out[ref.prompt]

    def encode(self, ref: TrajectoryRef) -> tuple[int, ...]:
        """Prompt tokens, followed by the mode's prefix. Tokens that the environment has given are not encoded again."""
        prompt, prefix = self.prompt(ref), self.prefix(ref)
        begun = beginning_of(prompt)
        given = None if begun is None else begun.tokens
        text = prompt.prompt + prefix if given is None else prefix
        before = given or prompt.metadata.get(BEFORE, ())
        return (*before, *self._tokenizer.encode(text, add_special_tokens=False).ids)

    def prefix(self, ref: TrajectoryRef) -> str:
        """The text with which the response was forced to begin."""
        return self._modes[ref.mode].prefix if ref.purpose is Purpose.EVAL else ""

    def decode(self, tokens: Sequence[int], generated: Sequence[bool] | None = None) -> str:
        """What a response says: the text of its tokens, without those that only end it or a turn of it.

        Special tokens that do so are left out wherever they stand. Others, such as a line break at which generation is made to
        stop, are left out at the end of a turn.

        Args:
            generated: for every token, whether the model generated it; None: it generated all.
        """
        said: list[int] = []
        for is_turn, part in _turns(tokens, generated):
            while is_turn and part and part[-1] in self._ends:
                part.pop()
            said += part
        kept = [token for token in said if token not in self._special_ends]
        text: str = self._tokenizer.decode(kept, skip_special_tokens=False)
        return text


def _turns(tokens: Sequence[int], generated: Sequence[bool] | None) -> Iterator[tuple[bool, list[int]]]:
    """Runs of tokens that the model generated, or that it did not."""
    if generated is None:
        yield True, list(tokens)
        return
    for own, run in groupby(zip(tokens, generated, strict=True), key=itemgetter(1)):
        yield own, [token for token, _ in run]


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """Sampling parameters of each trajectory.

    Args:
        temperature: temperature of training trajectories, which is also the trainer's.
        max_tokens: most response tokens, with what environments answered.
        stop_token_ids: tokens that end a response or, with `turns`, a turn.
        modes: decoding modes of evaluations.
        seed: the run's seed.
        turns: whether the task has an environment that answers.
    """

    temperature: float
    max_tokens: int
    stop_token_ids: tuple[int, ...]
    modes: Mapping[str, DecodingMode]
    seed: int = 0
    turns: bool = False

    def __call__(self, ref: TrajectoryRef) -> Sampling:
        """The sampling parameters of a trajectory. One that resumes gets new noise, not that of its first tokens again."""
        mode = DecodingMode(self.temperature) if ref.purpose is Purpose.TRAIN else self.modes[ref.mode]
        seed = None if ref.draw is None else noise_seed(self.seed, ref.draw, ref.sample, ref.kept)
        return Sampling(mode.temperature, self.max_tokens, self.stop_token_ids, seed, self.turns and mode.turns)


def session_row(prompt: Prompt, name: str) -> dict[str, Any]:
    """What an environment gets of a row: the same for all sessions of a row that has a `Beginning`.

    Args:
        prompt: the row.
        name: the trajectory, which is the session's seed where the row has no beginning.
    """
    begun = beginning_of(prompt)
    text, seed = (prompt.prompt, name) if begun is None else (begun.prompt, begun.seed)
    return {"prompt": text, "answer": prompt.answer, "metadata": item_metadata(prompt), "seed": seed}


def item_metadata(prompt: Prompt) -> dict[str, Any]:
    """The verifier's metadata of a prompt of the run's own files: the row's ``metadata`` object, or its further columns."""
    nested = prompt.metadata.get(METADATA)
    return dict(nested) if isinstance(nested, Mapping) else dict(prompt.metadata)


# How sessions begin where the environment says the first word: each row has what it said when the run was prepared.
#
# All samples of a group read one prompt. So the environment is asked once for each row, before the run, and what it says is the
# row's prompt. Every session of the row is given the same data again, and must begin with the same words.


@dataclass(frozen=True, slots=True)
class Beginning:
    """How each session of a row begins.

    Args:
        where: the row's place in the user's file, or among the environment's own rows, for messages.
        prompt: the row's own prompt, which the environment gets; often empty.
        seed: the row's seed, which the environment gets.
        observation: what it said to them: text, or token ids if it renders prompts itself.
    """

    where: str
    prompt: str
    seed: int
    observation: Observation

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """The whole prompt as token ids, of an environment that renders prompts itself; None of one that says text."""
        return None if isinstance(self.observation, str) else tuple(self.observation)

    def same(self, observation: Observation) -> bool:
        """Whether a session has begun with the same."""
        if isinstance(self.observation, str) or isinstance(observation, str):
            return self.observation == observation
        return tuple(self.observation) == tuple(observation)

    def plain(self) -> dict[str, Any]:
        """The beginning as JSON values."""
        return asdict(self)


def beginning_of(prompt: Prompt) -> Beginning | None:
    """The beginning of a row; None if its prompt says everything."""
    found = prompt.metadata.get(COLUMN)
    return Beginning(**found) if isinstance(found, Mapping) else None


def noise_seed(run: int, draw: int, sample: int, kept: int) -> int:
    """The seed of a trajectory's noise from its `kept`-th response token on: from 0 to 2**63 - 1, the same on every machine."""
    digest = hashlib.blake2b(f"{run} {draw} {sample} {kept}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
